#include "topology/topology.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <fstream>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "topology/sysfs.h"

namespace troupe {

namespace {

namespace fs = std::filesystem;
using sysfs::entriesOf;
using sysfs::readLine;
using sysfs::toInt;

constexpr int kMaxCpu = 65535;
constexpr int kLocalDistance = 10;    // ACPI SLIT: a node's distance to itself.
constexpr int kUnknownDistance = 11;  // Behind local, before any remote one, which start at 20 in practice.
constexpr int kFarDistance = 255;     // ACPI SLIT: unreachable.
constexpr unsigned kFlagUp = 1;       // IFF_UP.

std::vector<int> readCpuList(const fs::path& path) {
    const auto line = readLine(path);
    if (!line) return {};
    auto cpus = parseCpuList(*line);
    return cpus ? std::move(*cpus) : std::vector<int>();
}

/// The distance file lists one number per online node, in the order of their ids.
void readDistances(const fs::path& system, std::vector<NumaNode>& nodes) {
    for (auto& node : nodes) {
        std::ifstream file(system / "node" / ("node" + std::to_string(node.id)) / "distance");
        std::vector<int> distances;
        for (int value = 0; file >> value;) distances.push_back(value);
        if (distances.size() != nodes.size()) continue;
        for (std::size_t i = 0; i < nodes.size(); ++i) node.distance[nodes[i].id] = distances[i];
    }
}

std::vector<NumaNode> readNodes(const fs::path& root) {
    const fs::path system = root / "devices" / "system";
    std::vector<NumaNode> nodes;
    for (const auto& path : entriesOf(system / "node")) {
        const std::string name = path.filename().string();
        if (name.rfind("node", 0) != 0) continue;
        const auto id = toInt(std::string_view(name).substr(4));
        if (id && *id >= 0) nodes.push_back({*id, readCpuList(path / "cpulist"), {}});
    }
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    readDistances(system, nodes);
    if (nodes.empty()) nodes.push_back({0, readCpuList(system / "cpu" / "online"), {}});
    return nodes;
}

/// "unknown" is what loopback and tunnels say that are up.
bool isUp(const fs::path& interface) {
    const auto state = readLine(interface / "operstate");
    if (!state || (*state != "up" && *state != "unknown")) return false;
    const auto flags = readLine(interface / "flags");
    if (!flags) return *state == "up";
    std::string_view digits = *flags;
    if (digits.substr(0, 2) == "0x") digits.remove_prefix(2);
    return (static_cast<unsigned>(toInt(digits, 16).value_or(0)) & kFlagUp) != 0;
}

std::vector<NetworkInterface> readInterfaces(const fs::path& root) {
    std::vector<NetworkInterface> interfaces;
    for (const auto& path : entriesOf(root / "class" / "net")) {
        std::error_code error;
        if (!fs::is_directory(path, error)) continue;  // bonding_masters is a file.
        NetworkInterface interface;
        interface.name = path.filename().string();
        interface.numa_node = sysfs::numaNode(path / "device");
        interface.speed_mbps =
            static_cast<std::uint32_t>(std::max(0, toInt(readLine(path / "speed").value_or("")).value_or(0)));
        interface.up = isUp(path);
        interfaces.push_back(std::move(interface));
    }
    return interfaces;
}

int distanceOf(const NumaNode& node, const NicPlace& nic) {
    if (nic.numa_node < 0) return kUnknownDistance;
    if (nic.numa_node == node.id) return kLocalDistance;
    const auto found = node.distance.find(nic.numa_node);
    return found == node.distance.end() ? kFarDistance : found->second;
}

}  // namespace

Topology discoverTopology(const fs::path& root) { return {readNodes(root), readInterfaces(root)}; }

Result<std::vector<int>> parseCpuList(std::string_view text) {
    const Status bad(Code::InvalidArgument, "'" + std::string(text.substr(0, 64)) + "' is no list of CPUs");
    std::vector<int> cpus;
    while (!text.empty()) {
        const std::string_view part = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), part.size() + 1));
        const auto dash = part.find('-');
        const auto first = toInt(part.substr(0, dash));
        const auto last = dash == std::string_view::npos ? first : toInt(part.substr(dash + 1));
        if (!first || !last || *first < 0 || *first > *last || *last > kMaxCpu) return bad;
        for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
        if (cpus.size() > 2u * kMaxCpu) return bad;  // Bounds a list that repeats itself.
    }
    std::sort(cpus.begin(), cpus.end());
    cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
    return cpus;
}

PriorityMatrix makePriorityMatrix(const std::vector<NumaNode>& nodes, const std::vector<NicPlace>& nics) {
    PriorityMatrix matrix;
    const std::vector<NumaNode> only_one(1);
    for (const auto& node : nodes.empty() ? only_one : nodes) {
        int nearest = INT_MAX;
        for (const auto& nic : nics) nearest = std::min(nearest, distanceOf(node, nic));
        auto& [preferred, available] = matrix["cpu:" + std::to_string(node.id)];
        for (const auto& nic : nics) (distanceOf(node, nic) == nearest ? preferred : available).push_back(nic.name);
    }
    return matrix;
}

std::string encodePriorityMatrix(const PriorityMatrix& matrix) {
    auto json = nlohmann::json::object();
    for (const auto& [location, devices] : matrix)
        json[location] = nlohmann::json::array({devices.first, devices.second});
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe
