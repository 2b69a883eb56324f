#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe demo: two real processes, everything once, in less than a minute.
void addDemoCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
