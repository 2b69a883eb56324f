#include "base/per_device.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace troupe {

namespace {

/// What of a device or port may be set, as rdma.gid_index and the like are of all.
struct Knob {
    std::string_view name;
    std::uint32_t low;
    std::uint32_t high;
};
constexpr Knob kKnobs[] = {{"gid_index", 0, 256},
                           {"pkey_index", 0, 65535},
                           {"service_level", 0, 15},
                           {"traffic_class", 0, 255},
                           {"mtu", 256, 4096}};

// Ports of a device are numbered from 1, in 8 bits.
constexpr std::uint32_t kLastPort = 255;

const Knob* knob(std::string_view name) {
    const auto* const found =
        std::find_if(std::begin(kKnobs), std::end(kKnobs), [&](const Knob& known) { return known.name == name; });
    return found == std::end(kKnobs) ? nullptr : found;
}

std::optional<std::uint32_t> numberIn(std::string_view text, std::uint32_t low, std::uint32_t high) {
    std::uint32_t value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    if (text.empty() || error != std::errc() || end != last || value < low || value > high) return std::nullopt;
    return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const auto end = std::min(text.find(separator), text.size());
        if (end != 0) parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(text.size(), end + 1));
    }
    return parts;
}

std::string inQuotes(std::string_view text) { return "'" + std::string(text) + "'"; }

/// Empty: it may name a device or a port. Whether there is one is known where the devices are opened.
std::string whyNoDevice(std::string_view name) {
    const auto colon = name.find(':');
    if (name.find('=') != std::string_view::npos || colon == 0)
        return "it begins with " + inQuotes(name) +
               "; a device or a port (mlx5_0:2) is due first, then name=value for each setting";
    if (colon != std::string_view::npos && !numberIn(name.substr(colon + 1), 1, kLastPort))
        return inQuotes(name) + " names no port: after the colon a number of 1.." + std::to_string(kLastPort) +
               " is due";
    return "";
}

}  // namespace

Result<PerDevice> parsePerDevice(std::string_view text) {
    PerDevice devices;
    for (const std::string_view entry : split(text, ';')) {
        const auto bad = [&](const std::string& what) {
            return Status(Code::InvalidArgument,
                          inQuotes(entry) + ": " + what + "; an example is 'mlx5_0 gid_index=3 mtu=1024'");
        };
        const auto words = split(entry, ' ');
        if (words.empty()) continue;
        if (const std::string why = whyNoDevice(words[0]); !why.empty()) return bad(why);
        if (words.size() == 1) return bad("nothing is set for " + inQuotes(words[0]) + "; name=value is due after it");
        for (std::size_t i = 1; i < words.size(); ++i) {
            const auto equals = words[i].find('=');
            const Knob* const known = knob(words[i].substr(0, equals));
            if (known == nullptr || equals == std::string_view::npos)
                return bad(inQuotes(words[i]) +
                           " is none of gid_index, pkey_index, service_level, traffic_class and mtu with a value");
            const auto value = numberIn(words[i].substr(equals + 1), known->low, known->high);
            if (!value)
                return bad(inQuotes(words[i]) + " is not in " + std::to_string(known->low) + ".." +
                           std::to_string(known->high));
            if (!devices[std::string(words[0])].emplace(known->name, *value).second)
                return bad(inQuotes(known->name) + " of " + inQuotes(words[0]) + " is given twice");
        }
    }
    return devices;
}

}  // namespace troupe
