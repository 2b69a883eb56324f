// VerbsNic: what becomes of lanes and of the requests on them.

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

namespace {

/// The Connector's thread may be busy with other pairs; after this a pair that is to be destroyed counts as stuck.
constexpr std::chrono::seconds kEndPatience{2};
/// Of the attempts to connect a path that was lost, each so many-th tries all ways, the others the one that worked.
constexpr std::uint32_t kAllWaysEvery = 2;

}  // namespace

void VerbsNic::order(Lane& lane, TimePoint now) {
    if (lane.path->candidates.empty()) {
        // The peer uninstalled it; its next descriptor may name a device again.
        if (lane.path->usable || !lane.waiting.empty()) suspend(*lane.path);
        lane.incident = incidentOf(lane);
        return failWaiting(lane, {Code::TransportMissing, describe(lane) + ": the peer has no RDMA device any more"},
                           true);
    }
    if (now < lane.retry_at) return watchTimer(lane.retry_at);
    if (!hasRoomFor(lane, now)) return;
    Connector::Order wanted;
    wanted.device = index_;
    wanted.greeting.initiator = incarnation_;
    wanted.greeting.target = lane.path->keys.peer().desc->incarnation;
    wanted.greeting.nic = static_cast<std::uint32_t>(index_);
    wanted.greeting.lane = lane.number;
    wanted.candidates = lane.path->candidates;
    preferKnown(lane, wanted);
    wanted.peer = "segment '" + lane.path->keys.peer().name + "'";
    wanted.peer_index = lane.path->keys.peer().index;
    lane.step = Lane::Step::Connecting;
    lane.pair = shared_.connector->connect(std::move(wanted));
    lane_of_pair_[lane.pair] = &lane;
}

/// The way that worked before is tried first, and mostly alone: one to another rail costs its share of connect_timeout
/// before it is known that nobody answers there.
void VerbsNic::preferKnown(Lane& lane, Connector::Order& wanted) {
    PathState& path = *lane.path;
    auto& ways = wanted.candidates;
    const auto isBarren = [&](const Connector::Candidate& way) { return path.barren.count(way.device) != 0; };
    if (std::all_of(ways.begin(), ways.end(), isBarren)) path.barren.clear();
    const auto known = std::find_if(ways.begin(), ways.end(),
                                    [&](const Connector::Candidate& way) { return way.device == path.worked; });
    if (known != ways.end()) {
        std::rotate(ways.begin(), known, known + 1);
        Connector::Candidate first = ways.front();
        first.by_exchange = first.by_exchange || path.worked_by_exchange;
        if (++lane.attempts % kAllWaysEvery != 0 && !isBarren(first)) {
            wanted.ways = ways.size();
            ways.assign(1, first);
            return;
        }
        // A port that is deaf to rdma_cm stays so; where it is not any more, the next one may be by that again.
        if (first.by_exchange != ways.front().by_exchange) ways.insert(ways.begin(), std::move(first));
    }
    std::stable_partition(ways.begin(), ways.end(), [&](const Connector::Candidate& way) { return !isBarren(way); });
}

/// Something has arrived by its pair.
void VerbsNic::prove(Lane& lane) {
    if (lane.proven) return;
    lane.proven = true;
    lane.attempts = 0;
    lane.path->worked = lane.peer_device;
    lane.path->worked_by_exchange = lane.by_exchange;
    lane.path->barren.clear();
}

void VerbsNic::onEvent(PairEvent& event, TimePoint now) {
    switch (event.kind) {
        case PairEvent::Kind::PortDown:
        case PairEvent::Kind::PortUp: return onPort(event, now);
        case PairEvent::Kind::PortChanged: return onPortChanged();
        case PairEvent::Kind::QueueLost:
            queue_lost_ = true;
            // Of a device that is gone its descriptor would wake the loop for ever.
            static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, queue_->channel()->fd, nullptr));
            return;
        case PairEvent::Kind::QueueMade: return onQueue(std::move(event.queue));
        default: break;
    }
    if (event.kind == PairEvent::Kind::Fenced) {
        if (event.status) return endFences([&](const Fence& each) { return each.pair == event.pair; }, true);
        log_->debug("{}: not fenced: {}", info_.name, event.status.toString());
        for (Fence& each : fences_)
            if (each.pair == event.pair) each.pair = 0;
        return;
    }
    if (event.kind == PairEvent::Kind::Destroyed && event.status) {
        if (const auto doubt = doubtful_.find(event.pair); doubt != doubtful_.end()) {
            queue_owed_ += doubt->second;
            doubtful_.erase(doubt);
            proven_.push_back(event.pair);
        }
    }
    Lane* lane = laneOf(event.pair);
    if (lane == nullptr) return;
    switch (event.kind) {
        case PairEvent::Kind::Up: return onUp(*lane, event, now);
        case PairEvent::Kind::Failed:
            log_->debug("{}: {}", info_.name, event.status.toString());
            strike(*lane, now);
            lane->failed = true;
            if (!event.retryable || !handOver(*lane)) {
                // Of several lanes one that is up carries what there is.
                if (lane->path->lanes_up == 0) suspend(*lane->path);
                failWaiting(*lane, event.status, event.retryable);
            }
            return ended(*lane, {});
        case PairEvent::Kind::Broken:
            if (lane->step != Lane::Step::Up) return;
            log_->debug("{}: {}", info_.name, event.status.toString());
            if (event.status.code() == Code::PathReset) {
                // Nothing was lost. What waits goes by the next pair.
                lane->lost = false;
                lane->incident = ++incidents_;
                return beginDrain(*lane, event.status, true, now, false);
            }
            // A peer that needs the room for another closes what is not used. Were that a loss, the pair would be made
            // anew at once, and another one have to go.
            lane->lost = !(event.by_peer && isIdle(*lane));
            if (lane->lost) strike(*lane, now);
            failWaiting(*lane, event.status, true);
            return beginDrain(*lane, event.status, true, now, false);
        case PairEvent::Kind::Destroyed: return ended(*lane, event.status);
        default: return;
    }
}

void VerbsNic::onPort(const PairEvent& event, TimePoint now) {
    port_down_ = event.kind == PairEvent::Kind::PortDown;
    port_cause_ = event.status;
    if (port_down_) port_incident_ = ++incidents_;
    for (const auto& path : paths_) {
        if (!path) continue;
        for (const auto& lane : path->lanes) {
            if (port_down_) {
                suspend(*path->state);
                lane->incident = port_incident_;
                // Those that are up follow one by one, as broken.
                if (lane->step != Lane::Step::Up) failWaiting(*lane, port_cause_.withContext(describe(*lane)), true);
                continue;
            }
            // What was held against the path was the port's fault. It is connected before there is work.
            lane->back_off.forget();
            lane->attempts = 0;
            path->state->barren.clear();
            lane->retry_at = now;
            enlist(*lane);
        }
    }
}

/// What could not be reached from the old address may be reached from the new one, and the other way round.
void VerbsNic::onPortChanged() {
    for (const auto& path : paths_) {
        if (!path) continue;
        path->state->candidates = candidatesOf(*path->state->keys.peer().desc, index_);
        if (path->state->usable) continue;
        for (const auto& lane : path->lanes) {
            lane->back_off.forget();
            lane->retry_at = TimePoint::min();
            enlist(*lane);
        }
    }
}

/// The pairs of the queue before it are ending without its help.
void VerbsNic::onQueue(std::shared_ptr<const CompletionQueue> made) {
    queue_lost_ = false;
    if (made == queue_) return;
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, queue_->channel()->fd, nullptr));
    shared_.connector->release(std::exchange(queue_, std::move(made)));
    armed_ = false;
    const Status watched = watch(queue_->channel()->fd);
    must_poll_ = !watched;
    if (must_poll_) log_->error("{}: {}; it is polled without a pause", info_.name, watched.message());
}

void VerbsNic::onUp(Lane& lane, PairEvent& event, TimePoint now) {
    if (lane.step != Lane::Step::Connecting) return;
    const auto& devices = lane.path->keys.peer().desc->devices;
    const auto named = std::find_if(devices.begin(), devices.end(),
                                    [&](const DeviceDesc& device) { return device.name == event.device; });
    if (named == devices.end()) {
        strike(lane, now);
        failWaiting(lane,
                    {Code::ProtocolError, describe(lane) + ": device '" + event.device +
                                              "' answered, which the peer's descriptor does not name"},
                    true);
        return beginEnd(lane, now);
    }
    lane.step = Lane::Step::Up;
    lane.used_at = now;
    closeIfUnused(lane, now);
    lane.qp = event.qp;
    lane.remote_device = static_cast<std::size_t>(named - devices.begin());
    lane.peer_device = event.device;
    lane.way = std::move(event.way);
    lane.segments = event.segments;
    lane.inlined = event.inlined;
    lane.queue = SendQueue(event.depth);
    lane.failed = false;
    lane.shared = incidents_;
    lane.proven = false;
    lane.cause = {};
    lane.retryable = true;
    lane.lost = true;
    lane.reset = false;
    lane.by_exchange = event.by_exchange;
    ++lane.path->lanes_up;
    resume(*lane.path);
    // The peer has ended the lane's earlier connections before it answered this one.
    endFences([&](const Fence& each) { return each.lane == &lane; }, true);
    if (!lane.waiting.empty()) enlist(lane);
}

/// Takes a lane that is up to its end: nothing more is posted, completions are counted.
void VerbsNic::beginDrain(Lane& lane, const Status& cause, bool retryable, TimePoint now, bool tell_connector) {
    if (lane.step != Lane::Step::Up) return;
    lane.step = Lane::Step::Draining;
    // What its owner reset connects anew at once; whatever else ended it may last.
    --lane.path->lanes_up;
    if (lane.lost && !lane.proven && lane.queue.nextNumber() != 0) lane.path->barren.insert(lane.peer_device);
    if (!lane.orphan && lane.lost) {
        suspend(*lane.path);
        // The link of the others is the same, and they may not know yet: one request is to try it, and what was lost
        // here goes by another path as long as that has not arrived.
        if (lane.path->lanes_up != 0) resume(*lane.path);
    }
    lane.cause = cause;
    lane.retryable = retryable;
    if (tell_connector) shared_.connector->breakPair(lane.pair, cause);
    if (lane.queue.idle() || queue_lost_) return beginEnd(lane, now);
    lane.deadline = now + config_.rdma_drain_timeout;
    watchTimer(lane.deadline);
}

void VerbsNic::beginEnd(Lane& lane, TimePoint now) {
    if (lane.step == Lane::Step::Draining && lane.queue.idle()) failPosted(lane, true);
    lane.step = Lane::Step::Ending;
    lane.deadline = now + kEndPatience;
    watchTimer(lane.deadline);
    shared_.connector->destroy(lane.pair);
}

/// The pair is gone. `proof`: Ok when the device can no longer touch anything because of it.
void VerbsNic::ended(Lane& lane, const Status& proof) {
    if (lane.queue.holdsRequests() || !lane.queue.idle()) failPosted(lane, proof.isOk());
    const std::uint32_t owed = std::exchange(lane.owed, 0);
    if (proof.isOk())
        queue_owed_ += owed;
    else if (owed != 0)
        doubtful_[lane.pair] += owed;
    accountFor(lane);
    lane_of_pair_.erase(lane.pair);
    last_lane_ = nullptr;
    last_pair_ = 0;
    lane.pair = 0;
    lane.qp = nullptr;
    lane.step = Lane::Step::Idle;
    lane.deadline = kForever;
    if (std::exchange(lane.evicted, false)) --evicting_;
    // Somebody may wait for its place.
    watchTimer(TimePoint::min());
    if (lane.orphan) return forget(lane);
    // What was lost is looked after before anybody sends work there; and to connect is a fence.
    if (!lane.waiting.empty() || !lane.path->usable || lane.failed || lane.fences != 0) enlist(lane);
}

/// Of what a lane fails for now. The lanes of a path find out one after the other that their link or peer is gone, and
/// a task that has parts on all of them is to pay for that once: so each takes part in what another one began, and
/// begins the next when it fails again.
std::uint64_t VerbsNic::incidentOf(Lane& lane) {
    std::uint64_t& last = lane.path->incident;
    if (last <= lane.shared) last = ++incidents_;
    lane.shared = last;
    return last;
}

void VerbsNic::strike(Lane& lane, TimePoint now) {
    lane.incident = port_down_ ? port_incident_ : incidentOf(lane);
    lane.retry_at = lane.back_off.broke(now, random_);
}

void VerbsNic::suspend(PathState& path) {
    path.usable = false;
    // Said each time: somebody may have begun to use it since.
    changes_.push_back({path.id, false});
}

void VerbsNic::resume(PathState& path) {
    if (path.usable) return;
    path.usable = true;
    changes_.push_back({path.id, true});
}

// --- requests --------------------------------------------------------------------------------------------------------

/// Gives what waits at a lane that could not connect to those of its path that are up, or may be soon: that are being
/// connected and did not fail since they were up last. False: there is none.
bool VerbsNic::handOver(Lane& lane) {
    Path* const path = find(lane.path->id);
    if (path == nullptr) return false;
    const Lane::Step wanted = lane.path->lanes_up != 0 ? Lane::Step::Up : Lane::Step::Connecting;
    const auto takes = [&](const auto& other) { return other->step == wanted && !other->failed; };
    if (std::none_of(path->lanes.begin(), path->lanes.end(), takes)) return false;
    for (const WorkRequest& request : lane.waiting) {
        Lane* to = nullptr;
        for (const auto& other : path->lanes)
            if (takes(other) && (to == nullptr || other->backlog < to->backlog)) to = other.get();
        lane.backlog -= request.length;
        to->backlog += request.length;
        to->waiting.push_back(request);
        enlist(*to);
    }
    lane.waiting.clear();
    return true;
}

void VerbsNic::failWaiting(Lane& lane, const Status& cause, bool retryable) {
    // None of them was posted.
    for (const WorkRequest& request : lane.waiting) fail(lane, {request, cause, retryable, true, true});
    lane.waiting.clear();
}

/// Everything posted on the lane ends now, with what is known.
void VerbsNic::failPosted(Lane& lane, bool quiesced) {
    // Completions of them may come as long as the pair is there.
    lane.owed += lane.queue.outstanding();
    std::vector<WorkRequest> writes;
    if (!quiesced && lane.queue.holdsRequests()) doubtful_.try_emplace(lane.pair, 0u);
    lane.queue.drain([&](const WorkRequest& request, bool is_culprit) {
        // Only a refusal of the request itself makes it final; the others on the pair are bystanders.
        const bool refused =
            is_culprit && (lane.cause.code() == Code::AccessDenied || lane.cause.code() == Code::AddressNotRegistered ||
                           lane.cause.code() == Code::InvalidArgument);
        if (quiesced && (lane.retryable || lane.reset) && !refused && request.opcode == Opcode::Write)
            writes.push_back(request);
        else
            fail(lane, {request, lane.cause, lane.retryable && !refused, quiesced, false, 0, quiesced ? 0 : lane.pair});
    });
    if (writes.empty() || fence(lane, writes)) return;
    for (const WorkRequest& request : writes) fail(lane, {request, lane.cause, lane.retryable, true});
}

void VerbsNic::finish(Lane& lane, const WorkRequest& request) {
    lane.backlog -= request.length;
    lane.path->bytes -= request.length;
    lane.path->requests -= 1;
}

void VerbsNic::fail(Lane& lane, Failure failure) {
    finish(lane, failure.request);
    failure.incident = lane.incident;
    failures_.push_back(std::move(failure));
}

void VerbsNic::forget(Lane& lane) {
    if (lane.is_listed) std::erase(ready_, &lane);
    lane.is_listed = false;
}

void VerbsNic::runTimers(TimePoint now) {
    next_deadline_ = kForever;
    const auto look = [&](Lane& lane) {
        if (lane.step == Lane::Step::Idle && !lane.orphan &&
            (!lane.waiting.empty() || !lane.path->usable || lane.failed || lane.fences != 0))
            enlist(lane);
        if (lane.waiting.empty()) lane.roomless_since = kForever;
        closeIfUnused(lane, now);
        if (lane.step != Lane::Step::Draining && lane.step != Lane::Step::Ending) return;
        if (now < lane.deadline) return watchTimer(lane.deadline);
        if (lane.step == Lane::Step::Draining) {
            log_->warn("{}: {}: {} completions did not come in rdma.drain_timeout; destroying the queue pair ends them",
                       info_.name, describe(lane), lane.queue.outstanding());
            return beginEnd(lane, now);
        }
        // Not even destroyed: what is posted there cannot be proven to have ended.
        if (lane.queue.holdsRequests()) {
            log_->error("{}: {}: the queue pair could not be destroyed in time; its buffers are not quiesced",
                        info_.name, describe(lane));
            failPosted(lane, false);
        }
        lane.deadline = kForever;
    };
    for (const auto& path : paths_)
        if (path)
            for (const auto& lane : path->lanes) look(*lane);
    for (const auto& lane : orphans_) look(*lane);
    endFences([&](const Fence& each) { return each.deadline <= now; }, true);
    giveUpFences(now);
    for (const Fence& each : fences_) watchTimer(std::min(each.deadline, each.give_up));
    forgetOrphans();
}

/// Lanes of paths that are closed, which have come to their end.
void VerbsNic::forgetOrphans() {
    std::erase_if(orphans_, [](const auto& lane) { return lane->step == Lane::Step::Idle && lane->fences == 0; });
}

}  // namespace troupe::verbs
