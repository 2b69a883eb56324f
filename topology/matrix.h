#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/machine.h"
#include "topology/topology.h"

namespace troupe {

/// Which devices may be used at all. Names as in fnmatch(3): "mlx5_*".
struct DeviceRules {
    std::vector<std::string> only;   ///< Empty: all.
    std::vector<std::string> never;  ///< Wins over `only`.
};

/// A device as seen from one location.
struct RankedDevice {
    std::string name;
    Distance distance;
    bool preferred = false;
    std::string reason;  ///< "below the same PCI switch, 4 links; 400 Gb/s".
};

/// All devices as seen from one location, the nearest first, equally near ones by name.
struct LocationRanking {
    std::string location;  ///< "cpu:0", "cuda:3".
    std::vector<RankedDevice> devices;
};

/// The devices of a machine by location, and why others are left out.
struct Ranking {
    std::vector<LocationRanking> locations;  ///< Nodes by number, then GPUs by number.
    /// A device, or a name in DeviceRules::only that no device has.
    struct LeftOut {
        std::string name;
        std::string reason;
    };
    std::vector<LeftOut> left_out;
};

/// Ranks the RDMA devices that can be opened, have an active port and are allowed. Preferred are the nearest ones (on
/// PCI by the links between, then by node), but for those that are much slower than the fastest of them: a
/// management port must not carry a share of the work.
Ranking rankDevices(const Machine& machine, const DeviceRules& rules = {});

PriorityMatrix toMatrix(const Ranking& ranking);

/// The JSON form, as from encodePriorityMatrix or a file that overrides what was discovered. InvalidArgument says what
/// is wrong: no such form, a location that is none, a device twice in one location.
Result<PriorityMatrix> parsePriorityMatrix(std::string_view json);

}  // namespace troupe
