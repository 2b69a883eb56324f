#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe soak.
void addSoakCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
