// VerbsNic: pairs that nobody uses, and how many there may be.

#include <string>

#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

namespace {

/// How often a lane that waits for room looks whether another one has become idle.
constexpr std::chrono::milliseconds kRoomPause{5};
/// The same for one without work, whose path was lost and cannot be tried for want of room.
constexpr std::chrono::milliseconds kLostPause{100};

}  // namespace

bool VerbsNic::isIdle(const Lane& lane) {
    return lane.step == Lane::Step::Up && lane.queue.idle() && lane.waiting.empty();
}

/// Whether a pair may be made for the lane now. If not, and it has work, an idle one is on its way out and the lane is
/// asked again.
bool VerbsNic::hasRoomFor(Lane& lane, TimePoint now) {
    if (lane_of_pair_.size() < config_.rdma_max_endpoints) {
        lane.roomless_since = kForever;
        return true;
    }
    if (lane.waiting.empty()) {
        // To connect ahead of work is not worth the pair of another peer. But nobody sends work to a path that was
        // lost before it is back.
        if (lane.path->usable) return false;
        if (evicting_ == 0) evictIdle(now);
        lane.retry_at = now + kLostPause;
        watchTimer(lane.retry_at);
        return false;
    }
    const bool first = lane.roomless_since == kForever;
    if (first) lane.roomless_since = now;
    if (now - lane.roomless_since >= config_.connect_timeout) {
        lane.roomless_since = kForever;
        // Each wait in vain counts by itself, however many lanes waited.
        lane.incident = incidentOf(lane);
        failWaiting(lane,
                    {Code::ResourceExhausted, describe(lane) + ": all of rdma.max_endpoints (" +
                                                  std::to_string(config_.rdma_max_endpoints) +
                                                  ") queue pairs are in use: raise it, or send to fewer peers at once"},
                    true);
        return false;
    }
    if (first || evicting_ == 0) evictIdle(now);
    watchTimer(now + kRoomPause);
    return false;
}

/// Ends the pair that was not used for longest, of those that nothing is posted on.
void VerbsNic::evictIdle(TimePoint now) {
    Lane* oldest = nullptr;
    for (const auto& path : paths_) {
        if (!path) continue;
        for (const auto& lane : path->lanes)
            if (isIdle(*lane) && (oldest == nullptr || lane->used_at < oldest->used_at)) oldest = lane.get();
    }
    if (oldest == nullptr) return;
    log_->debug("{}: {}: closed to make room; there are rdma.max_endpoints", info_.name, describe(*oldest));
    oldest->evicted = true;
    ++evicting_;
    closeIdle(*oldest, "closed to make room", now);
}

/// Closes the pair when it was not used for rdma.idle_timeout, and sees to it that it is looked at again otherwise.
void VerbsNic::closeIfUnused(Lane& lane, TimePoint now) {
    if (lane.step != Lane::Step::Up || config_.rdma_idle_timeout.count() == 0) return;
    const TimePoint due = lane.used_at + config_.rdma_idle_timeout;
    if (now < due) return watchTimer(due);
    if (!isIdle(lane)) return watchTimer(now + config_.rdma_idle_timeout);
    log_->debug("{}: {}: not used for rdma.idle_timeout, closed", info_.name, describe(lane));
    closeIdle(lane, "closed because it was not used", now);
}

/// Its path stays usable: nothing is wrong with it.
void VerbsNic::closeIdle(Lane& lane, const char* why, TimePoint now) {
    lane.lost = false;
    beginDrain(lane, {Code::ConnectionLost, why}, true, now, false);
}

}  // namespace troupe::verbs
