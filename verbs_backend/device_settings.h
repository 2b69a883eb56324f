#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/per_device.h"
#include "base/status.h"

namespace troupe::verbs {

/// What may differ from port to port.
struct PortSettings {
    static constexpr std::uint32_t kAnyGid = 256;

    std::uint32_t gid_index = kAnyGid;  ///< kAnyGid: chosen.
    std::uint32_t pkey_index = 0;
    std::uint32_t service_level = 0;  ///< 0: as the path says.
    std::uint32_t traffic_class = 0;  ///< DSCP * 4.
    std::uint32_t mtu = 4096;         ///< Cap of the path MTU, bytes.
    bool operator==(const PortSettings&) const = default;
};

/// Which devices are wanted, and with which settings: the settings rdma.devices, rdma.exclude and rdma.per_device over
/// those for all. A plain value.
class DeviceSettings {
  public:
    /// InvalidArgument quotes what of rdma.per_device is no setting of a device, or not in its range.
    static Result<DeviceSettings> parse(const Config& config);

    /// Empty: it is wanted. Otherwise which setting says no.
    std::string whyNot(const std::string& device) const;
    /// Of a port: what is said of it ("mlx5_0:2"), else of its device, else of all.
    PortSettings of(const std::string& device, std::uint8_t port) const;
    /// Entries of rdma.devices without * and ?: those whose absence deserves a word.
    std::vector<std::string> named() const;
    /// Names in rdma.per_device.
    std::vector<std::string> configured() const;

  private:
    std::vector<std::string> wanted_;
    std::vector<std::string> excluded_;
    PortSettings all_;
    PerDevice single_;
};

/// "a, b" as {"a", "b"}.
std::vector<std::string> namesOf(std::string_view list);

}  // namespace troupe::verbs
