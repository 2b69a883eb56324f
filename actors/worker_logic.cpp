#include "actors/worker_logic.h"

#include <algorithm>
#include <utility>

#include "actors/batch.h"

namespace troupe {

namespace {

constexpr ByteRange kEverything{0, UINT64_MAX};

}  // namespace

WorkerLogic::WorkerLogic(std::uint32_t index, std::unique_ptr<Nic> nic, Quarantine& quarantine, WorkerOutput& output)
    : index_(index), nic_(std::move(nic)), nic_name_(nic_->info().name), quarantine_(quarantine), output_(output) {}

// --- peers -------------------------------------------------------------------------------------------------------

void WorkerLogic::onUsePeer(const UsePeer& use) {
    const std::uint32_t index = use.peer->index;
    const bool on_route = std::find(use.workers.begin(), use.workers.end(), index_) != use.workers.end();
    // One that has left the route is told what became of the peer; one that was never on it has nothing to do with it.
    if (!on_route && (index >= peers_.size() || !peers_[index].peer)) return;
    if (peers_.size() <= index) peers_.resize(index + 1);
    PeerPath& entry = peers_[index];
    const bool alive = entry.peer && entry.peer->desc->incarnation == use.peer->desc->incarnation;
    // A transport that the peer uninstalled and installed again listens elsewhere; the Nic knows only the old place.
    const bool moved = alive && on_route && !nic_->isSamePlace(*entry.peer, *use.peer);
    if ((!alive || moved) && entry.path) {
        const Status cause = moved ? Status(Code::ConnectionLost, "segment " + use.peer->name + " serves " +
                                                                      nic_->info().transport + " at another place now")
                                   : Status(Code::StaleIncarnation, "segment " + use.peer->name + " was restarted");
        nic_->closePath(*entry.path, cause);
        entry.path.reset();
        failBacklog(entry, cause, false);
        // Whatever was said of the old path; of another incarnation trackers know that themselves.
        if (moved) tellPath(index, true);
    }
    if (std::exchange(entry.refused, false)) tellPath(index, true);
    entry.peer = use.peer;
    entry.name = use.peer->name;
    if (entry.path) nic_->updatePeer(*entry.path, use.peer);
}

void WorkerLogic::onDropPeer(const DropPeer& drop) {
    if (drop.peer >= peers_.size()) return;
    PeerPath& entry = peers_[drop.peer];
    if (entry.path) nic_->closePath(*entry.path, drop.cause);
    entry.path.reset();
    failBacklog(entry, drop.cause, false);
    if (!drop.forget) return;
    entry.peer = nullptr;
    entry.forgotten = drop.cause;
}

void WorkerLogic::onReset(const ResetPath& reset) {
    if (reset.peer >= peers_.size()) return;
    PeerPath& entry = peers_[reset.peer];
    if (entry.path) nic_->resetPath(*entry.path, reset.cause);
    failBacklog(entry, reset.cause, true);
}

// --- posting -----------------------------------------------------------------------------------------------------

void WorkerLogic::onTrain(const Train& train) {
    if (train.peer >= peers_.size()) peers_.resize(train.peer + 1);
    PeerPath& entry = peers_[train.peer];
    // Whoever has work here hears what becomes of the path.
    static_cast<void>(reportFor(train.tracker));
    Status refused;
    bool elsewhere = false;
    if (!entry.peer) {
        refused = entry.forgotten.isOk() ? Status(Code::StaleHandle, "the segment is not open") : entry.forgotten;
    } else if (entry.peer->desc->incarnation != train.incarnation) {
        refused = Status(Code::StaleIncarnation, "segment " + entry.peer->name + " was restarted");
    } else if (!entry.path) {
        auto opened = nic_->openPath(entry.peer);
        if (opened) {
            entry.path = *opened;
        } else {
            // This Nic has no way to it; another may.
            refused = opened.status();
            elsewhere = true;
            entry.refused = true;
            tellPath(train.peer, false);
        }
    }
    const std::uint64_t slice = nic_->info().slice_bytes;
    cut_ = 0;
    for (const Flight& flight : train.flights) {
        const std::uint32_t cookie = allocate(flight, train.tracker, train.peer);
        if (!refused.isOk()) {
            refuse(cookie, refused, elsewhere);
            continue;
        }
        out_[cookie].requests = cutFlight(flight, cookie, flight.whole ? flight.length : slice);
    }
    if (cut_ == 0) return;
    const std::span<const WorkRequest> requests(scratch_.data(), cut_);
    const std::size_t taken = entry.backlog.empty() ? nic_->post(*entry.path, requests) : 0;
    if (taken < requests.size()) {
        if (entry.backlog.empty()) backlogged_.push_back(train.peer);
        const auto rest = requests.subspan(taken);
        entry.backlog.insert(entry.backlog.end(), rest.begin(), rest.end());
    }
}

/// Appends the work requests of a flight, `step` bytes each, to `scratch_`; returns how many.
std::uint32_t WorkerLogic::cutFlight(const Flight& flight, std::uint64_t cookie, std::uint64_t step) {
    const auto count = static_cast<std::size_t>((flight.length - 1) / step + 1);
    if (cut_ + count > scratch_.size()) scratch_.resize(2 * (cut_ + count));
    WorkRequest* request = &scratch_[cut_];
    for (std::uint64_t done = 0; done < flight.length; done += step, ++request)
        *request = {flight.local + done, flight.remote + done, step, cookie, flight.opcode};
    request[-1].length = flight.length - (count - 1) * step;
    cut_ += count;
    return static_cast<std::uint32_t>(count);
}

void WorkerLogic::postBacklog(PeerPath& peer) {
    while (!peer.backlog.empty() && peer.path) {
        constexpr std::size_t kBurst = 256;
        const std::size_t count = std::min(kBurst, peer.backlog.size());
        if (scratch_.size() < count) scratch_.resize(count);
        std::copy_n(peer.backlog.begin(), count, scratch_.begin());
        const std::size_t taken = nic_->post(*peer.path, {scratch_.data(), count});
        peer.backlog.erase(peer.backlog.begin(), peer.backlog.begin() + static_cast<std::ptrdiff_t>(taken));
        if (taken < count) return;
    }
}

void WorkerLogic::failBacklog(PeerPath& peer, const Status& cause, bool retryable) {
    for (const WorkRequest& request : std::exchange(peer.backlog, {}))
        failRequest({request, cause, retryable, /*quiesced=*/true, /*fenced=*/true});
}

std::uint32_t WorkerLogic::allocate(const Flight& flight, std::uint32_t tracker, std::uint32_t peer) {
    std::uint32_t index = 0;
    if (free_.empty()) {
        index = static_cast<std::uint32_t>(out_.size());
        out_.emplace_back();
    } else {
        index = free_.back();
        free_.pop_back();
    }
    out_[index] = Out{flight, tracker, peer, 0, 0};
    return index;
}

// --- what ends ---------------------------------------------------------------------------------------------------

bool WorkerLogic::poll(TimePoint now) {
    now_ = now;
    bool moved = nic_->poll(now, sweep_);
    if (!sweep_.empty()) {
        for (const Completion& done : sweep_.completed)
            settle(static_cast<std::uint32_t>(done.cookie), done.requests, done.bytes);
        for (const Failure& failure : sweep_.failed) failRequest(failure);
        for (const PathChange& change : sweep_.paths) onPathChange(change);
        // What was failed without proof may be proven in the same sweep.
        for (const std::uint64_t doubt : sweep_.proven) quarantine_.prove(index_, doubt);
        sweep_.clear();
        moved = true;
    }
    if (!backlogged_.empty()) {
        for (const std::uint32_t peer : backlogged_) postBacklog(peers_[peer]);
        std::erase_if(backlogged_, [this](std::uint32_t peer) { return peers_[peer].backlog.empty(); });
    }
    moved = sendReports() || moved;
    if (holds_regions_) lookWhoHolds();
    if (!waits_.empty()) answerWaits(now);
    if (!close_waits_.empty()) answerCloseWaits(now);
    if (!flight_waits_.empty()) answerFlightWaits(now);
    return moved;
}

void WorkerLogic::settle(std::uint32_t out, std::uint32_t requests, std::uint64_t bytes) {
    Out& entry = out_[out];
    entry.requests -= requests;
    entry.bytes += bytes;
    if (entry.requests != 0) return;
    reportFor(entry.tracker)
        .settled.push_back({entry.flight.batch, entry.flight.first_task, entry.flight.task_count, entry.peer,
                            entry.flight.length, entry.bytes});
    free_.push_back(out);
}

/// Fails a flight none of which was posted.
void WorkerLogic::refuse(std::uint32_t out, const Status& cause, bool retryable) {
    Out& entry = out_[out];
    reportFor(entry.tracker)
        .failed.push_back({entry.flight, entry.peer, cause, retryable, /*quiesced=*/true, /*fenced=*/true});
    entry.requests = 1;
    settle(out, 1, 0);
}

void WorkerLogic::failRequest(const Failure& failure) {
    const WorkRequest& request = failure.request;
    const auto out = static_cast<std::uint32_t>(request.cookie);
    Out& entry = out_[out];
    Flight part = entry.flight;
    part.local = request.local;
    part.remote = request.remote;
    part.length = request.length;
    // Before the tracker hears of it: whoever sees the task's end finds it there.
    if (!failure.quiesced)
        quarantine(entry, {reinterpret_cast<std::uint64_t>(request.local), request.length}, failure.cause,
                   failure.doubt);
    reportFor(entry.tracker)
        .failed.push_back({part, entry.peer, failure.cause, failure.retryable, failure.quiesced, failure.fenced,
                           failure.incident, failure.declined});
    settle(out, 1, 0);
}

void WorkerLogic::quarantine(const Out& out, const ByteRange& range, const Status& cause, std::uint64_t doubt) {
    QuarantineEntry entry;
    entry.range = range;
    entry.opcode = out.flight.opcode;
    entry.segment = peers_[out.peer].name;
    entry.nic = nic_name_;
    if (out.flight.batch != nullptr) entry.batch = out.flight.batch->id();
    entry.first_task = out.flight.first_task;
    entry.task_count = out.flight.task_count;
    entry.cause = cause;
    entry.since = now_;
    quarantine_.add(index_, doubt, std::move(entry));
}

void WorkerLogic::tellPath(std::uint32_t peer, bool usable) {
    for (SliceReport& report : reports_) report.paths.push_back({peer, usable});
}

void WorkerLogic::onPathChange(const PathChange& change) {
    for (std::uint32_t peer = 0; peer < peers_.size(); ++peer)
        if (peers_[peer].path == change.path) tellPath(peer, change.usable);
}

void WorkerLogic::abandon(const Status& cause) {
    // What another process holds it may hold on to when the Nic is gone.
    std::vector<Status> held;
    for (const AwaitPeersIdle& wait : waits_) held.push_back(heldIn(wait.ranges));
    const Status any_held = nic_->heldIn(kEverything);
    if (holds_regions_) lookWhoHolds();
    if (!waits_.empty() || !close_waits_.empty()) noteHeld(kEverything, now_);
    // The Nic's end proves that it touches no buffer any more, unless it says otherwise; only then are the tasks told.
    const Status over = nic_->shut();
    nic_.reset();
    if (over) quarantine_.proveAll(index_);
    for (std::uint32_t i = 0; i < out_.size(); ++i) {
        const Out& entry = out_[i];
        if (entry.requests == 0) continue;
        if (!over)
            quarantine(entry, {reinterpret_cast<std::uint64_t>(entry.flight.local), entry.flight.length}, over, 0);
        reportFor(entry.tracker).failed.push_back({entry.flight, entry.peer, cause, false, over.isOk()});
        settle(i, entry.requests, 0);
    }
    sendReports();
    for (std::size_t i = 0; i < waits_.size(); ++i) waits_[i].reply(held[i]);
    for (const CloseToPeers& wait : close_waits_) wait.reply(any_held);
    for (const AwaitFlights& wait : flight_waits_) wait.reply();
}

SliceReport& WorkerLogic::reportFor(std::uint32_t tracker) {
    if (reports_.size() <= tracker) reports_.resize(tracker + 1);
    return reports_[tracker];
}

bool WorkerLogic::sendReports() {
    bool sent = false;
    for (std::uint32_t tracker = 0; tracker < reports_.size(); ++tracker) {
        const SliceReport& report = reports_[tracker];
        if (report.settled.empty() && report.failed.empty() && report.paths.empty()) continue;
        // The tracker may answer with a train at once, and its refusals go to the next report.
        std::swap(sending_, reports_[tracker]);
        sending_.worker = index_;
        output_.sendReport(tracker, sending_);
        sending_.settled.clear();
        sending_.failed.clear();
        sending_.paths.clear();
        sent = true;
    }
    return sent;
}

bool WorkerLogic::arm() {
    // Refusals gathered since the last poll go out with the next one.
    for (const SliceReport& report : reports_)
        if (!report.settled.empty() || !report.failed.empty() || !report.paths.empty()) return false;
    return nic_->arm();
}

bool WorkerLogic::idle() const {
    const bool waiting =
        std::any_of(peers_.begin(), peers_.end(), [](const PeerPath& peer) { return !peer.backlog.empty(); });
    return !hasFlights() && !waiting && waits_.empty() && close_waits_.empty() && flight_waits_.empty();
}

// --- unregister --------------------------------------------------------------------------------------------------

void WorkerLogic::onAwaitPeersIdle(const AwaitPeersIdle& wait, TimePoint now) {
    nic_->revokeIn(wait.ranges);
    waits_.push_back(wait);
    answerWaits(now);
}

bool WorkerLogic::servesPeerIn(const RangeSet& ranges) const {
    // Mostly nobody works anywhere near, and one question tells.
    if (!nic_->servesPeerIn(ranges.hull())) return false;
    const auto all = ranges.ranges();
    return std::any_of(all.begin(), all.end(), [this](const ByteRange& range) { return nic_->servesPeerIn(range); });
}

Status WorkerLogic::heldIn(const RangeSet& ranges) const {
    if (const Status anywhere = nic_->heldIn(ranges.hull()); anywhere) return anywhere;
    for (const ByteRange& range : ranges.ranges())
        if (const Status held = nic_->heldIn(range); !held) return held;
    return {};
}

void WorkerLogic::answerWaits(TimePoint now) {
    for (auto wait = waits_.begin(); wait != waits_.end();) {
        if (servesPeerIn(wait->ranges)) {
            if (now < wait->deadline) {
                ++wait;
                continue;
            }
            for (const ByteRange& range : wait->ranges.ranges())
                if (nic_->servesPeerIn(range)) nic_->cutPeersIn(range);
        }
        const Status held = heldIn(wait->ranges);
        if (!held)
            for (const ByteRange& range : wait->ranges.ranges()) noteHeld(range, now);
        wait->reply(held);
        wait = waits_.erase(wait);
    }
}

/// What is not given back at the end of a wait is listed, until it is given back or its holder is proven gone.
void WorkerLogic::noteHeld(const ByteRange& range, TimePoint now) {
    for (Nic::Holding& holding : nic_->holdingsIn(range)) {
        holds_regions_ = true;
        QuarantineEntry entry;
        entry.holder = std::move(holding.holder);
        entry.range = holding.region;
        entry.nic = nic_name_;
        entry.cause = Status(Code::Timeout, "it was asked to let go and does not answer");
        entry.since = now;
        quarantine_.hold(index_, std::move(entry));
    }
}

void WorkerLogic::lookWhoHolds() {
    const auto held = nic_->holdingsIn(kEverything);
    holds_regions_ = !held.empty();
    quarantine_.keepHeld(index_, [&](const QuarantineEntry& entry) {
        return std::find(held.begin(), held.end(), Nic::Holding{entry.range, entry.holder}) != held.end();
    });
}

// --- uninstall ---------------------------------------------------------------------------------------------------

void WorkerLogic::onCloseToPeers(const CloseToPeers& wait, TimePoint now) {
    nic_->closeToPeers();
    close_waits_.push_back(wait);
    answerCloseWaits(now);
}

void WorkerLogic::answerCloseWaits(TimePoint now) {
    const Status held = nic_->heldIn(kEverything);
    std::erase_if(close_waits_, [&](const CloseToPeers& wait) {
        if (!held && now < wait.deadline) return false;
        noteHeld(kEverything, now);
        wait.reply(held);
        return true;
    });
}

void WorkerLogic::onAwaitFlights(const AwaitFlights& wait, TimePoint now) {
    flight_waits_.push_back(wait);
    answerFlightWaits(now);
}

void WorkerLogic::answerFlightWaits(TimePoint now) {
    std::erase_if(flight_waits_, [&](const AwaitFlights& wait) {
        if (hasFlights() && now < wait.deadline) return false;
        wait.reply();
        return true;
    });
}

TimePoint WorkerLogic::nextDeadline() const {
    TimePoint next = nic_->nextDeadline();
    for (const AwaitPeersIdle& wait : waits_) next = std::min(next, wait.deadline);
    for (const CloseToPeers& wait : close_waits_) next = std::min(next, wait.deadline);
    for (const AwaitFlights& wait : flight_waits_) next = std::min(next, wait.deadline);
    return next;
}

}  // namespace troupe
