#include "topology/location.h"

#include <algorithm>

#include "topology/sysfs.h"

namespace troupe {

namespace {

constexpr int kMaxNumber = 65535;

Status badLocation(std::string_view text) {
    return {Code::InvalidArgument, "location '" + std::string(text.substr(0, 64)) +
                                       "' is none of \"*\", \"cpu:N\" (a NUMA node), \"cuda:N\" (a GPU) and "
                                       "\"segments:BYTES:N,N,...\" (parts on NUMA nodes)"};
}

}  // namespace

Result<Location> parseLocation(std::string_view text) {
    Location location;
    if (text == "*") return location;
    if (text.size() > Location::kMaxText)
        return Status(Code::InvalidArgument, "a location of " + std::to_string(text.size()) +
                                                 " characters is too long (at most " +
                                                 std::to_string(Location::kMaxText) + ")");
    // One name for each place: no leading zeros.
    const auto number = [](std::string_view digits) -> int {
        const auto value = sysfs::toInt(digits);
        return value && *value >= 0 && *value <= kMaxNumber && digits == std::to_string(*value) ? *value : -1;
    };
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) return badLocation(text);
    const std::string_view kind = text.substr(0, colon);
    std::string_view rest = text.substr(colon + 1);
    if (kind == "cpu" || kind == "cuda") {
        location.kind = kind == "cpu" ? Location::Kind::Cpu : Location::Kind::Cuda;
        location.numbers = {number(rest)};
    } else if (kind == "segments") {
        location.kind = Location::Kind::Segments;
        const auto second = rest.find(':');
        if (second == std::string_view::npos) return badLocation(text);
        const auto granule = sysfs::toInt(rest.substr(0, second));
        if (!granule || *granule <= 0) return badLocation(text);
        location.granule = static_cast<std::uint64_t>(*granule);
        rest.remove_prefix(second + 1);
        for (;;) {
            const auto comma = rest.find(',');
            location.numbers.push_back(number(rest.substr(0, comma)));
            if (comma == std::string_view::npos) break;
            rest.remove_prefix(comma + 1);
        }
    } else {
        return badLocation(text);
    }
    if (std::find(location.numbers.begin(), location.numbers.end(), -1) != location.numbers.end())
        return badLocation(text);
    return location;
}

Location Location::onNode(int node) {
    Location location;
    if (node < 0) return location;
    location.kind = Kind::Cpu;
    location.numbers = {node};
    return location;
}

/// The smallest multiple of the granule with which all parts hold the region.
std::uint64_t Location::partBytes(std::uint64_t length) const {
    const std::uint64_t share = length / numbers.size() + (length % numbers.size() != 0 ? 1 : 0);
    const std::uint64_t granules = std::max<std::uint64_t>(share / granule + (share % granule != 0 ? 1 : 0), 1);
    return granules * granule;
}

int Location::nodeAt(std::uint64_t offset, std::uint64_t length) const {
    if (kind == Kind::Any) return -1;
    if (kind != Kind::Segments) return numbers.front();
    return numbers[std::min<std::uint64_t>(offset / partBytes(length), numbers.size() - 1)];
}

std::string Location::at(std::uint64_t offset, std::uint64_t length) const {
    if (kind == Kind::Any) return "*";
    return (kind == Kind::Cuda ? "cuda:" : "cpu:") + std::to_string(nodeAt(offset, length));
}

std::uint64_t Location::endOfPart(std::uint64_t offset, std::uint64_t length) const {
    if (kind != Kind::Segments) return length;
    const std::uint64_t part = partBytes(length);
    const std::uint64_t index = offset / part;
    return index + 1 >= numbers.size() ? length : std::min(length, (index + 1) * part);
}

}  // namespace troupe
