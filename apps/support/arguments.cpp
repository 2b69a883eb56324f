#include "apps/support/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "apps/support/units.h"
#include "base/config.h"
#include "base/config_units.h"

namespace troupe::apps {

namespace {

std::uint64_t bytesOrThrow(const std::string& name, const std::string& text) {
    const auto bytes = parseBytes(text);
    if (!bytes) throw CLI::ValidationError(name, explainFraction(bytes.status().message(), text));
    if (*bytes == 0) throw CLI::ValidationError(name, "a size of 0 makes no sense here; give at least 1 B");
    return *bytes;
}

double secondsOrThrow(const std::string& name, const std::string& text, Zero zero) {
    double seconds = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, seconds);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
        const auto time = parseTime(text);
        if (!time) throw CLI::ValidationError(name, explainFraction(time.status().message(), text));
        seconds = toSeconds(*time);
    }
    constexpr double kLongest = 1e8;  // Three years; above, times in nanoseconds come near their end.
    if (!(seconds >= 0 && seconds <= kLongest))
        throw CLI::ValidationError(name, fmt::format("'{}' is not between 0 and {:.0e} seconds", text, kLongest));
    if (seconds == 0 && zero == Zero::Refused)
        throw CLI::ValidationError(name, fmt::format("'{}' is not more than 0 (up to {:.0e} seconds)", text, kLongest));
    return seconds;
}

/// Decimal digits alone.
std::optional<std::uint64_t> wholeNumberOf(const std::string& text) {
    std::uint64_t number = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    return number;
}

/// What stands between the commas of each. CLI11's own lists leave out what is empty, so that "4KiB," seems right.
std::vector<std::string> valuesOf(const std::string& name, const std::vector<std::string>& texts) {
    std::vector<std::string> values;
    for (const auto& text : texts) {
        for (std::size_t begin = 0; begin <= text.size();) {
            const std::size_t comma = std::min(text.find(',', begin), text.size());
            if (comma == begin)
                throw CLI::ValidationError(name, fmt::format("'{}' has no value before or after a comma", text));
            values.push_back(text.substr(begin, comma - begin));
            begin = comma + 1;
        }
    }
    return values;
}

}  // namespace

std::string explainFraction(const std::string& message, const std::string& text) {
    const auto point = text.find('.');
    const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (point == std::string::npos || !(digit(point + 1) || (point > 0 && digit(point - 1)))) return message;
    for (const std::string_view begin : {"is not a size: ", "is not a time: "})
        if (const auto at = message.find(begin); at != std::string::npos)
            return message.substr(0, at + begin.size()) +
                   "a fraction with a unit is not accepted, take a smaller unit: " +
                   (begin.find("size") != std::string_view::npos ? "1536MiB for 1.5GiB" : "1500ms for 1.5s");
    return message;
}

CLI::App* addCommand(CLI::App& app, const std::string& name, const std::string& description) {
    return app.add_subcommand(name, description);
}

CLI::Option* addBytes(CLI::App& app, const std::string& name, std::uint64_t& bytes, const std::string& description) {
    auto* option = app.add_option_function<std::string>(
        name, [name, &bytes](const std::string& text) { bytes = bytesOrThrow(name, text); }, description);
    return option->type_name("SIZE")->default_str(bytes == 0 ? "" : formatBytesSetting(bytes));
}

CLI::Option* addBytesList(CLI::App& app, const std::string& name, std::vector<std::uint64_t>& bytes,
                          const std::string& description) {
    auto* option = app.add_option_function<std::vector<std::string>>(
        name,
        [name, &bytes](const std::vector<std::string>& texts) {
            bytes.clear();
            for (const auto& text : valuesOf(name, texts)) bytes.push_back(bytesOrThrow(name, text));
        },
        description);
    // Commas, not spaces, part the values: what follows them is the command's target.
    return option->type_name("SIZE,...")->allow_extra_args(false);
}

CLI::Option* addNumbersList(CLI::App& app, const std::string& name, std::vector<std::uint32_t>& numbers,
                            std::uint32_t low, std::uint32_t high, const std::string& description) {
    auto* option = app.add_option_function<std::vector<std::string>>(
        name,
        [name, low, high, &numbers](const std::vector<std::string>& texts) {
            numbers.clear();
            for (const auto& text : valuesOf(name, texts)) {
                const auto number = wholeNumberOf(text);
                if (!number || *number < low || *number > high)
                    throw CLI::ValidationError(
                        name, fmt::format("'{}' is not a whole number from {} to {}", text, low, high));
                numbers.push_back(static_cast<std::uint32_t>(*number));
            }
        },
        description);
    return option->type_name("UINT,...")
        ->allow_extra_args(false)
        ->default_str(fmt::format("{}", fmt::join(numbers, ",")));
}

CLI::Validator wholeNumber() {
    return CLI::Validator(
        [](std::string& text) {
            return wholeNumberOf(text) ? std::string()
                                       : fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
        },
        "");
}

CLI::Option* addSeed(CLI::App& app, std::uint64_t& seed, const std::string& description) {
    return app.add_option("--seed", seed, description)->check(wholeNumber())->capture_default_str();
}

CLI::Option* addSeconds(CLI::App& app, const std::string& name, double& seconds, const std::string& description,
                        Zero zero) {
    auto* option = app.add_option_function<std::string>(
        name, [name, zero, &seconds](const std::string& text) { seconds = secondsOrThrow(name, text, zero); },
        description);
    return option->type_name("SECONDS")->default_str(seconds == 0 ? "" : fmt::format("{:g}", seconds));
}

}  // namespace troupe::apps
