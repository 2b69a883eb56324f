#pragma once

#include <exception>
#include <string_view>

#include "base/log.h"

namespace troupe {

/// "an exception ended WHAT: ...", critical. What the logger itself throws is dropped: there is nobody to tell.
void logException(spdlog::logger& log, std::string_view what, const std::exception_ptr& thrown) noexcept;

}  // namespace troupe
