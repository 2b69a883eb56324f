#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe config: every setting with its value and where that came from.
void addConfigCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
