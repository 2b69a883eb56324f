#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe topo: which devices of this machine serve which memory.
void addTopoCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
