#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe sim: runs the engine's actors under virtual time, faults and all, from seeds.
void addSimCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
