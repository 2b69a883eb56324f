#include "actors/batch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/cpu.h"

namespace troupe {

namespace {

// std::atomic::wait has no time-out, so the system call itself.
void futexWait(std::atomic<std::uint32_t>& word, std::uint32_t seen, Duration span) {
    const auto nanoseconds = std::max<std::int64_t>(std::chrono::nanoseconds(span).count(), 0);
    timespec timeout{};
    timeout.tv_sec = nanoseconds / 1'000'000'000;
    timeout.tv_nsec = nanoseconds % 1'000'000'000;
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

void futexWakeAll(std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

Status noMemoryFor(const std::string& what, std::size_t bytes, const char* remedy) {
    return Status(Code::ResourceExhausted, "no memory for " + what + " (" + std::to_string(bytes) + " bytes): " +
                                               remedy + ", or give the process more memory (ulimit -v, its cgroup)");
}

std::string milliseconds(Duration span) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(span).count()) + " ms";
}

std::string describe(const RouteExplanation::Ending& ending) {
    std::string text = "ended: " + ending.cause.toString();
    if (!ending.sent) {
        text += "; nothing of its " + std::to_string(ending.length) + " bytes had been sent";
    } else {
        text += "; " + std::to_string(ending.arrived) + " of " + std::to_string(ending.length) +
                " bytes had arrived, parts under way: " + std::to_string(ending.under_way);
    }
    for (std::size_t i = 0; i < ending.lost.size(); ++i) text += (i == 0 ? "; lost by then: " : ", ") + ending.lost[i];
    return text + "; retries left: " + std::to_string(ending.retries_left);
}

// A free waits so long for a tracker that has shown a batch's last task as terminal and not counted it yet. It is a few
// instructions away; one that was ended by an exception in between never comes.
constexpr auto kCountedWithin = std::chrono::seconds(2);

// How bad a terminal state is, for the batch's: the first of these that any task has.
int severity(TransferStatusEnum s) {
    switch (s) {
        case TransferStatusEnum::FAILED: return 4;
        case TransferStatusEnum::INVALID: return 3;
        case TransferStatusEnum::TIMEOUT: return 2;
        case TransferStatusEnum::CANCELED: return 1;
        default: return 0;
    }
}

}  // namespace

const char* toString(TransferStatusEnum s) {
    switch (s) {
        case TransferStatusEnum::WAITING: return "WAITING";
        case TransferStatusEnum::PENDING: return "PENDING";
        case TransferStatusEnum::INVALID: return "INVALID";
        case TransferStatusEnum::CANCELED: return "CANCELED";
        case TransferStatusEnum::COMPLETED: return "COMPLETED";
        case TransferStatusEnum::TIMEOUT: return "TIMEOUT";
        case TransferStatusEnum::FAILED: return "FAILED";
    }
    return "UNKNOWN";
}

const char* toString(PeerState s) {
    switch (s) {
        case PeerState::Unknown: return "unknown";
        case PeerState::Connecting: return "connecting";
        case PeerState::Up: return "up";
        case PeerState::Suspect: return "suspect";
        case PeerState::Down: return "down";
    }
    return "unknown";
}

std::string RouteExplanation::Owner::toString() const {
    std::string text = std::string(troupe::toString(state)) + ", last heard of " + milliseconds(silent) + " ago";
    if (!trouble) text += "; " + milliseconds(trouble_since) + " ago: " + trouble.toString();
    return text;
}

std::string RouteExplanation::toString() const {
    std::string text = transport.empty() ? "no transport" : transport;
    const auto name = [&text](const std::vector<std::string>& all) {
        for (std::size_t i = 0; i < all.size(); ++i) text += (i == 0 ? " by " : ", ") + all[i];
    };
    name(nics);
    for (const Way& way : then) {
        text += ", then " + way.transport;
        name(way.nics);
    }
    if (!gpu.empty()) text += " (" + gpu + ")";
    for (const Refusal& refusal : refused) text += "; not " + refusal.transport + ": " + refusal.why.message();
    for (const Attempt& attempt : attempts) {
        text += "\n  " + std::to_string(attempt.bytes) + " bytes by " + attempt.nic;
        const bool arrived = attempt.cause.isOk();
        text += arrived ? " arrived" : " came back: " + attempt.cause.toString();
        const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(attempt.pause);
        if (pause == pause.zero()) continue;
        text += (arrived ? ", the first after " : "; sent again after ") + std::to_string(pause.count()) + " us";
    }
    if (attempts_left_out != 0) text += "\n  and " + std::to_string(attempts_left_out) + " more";
    if (ending) text += "\n  " + describe(*ending);
    if (owner && (ending || owner->state != PeerState::Up)) text += "\n  its owner is " + owner->toString();
    return text;
}

// --- Batch -------------------------------------------------------------------------------------------------------

bool Batch::pin(std::uint32_t generation) {
    std::uint64_t gate = gate_.load(std::memory_order_relaxed);
    for (;;) {
        if (gate >> 32 != generation || (gate & kFree) != 0) return false;
        if (gate & kFreeing) {
            // A free is deciding; it takes a few loads, or waits for pins that are already leaving.
            std::this_thread::yield();
            gate = gate_.load(std::memory_order_relaxed);
            continue;
        }
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
    }
}

/// The loop may be driven by a thread that holds a pin on this very batch, and for which a free waits (a caller that
/// waits for the batch, or cancels it): to wait for that free here would be for ever.
bool Batch::pinForTracker(std::uint32_t generation) {
    std::uint64_t gate = gate_.load(std::memory_order_acquire);
    do {
        if (gate >> 32 != generation || (gate & kFree) != 0) return false;
        // A free does not pass a task that runs, and nobody but this tracker ends one: so that free will be refused,
        // or go on when this pin has left again. A cancel is not lost to a free that is refused in the same moment.
        if ((gate & kFreeing) != 0 && done()) return false;
    } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire));
    return true;
}

void Batch::unpin() { gate_.fetch_sub(1, std::memory_order_release); }

std::int64_t Batch::claim(std::uint32_t count) {
    std::uint32_t first = claimed_.load(std::memory_order_relaxed);
    if (count > capacity_ - first) return -1;
    // Before they can be seen: who waits for what is claimed must not find that nothing runs.
    outstanding_.fetch_add(count, std::memory_order_acq_rel);
    while (count <= capacity_ - first)
        if (claimed_.compare_exchange_weak(first, first + count, std::memory_order_acq_rel)) return first;
    // Another thread has claimed meanwhile. Who came to wait for these is woken.
    finished(count);
    return -1;
}

TransferStatus Batch::taskStatus(std::uint32_t index) const {
    const Task& t = tasks_[index];
    TransferStatus result;
    result.s = t.status(std::memory_order_acquire);
    result.transferred_bytes = t.transferred.load(std::memory_order_relaxed);
    if (isTerminal(result.s)) {
        result.quiesced = t.quiesced;
        if (result.s != TransferStatusEnum::COMPLETED) result.error = t.error;
    }
    return result;
}

TransferStatus Batch::summary() const {
    TransferStatus result;
    if (!done()) {
        result.s = TransferStatusEnum::PENDING;
        return result;
    }
    result.s = TransferStatusEnum::COMPLETED;
    const std::uint32_t count = claimed();
    int worst = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const Task& t = tasks_[i];
        result.transferred_bytes += t.transferred.load(std::memory_order_relaxed);
        const auto s = t.status(std::memory_order_acquire);
        if (!isTerminal(s)) {
            // Claimed by another thread since the look above.
            result.s = TransferStatusEnum::PENDING;
            return result;
        }
        result.quiesced = result.quiesced && t.quiesced;
        if (severity(s) > worst) {
            worst = severity(s);
            result.s = s;
        }
    }
    if (worst > 0) result.error = tasks_[first_failed_.load(std::memory_order_acquire)].error;
    return result;
}

bool Batch::sleepUntilDone(TimePoint deadline) {
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    bool ended = false;
    for (;;) {
        const std::uint32_t seen = outstanding_.load(std::memory_order_seq_cst);
        if (seen == 0) {
            ended = true;
            break;
        }
        const TimePoint now = Clock::now();
        if (now >= deadline) break;
        // A wait is cut into hours, so that no deadline overflows a timespec.
        futexWait(outstanding_, seen, std::min<Duration>(deadline - now, std::chrono::hours(1)));
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return ended;
}

void Batch::publishTerminal(std::uint32_t index, TransferStatusEnum state) {
    if (state != TransferStatusEnum::COMPLETED) {
        std::uint32_t none = UINT32_MAX;
        first_failed_.compare_exchange_strong(none, index, std::memory_order_release, std::memory_order_relaxed);
    }
    tasks_[index].state.store(static_cast<std::uint8_t>(state), std::memory_order_release);
}

void Batch::finished(std::uint32_t count) {
    // Read first: once outstanding_ is zero the batch may be freed and be another's.
    const BatchID id = id_.load(std::memory_order_relaxed);
    const auto callback = on_done_ ? on_done_ : nullptr;
    if (outstanding_.fetch_sub(count, std::memory_order_seq_cst) != count) return;
    // The slot's memory stays, so at worst this wakes a later batch's waiters, who look again.
    if (waiters_.load(std::memory_order_seq_cst) != 0) futexWakeAll(outstanding_);
    if (callback) callback(id);
}

void Batch::endLeft(TransferStatusEnum state, const Status& cause,
                    const std::function<bool(const ByteRange&)>& is_free) {
    const std::uint32_t count = claimed();
    for (std::uint32_t i = 0; i < count; ++i) {
        Task& task = tasks_[i];
        if (isTerminal(task.status(std::memory_order_acquire))) continue;
        task.error = cause;
        // What waits for its event is to go on.
        task.events.reset();
        task.quiesced = task.quiesced && (!is_free || is_free(task.source()));
        publishTerminal(i, state);
    }
    // With those that a tracker has shown as terminal, and did not come to count.
    if (const std::uint32_t uncounted = outstanding_.load(std::memory_order_acquire); uncounted != 0)
        finished(uncounted);
}

bool Batch::allTerminal() const {
    // Backwards: the last ones usually end last, so a batch at work is told by its first look.
    for (std::uint32_t i = claimed(); i > 0; --i)
        if (!isTerminal(tasks_[i - 1].status(std::memory_order_acquire))) return false;
    return true;
}

// --- BatchTable --------------------------------------------------------------------------------------------------

BatchTable::BatchTable(std::uint32_t max_batches)
    : max_batches_(max_batches), chunks_(std::make_unique<std::atomic<Batch*>[]>(max_batches / kChunk + 1)) {}

BatchTable::~BatchTable() {
    for (std::uint32_t i = 0; i < max_batches_ / kChunk + 1; ++i) delete[] chunks_[i].load(std::memory_order_relaxed);
}

Batch* BatchTable::slot(std::uint32_t index) const {
    Batch* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    return chunk ? &chunk[index % kChunk] : nullptr;
}

bool BatchTable::popFree(std::uint32_t& index) {
    std::uint64_t head = free_head_.load(std::memory_order_acquire);
    for (;;) {
        index = static_cast<std::uint32_t>(head);
        if (index == UINT32_MAX) return false;
        const std::uint64_t next = ((head >> 32) + 1) << 32 | slot(index)->next_free_;
        if (free_head_.compare_exchange_weak(head, next, std::memory_order_acq_rel)) return true;
    }
}

void BatchTable::pushFree(std::uint32_t index) {
    std::uint64_t head = free_head_.load(std::memory_order_relaxed);
    std::uint64_t next = 0;
    do {
        slot(index)->next_free_ = static_cast<std::uint32_t>(head);
        next = ((head >> 32) + 1) << 32 | index;
    } while (!free_head_.compare_exchange_weak(head, next, std::memory_order_acq_rel));
}

Status BatchTable::takeUnused(std::uint32_t& index) {
    index = used_.load(std::memory_order_relaxed);
    for (;;) {
        if (index >= max_batches_)
            return Status(Code::CapacityExceeded,
                          std::to_string(max_batches_) + " batches are live: free some, or raise max_batches");
        // The memory first: a slot that was taken without could not be given back.
        auto& chunk = chunks_[index / kChunk];
        if (chunk.load(std::memory_order_acquire) == nullptr) {
            std::unique_ptr<Batch[]> fresh(new (std::nothrow) Batch[kChunk]);
            if (!fresh)
                return noMemoryFor(std::to_string(kChunk) + " more batches", kChunk * sizeof(Batch),
                                   "free some batches");
            Batch* expected = nullptr;
            if (chunk.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) fresh.release();
        }
        if (used_.compare_exchange_weak(index, index + 1, std::memory_order_acq_rel, std::memory_order_relaxed))
            return Status::ok();
    }
}

Result<BatchID> BatchTable::allocate(std::uint32_t capacity, std::uint32_t tracker) {
    std::uint32_t index = 0;
    if (!popFree(index))
        if (const Status taken = takeUnused(index); !taken) return taken;
    Batch& batch = *slot(index);
    if (batch.allocated_ < capacity) {
        // The old ones go first, so that the two need not fit side by side.
        batch.allocated_ = 0;
        batch.tasks_.reset();
        batch.tasks_.reset(new (std::nothrow) Task[capacity]);
        if (!batch.tasks_) {
            pushFree(index);
            return noMemoryFor("a batch of " + std::to_string(capacity) + " tasks", capacity * sizeof(Task),
                               "use smaller batches or fewer");
        }
        batch.allocated_ = capacity;
    }
    batch.capacity_ = capacity;
    batch.tracker_ = tracker;
    // Generations skip 0, so that no live id is 0.
    auto generation = static_cast<std::uint32_t>(batch.gate_.load(std::memory_order_relaxed) >> 32);
    if (generation == 0) generation = 1;
    const BatchID id = static_cast<std::uint64_t>(generation) << 32 | index;
    batch.id_.store(id, std::memory_order_relaxed);
    live_.fetch_add(1, std::memory_order_relaxed);
    batch.gate_.store(static_cast<std::uint64_t>(generation) << 32, std::memory_order_release);
    return id;
}

Batch* BatchTable::slotOf(BatchID id) const {
    const auto index = static_cast<std::uint32_t>(id);
    return id >> 32 != 0 && index < max_batches_ ? slot(index) : nullptr;
}

BatchTable::Pinned BatchTable::find(BatchID id) const {
    Batch* batch = slotOf(id);
    return Pinned(batch != nullptr && batch->pin(static_cast<std::uint32_t>(id >> 32)) ? batch : nullptr);
}

BatchTable::Pinned BatchTable::findForTracker(BatchID id) const {
    Batch* batch = slotOf(id);
    return Pinned(batch != nullptr && batch->pinForTracker(static_cast<std::uint32_t>(id >> 32)) ? batch : nullptr);
}

Status BatchTable::stale(BatchID id) {
    return {Code::StaleHandle, "batch " + std::to_string(id) + " was freed or never allocated"};
}

Status BatchTable::free(BatchID id) {
    const auto index = static_cast<std::uint32_t>(id);
    const std::uint64_t generation = id >> 32;
    Batch* batch = slotOf(id);
    if (batch == nullptr) return stale(id);
    std::uint64_t gate = batch->gate_.load(std::memory_order_acquire);
    do {
        // Being freed by another thread: that one decides, this one is a double free.
        if (gate >> 32 != generation || (gate & (Batch::kFreeing | Batch::kFree)) != 0) return stale(id);
    } while (!batch->gate_.compare_exchange_weak(gate, gate | Batch::kFreeing, std::memory_order_acq_rel));

    // Nobody can pin it now. Those who had are reading a status or in the middle of a submit: short, or (a waiter)
    // asleep only while work is outstanding, which is looked at first.
    const auto busy = [&] {
        batch->gate_.fetch_and(~Batch::kFreeing, std::memory_order_release);
        return Status(Code::BatchBusy, "batch " + std::to_string(id) + ": tasks not ended yet: " +
                                           std::to_string(batch->outstanding_.load()) + "; wait for it first");
    };
    TimePoint give_up = kForever;
    for (;;) {
        if (batch->outstanding_.load(std::memory_order_acquire) != 0) {
            // Those who poll the tasks see the last one end before it is counted, and may rely on what they saw.
            if (!batch->allTerminal()) return busy();
            const TimePoint now = Clock::now();
            if (give_up == kForever) give_up = now + kCountedWithin;
            if (now >= give_up) return busy();
            std::this_thread::yield();
            continue;
        }
        if ((batch->gate_.load(std::memory_order_acquire) & Batch::kPins) == 0) break;
        std::this_thread::yield();
    }
    if (batch->outstanding_.load(std::memory_order_acquire) != 0) return busy();

    const std::uint32_t used = batch->claimed();
    for (std::uint32_t i = 0; i < used; ++i) {
        Task& task = batch->tasks_[i];
        if (!task.error.isOk()) task.error = Status();
        task.state.store(static_cast<std::uint8_t>(TransferStatusEnum::WAITING), std::memory_order_relaxed);
    }
    batch->claimed_.store(0, std::memory_order_relaxed);
    batch->first_failed_.store(UINT32_MAX, std::memory_order_relaxed);
    batch->on_done_ = nullptr;
    batch->gate_.store((generation + 1) << 32 | Batch::kFree, std::memory_order_release);
    live_.fetch_sub(1, std::memory_order_relaxed);
    pushFree(index);
    return Status::ok();
}

bool BatchTable::anyRunning() const {
    const std::uint32_t used = std::min(used_.load(std::memory_order_acquire), max_batches_);
    for (std::uint32_t i = 0; i < used; ++i) {
        const Batch* batch = slot(i);
        if (batch != nullptr && !batch->done()) return true;
    }
    return false;
}

void BatchTable::endAll(const Status& cause, IsFree is_free) {
    {
        const std::lock_guard lock(end_mutex_);
        end_cause_ = cause;
        is_free_ = std::move(is_free);
    }
    ends_.store(true, std::memory_order_seq_cst);
    if (!anySubmits()) endWhatIsLeft();
}

void BatchTable::lastSubmitIsOver() {
    if (ends_.load(std::memory_order_seq_cst)) endWhatIsLeft();
}

/// By one thread at a time, without a lock, for it calls back: who comes meanwhile leaves it to that one.
void BatchTable::endWhatIsLeft() {
    if (asked_to_end_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    std::uint32_t served = 1;
    do {
        served = asked_to_end_.load(std::memory_order_acquire);
        Status cause;
        IsFree is_free;
        {
            const std::lock_guard lock(end_mutex_);
            cause = end_cause_;
            is_free = is_free_;
        }
        const auto state = cause.code() == Code::Canceled ? TransferStatusEnum::CANCELED : TransferStatusEnum::FAILED;
        const std::uint32_t used = std::min(used_.load(std::memory_order_acquire), max_batches_);
        for (std::uint32_t i = 0; i < used; ++i)
            if (Batch* batch = slot(i); batch != nullptr && !batch->done()) try {
                    batch->endLeft(state, cause, is_free);
                } catch (...) {  // NOLINT(bugprone-empty-catch)
                    // One who does not want to hear of his batch must not keep the others from the end of theirs.
                }
    } while (!asked_to_end_.compare_exchange_strong(served, 0, std::memory_order_acq_rel));
}

}  // namespace troupe
