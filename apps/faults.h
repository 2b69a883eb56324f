#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe faults.
void addFaultsCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
