#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/quarantine.h"
#include "base/log.h"
#include "messages/data_plane.h"
#include "transports/nic.h"

namespace troupe {

/// What a worker says to trackers.
class WorkerOutput {
  public:
    virtual ~WorkerOutput() = default;
    /// May take what is in `report`. The tracker may send a Train before this returns.
    virtual void sendReport(std::uint32_t tracker, SliceReport& report) = 0;
};

/// The mind of a NicWorker: cuts flights into work requests, posts them, and turns what the Nic gives back into
/// reports. Owns exactly one Nic. No CAF, no clock of its own. One thread at a time.
class WorkerLogic {
  public:
    WorkerLogic(std::uint32_t index, std::unique_ptr<Nic> nic, Quarantine& quarantine, WorkerOutput& output);

    void onUsePeer(const UsePeer& use);
    void onDropPeer(const DropPeer& drop);
    void onTrain(const Train& train);
    void onReset(const ResetPath& reset);
    void onAwaitPeersIdle(const AwaitPeersIdle& wait, TimePoint now);
    void onCloseToPeers(const CloseToPeers& wait, TimePoint now);
    void onOpenToPeers() { nic_->openToPeers(); }
    void onAwaitFlights(const AwaitFlights& wait, TimePoint now);

    /// Polls the Nic once and sends one report to each tracker concerned. True when anything moved.
    bool poll(TimePoint now);
    bool arm();
    /// The next time poll must run although nothing is ready.
    TimePoint nextDeadline() const;

    /// Ends the Nic and reports everything that was with it as failed, for good: how much of each flight had arrived is
    /// lost with the Nic. With the Nic goes what it had in quarantine, unless it says that something of it goes on.
    /// Nothing may be called afterwards.
    void abandon(const Status& cause);

    const Nic& nic() const { return *nic_; }
    /// No flight is with it, on the Nic or waiting for room there, and nobody waits for an answer.
    bool idle() const;

  private:
    /// A flight that is with the Nic, or partly still in the backlog.
    struct Out {
        Flight flight;
        std::uint32_t tracker = 0;
        std::uint32_t peer = 0;
        std::uint32_t requests = 0;  ///< Work requests not ended; 0: the slot is free.
        std::uint64_t bytes = 0;     ///< Arrived.
    };
    struct PeerPath {
        std::shared_ptr<const Peer> peer;  ///< Null: never heard of, or forgotten.
        std::string name;                  ///< Of its segment, the latest.
        Status forgotten;                  ///< Why.
        std::optional<PathId> path;
        bool refused = false;             ///< The Nic has no way to it; trackers were told.
        std::deque<WorkRequest> backlog;  ///< Waits for room in the Nic's window; bounded by the trackers' windows.
    };

    std::uint32_t allocate(const Flight& flight, std::uint32_t tracker, std::uint32_t peer);
    std::uint32_t cutFlight(const Flight& flight, std::uint64_t cookie, std::uint64_t step);
    void refuse(std::uint32_t out, const Status& cause, bool retryable);
    void failRequest(const Failure& failure);
    void quarantine(const Out& out, const ByteRange& range, const Status& cause, std::uint64_t doubt);
    void tellPath(std::uint32_t peer, bool usable);
    void onPathChange(const PathChange& change);
    void settle(std::uint32_t out, std::uint32_t requests, std::uint64_t bytes);
    void postBacklog(PeerPath& peer);
    void failBacklog(PeerPath& peer, const Status& cause, bool retryable);
    SliceReport& reportFor(std::uint32_t tracker);
    bool sendReports();
    void answerWaits(TimePoint now);
    bool servesPeerIn(const RangeSet& ranges) const;
    Status heldIn(const RangeSet& ranges) const;
    void noteHeld(const ByteRange& range, TimePoint now);
    void lookWhoHolds();
    void answerCloseWaits(TimePoint now);
    void answerFlightWaits(TimePoint now);
    bool hasFlights() const { return out_.size() != free_.size(); }

    const std::uint32_t index_;
    std::unique_ptr<Nic> nic_;
    const std::string nic_name_;
    Quarantine& quarantine_;
    WorkerOutput& output_;
    std::vector<PeerPath> peers_;            ///< By peer index.
    std::vector<std::uint32_t> backlogged_;  ///< Peers whose backlog is not empty.

    // Flights by cookie: a slab with a free list, so that a completion finds its flight in one load.
    std::vector<Out> out_;
    std::vector<std::uint32_t> free_;

    std::vector<WorkRequest> scratch_;  ///< Requests on their way to the Nic; never shrinks.
    std::size_t cut_ = 0;               ///< Of `scratch_`, in use by onTrain.
    Sweep sweep_;
    std::vector<SliceReport> reports_;  ///< By tracker.
    SliceReport sending_;
    std::vector<AwaitPeersIdle> waits_;
    std::vector<CloseToPeers> close_waits_;
    std::vector<AwaitFlights> flight_waits_;
    TimePoint now_{};             ///< Of the last poll.
    bool holds_regions_ = false;  ///< The quarantine lists regions that processes were given here.
};

}  // namespace troupe
