#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe {

/// Device or port ("mlx5_0", "mlx5_0:2") -> setting ("mtu") -> value.
using PerDevice = std::map<std::string, std::map<std::string, std::uint32_t>, std::less<>>;

/// Parses rdma.per_device: "mlx5_0 gid_index=3 mtu=1024; mlx5_1:2 traffic_class=106". Each value is in the range that
/// the setting for all devices has. Empty text: an empty map. InvalidArgument quotes the entry and what of it is wrong.
Result<PerDevice> parsePerDevice(std::string_view text);

}  // namespace troupe
