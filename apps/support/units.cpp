#include "apps/support/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::apps {

std::string formatBytes(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) return fmt::format("{} B", bytes);
    auto value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string formatTime(std::chrono::nanoseconds time) {
    const auto ns = static_cast<double>(time.count());
    // The next unit begins where this one would be rounded to 1e+03.
    if (ns < 999.5) return fmt::format("{:.0f} ns", ns);
    if (ns < 999.5e3) return fmt::format("{:.3g} us", ns / 1e3);
    if (ns < 999.5e6) return fmt::format("{:.3g} ms", ns / 1e6);
    return fmt::format("{:.2f} s", ns / 1e9);
}

std::string formatRate(double bytes_per_second) {
    if (bytes_per_second >= 1e9) return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
    if (bytes_per_second >= 1e6) return fmt::format("{:.1f} MB/s", bytes_per_second / 1e6);
    return fmt::format("{:.1f} kB/s", bytes_per_second / 1e3);
}

std::string formatFigure(double figure) {
    const double size = std::abs(figure);
    if (size == 0) return "0";
    // Decimals so that three digits count; no more than a figure of nanounits has.
    const int decimals = std::clamp(2 - static_cast<int>(std::floor(std::log10(size))), 0, 9);
    return fmt::format("{:.{}f}", figure, decimals);
}

std::string counted(std::uint64_t number, const std::string& noun, const std::string& plural) {
    if (number == 1) return "1 " + noun;
    return fmt::format("{} {}", number, plural.empty() ? noun + "s" : plural);
}

std::string formatAddress(std::uint64_t address) { return fmt::format("0x{:x}", address); }

double toSeconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e9; }

double toMicroseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }

}  // namespace troupe::apps
