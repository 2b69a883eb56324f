#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe explain: by which transport the bytes to a segment go, and why not by a better one.
void addExplainCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
