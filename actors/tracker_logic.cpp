#include "actors/tracker_logic.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe {

namespace {

// Deadlines are looked at no more often than this: a task ends at most so late.
constexpr auto kDeadlineGrain = std::chrono::milliseconds(5);

// Between two looks at an event of the application that tasks wait for, while nothing else happens. A sleeping loop
// wakes by milliseconds.
constexpr auto kGateGrain = std::chrono::microseconds(50);
/// So many of what tasks wait for are looked at then: with more, each is in every so many passes. A look is a call of
/// the driver, about a microsecond, and other work is to have most of the time between.
constexpr std::size_t kGatesPerPass = 16;

// Windows of each path that may be sent again before anything has arrived: to lose all paths a few times is no storm.
constexpr std::uint64_t kWindowsToRetry = 8;

// Runs that are looked at past those whose near devices are busy, each time: more than the locations of a machine, so
// that a few that alternate hold nobody up, and few enough that a long queue costs little.
constexpr std::size_t kMostPassed = 64;

}  // namespace

TrackerLogic::TrackerLogic(std::uint32_t index, std::uint32_t loop, const RegistrationTable& regions,
                           TrackerOutput& output, RetryBudget::Limits retries)
    : index_(index), loop_(loop), retries_(retries), region_map_(regions.regions()), output_(output) {}

// --- who is there ------------------------------------------------------------------------------------------------

void TrackerLogic::onWorkerJoined(const WorkerJoined& worker) {
    if (workers_.size() <= worker.index) workers_.resize(worker.index + 1);
    workers_[worker.index] = KnownWorker{worker.nic, worker.loop, worker.far_from};
}

void TrackerLogic::onUsePeer(const UsePeer& use) {
    const std::uint32_t index = use.peer->index;
    if (peers_.size() <= index) peers_.resize(index + 1);
    PeerState& state = peers_[index];
    // Addresses meant for one process say nothing in its successor, nor does what became of its paths.
    const bool same = state.peer && state.peer->desc->incarnation == use.peer->desc->incarnation;
    if (state.peer && state.segment == use.segment && !same)
        doomPeer(index, Status(Code::StaleIncarnation, "segment " + use.peer->name + " was restarted"));
    state.peer = use.peer;
    state.segment = use.segment;
    state.ladder.route(use.workers, workers_, loop_, same);
    std::uint64_t windows = 0;
    for (const std::uint32_t worker : use.workers) {
        const NicInfo& nic = workers_[worker].nic;
        windows += std::max<std::uint64_t>(nic.window_bytes, nic.window_requests * RetryBudget::kLeastCost);
    }
    if (!same) state.retries = {};
    state.retries.setCapacity(windows * kWindowsToRetry);
    for (const Run* run = state.pending.first; run != nullptr; run = run->after) doomUnlessSendable(state, *run);
    endDoomed();
    flushTally();
    markDirty(index);
}

void TrackerLogic::onDropPeer(const DropPeer& drop) {
    if (drop.peer >= peers_.size() || !peers_[drop.peer].peer) return;
    doomPeer(drop.peer, drop.cause);
    // A worker may hear of it before it gets what was sent to it a moment ago, for which it would open a path anew: to
    // a peer that answers nothing. Of one that it has to forget it takes nothing in.
    if (!drop.forget)
        forEachTask([&](Batch& batch, std::uint32_t index) {
            if (batch.task(index).segment == peers_[drop.peer].segment) resetPathsOf(batch.task(index), drop.cause);
        });
    peers_[drop.peer].ladder.closed();
    endDoomed();
    flushTally();
    if (drop.forget) {
        peers_[drop.peer].peer = nullptr;
        peers_[drop.peer].segment = kInvalidSegmentID;
    }
}

void TrackerLogic::doomPeer(std::uint32_t peer, const Status& cause) {
    forEachTask([&](Batch& batch, std::uint32_t index) {
        if (batch.task(index).segment == peers_[peer].segment) giveUp(batch, index, cause);
    });
}

/// Work that no path can carry must not wait for one.
bool TrackerLogic::doomUnlessSendable(const PeerState& peer, const Run& run) {
    if (peer.ladder.mayCarry(run)) return true;
    const std::string segment = "segment '" + peer.peer->name + "'";
    // Other transports may reach it all the same.
    const Status missing(Code::TransportMissing,
                         run.worker == Run::kAnyWorker
                             ? "no installed transport reaches " + segment + " any more; explainSegment says why"
                             : "part of a WRITE was lost, and the Nic that lost it, which alone may send it again, is "
                               "not used for " +
                                   segment + " any more");
    for (std::uint32_t i = run.next; i < run.end; ++i) giveUp(*run.batch, i, missing);
    return false;
}

TrackerLogic::PeerState* TrackerLogic::peerOf(const Task& task) {
    const auto index = static_cast<std::uint32_t>(task.segment);
    if (index >= peers_.size() || peers_[index].segment != task.segment) return nullptr;
    return &peers_[index];
}

void TrackerLogic::markDirty(std::uint32_t peer) {
    if (peers_[peer].dirty) return;
    peers_[peer].dirty = true;
    dirty_.push_back(peer);
}

// --- work comes in -----------------------------------------------------------------------------------------------

void TrackerLogic::onSubmit(const SubmitTasks& submit, TimePoint now) {
    now_ = now;
    Batch& batch = *submit.batch;
    // A region may have been unregistered between the caller's check and this message; from here on
    // AwaitSourceIdle sees the tasks.
    const bool check_sources = waits_.isNewerThan(submit.regions_version);
    activate(batch, submit.count);
    for (std::uint32_t i = submit.first; i < submit.first + submit.count; ++i) {
        Task& task = batch.task(i);
        task.tracked = true;
        if (!waits_.empty()) waits_.count(task.source(), 1);
        const bool waits = task.events && task.events->wait() != nullptr;
        if (task.length == 0 && !waits) {
            end(batch, i, TransferStatusEnum::COMPLETED);
            continue;
        }
        if (check_sources && task.length != 0) {
            const Status registered =
                waits_.stillRegistered(task.source(), task.opcode, submit.regions_version, region_map_.get());
            if (!registered) {
                doom(batch, i, registered);
                continue;
            }
        }
        if (task.deadline != kForever) {
            // Whatever the transport and its speed: what is too late before it begins moves no byte.
            if (task.deadline <= now) {
                giveUp(batch, i, Status(Code::Timeout, "the deadline had passed before the transfer began"));
                continue;
            }
            batch.active.earliest = std::min(batch.active.earliest, task.deadline);
            scheduleWake(std::max(task.deadline, now + kDeadlineGrain));
        }
        if (peerOf(task) == nullptr) {
            doom(batch, i, Status(Code::StaleHandle, "the segment was closed during submit"));
            continue;
        }
        if (waits) [[unlikely]] {
            // The submitting thread has just looked; the timer is next.
            waitAtGate(batch, i);
            scheduleWake(now + kGateGrain);
            continue;
        }
        enqueue(static_cast<std::uint32_t>(task.segment), Run::of(batch, i));
    }
    endDoomed();
    flushTally();
}

void TrackerLogic::waitAtGate(Batch& batch, std::uint32_t index) {
    Task& task = batch.task(index);
    Gate& gate = gates_[task.events->wait()];
    task.gate = static_cast<std::uint32_t>(gate.size());
    gate.emplace_back(&batch, index);
}

/// The last one takes its place: thousands may end at once.
void TrackerLogic::leaveGate(Task& task) {
    const std::uint32_t place = std::exchange(task.gate, Task::kNoGate);
    if (place == Task::kNoGate) return;
    const auto found = gates_.find(task.events->wait());
    Gate& gate = found->second;
    const auto last = gate.back();
    gate.pop_back();
    if (place < gate.size()) {
        gate[place] = last;
        last.first->task(last.second).gate = place;
    }
    if (gate.empty()) gates_.erase(found);
}

/// Tasks whose events have come go out. Each look is a call of the driver, so there are only so many at a time.
void TrackerLogic::lookAtGates(TimePoint now) {
    for (std::size_t looks = std::min(gates_.size(), kGatesPerPass); looks > 0; --looks) {
        auto next = gates_.upper_bound(looked_at_);
        if (next == gates_.end()) next = gates_.begin();
        looked_at_ = next->first;
        const auto ready = next->first->isReady();
        if (ready && !*ready) continue;
        const Gate gate = std::move(next->second);
        gates_.erase(next);
        openGate(gate, ready.status());
    }
    if (!gates_.empty()) scheduleWake(now + kGateGrain);
}

/// `status` not Ok: when they may begin cannot be told any more.
void TrackerLogic::openGate(const Gate& gate, const Status& status) {
    const Status cause = status.withContext("wait_event or wait_stream");
    for (const auto& [batch, index] : gate) {
        Task& task = batch->task(index);
        task.gate = Task::kNoGate;
        if (!cause)
            doom(*batch, index, cause);
        else if (task.length == 0)
            doomed_.emplace_back(batch, index);
        else if (peerOf(task) == nullptr)
            doom(*batch, index, Status(Code::StaleHandle, "the segment was closed before the transfer began"));
        else
            enqueue(static_cast<std::uint32_t>(task.segment), Run::of(*batch, index));
    }
}

/// A task with events ends.
void TrackerLogic::endEvents(Batch& batch, std::uint32_t index, TransferStatusEnum& state) {
    Task& task = batch.task(index);
    leaveGate(task);
    if (state == TransferStatusEnum::COMPLETED) {
        if (const Status told = task.events->signal(); !told) {
            task.error = told.withContext("done_event");
            state = TransferStatusEnum::FAILED;
        }
    }
    // Before its end is seen: the GPU may be given up then.
    task.events.reset();
}

void TrackerLogic::enqueue(std::uint32_t peer, const Run& run) {
    if (!doomUnlessSendable(peers_[peer], run)) return;
    RunQueue& pending = peers_[peer].pending;
    const auto plain = [](const Run& r) {
        return r.merge && r.limit == UINT64_MAX && r.worker == Run::kAnyWorker && r.failed_on == Run::kAnyWorker;
    };
    // Tasks of one submit follow each other; the head of the last run may be under way, which changes nothing for its
    // end. Where it matters, a run is of one location, so that it waits for the devices near to all of it.
    const bool extends = !pending.empty() && pending.last->batch == run.batch && pending.last->end == run.next &&
                         plain(run) && run.offset == 0 && plain(*pending.last) && pending.last->barred == run.barred &&
                         (!peers_[peer].ladder.hasFar() || isOfOneLocation(*pending.last, run));
    if (extends)
        pending.last->end = run.end;
    else
        runs_.push(pending, peer, run);
    markDirty(peer);
}

// --- work goes out -----------------------------------------------------------------------------------------------

void TrackerLogic::flush() {
    // Before new work goes out on those paths.
    if (!resets_.empty()) sendResets();
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
        peers_[dirty_[i]].dirty = false;
        fill(dirty_[i]);
    }
    dirty_.clear();
    // Whatever ended since, by whichever handler, may be what they wait for.
    if (!waits_.empty()) waits_.answer(TimePoint::min(), sources());
}

TrackerLogic::Load TrackerLogic::load() const {
    Load load;
    for (const PeerState& peer : peers_) {
        load.waiting += peer.pending.empty() ? 0 : 1;
        for (const Path& path : peer.ladder.paths()) {
            load.flights += path.flights;
            load.bytes += path.bytes;
            const NicInfo& nic = workers_[path.worker].nic;
            // Of a retired path nothing is known any more; what is moved over itself goes as one.
            if (path.retired || nic.same_address_space || path.flights <= 1) continue;
            const std::uint64_t largest =
                std::max({nic.slice_bytes, nic.merge_bytes, nic.window_bytes / kFlightsPerWindow});
            if (path.flights > nic.window_requests || path.bytes >= nic.window_bytes + largest)
                load.within_windows = false;
        }
    }
    return load;
}

/// Where the run's next byte lies; "*": it makes no difference to the choice of a path.
std::string TrackerLogic::sourceLocation(const Run& run) {
    const auto addr = reinterpret_cast<std::uint64_t>(run.batch->task(run.next).local) + run.offset;
    const Region* region = region_map_.get().find(addr);
    return region != nullptr ? region->locationOf(addr) : "*";
}

/// Whether `next` begins in memory of the location in which `run` ends.
bool TrackerLogic::isOfOneLocation(const Run& run, const Run& next) {
    Run last = run;
    last.next = run.end - 1;
    last.offset = 0;
    return sourceLocation(last) == sourceLocation(next);
}

/// `run`, or the first after it, that has something to send; those before it that have nothing are dropped.
Run* TrackerLogic::skipEnded(RunQueue& pending, Run* run) {
    while (run != nullptr) {
        while (run->next < run->end && run->batch->task(run->next).doomed != Code::Ok) {
            ++run->next;
            run->offset = 0;
        }
        if (run->next < run->end) return run;
        Run* after = run->after;
        runs_.drop(pending, *run);
        run = after;
    }
    return nullptr;
}

/// First come first served, but that work whose near devices are busy is passed by work that is near to others.
void TrackerLogic::fill(std::uint32_t index) {
    PeerState& peer = peers_[index];
    std::size_t passed = 0;
    Run* run = skipEnded(peer.pending, peer.pending.first);
    while (run != nullptr) {
        // What failed somewhere goes elsewhere first, near or far.
        const bool by_location = peer.ladder.hasFar() && run->failed_on == Run::kAnyWorker;
        Path* path = peer.ladder.pick(*run, by_location ? sourceLocation(*run) : "*", workers_);
        if (path == nullptr) {
            // Nor does work that some transports declined hold up what they take, nor what one Nic alone may send.
            const bool choosy = peer.ladder.hasFar() || run->barred != 0 || run->worker != Run::kAnyWorker;
            if (!choosy || ++passed > kMostPassed) break;
            run = skipEnded(peer.pending, run->after);
            continue;
        }
        Flight flight = cut(peer, *run, workers_[path->worker]);
        for (std::uint32_t i = 0; i < flight.task_count; ++i) {
            Task& task = flight.batch->task(flight.first_task + i);
            ++task.in_flight;
            task.workers |= workerBit(path->worker);
            if (task.history) task.history->sentAgain(now_);
        }
        path->add(flight);
        run = skipEnded(peer.pending, run);
    }
    for (Path& path : peer.ladder.paths()) {
        if (path.train.flights.empty()) continue;
        path.train.tracker = index_;
        path.train.peer = index;
        path.train.incarnation = peer.peer->desc->incarnation;
        output_.sendTrain(path.worker, path.train);
        path.train.flights.clear();
    }
}

/// Takes the next flight off the run: several whole adjacent tasks, or a piece of one.
Flight TrackerLogic::cut(const PeerState& peer, Run& run, const KnownWorker& worker) {
    Batch& batch = *run.batch;
    const Task& head = batch.task(run.next);
    const std::uint64_t stop = std::min(run.limit, head.length);

    Flight flight;
    flight.batch = &batch;
    flight.first_task = run.next;
    flight.local = head.local + run.offset;
    flight.remote = head.remote + run.offset;
    flight.opcode = head.opcode;
    flight.unfenced = run.worker != Run::kAnyWorker;
    flight.length = stop - run.offset;

    const ByteRange local{reinterpret_cast<std::uint64_t>(flight.local), flight.length};
    const ByteRange remote{flight.remote, flight.length};
    // Equal addresses of another process are other memory.
    const bool same_memory = worker.nic.same_address_space && peer.segment == kLocalSegmentID;
    if (same_memory && !remote.wraps() && local.overlaps(remote)) {
        flight.whole = true;
    } else if (flight.length > worker.nic.slice_bytes) {
        const std::uint64_t piece = std::max(worker.nic.slice_bytes, worker.nic.window_bytes / kFlightsPerWindow);
        flight.length = std::min(flight.length, piece);
        // Each part of the memory by the devices that are near to it.
        if (const Region* region = peer.ladder.hasFar() ? region_map_.get().find(local.addr) : nullptr)
            flight.length = std::min(flight.length, region->endOfPart(local.addr) - local.addr);
    } else if (run.merge && run.offset == 0 && stop == head.length) {
        while (run.next + flight.task_count < run.end) {
            const Task& task = batch.task(run.next + flight.task_count);
            if (task.doomed != Code::Ok || task.length == 0 || task.opcode != head.opcode ||
                task.local != flight.local + flight.length || task.remote != flight.remote + flight.length ||
                flight.length + task.length > worker.nic.merge_bytes)
                break;
            flight.length += task.length;
            ++flight.task_count;
        }
    }

    if (run.offset + flight.length < stop && flight.task_count == 1) {
        run.offset += flight.length;
    } else {
        run.next += flight.task_count;
        run.offset = 0;
    }
    return flight;
}

// --- ends --------------------------------------------------------------------------------------------------------

void TrackerLogic::doom(Batch& batch, std::uint32_t index, const Status& cause) {
    Task& task = batch.task(index);
    if (task.doomed != Code::Ok) return;
    task.doomed = cause.code();
    task.error = cause;
    doomed_.emplace_back(&batch, index);
}

void TrackerLogic::giveUp(Batch& batch, std::uint32_t index, const Status& cause) {
    Task& task = batch.task(index);
    if (task.doomed != Code::Ok) return;
    // Who ended it himself knows why, and may end many.
    if (cause.code() != Code::Canceled) {
        TaskHistory::Ending ending{cause, task.confirmed, task.in_flight, 0, task.retries_left};
        if (const PeerState* peer = peerOf(task))
            for (const Path& path : peer->ladder.paths())
                if (!path.retired && !path.usable) ending.lost |= workerBit(path.worker);
        const auto first = static_cast<std::uint32_t>(std::countr_zero(task.workers));
        historyOf(task, first).ending = std::move(ending);
    }
    doom(batch, index, cause);
}

void TrackerLogic::resetPathsOf(const Task& task, const Status& cause) {
    const auto peer = static_cast<std::uint32_t>(task.segment);
    if (task.in_flight == 0) return;
    for (const Path& path : peers_[peer].ladder.paths()) {
        if ((task.workers & workerBit(path.worker)) == 0 || path.flights == 0) continue;
        const bool asked = std::any_of(resets_.begin(), resets_.end(), [&](const Reset& reset) {
            return reset.peer == peer && reset.worker == path.worker;
        });
        if (!asked) resets_.push_back({peer, path.worker, cause});
    }
}

void TrackerLogic::endDoomed() {
    for (const auto& [batch, index] : doomed_)
        if (const Task& task = batch->task(index); task.in_flight == 0)
            end(*batch, index, task.doomed == Code::Ok ? TransferStatusEnum::COMPLETED : task.doomedState());
    doomed_.clear();
}

void TrackerLogic::end(Batch& batch, std::uint32_t index, TransferStatusEnum state) {
    Task& task = batch.task(index);
    if (task.events) [[unlikely]]
        endEvents(batch, index, state);
    task.tracked = false;
    if (!waits_.empty()) waits_.count(task.source(), -1);
    if (--batch.active.running == 0) deactivate(batch);
    tally(batch);
    batch.publishTerminal(index, state);
}

/// Comes before the task is published: what flushTally calls may free any batch whose tasks it sees as terminal, and
/// must not find one of them uncounted on its own thread.
void TrackerLogic::tally(Batch& batch) {
    if (tally_batch_ != &batch) flushTally();
    tally_batch_ = &batch;
    ++tally_count_;
}

void TrackerLogic::flushTally() {
    if (tally_batch_ == nullptr) return;
    Batch* batch = std::exchange(tally_batch_, nullptr);
    batch->finished(std::exchange(tally_count_, 0u));
}

void TrackerLogic::activate(Batch& batch, std::uint32_t count) {
    if (batch.active.running == 0 && count > 0) {
        batch.active.earliest = kForever;
        batch.active.previous = nullptr;
        batch.active.next = active_;
        if (active_ != nullptr) active_->active.previous = &batch;
        active_ = &batch;
    }
    batch.active.running += count;
}

void TrackerLogic::deactivate(Batch& batch) {
    // No run outlives its batch. Until here flush skips the ended tasks in them.
    while (Run* run = batch.active.runs) runs_.drop(peers_[run->peer].pending, *run);
    if (batch.active.previous != nullptr)
        batch.active.previous->active.next = batch.active.next;
    else
        active_ = batch.active.next;
    if (batch.active.next != nullptr) batch.active.next->active.previous = batch.active.previous;
}

template <class Visit>
void TrackerLogic::forEachTask(Visit&& visit) const {
    for (Batch* batch = active_; batch != nullptr; batch = batch->active.next) {
        const std::uint32_t count = batch->claimed();
        for (std::uint32_t i = 0; i < count; ++i)
            if (batch->task(i).tracked) visit(*batch, i);
    }
}

void TrackerLogic::cancel(Batch& batch, std::uint32_t index, const Status& cause) {
    giveUp(batch, index, cause);
    // Also of one that has failed in part: what is still out of it may never come back by itself.
    resetPathsOf(batch.task(index), cause);
}

void TrackerLogic::onEndTasks(const EndTasks& request, Batch& batch) {
    const std::uint32_t count = batch.claimed();
    const bool all = request.task == EndTasks::kAllTasks;
    // Callers may end many tasks one by one: only those that are meant are looked at.
    const std::uint32_t first = all ? 0 : std::min(request.task, count);
    const std::uint32_t last = all ? count : std::min(first + 1, count);
    for (std::uint32_t i = first; i < last; ++i)
        if (batch.task(i).tracked) cancel(batch, i, request.cause);
    endDoomed();
    flushTally();
}

void TrackerLogic::onEndAll(const EndAll& request) {
    forEachTask([&](Batch& batch, std::uint32_t index) { cancel(batch, index, request.cause); });
    endDoomed();
    flushTally();
}

void TrackerLogic::sendResets() {
    for (const Reset& reset : resets_) {
        // What it was for may be back by now.
        const Path* path = peers_[reset.peer].ladder.of(reset.worker);
        if (path == nullptr || path->flights == 0) continue;
        output_.sendReset(reset.worker, ResetPath{reset.peer, Status(Code::PathReset,
                                                                     "its path was ended: " + reset.cause.toString())});
    }
    resets_.clear();
}

// --- time --------------------------------------------------------------------------------------------------------

void TrackerLogic::scheduleWake(TimePoint when) {
    if (when >= wake_at_) return;
    wake_at_ = when;
    output_.wakeAt(when);
}

void TrackerLogic::onTimer(TimePoint now) {
    wake_at_ = kForever;
    TimePoint next_wake = kForever;
    if (!gates_.empty()) {
        lookAtGates(now);
        // Of no bytes, and so COMPLETED: no deadline may end them once more.
        endDoomed();
    }
    const Status cause(Code::Timeout, "the deadline passed");
    for (Batch* batch = active_; batch != nullptr; batch = batch->active.next) {
        if (batch->active.earliest <= now) batch->active.earliest = endOverdue(*batch, now, cause);
        next_wake = std::min(next_wake, batch->active.earliest);
    }
    endDoomed();
    flushTally();
    waits_.answer(now, sources());
    next_wake = std::min(next_wake, waits_.deadline());
    if (next_wake != kForever) scheduleWake(std::max(next_wake, now + kDeadlineGrain));
}

/// Returns the earliest deadline of the others.
TimePoint TrackerLogic::endOverdue(Batch& batch, TimePoint now, const Status& cause) {
    TimePoint earliest = kForever;
    const std::uint32_t count = batch.claimed();
    for (std::uint32_t i = 0; i < count; ++i) {
        const Task& task = batch.task(i);
        if (!task.tracked) continue;
        if (task.deadline <= now)
            cancel(batch, i, cause);
        else
            earliest = std::min(earliest, task.deadline);
    }
    return earliest;
}

// --- unregister --------------------------------------------------------------------------------------------------

void TrackerLogic::onEnd() { waits_.answer(TimePoint::max(), sources()); }

SourceWaits::ForEachSource TrackerLogic::sources() const {
    return [this](const SourceWaits::Visit& visit) {
        forEachTask([&](const Batch& batch, std::uint32_t index) { visit(batch.task(index).source(), batch.id()); });
    };
}

void TrackerLogic::onAwaitSourceIdle(const AwaitSourceIdle& wait, TimePoint now) {
    waits_.await(wait, sources());
    waits_.answer(now, sources());
    if (!waits_.empty()) scheduleWake(std::max(wait.deadline, now + kDeadlineGrain));
}

}  // namespace troupe
