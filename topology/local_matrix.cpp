#include "topology/local_matrix.h"

#include <algorithm>

#include "base/small_file.h"

namespace troupe {

namespace {

/// A matrix is a page of text; more is the wrong file.
constexpr std::size_t kMaxFileBytes = 1u << 20;

std::vector<std::string> namesIn(std::string_view list) {
    std::vector<std::string> names;
    while (!list.empty()) {
        const auto end = std::min(list.find_first_of(", "), list.size());
        if (end != 0) names.emplace_back(list.substr(0, end));
        list.remove_prefix(std::min(list.size(), end + 1));
    }
    return names;
}

}  // namespace

DeviceRules deviceRules(const Config& config) { return {namesIn(config.rdma_devices), namesIn(config.rdma_exclude)}; }

Result<LocalMatrix> localMatrix(const Config& config, const Machine& machine) {
    if (!config.topology_matrix.empty()) {
        const std::string who = "topology.matrix '" + config.topology_matrix + "'";
        const auto text = readSmallFile(config.topology_matrix, kMaxFileBytes);
        if (!text) return text.status().withContext(who);
        if (text->empty()) return {Code::InvalidArgument, who + ": it is empty"};
        auto matrix = parsePriorityMatrix(*text);
        if (!matrix) return matrix.status().withContext(who);
        return LocalMatrix{std::move(*matrix), config.topology_matrix};
    }
    const Ranking ranking = rankDevices(machine, deviceRules(config));
    const bool has_rdma = std::any_of(ranking.locations.begin(), ranking.locations.end(),
                                      [](const LocationRanking& row) { return !row.devices.empty(); });
    if (has_rdma) return LocalMatrix{toMatrix(ranking), "RDMA devices"};
    std::vector<NicPlace> nics;
    for (const NetworkInterface& interface : machine.interfaces)
        if (interface.up) nics.push_back({interface.name, interface.numa_node});
    return LocalMatrix{makePriorityMatrix(machine.nodes, nics), "network interfaces"};
}

}  // namespace troupe
