#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/endpoint.h"
#include "base/log.h"
#include "base/snapshot.h"
#include "base/status.h"
#include "verbs_backend/completion_queue.h"
#include "verbs_backend/device_context.h"
#include "verbs_backend/device_settings.h"
#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

/// A port as it was when it was looked at: what a subnet manager, or whoever gives its interface addresses, may change
/// at any time. Immutable.
struct PortView {
    ibv_port_attr attributes{};
    std::uint16_t pkey = 0;            ///< Of the entry that is used; 0 where it could not be read.
    std::vector<ibv_gid_entry> table;  ///< All GIDs of the port.
    std::vector<ibv_gid_entry> gids;   ///< What peers might reach it by, the likeliest first; empty: nobody can now.
    ibv_gid_entry gid{};               ///< The first of them, which the descriptor names; zeros without one.
    SocketAddress address;             ///< As an address, port 0.
    bool by_cm = false;                ///< rdma_cm can connect to it: the GID is the address of its network interface.

    /// Packets need a global route header also within their subnet (InfiniBand).
    bool needsGrh() const { return (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0; }
    /// The entry of `table` with that index.
    std::optional<ibv_gid_entry> entryAt(std::uint32_t index) const;
    bool has(const ibv_gid_entry& entry) const;
};

/// The same address in the same place of the table.
bool sameGid(const ibv_gid_entry& one, const ibv_gid_entry& other);

/// One port of a device with what is made on it: protection domain and completion queue. Shared by its VerbsNic, the
/// Connector and the MemoryTable; closed with the last of them. Any thread may read it; what changes is in snapshots,
/// of which the Connector's thread is the only writer.
class Device {
  public:
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    VerbsApi& api() const { return *api_; }
    ibv_context* context() const { return context_->get(); }
    ibv_pd* pd() const { return pd_; }

    std::string name;         ///< Unique in the engine: the device's, or "mlx5_0:2" where it has several ports.
    std::string device_name;  ///< As verbs name it.
    std::uint8_t port = 1;
    ibv_device_attr attributes{};
    PortSettings settings;
    std::uint32_t completions = 0;  ///< Entries of the completion queue, as asked for.
    std::uint32_t max_message = 0;  ///< Bytes of one work request, at most.
    bool infiniband = false;        ///< Its link layer.

    /// The port as it was seen last.
    std::shared_ptr<const PortView> view() const { return view_.load(); }
    /// Looks at the port again. Not Ok: it could not be read, and the view is as before.
    Status look();

    /// For new pairs.
    std::shared_ptr<const CompletionQueue> queue() const { return queue_.load(); }
    /// Makes another one in place of a queue that failed. Not Ok: there is none, and the old one stays.
    Status renewQueue();

    /// The key and address of a byte that reads may be answered into whose bytes nobody wants: registered when it is
    /// first asked for, which is one page. For one thread, the one that owns the port's Nic. Not Ok: the device does
    /// not register it.
    Result<ibv_sge> sink();

    /// The device or its port is broken until it is opened anew: nothing more is asked of it, and peers are not told of
    /// it. Its place among the devices stays.
    bool isOut() const { return out_.load(std::memory_order_acquire); }
    void putOut() { out_.store(true, std::memory_order_release); }

    /// "device rxe_0 port 1 (GID 1: 10.1.0.1)", for errors.
    std::string describe() const;

    /// The most bytes of a packet that its port takes and rdma.mtu allows.
    std::uint32_t mtu() const;

    /// Every usable port of every device that the settings name. A port or device that cannot be used is logged by name
    /// with the reason and left out; what the settings name and is not there, too. `exchange`: pairs may be made
    /// without rdma_cm, so a port needs no address. TransportMissing when none is left, with all the reasons;
    /// InvalidArgument: the settings.
    static Result<std::vector<std::shared_ptr<Device>>> openAll(const std::shared_ptr<VerbsApi>& api,
                                                                const Config& config, bool exchange, const Logger& log);

  private:
    friend struct DeviceOpener;
    Device() : view_(std::make_shared<const PortView>()), queue_(nullptr) {}
    Result<PortView> readPort() const;

    std::shared_ptr<VerbsApi> api_;
    std::shared_ptr<DeviceContext> context_;
    bool may_use_cm_ = true;
    ibv_pd* pd_ = nullptr;
    Snapshot<PortView> view_;
    Snapshot<CompletionQueue> queue_;
    std::atomic<bool> out_{false};
    std::unique_ptr<std::byte[]> sink_;
    ibv_mr* sink_key_ = nullptr;
};

/// How far a GID reaches, as far as it says so itself; only those of one kind can reach each other.
enum class GidScope { Null, LinkLocal, GlobalV6, MappedV4 };
GidScope scopeOf(const ibv_gid& gid);

/// "10.1.0.1" for an IPv4-mapped GID, the IPv6 address otherwise; port 0.
SocketAddress addressOfGid(const ibv_gid& gid);
/// "0000:...", as sysfs and the common descriptor schema write it.
std::string gidText(const ibv_gid& gid);
/// The same for people: the IP address, where it is one that has a meaning beyond its link.
std::string gidForPeople(const ibv_gid& gid);
/// Of an ibv_mtu, in bytes; 256 to 4096.
std::uint32_t mtuBytes(ibv_mtu mtu);
/// The largest ibv_mtu of at most `bytes`.
ibv_mtu mtuOfBytes(std::uint32_t bytes);

}  // namespace troupe::verbs
