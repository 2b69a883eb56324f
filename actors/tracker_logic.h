#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/batch.h"
#include "actors/path_ladder.h"
#include "actors/retry_budget.h"
#include "actors/run_queue.h"
#include "actors/source_waits.h"
#include "messages/data_plane.h"
#include "transports/registration_table.h"

namespace troupe {

/// What a tracker says to others. The actor turns it into messages; tests record it.
class TrackerOutput {
  public:
    virtual ~TrackerOutput() = default;
    /// May take what is in `train`.
    virtual void sendTrain(std::uint32_t worker, Train& train) = 0;
    virtual void sendReset(std::uint32_t worker, ResetPath reset) = 0;
    /// Work to `peer` failed in a way that only its directory entry can mend: stale incarnation or descriptor, peer
    /// gone.
    virtual void suspectPeer(std::uint32_t peer, const Status& cause) = 0;
    /// Calls `onTimer` at `when` or a little later; replaces the previous request.
    virtual void wakeAt(TimePoint when) = 0;
};

/// The mind of a BatchTracker: which slice goes where and when a task is over. No CAF, no I/O, no clock of its own:
/// every call brings the time, so it runs the same under a test or a simulator. One thread at a time.
///
/// Invariants: a task becomes terminal exactly once, only when none of its flights is with a worker; a Batch is not
/// touched after its last task was published.
class TrackerLogic {
  public:
    TrackerLogic(std::uint32_t index, std::uint32_t loop, const RegistrationTable& regions, TrackerOutput& output,
                 RetryBudget::Limits retries = {});

    void onWorkerJoined(const WorkerJoined& worker);
    void onUsePeer(const UsePeer& use);
    void onDropPeer(const DropPeer& drop);
    void onSubmit(const SubmitTasks& submit, TimePoint now);
    void onReport(const SliceReport& report, TimePoint now);
    void onEndTasks(const EndTasks& end, Batch& batch);
    void onEndAll(const EndAll& end);
    void onAwaitSourceIdle(const AwaitSourceIdle& wait, TimePoint now);
    void onTimer(TimePoint now);
    /// No other call follows. Whoever waits for idle memory is answered with the batches that still use it.
    void onEnd();

    /// Hands out work for which there is room. Call after a run of the handlers above.
    void flush();

    /// True when no task is running.
    bool idle() const { return active_ == nullptr; }

    /// What its paths carry and what waits for room on them. Nothing while idle(), which is what it is for.
    struct Load {
        std::uint64_t flights = 0;
        std::uint64_t bytes = 0;
        std::uint64_t waiting = 0;   ///< Peers with work that waits.
        bool within_windows = true;  ///< No path carries more than its Nic's window and one flight.
    };
    Load load() const;

  private:
    struct PeerState {
        std::shared_ptr<const Peer> peer;  ///< Null: not in use.
        SegmentID segment = kInvalidSegmentID;
        PathLadder ladder;
        RunQueue pending;
        RetryBudget retries;  ///< This tracker's share: each data loop has one of its own.
        bool dirty = false;
    };
    struct Reset {
        std::uint32_t peer = 0;
        std::uint32_t worker = 0;
        Status cause;
    };

    PeerState* peerOf(const Task& task);
    void markDirty(std::uint32_t peer);
    void enqueue(std::uint32_t peer, const Run& run);
    std::string sourceLocation(const Run& run);
    bool isOfOneLocation(const Run& run, const Run& next);
    void onPath(std::uint32_t worker, const SliceReport::Path& change);
    std::string usedUp(const PeerState& peer) const;
    void fill(std::uint32_t index);
    Run* skipEnded(RunQueue& pending, Run* run);
    Flight cut(const PeerState& peer, Run& run, const KnownWorker& worker);

    void onFailed(std::uint32_t worker, const SliceReport::Failed& failed);
    void note(Task& task, std::uint32_t worker, const SliceReport::Failed& failed, std::uint64_t incident,
              const Status& cause);
    void onSettled(std::uint32_t worker, const SliceReport::Settled& settled);
    /// The task will end with `cause` (its code decides the state) as soon as nothing of it is in flight; not before
    /// endDoomed, which every handler calls after it doomed the last one.
    void doom(Batch& batch, std::uint32_t index, const Status& cause);
    /// doom of a task that no Nic and no owner refused, with how it stands in its history.
    void giveUp(Batch& batch, std::uint32_t index, const Status& cause);
    TaskHistory& historyOf(Task& task, std::uint32_t worker);
    void endDoomed();
    void doomPeer(std::uint32_t peer, const Status& cause);
    bool doomUnlessSendable(const PeerState& peer, const Run& run);
    /// giveUp, and flush resets the paths that carry it.
    void cancel(Batch& batch, std::uint32_t index, const Status& cause);
    TimePoint endOverdue(Batch& batch, TimePoint now, const Status& cause);
    void resetPathsOf(const Task& task, const Status& cause);
    void end(Batch& batch, std::uint32_t index, TransferStatusEnum state);
    /// Tasks that wait for the same events; none of them was cut into flights. Each knows its place: Task::gate.
    using Gate = std::vector<std::pair<Batch*, std::uint32_t>>;
    void waitAtGate(Batch& batch, std::uint32_t index);
    void leaveGate(Task& task);
    void lookAtGates(TimePoint now);
    void openGate(const Gate& gate, const Status& status);
    void endEvents(Batch& batch, std::uint32_t index, TransferStatusEnum& state);
    /// Calls visit(Batch&, index) for every task that is not terminal.
    template <class Visit>
    void forEachTask(Visit&& visit) const;
    void tally(Batch& batch);
    void flushTally();
    void sendResets();
    void activate(Batch& batch, std::uint32_t count);
    void deactivate(Batch& batch);
    SourceWaits::ForEachSource sources() const;
    void scheduleWake(TimePoint when);

    const std::uint32_t index_;
    const std::uint32_t loop_;
    const RetryBudget::Limits retries_;
    SnapshotReader<RegionMap> region_map_;
    TrackerOutput& output_;

    std::vector<KnownWorker> workers_;
    std::vector<PeerState> peers_;                          ///< By peer index.
    std::map<device::TaskWait*, Gate> gates_;               ///< None is empty.
    device::TaskWait* looked_at_ = nullptr;                 ///< The next look begins behind it; it may be gone.
    RunPool runs_;                                          ///< What is in their queues.
    std::vector<std::uint32_t> dirty_;                      ///< Peers that flush must look at.
    Batch* active_ = nullptr;                               ///< Intrusive list of batches with running tasks.
    std::vector<Reset> resets_;                             ///< Asked for since the last flush, one per path.
    std::vector<std::pair<Batch*, std::uint32_t>> doomed_;  ///< Between doom and endDoomed.

    SourceWaits waits_;
    TimePoint wake_at_ = kForever;

    // Tasks of one batch that ended in this handler, published to the batch as one number.
    Batch* tally_batch_ = nullptr;
    std::uint32_t tally_count_ = 0;
    std::uint64_t reports_ = 0;  ///< Handled so far.
    TimePoint now_{};            ///< As the last handler was told that has to do with work.
};

}  // namespace troupe
