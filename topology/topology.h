#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace troupe {

/// location -> (preferred devices, available devices).
using PriorityMatrix = std::map<std::string, std::pair<std::vector<std::string>, std::vector<std::string>>>;

/// One NUMA node.
struct NumaNode {
    int id = 0;
    std::vector<int> cpus;        ///< Ascending; empty for a node of memory only.
    std::map<int, int> distance;  ///< Node id -> relative distance as the firmware says it; 10 is local.
    bool operator==(const NumaNode&) const = default;
};

/// One network interface.
struct NetworkInterface {
    std::string name;
    int numa_node = -1;                  ///< -1: the machine does not say, or has no NUMA.
    std::uint32_t speed_mbps = 0;        ///< 0: unknown, as for virtual ones.
    bool up = false;                     ///< Administratively up and with a carrier where it tells.
    std::vector<std::string> addresses;  ///< Numeric, link-local IPv6 with its scope ("fe80::1%eth0").
    bool operator==(const NetworkInterface&) const = default;
};

/// The machine as sysfs shows it. Addresses are not in sysfs: see addInterfaceAddresses.
struct Topology {
    std::vector<NumaNode> nodes;               ///< By id; one node 0 with all CPUs where sysfs has no nodes.
    std::vector<NetworkInterface> interfaces;  ///< By name.
    bool operator==(const Topology&) const = default;
};

/// Reads <sysfs>/devices/system/{node,cpu} and <sysfs>/class/net. What is absent or does not parse is left out: a
/// container may hide any part of it. Reads files, so never on a data loop.
Topology discoverTopology(const std::filesystem::path& sysfs = "/sys");

/// "0-3,8,10-11" as sysfs writes sets of CPUs; empty text is the empty set. InvalidArgument names the text: not such
/// a list, or a number above 65535.
Result<std::vector<int>> parseCpuList(std::string_view text);

/// A device that the matrix ranks.
struct NicPlace {
    std::string name;
    int numa_node = -1;  ///< -1: unknown.
};

/// For each NUMA node "cpu:<id>": the nearest NICs are preferred, the rest available, each in the order given. Where
/// the firmware gives no distance, another node is far. A NIC of unknown place ranks behind those on the node and
/// before those on others, so with no NUMA at all everything is preferred under "cpu:0".
PriorityMatrix makePriorityMatrix(const std::vector<NumaNode>& nodes, const std::vector<NicPlace>& nics);

/// {"cpu:0":[["eth0"],["eth1"]]}, compact. Bytes of names that are no UTF-8 become U+FFFD.
std::string encodePriorityMatrix(const PriorityMatrix& matrix);

}  // namespace troupe
