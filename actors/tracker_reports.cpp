// What comes back from the workers: which path is lost or back, what failed and goes out again, what has arrived.

#include <bit>
#include <utility>

#include "actors/tracker_logic.h"

namespace troupe {

namespace {

// How often a task goes on over another path at no cost of its retries. Paths that are lost again and again are tried
// with growing pauses, so that most tasks end long before; two that alternate must not carry one for ever.
constexpr std::uint16_t kMostMoves = 32;

// What is declined is one attempt for explain, however many parts of it there were. No report has this number.
constexpr std::uint64_t kDeclined = UINT64_MAX;

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

/// What was lost in one incident costs a task one retry, however many parts of it were out; nothing, within reason,
/// when they go on `elsewhere`: the lost path is not used again before it is back. False: no retry is left.
bool charge(Task& task, std::uint64_t incident, bool elsewhere) {
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
Status withFirstCause(const Status& last, bool retryable, const Status& first) {
    if (!retryable || first.message() == last.message()) return last;
    return {last.code(), last.message() + "; at first: " + first.message()};
}

}  // namespace

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
    Path* path = peers_[change.peer].ladder.of(worker);
    if (path == nullptr) return;
    path->on_trial = change.usable && (path->on_trial || !path->usable);
    path->usable = change.usable;
    markDirty(change.peer);
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
    TaskHistory& history = historyOf(task, worker);
    history.failed(worker, merged ? task.length : failed.part.length, cause, incident, now_);
    if (failed.declined) history.wasDeclined(worker);
}

void TrackerLogic::onFailed(std::uint32_t worker, const SliceReport::Failed& failed) {
    // Bytes of a lost WRITE may still be under way. The Nic that sent them fences them off when it connects anew;
    // another does not, unless they are known to be. What was not sent this time does not fence an earlier attempt.
    const bool anywhere = failed.part.opcode == Opcode::Read || (failed.fenced && !failed.part.unfenced);
    PathLadder& ladder = peers_[failed.peer].ladder;
    const Path* path = ladder.of(worker);
    const bool left = path == nullptr || path->retired || !path->usable || path->on_trial;
    const bool elsewhere = anywhere && left && ladder.anyUsable(worker);
    // Those of a Nic and those of a report are told apart; none is 0, which a task begins with.
    const std::uint64_t incident = failed.declined        ? kDeclined
                                   : failed.incident != 0 ? std::uint64_t{worker} << 48 | failed.incident << 1 | 1
                                                          : reports_ << 1;
    const std::uint64_t barred = failed.declined ? ladder.barredBy(worker) : 0;
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
                                (failed.part.opcode == Opcode::Read || isOfItsRange(failed.cause.code()) ||
                                 failed.cause.code() == Code::Unsupported);
        if (barred != 0 || retry || take_apart) {
            Run run = Run::of(batch, i);
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
    PeerState& peer = peers_[settled.peer];
    if (Path* path = peer.ladder.of(worker)) {
        path->remove(settled.length, settled.bytes == settled.length);
        if (settled.bytes != 0) peer.retries.arrived(retries_, settled.bytes);
        peer.ladder.dropIfOver(worker);
        if (!peer.pending.empty()) markDirty(settled.peer);
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
            if (task.in_flight == 0) end(batch, i, task.doomedState());
        } else if (task.confirmed == task.length) {
            end(batch, i, TransferStatusEnum::COMPLETED);
        }
    }
}

}  // namespace troupe
