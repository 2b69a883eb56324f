#include "topology/matrix.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "topology/location.h"

namespace troupe {

namespace {

// A device with less than this share of the speed of the fastest one that is as near is not preferred.
constexpr std::uint32_t kSlowShare = 4;

bool matchesAny(const std::string& name, const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

/// Empty: it may be used.
std::string whyNot(const RdmaDevice& device, const DeviceRules& rules) {
    if (matchesAny(device.name, rules.never)) return "the setting rdma.exclude names it";
    if (!rules.only.empty() && !matchesAny(device.name, rules.only)) return "the setting rdma.devices does not name it";
    if (!device.has_node) return "no file in /dev/infiniband: it cannot be opened here";
    if (!device.active) return "no port is active";
    return "";
}

LocationRanking rankFrom(const std::string& location, const Place& place, const Machine& machine,
                         const std::vector<const RdmaDevice*>& usable) {
    LocationRanking row{location, {}};
    struct Seen {
        const RdmaDevice* device;
        Distance distance;
    };
    std::vector<Seen> seen;
    for (const RdmaDevice* device : usable)
        seen.push_back({device, distanceBetween(place, device->place, machine.nodes)});
    std::stable_sort(seen.begin(), seen.end(), [](const Seen& a, const Seen& b) { return a.distance < b.distance; });
    std::uint32_t fastest = 0;
    for (const Seen& each : seen)
        if (each.distance == seen.front().distance) fastest = std::max(fastest, each.device->speed_gbps);
    for (const Seen& each : seen) {
        RankedDevice ranked{each.device->name, each.distance, each.distance == seen.front().distance,
                            toString(each.distance)};
        const std::uint32_t speed = each.device->speed_gbps;
        if (speed != 0) ranked.reason += "; " + std::to_string(speed) + " Gb/s";
        if (ranked.preferred && speed != 0 && speed * kSlowShare < fastest) {
            ranked.preferred = false;
            ranked.reason += ", much slower than " + std::to_string(fastest) + " Gb/s beside it";
        }
        row.devices.push_back(std::move(ranked));
    }
    return row;
}

}  // namespace

Ranking rankDevices(const Machine& machine, const DeviceRules& rules) {
    Ranking ranking;
    std::vector<const RdmaDevice*> usable;
    for (const RdmaDevice& device : machine.rdma) {
        const std::string reason = whyNot(device, rules);
        if (reason.empty())
            usable.push_back(&device);
        else
            ranking.left_out.push_back({device.name, reason});
    }
    for (const std::string& name : rules.only) {
        const bool is_pattern = name.find_first_of("*?[") != std::string::npos;
        const bool found = std::any_of(machine.rdma.begin(), machine.rdma.end(),
                                       [&](const RdmaDevice& device) { return device.name == name; });
        if (!is_pattern && !found)
            ranking.left_out.push_back({name, "the setting rdma.devices names it, but there is no such device"});
    }
    for (const NumaNode& node : machine.nodes) {
        Place place;
        place.numa_node = node.id;
        ranking.locations.push_back(rankFrom("cpu:" + std::to_string(node.id), place, machine, usable));
    }
    for (const Gpu& gpu : machine.gpus)
        ranking.locations.push_back(rankFrom("cuda:" + std::to_string(gpu.index), gpu.place, machine, usable));
    return ranking;
}

PriorityMatrix toMatrix(const Ranking& ranking) {
    PriorityMatrix matrix;
    for (const LocationRanking& row : ranking.locations) {
        auto& [preferred, available] = matrix[row.location];
        for (const RankedDevice& device : row.devices)
            (device.preferred ? preferred : available).push_back(device.name);
    }
    return matrix;
}

Result<PriorityMatrix> parsePriorityMatrix(std::string_view text) {
    const auto bad = [](const std::string& what) { return Status(Code::InvalidArgument, "priority matrix: " + what); };
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return bad("not a JSON object of location -> [[preferred], [available]]");
    PriorityMatrix matrix;
    for (const auto& [location, lists] : json.items()) {
        const auto parsed = parseLocation(location);
        if (!parsed) return parsed.status();
        if (parsed->kind == Location::Kind::Segments) return bad("'" + location + "' is not one place");
        if (!lists.is_array() || lists.size() != 2) return bad("'" + location + "' has no two lists of devices");
        std::set<std::string> seen;
        for (int which = 0; which < 2; ++which) {
            if (!lists[static_cast<std::size_t>(which)].is_array()) return bad("'" + location + "' has no two lists");
            for (const auto& name : lists[static_cast<std::size_t>(which)]) {
                if (!name.is_string() || name.get_ref<const std::string&>().empty())
                    return bad("'" + location + "' names a device that is no text");
                if (!seen.insert(name.get<std::string>()).second)
                    return bad("'" + location + "' names " + name.get<std::string>() + " twice");
                auto& entry = matrix[location];
                (which == 0 ? entry.first : entry.second).push_back(name.get<std::string>());
            }
        }
        matrix.try_emplace(location);
    }
    return matrix;
}

}  // namespace troupe
