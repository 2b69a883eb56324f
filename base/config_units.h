#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe {

/// The shortest text that parseBytes reads as `bytes`: "64KiB", "1MiB", "1000".
std::string formatBytesSetting(std::uint64_t bytes);

/// The shortest text that parseTime reads as `time`: "0", "50us", "3s".
std::string formatTimeSetting(std::chrono::microseconds time);

}  // namespace troupe
