#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/sim/ledger.h"
#include "apps/sim/network.h"
#include "transports/nic.h"
#include "transports/registration_table.h"
#include "transports/transport.h"

namespace troupe::sim {

/// What goes from one SimNic to another.
struct Packet {
    /// Fence asks the target to take in nothing of an earlier epoch any more; it is how a lost path is tried, too.
    enum class Kind { Write, Read, Fence, WriteDone, ReadData, Fenced, Refused, Unreachable };
    Kind kind = Kind::Write;
    int from_host = 0;
    unsigned from_nic = 0;
    int to_host = 0;
    unsigned to_nic = 0;
    Incarnation from;
    Incarnation expect;       ///< Of a request: for whom it is meant.
    unsigned owner = 0;       ///< The initiator's Nic whose path this is about; another may send a Fence for it.
    std::uint64_t epoch = 0;  ///< Of the initiator's path; a target serves the highest that it has seen of a Nic.
    std::uint64_t id = 0;     ///< Unique among the initiator's requests.
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    std::vector<std::byte> payload;
    Status refusal;
    std::uint64_t task = 0;  ///< For the ledger: whose bytes these are. Nics do not look at it.

    bool isRequest() const { return kind == Kind::Write || kind == Kind::Read || kind == Kind::Fence; }
    Packet answer(Kind its_kind) const;
    Packet unreachable() const { return answer(Kind::Unreachable); }
};

/// How a Nic behaves; drawn from the seed.
struct NicCharacter {
    std::uint64_t slice_bytes = 512;
    std::uint64_t merge_bytes = 512;
    std::uint64_t window_bytes = 2048;
    std::uint32_t window_requests = 16;
    Duration patience = 2 * kMillisecond;  ///< Without an answer a request is sent again.
    unsigned attempts = 4;                 ///< Then the path is broken. 0: never, only a reset ends it.
    unsigned lost_completions = 0;         ///< In 1000 requests.
    unsigned late = 0;                     ///< Percent of requests that a reset cannot quiesce, and says so.
    unsigned never = 0;                    ///< Percent of those, of which only the Nic's end is the end.
    /// It gives no WRITE back that it has sent before the peer has fenced it off or does not answer, as those of TCP
    /// and RDMA. Else it does so of what was lost with its path alone, as a Nic may.
    bool fences_all = false;
};

/// A Nic over simulated packets. Its protocol is right, as that of real hardware: packets are sent again until they are
/// answered, a request is applied once, a later epoch fences the earlier ones off. What the wire and the device do to
/// it is the faults' matter. It reaches memory only through the Ledger.
class SimNic final : public Nic {
  public:
    /// `installs`: how often its transport was installed in this process before.
    SimNic(World& world, Network& network, Ledger& ledger, const Seat& seat, unsigned index, unsigned installs,
           NicInfo info, NicCharacter character, const TransportContext& context, std::vector<SimNic*>& registry);
    ~SimNic() override;

    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    bool isSamePlace(const Peer& was, const Peer& is) const override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    Status shut() override;
    bool arm() override { return true; }
    int waitFd() const override { return -1; }
    TimePoint nextDeadline() const override;
    bool servesPeerIn(const ByteRange& range) const override;
    void cutPeersIn(const ByteRange& range) override;

    // --- the simulation's side -----------------------------------------------------------------------------------

    void arrived(const Packet& packet) { inbox_.push_back(packet); }
    /// The link goes: everything on it is lost, and until it is back nothing gets through.
    void setDown(bool down);
    /// It loses and delays nothing any more by itself.
    void behave() { character_.lost_completions = character_.late = 0; }
    bool idle() const;
    /// Hosts that it has a path to, one for each.
    std::vector<int> paths() const;
    const std::string& name() const { return info_.name; }
    /// What failed without proof and goes on: bytes of it, and whether any is in `range`.
    std::uint64_t lateBytes() const;
    bool lateIn(const ByteRange& range) const;

  private:
    /// Which of the peer's Nics answers this one.
    std::optional<unsigned> nicOf(const SegmentDesc& desc) const;

    struct Path {
        std::shared_ptr<const Peer> peer;
        int host = 0;
        unsigned nic = 0;
        std::uint64_t epoch = 0;
        std::uint64_t bytes = 0;
        std::uint32_t requests = 0;
        bool lost = false;
        unsigned tries = 0;                ///< To get it back.
        TimePoint next_try = kForever;     ///< While it is lost, or something is unfenced.
        std::vector<Failure> unfenced;     ///< WRITEs that were sent; given back once they are fenced.
        TimePoint fence_until = kForever;  ///< Then they are given back anyhow.
    };
    struct Posted {
        PathId path = 0;
        WorkRequest request;
        std::uint64_t epoch = 0;
        TimePoint next{};  ///< When it is sent (again); while it dies, when that is over.
        unsigned attempts = 0;
        bool dying = false;
        bool is_lost = false;  ///< Dies because its path was lost, not by its owner's will.
        std::uint64_t incident = 0;
        bool lost = false;  ///< Its completion was lost: only a reset ends it.
        Status cause;
        bool retryable = false;
    };
    /// A peer's request that is being worked on.
    struct Job {
        Packet request;
        std::uint64_t done = 0;
        TimePoint next{};
        std::vector<std::byte> read;
    };
    /// What a target remembers of a peer's Nic.
    struct Caller {
        std::uint64_t epoch = 0;
        std::set<std::uint64_t> begun;
        std::set<std::uint64_t> applied;
        std::map<std::uint64_t, Status> refused;  ///< Stays so, whatever is registered when it comes once more.
    };
    using CallerKey = std::pair<Incarnation, unsigned>;

    void endPath(PathId path, const Status& cause, bool retryable, bool lost = false);
    void losePath(PathId path, const Status& cause);
    void tryPath(Path& path);
    void giveBack(Path& path, bool fenced);
    void abandonFence(Path& path, const Status& cause, bool retryable);
    void takeFenced(const Packet& packet);
    void die(Posted& posted, const Status& cause, bool retryable);
    void bury(std::uint64_t id, Posted& posted, Sweep& sweep);
    void mayLinger(const WorkRequest& request) const;
    void transmit(std::uint64_t id, Posted& posted);
    void forget(std::uint64_t id);
    void take(const Packet& packet, Sweep& sweep);
    void takeRequest(const Packet& packet);
    void takeAnswer(const Packet& packet, Sweep& sweep);
    bool work(Job& job);
    void refuse(const Packet& request, const Status& why);

    World& world_;
    Network& network_;
    Ledger& ledger_;
    const Seat& seat_;
    const unsigned index_;
    const unsigned port_;  ///< From kFirstNicPort on.
    const NicInfo info_;
    NicCharacter character_;
    const Incarnation self_;
    std::vector<SimNic*>& registry_;  ///< Where the simulation finds it.
    SnapshotReader<RegionMap> regions_;
    bool down_ = false;
    TimePoint now_{};  ///< Of the last poll.

    std::map<PathId, Path> paths_;
    std::vector<PathChange> changes_;  ///< For the next poll to tell.
    std::vector<Failure> given_back_;  ///< The same.
    std::uint64_t incidents_ = 0;
    PathId next_path_ = 1;
    std::uint64_t next_id_;
    std::uint64_t next_epoch_;
    std::map<std::uint64_t, Posted> posted_;
    std::map<std::uint64_t, Posted> late_;  ///< Failed, unquiesced, and not over. Its number is its doubt.
    std::deque<Packet> inbox_;
    std::vector<Job> jobs_;
    std::map<CallerKey, Caller> callers_;
};

/// A transport of SimNics: one for each data loop. A process may have two, whose Nics follow each other.
class SimTransport final : public Transport {
  public:
    struct Place {
        World* world;
        Network* network;
        Ledger* ledger;
        const Seat* seat;
        std::string name;
        unsigned first;                        ///< Index of its first Nic.
        unsigned installs;                     ///< How often the process had installed it before.
        std::vector<NicCharacter> characters;  ///< One for each data loop.
        std::vector<SimNic*>* nics;            ///< Where they are found while they live; nulled by their end.
    };
    explicit SimTransport(Place place) : place_(std::move(place)) {}

    std::string name() const override { return place_.name; }
    Status install(const TransportContext& context) override;
    std::vector<PlacedNic> takeNics() override { return std::move(nics_); }
    Status registerMemory(const Region& region) override;
    Status unregisterMemory(const Region& region) override;
    void describe(SegmentDesc& desc) const override;
    Status reaches(const SegmentDesc& peer) const override;

    unsigned refusals = 0;  ///< Percent of registrations that fail.

  private:
    Place place_;
    std::vector<PlacedNic> nics_;
    std::set<std::uint64_t> registered_;
};

}  // namespace troupe::sim
