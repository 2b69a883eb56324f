#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::apps {

/// "512 B", "64 KiB", "1.5 MiB".
std::string formatBytes(std::uint64_t bytes);
/// "850 ns", "12.3 us", "4.56 ms", "7.89 s".
std::string formatTime(std::chrono::nanoseconds time);
/// "3.21 GB/s" (10^9 bytes), "12.3 MB/s".
std::string formatRate(double bytes_per_second);
/// "0x7f0012345000".
std::string formatAddress(std::uint64_t address);
double toSeconds(std::chrono::nanoseconds time);
double toMicroseconds(std::chrono::nanoseconds time);

}  // namespace troupe::apps
