#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/endpoint.h"
#include "base/log.h"
#include "base/status.h"
#include "verbs_backend/device_settings.h"
#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

/// A device's open context; several ports share one.
class DeviceContext {
  public:
    DeviceContext(std::shared_ptr<VerbsApi> api, ibv_context* context) : api_(std::move(api)), context_(context) {}
    ~DeviceContext();
    DeviceContext(const DeviceContext&) = delete;
    DeviceContext& operator=(const DeviceContext&) = delete;

    ibv_context* get() const { return context_; }

  private:
    std::shared_ptr<VerbsApi> api_;
    ibv_context* context_;
};

/// One port of a device with what is made on it: protection domain, completion queue and its channel. Shared by its
/// VerbsNic, the Connector and the MemoryTable; closed with the last of them. Immutable, so any thread may read it.
class Device {
  public:
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    VerbsApi& api() const { return *api_; }
    ibv_context* context() const { return context_->get(); }
    ibv_pd* pd() const { return pd_; }
    ibv_cq* cq() const { return cq_; }
    ibv_comp_channel* channel() const { return channel_; }

    std::string name;         ///< Unique in the engine: the device's, or "mlx5_0:2" where it has several ports.
    std::string device_name;  ///< As verbs name it.
    std::uint8_t port = 1;
    ibv_device_attr attributes{};
    ibv_port_attr port_attributes{};
    PortSettings settings;
    std::vector<ibv_gid_entry> gids;  ///< What peers might reach it by, the likeliest first; not empty.
    ibv_gid_entry gid{};              ///< The first of them, which the descriptor names.
    SocketAddress address;            ///< As an address, port 0.
    bool by_cm = false;               ///< rdma_cm can connect to it: the GID is the address of its network interface.
    std::uint32_t completions = 0;    ///< Entries of the completion queue, as asked for.

    /// "device rxe_0 port 1 (GID 1: 10.1.0.1)", for errors.
    std::string describe() const;

    /// The most bytes of a packet that its port takes and rdma.mtu allows.
    std::uint32_t mtu() const;

    bool isInfiniBand() const { return port_attributes.link_layer == IBV_LINK_LAYER_INFINIBAND; }

    /// Every usable port of every device that the settings name. A port or device that cannot be used is logged by name
    /// with the reason and left out; what the settings name and is not there, too. `exchange`: pairs may be made
    /// without rdma_cm, so a port needs no address. TransportMissing when none is left, with all the reasons;
    /// InvalidArgument: the settings.
    static Result<std::vector<std::shared_ptr<Device>>> openAll(const std::shared_ptr<VerbsApi>& api,
                                                                const Config& config, bool exchange, const Logger& log);

  private:
    friend struct DeviceOpener;
    Device() = default;

    std::shared_ptr<VerbsApi> api_;
    std::shared_ptr<DeviceContext> context_;
    ibv_pd* pd_ = nullptr;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* cq_ = nullptr;
};

/// How far a GID reaches, as far as it says so itself; only those of one kind can reach each other.
enum class GidScope { Null, LinkLocal, GlobalV6, MappedV4 };
GidScope scopeOf(const ibv_gid& gid);

/// "10.1.0.1" for an IPv4-mapped GID, the IPv6 address otherwise; port 0.
SocketAddress addressOfGid(const ibv_gid& gid);
/// "0000:...", as sysfs and the common descriptor schema write it.
std::string gidText(const ibv_gid& gid);
/// Of an ibv_mtu, in bytes; 256 to 4096.
std::uint32_t mtuBytes(ibv_mtu mtu);
/// The largest ibv_mtu of at most `bytes`.
ibv_mtu mtuOfBytes(std::uint32_t bytes);

}  // namespace troupe::verbs
