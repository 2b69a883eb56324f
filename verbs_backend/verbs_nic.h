#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/snapshot.h"
#include "base/unique_fd.h"
#include "transports/nic.h"
#include "transports/transport.h"
#include "verbs_backend/connector.h"
#include "verbs_backend/device.h"
#include "verbs_backend/lane.h"
#include "verbs_backend/mailbox.h"
#include "verbs_backend/memory_table.h"

namespace troupe::verbs {

/// The initiator's side of one device and port: queues work, posts it, polls the completion queue. What peers do to
/// local memory passes by it: the device serves them.
///
/// One owner, no lock, no blocking call: of verbs it only posts, polls and arms. Pairs are made and ended by the
/// Connector, which answers through the mailbox.
///
/// The completion queue cannot overrun: every outstanding work request of all its pairs may bring one completion (an
/// unsignalled one does when it is flushed), so no more are posted than it has entries.
class VerbsNic final : public Nic {
  public:
    /// What the Nics of an engine share.
    struct Shared {
        std::shared_ptr<Connector> connector;
        std::shared_ptr<MemoryTable> memory;
    };
    /// `index`: of the device among the Connector's and the MemoryTable's. Of `context` the references are kept.
    static Result<std::unique_ptr<VerbsNic>> create(const TransportContext& context, Shared shared, std::size_t index,
                                                    const std::string& location);
    ~VerbsNic() override;
    Status shut() override;

    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    void updatePeer(PathId path, std::shared_ptr<const Peer> peer) override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override;
    int waitFd() const override { return epoll_.get(); }
    TimePoint nextDeadline() const override { return next_deadline_; }
    /// One-sided work passes by the CPU, so nothing is known of it; MemoryTable::remove ends it with the keys.
    bool servesPeerIn(const ByteRange&) const override { return false; }
    void cutPeersIn(const ByteRange&) override {}

    /// What arrived on a path so far, by the peer's device that it went to. The log has it of each pair at its end.
    std::map<std::string, Carried> carried(PathId path);

  private:
    struct Path {
        std::shared_ptr<PathState> state;
        std::vector<std::unique_ptr<Lane>> lanes;
        PathId id = 0;
        std::uint32_t block = 0;  ///< Which share of the lane numbers to its target it has.
    };

    VerbsNic(const TransportContext& context, Shared shared, std::size_t index, const std::string& location);
    Status openDescriptors();
    Status watch(int fd);

    Path* find(PathId id);
    std::vector<Connector::Candidate> candidatesOf(const SegmentDesc& desc, std::size_t own) const;
    static Lane& leastBusy(Path& path);
    /// Unsupported: memory that no device reaches is at one of the ends.
    Status mayCarry(const PathState& path, const WorkRequest& request);
    void enlist(Lane& lane);
    void watchTimer(TimePoint when) { next_deadline_ = std::min(next_deadline_, when); }
    std::string describe(const Lane& lane) const;
    void accountFor(Lane& lane);

    // verbs_nic_life.cpp: what becomes of lanes
    void order(Lane& lane, TimePoint now);
    static void preferKnown(Lane& lane, Connector::Order& wanted);
    static void prove(Lane& lane);
    void onEvent(PairEvent& event, TimePoint now);
    void onPort(const PairEvent& event, TimePoint now);
    void onPortChanged();
    void onQueue(std::shared_ptr<const CompletionQueue> made);
    void onUp(Lane& lane, PairEvent& event, TimePoint now);
    void beginDrain(Lane& lane, const Status& cause, bool retryable, TimePoint now, bool tell_connector);
    void beginEnd(Lane& lane, TimePoint now);
    void ended(Lane& lane, const Status& proof);
    void abandon(Lane& lane);
    std::uint64_t incidentOf(Lane& lane);
    void strike(Lane& lane, TimePoint now);
    bool handOver(Lane& lane);
    void suspend(PathState& path);
    void resume(PathState& path);
    void failWaiting(Lane& lane, const Status& cause, bool retryable);
    void failPosted(Lane& lane, bool quiesced);
    void finish(Lane& lane, const WorkRequest& request);
    void fail(Lane& lane, Failure failure);
    void forget(Lane& lane);
    void runTimers(TimePoint now);

    // verbs_nic_fence.cpp: writes that were lost
    bool fence(Lane& lane, std::vector<WorkRequest>& writes);
    std::uint32_t askToFence(const Lane& lane);
    void endFences(const std::function<bool(const Fence&)>& which, bool fenced);
    void boundFences(const PathState& path, const Status& cause, bool retryable, TimePoint now);
    void forgetOrphans();
    void giveUpFences(TimePoint now);
    void abandonFences(const PathState& path, const Status& cause);

    // verbs_nic_room.cpp: pairs that are not used
    bool hasRoomFor(Lane& lane, TimePoint now);
    void evictIdle(TimePoint now);
    void closeIfUnused(Lane& lane, TimePoint now);
    void closeIdle(Lane& lane, const char* why, TimePoint now);
    static bool isIdle(const Lane& lane);

    // verbs_nic_post.cpp: from requests to work requests
    bool takeMail(TimePoint now);
    bool flush(TimePoint now);
    bool flush(Lane& lane, TimePoint now);
    Status tooMany(const Lane& lane, const WorkRequest& request, std::uint32_t count) const;
    Status build(Lane& lane, const WorkRequest& request, std::uint32_t& work_requests);
    Status buildReadBack(std::uint64_t remote, std::uint32_t key, std::uint32_t& work_requests);
    std::uint32_t postList(Lane& lane, int& error);

    // verbs_nic_poll.cpp: completions
    bool pollCompletions(TimePoint now, Sweep& sweep);
    void onCompletion(const ibv_wc& completion, TimePoint now, Sweep& sweep);
    void finishArrived(Sweep& sweep);
    void feedStarved();
    void loseQueue();
    Lane* laneOf(std::uint32_t pair);

    const Config& config_;
    const Logger log_;
    const Incarnation incarnation_;
    const Shared shared_;
    const std::size_t index_;
    const std::shared_ptr<Device> device_;
    const std::shared_ptr<Mailbox> mailbox_;
    std::shared_ptr<const CompletionQueue> queue_;
    bool queue_lost_ = false;  ///< No completion comes by it any more.
    bool must_poll_ = false;   ///< Nobody would be woken by it.
    NicInfo info_;
    SnapshotReader<KeyMap> local_keys_;
    UniqueFd epoll_;

    std::vector<std::unique_ptr<Path>> paths_;  ///< By slot; null where free.
    std::vector<std::uint32_t> slot_uses_;      ///< Makes the ids of a slot's successive paths differ.
    std::vector<std::unique_ptr<Lane>> orphans_;
    std::unordered_map<std::uint32_t, Lane*> lane_of_pair_;
    std::uint32_t last_pair_ = 0;  ///< The last one looked up.
    Lane* last_lane_ = nullptr;
    std::vector<Lane*> ready_;  ///< With something to send or to connect for.
    std::vector<Failure> failures_;
    std::vector<PathChange> changes_;
    /// Pairs that could not be destroyed: with them went requests that were not proven to have ended, or places in the
    /// completion queue. How many of those.
    std::map<std::uint32_t, std::uint32_t> doubtful_;
    std::vector<std::uint64_t> proven_;  ///< Of those, that are gone now; for the next poll to tell.
    std::vector<Fence> fences_;
    std::uint64_t incidents_ = 0;  ///< Losses so far.
    /// READs whose bytes have come, into memory of GPUs that have yet to flush them.
    std::vector<WorkRequest> arrived_;
    std::vector<std::shared_ptr<device::Device>> flushed_gpus_;  ///< Scratch.
    Sweep early_;                                                ///< Completions that arm() found.

    std::size_t evicting_ = 0;  ///< Lanes that are ending to make room.

    bool port_down_ = false;
    Status port_cause_;
    std::uint64_t port_incident_ = 0;
    bool armed_ = false;
    std::uint32_t queue_room_ = 0;  ///< Completions that the queue can still take.
    std::uint32_t queue_owed_ = 0;  ///< Besides, once what is in it now is polled: of pairs that are gone.
    bool starved_ = false;          ///< A lane waits for that room.
    TimePoint next_deadline_ = kForever;
    std::uint64_t strange_ = 0;  ///< Completions of nothing that is outstanding.
    std::minstd_rand random_;

    std::vector<PairEvent> events_;
    std::array<ibv_wc, 64> completions_{};
    std::vector<ibv_send_wr> work_;
    std::vector<ibv_sge> pieces_;
    struct Built {
        WorkRequest request;
        std::uint32_t work_requests = 0;
    };
    std::vector<Built> built_;  ///< What work_ is made of.
};

}  // namespace troupe::verbs
