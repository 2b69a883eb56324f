#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe trace-gen: makes a small serving trace.
void addTraceGenCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
