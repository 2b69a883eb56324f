#include "base/config_units.h"

#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <string_view>

#include "base/config.h"

namespace troupe {

namespace {

struct Unit {
    std::string_view name;
    std::uint64_t factor;
};

constexpr std::uint64_t kKilo = 1'000;
constexpr std::uint64_t kMega = 1'000'000;
constexpr std::uint64_t kGiga = 1'000'000'000;
constexpr std::uint64_t kTera = 1'000'000'000'000;
constexpr std::uint64_t kKibi = 1ull << 10;
constexpr std::uint64_t kMebi = 1ull << 20;
constexpr std::uint64_t kGibi = 1ull << 30;
constexpr std::uint64_t kTebi = 1ull << 40;

constexpr std::array<Unit, 14> kByteUnits{{
    {"", 1},
    {"B", 1},
    {"K", kKilo},
    {"M", kMega},
    {"G", kGiga},
    {"T", kTera},
    {"KB", kKilo},
    {"MB", kMega},
    {"GB", kGiga},
    {"TB", kTera},
    {"KiB", kKibi},
    {"MiB", kMebi},
    {"GiB", kGibi},
    {"TiB", kTebi},
}};

/// Factors in microseconds.
constexpr std::array<Unit, 6> kTimeUnits{{
    {"us", 1},
    {"ms", 1000},
    {"s", 1'000'000},
    {"min", 60'000'000},
    {"m", 60'000'000},  // After min, which is what is shown.
    {"h", 3'600'000'000},
}};

std::string listOf(std::span<const Unit> units) {
    std::string text;
    for (const Unit& unit : units) {
        if (unit.name.empty()) continue;
        if (!text.empty()) text += ", ";
        text += unit.name;
    }
    return text;
}

/// A whole number and one of `units`, at most `limit` when multiplied out. `what` is for the message.
Result<std::uint64_t> parseWithUnit(std::string_view text, std::span<const Unit> units, std::uint64_t limit,
                                    const char* what) {
    const auto refuse = [&](const std::string& why) {
        return Status(Code::InvalidArgument, "'" + std::string(text) + "' is not a " + what + ": " + why);
    };
    std::uint64_t number = 0;
    const char* const last = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), last, number);
    if (error == std::errc::result_out_of_range) return refuse("too large");
    if (error != std::errc()) return refuse("it must be a whole number and a unit (" + listOf(units) + ")");
    std::string_view suffix(rest, static_cast<std::size_t>(last - rest));
    // "1 GiB" is what people write, and what reports of the program say.
    if (suffix.size() > 1 && suffix.front() == ' ') suffix.remove_prefix(1);
    // Zero is zero in any unit, so it may do without.
    if (number == 0 && suffix.empty()) return std::uint64_t{0};
    for (const Unit& unit : units) {
        if (unit.name != suffix) continue;
        if (number > limit / unit.factor) return refuse("too large");
        return number * unit.factor;
    }
    return refuse("its unit must be one of " + listOf(units));
}

/// `value` in the largest of `units` that divides it.
std::string formatWithUnit(std::uint64_t value, std::span<const Unit> units) {
    if (value == 0) return "0";
    const Unit* best = &units.front();
    for (const Unit& unit : units)
        if (value % unit.factor == 0 && unit.factor > best->factor) best = &unit;
    return std::to_string(value / best->factor).append(best->name);
}

}  // namespace

Result<std::uint64_t> parseBytes(std::string_view text) {
    return parseWithUnit(text, kByteUnits, std::numeric_limits<std::uint64_t>::max(), "size");
}

Result<std::chrono::microseconds> parseTime(std::string_view text) {
    const auto limit = static_cast<std::uint64_t>(std::chrono::microseconds::max().count());
    auto parsed = parseWithUnit(text, kTimeUnits, limit, "time");
    if (!parsed) return parsed.status();
    return std::chrono::microseconds(static_cast<std::int64_t>(*parsed));
}

std::string formatBytesSetting(std::uint64_t bytes) {
    // Powers of 1024 only: what people set is nearly always one, and "64KiB" must not come back as "65536".
    static constexpr std::array<Unit, 5> kShown{
        {{"", 1}, {"KiB", kKibi}, {"MiB", kMebi}, {"GiB", kGibi}, {"TiB", kTebi}}};
    return formatWithUnit(bytes, kShown);
}

std::string formatTimeSetting(std::chrono::microseconds time) {
    if (time.count() < 0) return "-" + formatWithUnit(0 - static_cast<std::uint64_t>(time.count()), kTimeUnits);
    return formatWithUnit(static_cast<std::uint64_t>(time.count()), kTimeUnits);
}

}  // namespace troupe
