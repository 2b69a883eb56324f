#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_injector.h"
#include "transports/nic.h"

namespace troupe {

/// A Nic with somebody who breaks what goes in and out of it. It is put around the real one only where
/// `faults.enabled` is set. What it loses or delays is ended by resetPath and closePath as a real Nic's work is; what
/// it fails was never given to the Nic, or is done, so that nothing touches the buffer.
class FaultyNic final : public Nic {
  public:
    /// `faults` outlives this.
    FaultyNic(std::unique_ptr<Nic> nic, FaultInjector& faults);

    Status shut() override { return nic_->shut(); }
    const NicInfo& info() const override { return nic_->info(); }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    void updatePeer(PathId path, std::shared_ptr<const Peer> peer) override;
    bool isSamePlace(const Peer& was, const Peer& is) const override { return nic_->isSamePlace(was, is); }
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override { return failures_.empty() && changes_.empty() && nic_->arm(); }
    int waitFd() const override { return nic_->waitFd(); }
    TimePoint nextDeadline() const override;
    bool servesPeerIn(const ByteRange& range) const override { return nic_->servesPeerIn(range); }
    void cutPeersIn(const ByteRange& range) override { nic_->cutPeersIn(range); }
    void revokeIn(const RangeSet& ranges) override { nic_->revokeIn(ranges); }
    Status heldIn(const ByteRange& range) const override { return nic_->heldIn(range); }
    std::vector<Holding> holdingsIn(const ByteRange& range) const override { return nic_->holdingsIn(range); }
    void closeToPeers() override { nic_->closeToPeers(); }
    void openToPeers() override { nic_->openToPeers(); }

  private:
    struct Path {
        std::string text;         ///< "tcp0 SEGMENT".
        bool usable = true;       ///< By the Nic's own word.
        bool is_dropped = false;  ///< By ours.
        bool is_judged = false;   ///< The next request was let through, but the Nic had no room for it.
    };
    struct Posted {
        enum class State { Held, Given, Lost, Done };
        PathId path = 0;
        WorkRequest request;  ///< As it was posted here: with the cookie of its poster.
        State state = State::Given;
        TimePoint due = kForever;  ///< Of Held: when the Nic gets it. Of Done: when it is said.
        std::uint64_t bytes = 0;   ///< Of Done.
    };
    using Table = std::map<std::uint64_t, Posted>;

    bool give(PathId path, std::uint64_t id, const WorkRequest& request);
    bool take(Path& path, PathId id, const WorkRequest& request);
    void fail(const WorkRequest& request, const Status& cause, bool retryable);
    void endOurs(PathId path, const Status& cause, bool retryable);
    void lookForDrops(TimePoint now);
    void release(TimePoint now, Sweep& sweep);
    void onCompleted(TimePoint now, const Completion& done, Sweep& sweep);

    std::unique_ptr<Nic> nic_;
    FaultInjector& faults_;
    std::map<PathId, Path> paths_;
    /// By the cookies that the Nic is given, which are unique, so that each of its completions says of which request.
    Table posted_;
    std::uint64_t next_id_ = 1;
    std::size_t timed_ = 0;  ///< Held and Done ones.
    bool any_dropped_ = false;
    TimePoint drops_end_ = kForever;
    std::vector<Failure> failures_;    ///< For the next poll to tell.
    std::vector<PathChange> changes_;  ///< The same.
    Sweep sweep_;                      ///< Of the Nic; reused.
};

}  // namespace troupe
