#include "transports/faulty_nic.h"

#include <algorithm>
#include <utility>

namespace troupe {

FaultyNic::FaultyNic(std::unique_ptr<Nic> nic, FaultInjector& faults) : nic_(std::move(nic)), faults_(faults) {}

// --- paths -------------------------------------------------------------------------------------------------------

Result<PathId> FaultyNic::openPath(std::shared_ptr<const Peer> peer) {
    std::string text = nic_->info().name + " " + peer->name;
    auto opened = nic_->openPath(std::move(peer));
    if (opened) {
        Path path;
        path.text = std::move(text);
        paths_.insert_or_assign(*opened, std::move(path));
    }
    return opened;
}

void FaultyNic::updatePeer(PathId path, std::shared_ptr<const Peer> peer) { nic_->updatePeer(path, std::move(peer)); }

void FaultyNic::closePath(PathId path, const Status& cause) {
    endOurs(path, cause, false);
    nic_->closePath(path, cause);
    paths_.erase(path);
}

void FaultyNic::resetPath(PathId path, const Status& cause) {
    endOurs(path, cause, true);
    nic_->resetPath(path, cause);
}

/// Ends what the Nic does not have (any more). What is done is said to be done.
void FaultyNic::endOurs(PathId path, const Status& cause, bool retryable) {
    if (const auto found = paths_.find(path); found != paths_.end()) found->second.is_judged = false;
    for (auto at = posted_.begin(); at != posted_.end();) {
        Posted& posted = at->second;
        if (posted.path != path || posted.state == Posted::State::Given) {
            ++at;
            continue;
        }
        if (posted.state == Posted::State::Done) {
            posted.due = TimePoint{};
            ++at;
            continue;
        }
        if (posted.state == Posted::State::Held) --timed_;
        fail(posted.request, cause, retryable);
        at = posted_.erase(at);
    }
}

void FaultyNic::fail(const WorkRequest& request, const Status& cause, bool retryable) {
    failures_.push_back({request, cause, retryable, /*quiesced=*/true, /*fenced=*/true});
}

void FaultyNic::lookForDrops(TimePoint now) {
    drops_end_ = kForever;
    any_dropped_ = false;
    for (auto& [id, path] : paths_) {
        const auto until = faults_.droppedUntil(path.text, now);
        if (until) {
            any_dropped_ = true;
            drops_end_ = std::min(drops_end_, *until);
        }
        if (until.has_value() == path.is_dropped) continue;
        path.is_dropped = until.has_value();
        if (path.usable) changes_.push_back({id, !path.is_dropped});
        if (path.is_dropped) resetPath(id, Status(Code::ConnectionLost, "a fault dropped the path " + path.text));
    }
}

// --- posting -----------------------------------------------------------------------------------------------------

std::size_t FaultyNic::post(PathId path, std::span<const WorkRequest> requests) {
    const auto found = paths_.find(path);
    if (found == paths_.end()) return nic_->post(path, requests);  // It says what is wrong.
    std::size_t taken = 0;
    while (taken < requests.size() && take(found->second, path, requests[taken])) ++taken;
    return taken;
}

/// False: the Nic has no room for it.
bool FaultyNic::take(Path& path, PathId id, const WorkRequest& request) {
    if (path.is_dropped) {
        fail(request, Status(Code::ConnectionLost, "a fault dropped the path " + path.text), true);
        return true;
    }
    const auto verdict = path.is_judged ? std::nullopt : faults_.judge(FaultPoint::Post, path.text);
    if (!verdict) {
        path.is_judged = !give(id, next_id_, request);
        if (path.is_judged) return false;
        posted_.emplace(next_id_++, Posted{id, request, Posted::State::Given, kForever, 0});
        return true;
    }
    switch (verdict->action) {
        case FaultAction::Delay:
            posted_.emplace(next_id_++, Posted{id, request, Posted::State::Held, Clock::now() + verdict->delay, 0});
            ++timed_;
            break;
        case FaultAction::Lose:
            posted_.emplace(next_id_++, Posted{id, request, Posted::State::Lost, kForever, 0});
            break;
        default: fail(request, verdict->cause, verdict->retryable); break;
    }
    return true;
}

bool FaultyNic::give(PathId path, std::uint64_t id, const WorkRequest& request) {
    WorkRequest renamed = request;
    renamed.cookie = id;
    return nic_->post(path, {&renamed, 1}) == 1;
}

// --- what ends ---------------------------------------------------------------------------------------------------

bool FaultyNic::poll(TimePoint now, Sweep& sweep) {
    lookForDrops(now);
    release(now, sweep);
    bool moved = nic_->poll(now, sweep_);
    for (const Completion& done : sweep_.completed) onCompleted(now, done, sweep);
    for (Failure& failure : sweep_.failed) {
        if (const auto found = posted_.find(failure.request.cookie); found != posted_.end()) {
            failure.request = found->second.request;
            posted_.erase(found);
        }
        sweep.failed.push_back(std::move(failure));
    }
    for (const PathChange& change : sweep_.paths) {
        const auto found = paths_.find(change.path);
        if (found != paths_.end()) found->second.usable = change.usable;
        if (found == paths_.end() || !found->second.is_dropped) sweep.paths.push_back(change);
    }
    sweep_.clear();
    moved = moved || !failures_.empty() || !changes_.empty();
    for (Failure& failure : failures_) sweep.failed.push_back(std::move(failure));
    failures_.clear();
    sweep.paths.insert(sweep.paths.end(), changes_.begin(), changes_.end());
    changes_.clear();
    return moved;
}

/// What was delayed for long enough.
void FaultyNic::release(TimePoint now, Sweep& sweep) {
    if (timed_ == 0) return;
    for (auto at = posted_.begin(); at != posted_.end();) {
        Posted& posted = at->second;
        if (posted.due > now) {
            ++at;
        } else if (posted.state == Posted::State::Done) {
            sweep.complete(posted.request.cookie, posted.bytes);
            --timed_;
            at = posted_.erase(at);
        } else {
            // Without room it is given at a later poll; room comes with one that says what has ended.
            if (give(posted.path, at->first, posted.request)) {
                posted.state = Posted::State::Given;
                posted.due = kForever;
                --timed_;
            }
            ++at;
        }
    }
}

void FaultyNic::onCompleted(TimePoint now, const Completion& done, Sweep& sweep) {
    const auto found = posted_.find(done.cookie);
    if (found == posted_.end()) return sweep.complete(done.cookie, done.bytes);
    Posted& posted = found->second;
    const auto path = paths_.find(posted.path);
    const auto verdict = path == paths_.end() ? std::nullopt : faults_.judge(FaultPoint::Completion, path->second.text);
    if (verdict && verdict->action == FaultAction::Delay) {
        posted.state = Posted::State::Done;
        posted.due = now + verdict->delay;
        posted.bytes = done.bytes;
        ++timed_;
        return;
    }
    if (verdict && verdict->action == FaultAction::Lose) {
        posted.state = Posted::State::Lost;
        return;
    }
    if (verdict)
        fail(posted.request, verdict->cause, verdict->retryable);
    else
        sweep.complete(posted.request.cookie, done.bytes);
    posted_.erase(found);
}

TimePoint FaultyNic::nextDeadline() const {
    TimePoint next = std::min(nic_->nextDeadline(), any_dropped_ ? drops_end_ : kForever);
    if (timed_ == 0) return next;
    // One that is due and waits for room is waited for by the Nic's own descriptor, and looked at now and then.
    constexpr std::chrono::milliseconds kSoon{1};
    for (const auto& [id, posted] : posted_)
        if (posted.due != kForever) next = std::min(next, std::max(posted.due, Clock::now() + kSoon));
    return next;
}

}  // namespace troupe
