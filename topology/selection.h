#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/topology.h"

namespace troupe {

/// Which device, and why that one.
struct Selection {
    std::string device;
    std::string reason;  ///< "preferred for cpu:0; asked for by name".
};

/// Chooses a device for memory at `location`: a pure function of its arguments.
///
/// Candidates are the preferred devices of the location that are not in `exclude`, and if there is none, the available
/// ones. A location that the matrix lacks, "*" among them, has every device of it as a candidate. Among the candidates:
/// the one called `hint`, if there is (the name of the peer's device: the same rail); else the one with the best
/// measured service, in bytes per second, where one that was never measured counts as the best, so that it is; else the
/// first by name. Nothing when every device is excluded.
std::optional<Selection> selectDevice(const PriorityMatrix& matrix, const std::string& location,
                                      std::string_view hint = {}, const std::vector<std::string>& exclude = {},
                                      const std::map<std::string, double>& service = {});

/// Locations of the matrix for which other devices are preferred; none for a device that the matrix does not name at
/// all, of which nothing is known.
std::vector<std::string> locationsFarFrom(const PriorityMatrix& matrix, const std::string& device);

}  // namespace troupe
