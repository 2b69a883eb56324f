// VerbsNic: writes that ended with a queue pair before they were done, and how another path may take them.
//
// A pair in the error state sends nothing more, and when every completion is counted or it is destroyed, the own memory
// is free. But what it sent may still be in a switch, and the target's pair, which knows of nothing, would apply it:
// after the same write went over another path, after the caller saw it completed, and over whatever was written there
// since. So either the target's pair is gone first, or the packets are. Connecting the lane anew ends the target's
// pair, but that takes the device that was lost; a fence is the same request, sent through another one, or over the
// control connection, which needs none. Where nothing gets through, rdma.packet_lifetime is waited for.

#include <algorithm>

#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

namespace {

/// How long the end of a reset waits for a peer that does not answer, as over TCP: a task's end must not wait for ever.
constexpr std::chrono::seconds kResetBound{1};

}  // namespace

/// Takes `writes` and gives them back when they are fenced off. False: nobody waits for that.
bool VerbsNic::fence(Lane& lane, std::vector<WorkRequest>& writes) {
    if (lane.pair == 0) return false;
    const TimePoint now = Clock::now();
    Fence entry;
    entry.lane = &lane;
    entry.writes = std::move(writes);
    entry.cause = lane.cause;
    entry.retryable = lane.retryable;
    entry.incident = lane.incident;
    entry.deadline = saturatedAdd(now, config_.rdma_packet_lifetime);
    if (lane.reset) entry.give_up = now + kResetBound;
    entry.pair = askToFence(lane);
    watchTimer(std::min(entry.deadline, entry.give_up));
    ++lane.fences;
    fences_.push_back(std::move(entry));
    return true;
}

/// Asks the peer through the other devices, then over the control connection, which may share the lost link; 0: there
/// is nothing to ask through.
std::uint32_t VerbsNic::askToFence(const Lane& lane) {
    const Peer& peer = lane.path->keys.peer();
    Connector::Order wanted;
    for (std::size_t own = 0; own < shared_.memory->devices().size(); ++own) {
        if (own == index_) continue;
        for (Connector::Candidate& way : candidatesOf(*peer.desc, own))
            if (!way.by_exchange) wanted.candidates.push_back(std::move(way));
    }
    if (shared_.connector->canAsk()) {
        Connector::Candidate way;
        way.own = index_;
        way.by_exchange = true;
        wanted.candidates.push_back(std::move(way));
    }
    if (wanted.candidates.empty()) return 0;
    wanted.device = index_;
    wanted.greeting.initiator = incarnation_;
    wanted.greeting.target = peer.desc->incarnation;
    wanted.greeting.nic = static_cast<std::uint32_t>(index_);
    wanted.greeting.lane = lane.number;
    wanted.greeting.attempt = lane.pair;
    wanted.greeting.fence = true;
    wanted.peer = "segment '" + peer.name + "'";
    wanted.peer_index = peer.index;
    return shared_.connector->connect(std::move(wanted));
}

/// Gives the writes of these back; `fenced`: nothing of them is on its way any more.
void VerbsNic::endFences(const std::function<bool(const Fence&)>& which, bool fenced) {
    std::erase_if(fences_, [&](const Fence& entry) {
        if (!which(entry)) return false;
        // Where it has an answer, it is gone already.
        if (entry.pair != 0) shared_.connector->destroy(entry.pair);
        --entry.lane->fences;
        for (const WorkRequest& request : entry.writes) {
            finish(*entry.lane, request);
            failures_.push_back({request, entry.cause, entry.retryable, true, fenced, entry.incident});
        }
        return true;
    });
}

/// The owner resets or closes the path, and waits no longer than for what is posted.
void VerbsNic::boundFences(const PathState& path, const Status& cause, bool retryable, TimePoint now) {
    for (Fence& entry : fences_) {
        if (entry.lane->path.get() != &path) continue;
        entry.cause = cause;
        entry.retryable = retryable;
        entry.give_up = std::min(entry.give_up, now + kResetBound);
        watchTimer(entry.give_up);
    }
}

/// Gives back what has waited as long as its owner does, although something of it may still be on its way.
void VerbsNic::giveUpFences(TimePoint now) {
    const auto is_over = [now](const Fence& entry) { return entry.give_up <= now; };
    for (Fence& entry : fences_) {
        if (!is_over(entry)) continue;
        entry.cause = {entry.cause.code(), entry.cause.message() + "; what was sent of it may still arrive there"};
        // The lane's own next connection ends the last one before anything else is sent; that of another lane does not.
        entry.retryable = entry.retryable && entry.lane->path->lanes == 1;
    }
    endFences(is_over, false);
}

/// The peer of this path is gone.
void VerbsNic::abandonFences(const PathState& path, const Status& cause) {
    const auto is_of_it = [&path](const Fence& entry) { return entry.lane->path.get() == &path; };
    for (Fence& entry : fences_) {
        if (!is_of_it(entry)) continue;
        entry.cause = cause;
        entry.retryable = false;
    }
    endFences(is_of_it, false);
}

}  // namespace troupe::verbs
