#pragma once

#include <spdlog/logger.h>

#include <memory>

namespace troupe {

/// The only way Troupe says anything. The embedding program may pass its own; see EngineOptions.
using Logger = std::shared_ptr<spdlog::logger>;

/// Writes to standard error, warnings and worse. Not registered with spdlog's global registry.
Logger makeDefaultLogger();
/// Discards everything.
Logger makeSilentLogger();

}  // namespace troupe
