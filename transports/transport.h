#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/status.h"
#include "metadata/segment_desc.h"
#include "security/cluster_auth.h"
#include "transports/control_exchange.h"
#include "transports/memory_exporter.h"
#include "transports/nic.h"
#include "transports/registration_table.h"

namespace troupe {

namespace device {
class StagingPool;
}

/// What a transport gets of its engine. References outlive the transport and its Nics.
struct TransportContext {
    const Config& config;
    const RegistrationTable& regions;
    Incarnation incarnation;  ///< Of this engine.
    std::string bind_host;    ///< Numeric address to listen on.
    unsigned data_loops = 1;  ///< How many loops will each own a share of the Nics.
    Logger log;
    std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< What connections have to prove; null: nothing.
    ControlExchange* exchange = nullptr;                ///< Null: there is none. Outlives the transport.
    /// Gives descriptors for memory that only a device has; null: nobody does.
    std::shared_ptr<MemoryExporter> device_memory = nullptr;
    FaultInjector* faults = nullptr;  ///< Null: nobody breaks anything on purpose. Outlives the transport.
    /// What `describe` says has changed by itself. Any thread, never blocks; may be empty, and called at any time until
    /// the transport's end.
    std::function<void()> described_anew = {};
    /// Pinned host memory through which bytes of GPUs go where there is no shorter way; null: there is none.
    std::shared_ptr<device::StagingPool> staging = nullptr;
    /// Grows with every transport that this engine installs, from 1: tells the Nics of one installation from those of
    /// an earlier one, which peers may still have connections of.
    std::uint32_t installation = 1;
};

/// A request of which one end or both are memory of a GPU, for `Transport::deviceWay`.
struct DeviceRequest {
    ByteRange here;                ///< Of this process.
    const Region* from = nullptr;  ///< Where `here` begins; null: it is not registered any more.
    ByteRange there;
    const Region* to = nullptr;  ///< Where `there` begins, within this process; null with another one.
    bool is_there_on_device = false;
    Incarnation owner;  ///< Of `there`.
};

/// A look at a peer that is under way. Destroying it ends it: its callback is not called any more. Lives on the loop
/// that it was started on.
class TransportProbe {
  public:
    virtual ~TransportProbe() = default;
};

/// A kind of wire. Lives on the threads that call install and register; its Nics live on the data loops.
class Transport {
  public:
    virtual ~Transport() = default;

    /// "host", "tcp", "rdma", "null".
    virtual std::string name() const = 0;

    /// Finds devices and opens ports. An error leaves nothing behind. Called once.
    virtual Status install(const TransportContext& context) = 0;

    /// The Nics, each with the data loop that should own it in [0, data_loops). Called once, after install.
    struct PlacedNic {
        unsigned loop;
        std::unique_ptr<Nic> nic;
    };
    virtual std::vector<PlacedNic> takeNics() = 0;

    /// Makes a region usable, all or nothing. Any thread, may take long; never on a data loop. Calls for different
    /// regions may run at the same time.
    virtual Status registerMemory(const Region& region) = 0;
    /// The other end of it: when this is Ok, nothing of this transport reaches the region, or keeps it, any more. Ok,
    /// too, when it has none of it. Otherwise why it does not let go: the memory may be neither unmapped nor registered
    /// again, and this may be called once more.
    virtual Status unregisterMemory(const Region& region) = 0;

    /// Adds what peers need to reach this transport to the engine's own descriptor, which has its buffers already.
    virtual void describe(SegmentDesc& desc) const = 0;

    /// Ok when `peer` can be reached; otherwise why not, for explain().
    virtual Status reaches(const SegmentDesc& peer) const = 0;

    /// How this transport carries such a request, in a few words for explain(): "staged through pinned memory". Empty:
    /// it does not know. Any thread, never blocks.
    virtual std::string deviceWay(const DeviceRequest&) const { return {}; }

    /// A question that the same transport of another engine asked through its ControlExchange. Never blocks; calls
    /// `reply` once, on any thread, with at most kMaxExchangeBytes.
    // NOLINTBEGIN(performance-unnecessary-value-param): what overrides these keeps them.
    virtual void answer(const Asker&, std::string /*question*/, std::function<void(Result<std::string>)> reply) {
        reply(Status(Code::Unsupported, name() + " answers no questions"));
    }
    /// The connection over which somebody asked has ended.
    virtual void askerLeft(std::uint64_t /*connection*/) {}
    /// The connection over which this engine asked a peer (Peer::index) has ended, and another one is being made: what
    /// the peer made for whoever asked over it, it ends by itself, and cannot say so. Never blocks.
    virtual void peerLeft(std::uint32_t /*peer*/) {}

    /// `reaches` for transports that have to try before they know. Never blocks; calls `done` once, on the reactor's
    /// turn, within a bound, and possibly before it returns. `done` may destroy the probe. Null: `done` was called.
    virtual std::unique_ptr<TransportProbe> probe(Reactor&, const SegmentDesc& peer,
                                                  std::function<void(Status)> done) const {
        done(reaches(peer));
        return nullptr;
    }
    // NOLINTEND(performance-unnecessary-value-param)
};

}  // namespace troupe
