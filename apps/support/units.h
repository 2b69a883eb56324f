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
/// Three significant digits, without an exponent: "2561", "12.3", "0.00417".
std::string formatFigure(double figure);
/// "1 region", "4 regions"; `plural` where it is not an s more.
std::string counted(std::uint64_t number, const std::string& noun, const std::string& plural = "");
/// "0x7f0012345000".
std::string formatAddress(std::uint64_t address);
double toSeconds(std::chrono::nanoseconds time);
double toMicroseconds(std::chrono::nanoseconds time);

}  // namespace troupe::apps
