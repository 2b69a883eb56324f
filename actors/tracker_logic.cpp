#include "actors/tracker_logic.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe {

namespace {

// A path's window holds at least this many flights of a large task, so that one is always on the wire while another
// is being reported.
constexpr std::uint64_t kFlightsPerWindow = 8;

// Deadlines are looked at no more often than this: a task ends at most so late.
constexpr auto kDeadlineGrain = std::chrono::milliseconds(5);

// Between two looks at an event of the application that tasks wait for, while nothing else happens. A sleeping loop
// wakes by milliseconds.
constexpr auto kGateGrain = std::chrono::microseconds(50);

// Unregistered ranges that are remembered against submits on their way: more than can pass while a message waits.
constexpr std::size_t kAwaitedKept = 256;

// How often a task goes on over another path at no cost of its retries. Paths that are lost again and again are tried
// with growing pauses, so that most tasks end long before; two that alternate must not carry one for ever.
constexpr std::uint16_t kMostMoves = 32;

// Windows of each path that may be sent again before anything has arrived: to lose all paths a few times is no storm.
constexpr std::uint64_t kWindowsToRetry = 8;

// Runs that are looked at past those whose near devices are busy, each time: more than the locations of a machine, so
// that a few that alternate hold nobody up, and few enough that a long queue costs little.
constexpr std::size_t kMostPassed = 64;

std::uint64_t workerBit(std::uint32_t worker) { return 1ull << std::min<std::uint32_t>(worker, 63); }

// What is declined is one attempt for explain, however many parts of it there were. No report has this number.
constexpr std::uint64_t kDeclined = UINT64_MAX;

ByteRange sourceOf(const Task& task) { return {reinterpret_cast<std::uint64_t>(task.local), task.length}; }

Run runOf(Batch& batch, std::uint32_t index) {
    Run run;
    run.batch = &batch;
    run.next = index;
    run.end = index + 1;
    return run;
}

TransferStatusEnum terminalStateFor(Code code) {
    switch (code) {
        case Code::Timeout: return TransferStatusEnum::TIMEOUT;
        case Code::Canceled: return TransferStatusEnum::CANCELED;
        default: return TransferStatusEnum::FAILED;
    }
}

/// What the owner says of a request because of where it lies.
bool isOfItsRange(Code code) {
    return code == Code::AddressNotRegistered || code == Code::AccessDenied || code == Code::InvalidArgument;
}

/// A part of the task was refused for where it lies: said of what the caller asked for, who knows no parts.
Status refusalOfTask(const Task& task, const Status& cause) {
    if (!isOfItsRange(cause.code())) return cause;
    const char* const what = task.opcode == Opcode::Read ? "read of " : "write to ";
    return cause.withContext(what + ByteRange{task.remote, task.length}.toString());
}

}  // namespace

TrackerLogic::TrackerLogic(std::uint32_t index, std::uint32_t loop, const RegistrationTable& regions,
                           TrackerOutput& output, RetryBudget::Limits retries)
    : index_(index), loop_(loop), retries_(retries), region_map_(regions.regions()), output_(output) {}

// --- who is there ------------------------------------------------------------------------------------------------

void TrackerLogic::onWorkerJoined(const WorkerJoined& worker) {
    if (workers_.size() <= worker.index) workers_.resize(worker.index + 1);
    workers_[worker.index] = Worker{worker.nic, worker.loop, worker.far_from};
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
    // Paths that stay keep what is in flight on them.
    std::vector<Path> paths;
    for (const std::uint32_t worker : use.workers) {
        Path path;
        path.worker = worker;
        if (const Path* old = pathOf(index, worker)) {
            path.bytes = old->bytes;
            path.flights = old->flights;
            path.usable = !same || old->usable;
            path.on_trial = same && old->on_trial;
        }
        if (!paths.empty()) {
            const Path& better = paths.back();
            const bool next = workers_[better.worker].nic.transport != workers_[worker].nic.transport;
            path.rank = better.rank + (next ? 1 : 0);
        }
        paths.push_back(std::move(path));
    }
    // Of one transport the nearest first: the own loop's Nics cost no crossing.
    std::stable_sort(paths.begin(), paths.end(), [this](const Path& a, const Path& b) {
        const auto far = [this](const Path& path) { return workers_[path.worker].loop != loop_; };
        return std::make_pair(a.rank, far(a)) < std::make_pair(b.rank, far(b));
    });
    state.has_far = paths.size() > 1 && std::any_of(paths.begin(), paths.end(), [this](const Path& path) {
                        return !workers_[path.worker].far_from.empty();
                    });
    std::uint64_t windows = 0;
    for (const Path& path : paths) {
        const NicInfo& nic = workers_[path.worker].nic;
        windows += std::max<std::uint64_t>(nic.window_bytes, nic.window_requests * RetryBudget::kLeastCost);
    }
    if (!same) state.retries = {};
    state.retries.setCapacity(windows * kWindowsToRetry);
    for (Path& old : state.paths) {
        if (old.flights == 0 || std::find(use.workers.begin(), use.workers.end(), old.worker) != use.workers.end())
            continue;
        old.retired = true;
        paths.push_back(std::move(old));
    }
    state.paths = std::move(paths);
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
    // The workers close their paths; new ones are not lost yet.
    for (Path& path : peers_[drop.peer].paths) {
        path.usable = true;
        path.on_trial = false;
    }
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
    const bool sendable = std::any_of(peer.paths.begin(), peer.paths.end(), [&](const Path& path) {
        return !path.retired && (run.worker == Run::kAnyWorker || path.worker == run.worker) &&
               (run.barred & workerBit(path.worker)) == 0;
    });
    if (sendable) return true;
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

TrackerLogic::Path* TrackerLogic::pathOf(std::uint32_t peer, std::uint32_t worker) {
    for (Path& path : peers_[peer].paths)
        if (path.worker == worker) return &path;
    return nullptr;
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
    const bool check_sources = (!awaited_.empty() && awaited_.back().version > submit.regions_version);
    activate(batch, submit.count);
    for (std::uint32_t i = submit.first; i < submit.first + submit.count; ++i) {
        Task& task = batch.task(i);
        task.tracked = true;
        if (!waits_.empty()) countUser(task, 1);
        if (task.length == 0) {
            end(batch, i, TransferStatusEnum::COMPLETED);
            continue;
        }
        if (check_sources) {
            const Status registered = stillRegistered(task, submit.regions_version);
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
        if (task.events) [[unlikely]] {
            // Looked at by the timer, and now.
            gated_.emplace_back(&batch, i);
            continue;
        }
        enqueue(static_cast<std::uint32_t>(task.segment), runOf(batch, i));
    }
    if (!gated_.empty()) openGates(now);
    endDoomed();
    flushTally();
}

/// Tasks whose events have come go out.
void TrackerLogic::openGates(TimePoint now) {
    for (const auto& [batch, index] : std::exchange(gated_, {})) {
        Task& task = batch->task(index);
        const auto ready = task.events->isReady();
        if (!ready)
            doom(*batch, index, ready.status().withContext("wait_event or wait_stream"));
        else if (!*ready)
            gated_.emplace_back(batch, index);
        else if (peerOf(task) == nullptr)
            doom(*batch, index, Status(Code::StaleHandle, "the segment was closed before the transfer began"));
        else
            enqueue(static_cast<std::uint32_t>(task.segment), runOf(*batch, index));
    }
    if (!gated_.empty()) scheduleWake(now + kGateGrain);
}

/// A task with events ends.
void TrackerLogic::endEvents(Batch& batch, std::uint32_t index, TransferStatusEnum& state) {
    Task& task = batch.task(index);
    std::erase(gated_, std::pair(&batch, index));
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
                         (!peers_[peer].has_far || isOfOneLocation(*pending.last, run));
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
    if (!waits_.empty()) answerWaits(TimePoint::min());
}

TrackerLogic::Load TrackerLogic::load() const {
    Load load;
    for (const PeerState& peer : peers_) {
        load.waiting += peer.pending.empty() ? 0 : 1;
        for (const Path& path : peer.paths) {
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

bool TrackerLogic::Worker::isFarFrom(const std::string& location) const {
    return std::find(far_from.begin(), far_from.end(), location) != far_from.end();
}

bool TrackerLogic::anyUsable(const PeerState& peer, std::uint32_t but) {
    return std::any_of(peer.paths.begin(), peer.paths.end(),
                       [but](const Path& path) { return !path.retired && path.usable && path.worker != but; });
}

bool TrackerLogic::hasRoom(const Path& path) const {
    const NicInfo& nic = workers_[path.worker].nic;
    // A path without work takes any flight, also one larger than its window.
    return path.bytes == 0 || (path.bytes < nic.window_bytes && path.flights < nic.window_requests);
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

/// The ladder: the best transport that has a path which is not lost, and of its paths the nearest with room. One that
/// came back is tried with one flight at a time while others are known to work. Work is pulled over all Nics that are
/// near its memory, and over the others only where there are none of those: what crosses to another node is slower,
/// and in the way of what belongs there.
TrackerLogic::Path* TrackerLogic::pathWithRoom(PeerState& peer, const Run& run) {
    if (run.worker != Run::kAnyWorker) {
        for (Path& path : peer.paths)
            if (path.worker == run.worker && !path.retired) return hasRoom(path) ? &path : nullptr;
        return nullptr;
    }
    const bool failed = run.failed_on != Run::kAnyWorker;
    const std::string location = peer.has_far && !failed ? sourceLocation(run) : "*";
    const auto is_second_choice = [&](const Path& path) {
        return peer.has_far &&
               (location != "*" ? workers_[path.worker].isFarFrom(location) : path.worker == run.failed_on);
    };
    const Path* sure = nullptr;
    Path* second = nullptr;
    const Path* sure_second = nullptr;
    for (Path& path : peer.paths) {
        if (path.retired || (run.barred & workerBit(path.worker)) != 0) continue;
        // A full window is no reason to take a worse transport.
        const Path* of_better = sure != nullptr ? sure : sure_second;
        if (of_better != nullptr && path.rank > of_better->rank) break;
        if (!path.usable || (path.on_trial && (path.flights != 0 || path.worker == run.failed_on))) continue;
        if (is_second_choice(path)) {
            if (second == nullptr && hasRoom(path)) second = &path;
            if (!path.on_trial) sure_second = &path;
            continue;
        }
        if (hasRoom(path)) return &path;
        if (!path.on_trial) sure = &path;
    }
    if (sure != nullptr) return nullptr;
    return second != nullptr || sure_second != nullptr ? second : anyPathWithRoom(peer, run);
}

/// None is known to work. With every path lost the work goes out all the same: it waits for one there, or comes back
/// with the cause.
TrackerLogic::Path* TrackerLogic::anyPathWithRoom(PeerState& peer, const Run& run) {
    const auto may = [&](const Path& path) { return !path.retired && (run.barred & workerBit(path.worker)) == 0; };
    const bool choosy =
        std::any_of(peer.paths.begin(), peer.paths.end(), [&](const Path& path) { return may(path) && path.usable; });
    for (Path& path : peer.paths)
        if (may(path) && (path.usable || !choosy) && hasRoom(path)) return &path;
    return nullptr;
}

/// Who is out of the question for what a worker declined: all of its transport, and of those that are preferred to it,
/// which came before. 0: nobody else is left.
std::uint64_t TrackerLogic::barredBy(const PeerState& peer, std::uint32_t worker) {
    const auto of = std::find_if(peer.paths.begin(), peer.paths.end(),
                                 [&](const Path& path) { return path.worker == worker && !path.retired; });
    std::uint64_t bits = workerBit(worker);
    bool any_left = false;
    for (const Path& path : peer.paths) {
        if (path.retired) continue;
        if (of != peer.paths.end() && path.rank <= of->rank)
            bits |= workerBit(path.worker);
        else
            any_left = any_left || path.worker != worker;
    }
    return any_left ? bits : 0;
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
        Path* path = pathWithRoom(peer, *run);
        if (path == nullptr) {
            // Nor does work that some transports declined hold up what they take.
            if ((!peer.has_far && run->barred == 0) || ++passed > kMostPassed) break;
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
        path->bytes += flight.length;
        ++path->flights;
        path->train.flights.push_back(flight);
        run = skipEnded(peer.pending, run);
    }
    for (Path& path : peer.paths) {
        if (path.train.flights.empty()) continue;
        path.train.tracker = index_;
        path.train.peer = index;
        path.train.incarnation = peer.peer->desc->incarnation;
        output_.sendTrain(path.worker, path.train);
        path.train.flights.clear();
    }
}

/// Takes the next flight off the run: several whole adjacent tasks, or a piece of one.
Flight TrackerLogic::cut(const PeerState& peer, Run& run, const Worker& worker) {
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
        if (const Region* region = peer.has_far ? region_map_.get().find(local.addr) : nullptr)
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

// --- reports -----------------------------------------------------------------------------------------------------

void TrackerLogic::onReport(const SliceReport& report, TimePoint now) {
    now_ = now;
    ++reports_;
    for (const auto& change : report.paths) onPath(report.worker, change);
    for (const auto& failed : report.failed) onFailed(report.worker, failed);
    endDoomed();
    for (const auto& settled : report.settled) onSettled(report.worker, settled);
    flushTally();
}

void TrackerLogic::onPath(std::uint32_t worker, const SliceReport::Path& change) {
    if (change.peer >= peers_.size()) return;
    Path* path = pathOf(change.peer, worker);
    if (path == nullptr) return;
    path->on_trial = change.usable && (path->on_trial || !path->usable);
    path->usable = change.usable;
    markDirty(change.peer);
}

/// What was lost in one incident costs a task one retry, however many parts of it were out; nothing, within reason,
/// when they go on `elsewhere`: the lost path is not used again before it is back. False: no retry is left.
bool TrackerLogic::charge(Task& task, std::uint64_t incident, bool elsewhere) {
    if (task.charged == incident) return true;
    if (elsewhere && task.moves < kMostMoves) {
        ++task.moves;
    } else {
        if (task.retries_left == 0) return false;
        --task.retries_left;
    }
    task.charged = incident;
    return true;
}

/// Of a task that ran out of attempts: why the last one failed, and the first.
Status TrackerLogic::withFirstCause(const Status& last, bool retryable, const Status& first) {
    if (!retryable || first.message() == last.message()) return last;
    return {last.code(), last.message() + "; at first: " + first.message()};
}

std::string TrackerLogic::usedUp(const PeerState& peer) const {
    return "; not sent again: the retry budget of segment '" + (peer.peer ? peer.peer->name : std::string()) +
           "' is used up (retry_budget_percent " + std::to_string(retries_.percent) + " of what arrives, and " +
           std::to_string(retries_.floor_per_second) + " bytes a second, retry_budget_floor)";
}

/// It begins with what arrived so far: by `worker`, unless another did all.
TaskHistory& TrackerLogic::historyOf(Task& task, std::uint32_t worker) {
    if (!task.history) {
        task.history = std::make_unique<TaskHistory>();
        // Until here nobody counted who carried what; mostly one did all.
        const auto only = static_cast<std::uint32_t>(std::countr_zero(task.workers));
        task.history->arrived(std::has_single_bit(task.workers) ? only : worker, task.confirmed, now_);
    }
    return *task.history;
}

/// For explain.
void TrackerLogic::note(Task& task, std::uint32_t worker, const SliceReport::Failed& failed, std::uint64_t incident,
                        const Status& cause) {
    const bool merged = failed.part.task_count > 1;
    historyOf(task, worker).failed(worker, merged ? task.length : failed.part.length, cause, incident, now_);
}

void TrackerLogic::onFailed(std::uint32_t worker, const SliceReport::Failed& failed) {
    // Bytes of a lost WRITE may still be under way. The Nic that sent them fences them off when it connects anew;
    // another does not, unless they are known to be. What was not sent this time does not fence an earlier attempt.
    const bool anywhere = failed.part.opcode == Opcode::Read || (failed.fenced && !failed.part.unfenced);
    const Path* path = pathOf(failed.peer, worker);
    const bool left = path == nullptr || path->retired || !path->usable || path->on_trial;
    const bool elsewhere = anywhere && left && anyUsable(peers_[failed.peer], worker);
    // Those of a Nic and those of a report are told apart; none is 0, which a task begins with.
    const std::uint64_t incident = failed.declined        ? kDeclined
                                   : failed.incident != 0 ? std::uint64_t{worker} << 48 | failed.incident << 1 | 1
                                                          : reports_ << 1;
    const std::uint64_t barred = failed.declined ? barredBy(peers_[failed.peer], worker) : 0;
    Batch& batch = *failed.part.batch;
    const std::uint32_t first = failed.part.first_task;
    for (std::uint32_t i = first; i < first + failed.part.task_count; ++i) {
        Task& task = batch.task(i);
        task.quiesced = task.quiesced && failed.quiesced;
        // The lowest part that is refused has the task's first bad address: it goes out before those above it.
        if (task.doomed == failed.cause.code() && failed.part.remote < task.refused_at) {
            task.error = refusalOfTask(task, failed.cause);
            task.refused_at = failed.part.remote;
        }
        if (task.doomed != Code::Ok) {
            // What was out when it was given up.
            if (task.history && task.history->ending) note(task, worker, failed, incident, failed.cause);
            continue;
        }
        const bool merged = failed.part.task_count > 1;
        const std::uint64_t offset = merged ? 0 : failed.part.remote - task.remote;
        const std::uint64_t limit = merged ? task.length : offset + failed.part.length;
        // The path was reset for the sake of another task; this one did nothing wrong.
        const bool innocent = failed.retryable && failed.cause.code() == Code::PathReset;
        bool retry =
            failed.quiesced && failed.retryable && !failed.declined && (innocent || charge(task, incident, elsewhere));
        // Of the owner's refusals none is sent again, and what was ended for another's sake says nothing of the peer.
        Status cause = failed.cause;
        if (retry && !innocent && !peers_[failed.peer].retries.take(retries_, limit - offset, now_)) {
            retry = false;
            cause = Status(cause.code(), cause.message() + usedUp(peers_[failed.peer]));
        }
        note(task, worker, failed, incident, cause);
        // The owner refuses a merged request as a whole: taken apart, the good ones among them pass. Of a WRITE whose
        // path was closed bytes may still be under way, and nothing that is sent anew would fence them.
        const bool take_apart = failed.quiesced && !failed.retryable && merged && !failed.declined &&
                                (failed.part.opcode == Opcode::Read || isOfItsRange(failed.cause.code()));
        if (barred != 0 || retry || take_apart) {
            Run run = runOf(batch, i);
            run.offset = offset;
            if (offset != 0 || limit != task.length) run.limit = limit;
            run.barred = barred;
            run.merge = !take_apart;
            if (retry && !anywhere) run.worker = worker;
            if (retry && (elsewhere || !innocent)) run.failed_on = worker;
            enqueue(failed.peer, run);
        } else {
            if (!failed.retryable) task.refused_at = failed.part.remote;
            doom(batch, i, refusalOfTask(task, withFirstCause(cause, failed.retryable, *task.history->firstCause())));
        }
    }
    const Code code = failed.cause.code();
    if (code == Code::StaleIncarnation || code == Code::ConnectionRefused || code == Code::ConnectionLost ||
        code == Code::AddressNotRegistered)
        output_.suspectPeer(failed.peer, failed.cause);
}

void TrackerLogic::onSettled(std::uint32_t worker, const SliceReport::Settled& settled) {
    if (Path* path = pathOf(settled.peer, worker)) {
        path->bytes -= std::min(path->bytes, settled.length);
        if (path->flights > 0) --path->flights;
        if (settled.bytes == settled.length) path->on_trial = false;
        if (settled.bytes != 0) peers_[settled.peer].retries.arrived(retries_, settled.bytes);
        if (path->retired && path->flights == 0)
            std::erase_if(peers_[settled.peer].paths, [worker](const Path& each) { return each.worker == worker; });
        if (!peers_[settled.peer].pending.empty()) markDirty(settled.peer);
    }
    Batch& batch = *settled.batch;
    for (std::uint32_t i = settled.first_task; i < settled.first_task + settled.task_count; ++i) {
        Task& task = batch.task(i);
        --task.in_flight;
        const std::uint64_t whole = settled.bytes == settled.length ? task.length : 0;
        const std::uint64_t arrived = settled.task_count == 1 ? settled.bytes : whole;
        task.confirmed += arrived;
        if (task.history) task.history->arrived(worker, arrived, now_);
        task.transferred.store(task.confirmed, std::memory_order_relaxed);
        if (task.doomed != Code::Ok) {
            if (task.in_flight == 0) end(batch, i, terminalStateFor(task.doomed));
        } else if (task.confirmed == task.length) {
            end(batch, i, TransferStatusEnum::COMPLETED);
        }
    }
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
            for (const Path& path : peer->paths)
                if (!path.retired && !path.usable) ending.lost |= workerBit(path.worker);
        const auto first = static_cast<std::uint32_t>(std::countr_zero(task.workers));
        historyOf(task, first).ending = std::move(ending);
    }
    doom(batch, index, cause);
}

void TrackerLogic::resetPathsOf(const Task& task, const Status& cause) {
    const auto peer = static_cast<std::uint32_t>(task.segment);
    if (task.in_flight == 0) return;
    for (const Path& path : peers_[peer].paths) {
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
            end(*batch, index, terminalStateFor(task.doomed));
    doomed_.clear();
}

void TrackerLogic::end(Batch& batch, std::uint32_t index, TransferStatusEnum state) {
    Task& task = batch.task(index);
    if (task.events) [[unlikely]]
        endEvents(batch, index, state);
    task.tracked = false;
    if (!waits_.empty()) countUser(task, -1);
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
        const Path* path = pathOf(reset.peer, reset.worker);
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
    if (!gated_.empty()) openGates(now);
    const Status cause(Code::Timeout, "the deadline passed");
    for (Batch* batch = active_; batch != nullptr; batch = batch->active.next) {
        if (batch->active.earliest <= now) batch->active.earliest = endOverdue(*batch, now, cause);
        next_wake = std::min(next_wake, batch->active.earliest);
    }
    endDoomed();
    flushTally();
    answerWaits(now);
    for (const Wait& wait : waits_) next_wake = std::min(next_wake, wait.asked.deadline);
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

std::vector<BatchID> TrackerLogic::batchesUsing(const RangeSet& ranges) const {
    std::vector<BatchID> users;
    forEachTask([&](const Batch& batch, std::uint32_t index) {
        if (ranges.overlaps(sourceOf(batch.task(index))) && (users.empty() || users.back() != batch.id()))
            users.push_back(batch.id());
    });
    return users;
}

void TrackerLogic::countUser(const Task& task, int change) {
    const ByteRange source = sourceOf(task);
    for (Wait& wait : waits_)
        if (wait.asked.ranges.overlaps(source)) wait.users += static_cast<std::uint64_t>(change);
}

Status TrackerLogic::stillRegistered(const Task& task, std::uint64_t version) {
    const ByteRange source = sourceOf(task);
    const Status gone(Code::AddressNotRegistered, "source " + source.toString() + " was unregistered during submit");
    for (auto entry = awaited_.rbegin(); entry != awaited_.rend() && entry->version > version; ++entry)
        if (entry->ranges.overlaps(source)) return gone;
    // Older than what is remembered: the current table decides, on the safe side.
    if (version < awaited_floor_)
        return region_map_.get().covers(source, false, task.opcode == Opcode::Read) ? Status::ok() : gone;
    return Status::ok();
}

void TrackerLogic::onAwaitSourceIdle(const AwaitSourceIdle& wait, TimePoint now) {
    if (wait.version != 0) {
        // Unregistrations of several threads may arrive in another order than their versions.
        const auto after = std::upper_bound(awaited_.begin(), awaited_.end(), wait.version,
                                            [](std::uint64_t v, const Awaited& entry) { return v < entry.version; });
        awaited_.insert(after, Awaited{wait.version, wait.ranges});
        if (awaited_.size() > kAwaitedKept) {
            awaited_floor_ = awaited_.front().version;
            awaited_.pop_front();
        }
    }
    Wait& added = waits_.emplace_back(Wait{wait});
    forEachTask([&](const Batch& batch, std::uint32_t index) {
        if (wait.ranges.overlaps(sourceOf(batch.task(index)))) ++added.users;
    });
    answerWaits(now);
    if (!waits_.empty()) scheduleWake(std::max(wait.deadline, now + kDeadlineGrain));
}

void TrackerLogic::answerWaits(TimePoint now) {
    for (auto wait = waits_.begin(); wait != waits_.end();) {
        if (wait->users != 0 && now < wait->asked.deadline) {
            ++wait;
            continue;
        }
        wait->asked.reply(wait->users != 0 ? batchesUsing(wait->asked.ranges) : std::vector<BatchID>());
        wait = waits_.erase(wait);
    }
}

}  // namespace troupe
