#pragma once

#include "apps/support/command.h"

namespace troupe::apps {

/// troupe serve: exposes registered memory until told to stop.
void addServeCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
