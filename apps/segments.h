#pragma once

#include <CLI/CLI.hpp>

#include "apps/support/command.h"

namespace troupe::apps {

/// `troupe segments`: what is in the metadata store.
void addSegmentsCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
