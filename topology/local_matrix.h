#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"
#include "topology/matrix.h"

namespace troupe {

/// The devices of a machine by location as the settings have it, and how that came about.
struct LocalMatrix {
    PriorityMatrix matrix;
    std::string origin;  ///< "RDMA devices", "network interfaces", or the file of topology.matrix.
};

/// Which devices the settings rdma.devices and rdma.exclude allow.
DeviceRules deviceRules(const Config& config);

/// What an engine of this machine goes by: the file that topology.matrix names, else the ranking of the RDMA devices,
/// else, without any, the interfaces that are up. InvalidArgument: the file cannot be read, or holds no matrix.
Result<LocalMatrix> localMatrix(const Config& config, const Machine& machine);

}  // namespace troupe
