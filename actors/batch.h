#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/status.h"
#include "messages/task_history.h"
#include "messages/transfer_types.h"
#include "transports/task_events.h"

namespace troupe {

/// One transfer of a batch: what was asked, how far it is, and how it ended.
struct Task {
    // Written by the submitting thread before the tracker hears of the task; constant afterwards.
    std::byte* local = nullptr;
    std::uint64_t remote = 0;
    std::uint64_t length = 0;
    SegmentID segment = kInvalidSegmentID;
    TimePoint deadline = kForever;
    Opcode opcode = Opcode::Read;
    std::uint16_t retries_left = 0;
    std::unique_ptr<device::TaskEvents> events;  ///< Null, as nearly always: none. The tracker's after SubmitTasks.

    // The tracker's own. `tracked` is the only one read before it is known that the submitter is done with the task.
    bool tracked = false;  ///< From SubmitTasks to its terminal state.
    static constexpr std::uint32_t kNoGate = UINT32_MAX;
    std::uint32_t gate = kNoGate;          ///< Its place among those that wait for the same events.
    std::uint32_t in_flight = 0;           ///< Flights out with workers.
    std::uint64_t workers = 0;             ///< Bit i: a flight went to worker i (63: or above).
    std::uint64_t confirmed = 0;           ///< Bytes reported done.
    std::uint64_t charged = 0;             ///< The incident that cost the last retry or move.
    std::uint16_t moves = 0;               ///< Incidents after which work went on over another path at no cost.
    std::unique_ptr<TaskHistory> history;  ///< Of one that did not go smoothly. With the end it is anybody's to read.
    Code doomed = Code::Ok;                ///< Not Ok: ends with `error` once nothing is in flight.
    std::uint64_t refused_at = 0;  ///< Of a task that is doomed by a refusal: where the part begins that `error` is of.

    // Published by the tracker, read by any thread. `error` and `quiesced` are written before `state` is released.
    Status error;
    bool quiesced = true;
    std::atomic<std::uint64_t> transferred{0};
    std::atomic<std::uint8_t> state{static_cast<std::uint8_t>(TransferStatusEnum::WAITING)};

    ByteRange source() const { return {reinterpret_cast<std::uint64_t>(local), length}; }
    /// What a doomed task ends as.
    TransferStatusEnum doomedState() const {
        switch (doomed) {
            case Code::Timeout: return TransferStatusEnum::TIMEOUT;
            case Code::Canceled: return TransferStatusEnum::CANCELED;
            default: return TransferStatusEnum::FAILED;
        }
    }
    TransferStatusEnum status(std::memory_order order) const {
        return static_cast<TransferStatusEnum>(state.load(order));
    }

    /// The submitting thread, once the request is filled in: nothing is left of what the slot held before.
    void begin() {
        gate = kNoGate;
        in_flight = 0;
        workers = 0;
        confirmed = 0;
        charged = 0;
        moves = 0;
        history.reset();
        events.reset();
        doomed = Code::Ok;
        refused_at = 0;
        quiesced = true;
        transferred.store(0, std::memory_order_relaxed);
        state.store(static_cast<std::uint8_t>(TransferStatusEnum::PENDING), std::memory_order_release);
    }
};

struct Run;

/// A set of tasks that are waited for together: the board that status calls read.
///
/// Lives in a BatchTable slot that is reused but never returned to the system while the engine lives, so a stale id
/// meets a newer generation, not freed memory. Callers use it between `pin` and `unpin`; the tracker uses it from
/// SubmitTasks until it has published the last terminal state.
class Batch {
  public:
    // --- callers --------------------------------------------------------------------------------------------------

    /// Keeps the batch from being freed while it is used. False: that generation is gone.
    /// Waits while a free decides, which waits for other pins: not for a thread that has one already, nor on the turn
    /// of a loop, where both may come together.
    bool pin(std::uint32_t generation);
    void unpin();

    /// Claims `count` consecutive tasks for the caller to fill in, and to tell the tracker of; -1 when they do not fit.
    /// They count as running from here on.
    std::int64_t claim(std::uint32_t count);

    std::uint32_t capacity() const { return capacity_; }
    std::uint32_t claimed() const { return claimed_.load(std::memory_order_acquire); }
    Task& task(std::uint32_t index) { return tasks_[index]; }
    const Task& task(std::uint32_t index) const { return tasks_[index]; }
    bool done() const { return outstanding_.load(std::memory_order_acquire) == 0; }
    /// Every claimed task is terminal; `done` follows within the tracker's handler.
    bool allTerminal() const;
    TransferStatus summary() const;
    TransferStatus taskStatus(std::uint32_t index) const;

    /// Sleeps until done or `deadline`.
    bool sleepUntilDone(TimePoint deadline);
    /// Called by the tracker's thread when the batch ends; set before the first submit. Null: none.
    void onDone(std::function<void(BatchID)> callback) { on_done_ = std::move(callback); }

    BatchID id() const { return id_.load(std::memory_order_relaxed); }
    std::uint32_t tracker() const { return tracker_; }

    // --- the tracker ----------------------------------------------------------------------------------------------

    /// `pin` for the batch's own tracker, on its loop's turn: waits for nothing. False also beside a free that decides
    /// while no task runs: then there is nothing for the tracker to do.
    bool pinForTracker(std::uint32_t generation);
    /// Makes a task's end visible. The batch may be gone after the `finished` that follows.
    void publishTerminal(std::uint32_t index, TransferStatusEnum state);
    /// `count` tasks were published as terminal since the last call. Wakes waiters when these were the last.
    void finished(std::uint32_t count);
    /// Every task that is not terminal ends so; for when there is no tracker, and nobody submits.
    void endLeft(TransferStatusEnum state, const Status& cause, const std::function<bool(const ByteRange&)>& is_free);

    /// The tracker's list of batches with work, and what it knows of this one. Nobody else touches it.
    struct Active {
        Batch* next = nullptr;
        Batch* previous = nullptr;
        std::uint32_t running = 0;      ///< Tasks the tracker has that are not terminal; 0: not in the list.
        TimePoint earliest = kForever;  ///< No task's deadline is before this.
        Run* runs = nullptr;            ///< That wait; run_queue.h.
    };
    Active active;

  private:
    friend class BatchTable;
    // gate_: generation in the upper 32 bits, then "a free is deciding", "free", then the number of pins.
    static constexpr std::uint64_t kFreeing = 1ull << 31;
    static constexpr std::uint64_t kFree = 1ull << 30;
    static constexpr std::uint64_t kPins = kFree - 1;

    std::atomic<std::uint64_t> gate_{kFree};
    std::atomic<std::uint32_t> claimed_{0};
    std::atomic<std::uint32_t> outstanding_{0};  ///< Tasks not terminal; a futex word.
    std::atomic<std::uint32_t> waiters_{0};
    std::atomic<std::uint32_t> first_failed_{UINT32_MAX};
    std::atomic<std::uint64_t> id_{kInvalidBatchID};
    std::uint32_t tracker_ = 0;
    std::uint32_t capacity_ = 0;
    std::uint32_t allocated_ = 0;  ///< Elements of tasks_; grows when a slot is reused for a larger batch.
    std::unique_ptr<Task[]> tasks_;
    std::function<void(BatchID)> on_done_;
    std::uint32_t next_free_ = 0;  ///< Link of the table's free list.
};

/// All batches of an engine. Any thread, no lock: slots are found by index, guarded by their generation; the free list
/// is a stack whose head carries a tag against ABA.
class BatchTable {
  public:
    explicit BatchTable(std::uint32_t max_batches);
    ~BatchTable();

    /// CapacityExceeded when max_batches are live. ResourceExhausted when there is no memory for `capacity` tasks.
    Result<BatchID> allocate(std::uint32_t capacity, std::uint32_t tracker);
    /// StaleHandle; BatchBusy while a task is not terminal. Once taskStatus has shown every task as terminal, it is not
    /// BatchBusy: it waits for the moment that the tracker needs to count them.
    Status free(BatchID id);

    /// Holds a pin on a batch; null when the id is stale.
    class Pinned {
      public:
        explicit Pinned(Batch* batch) : batch_(batch) {}
        Pinned(Pinned&& other) noexcept : batch_(std::exchange(other.batch_, nullptr)) {}
        Pinned(const Pinned&) = delete;
        Pinned& operator=(const Pinned&) = delete;
        Pinned& operator=(Pinned&&) = delete;
        ~Pinned() {
            if (batch_) batch_->unpin();
        }
        explicit operator bool() const { return batch_ != nullptr; }
        Batch* operator->() const { return batch_; }
        Batch& operator*() const { return *batch_; }

      private:
        Batch* batch_;
    };
    /// Not on a loop's turn, and not by a thread that holds a pin of that batch: see Batch::pin.
    Pinned find(BatchID id) const;
    /// For the batch's own tracker, on its loop's turn: see Batch::pinForTracker.
    Pinned findForTracker(BatchID id) const;

    /// What to say of a batch that is not found.
    static Status stale(BatchID id);

    /// A thread that brings a tracker something of a batch, from before it claims tasks until the tracker was told. It
    /// looks at whether there are trackers once it has one of these.
    class Submit {
      public:
        explicit Submit(BatchTable& table) : table_(table) {
            // With endAll's: either this one sees that there are no trackers, or that one sees this one.
            table_.submits_.fetch_add(1, std::memory_order_seq_cst);
        }
        ~Submit() {
            if (table_.submits_.fetch_sub(1, std::memory_order_seq_cst) == 1) table_.lastSubmitIsOver();
        }
        Submit(const Submit&) = delete;
        Submit& operator=(const Submit&) = delete;

      private:
        BatchTable& table_;
    };
    bool anySubmits() const { return submits_.load(std::memory_order_seq_cst) != 0; }

    /// Whether nothing touches such a buffer any more.
    using IsFree = std::function<bool(const ByteRange& source)>;
    /// Ends every task that is not terminal, with `cause`: CANCELED if that is its code, else FAILED. For an engine
    /// whose trackers are gone, and that refuses every Submit that begins from here on. Where one is under way, the
    /// thread of the last of them does it when that is over: its tasks are among those that nobody will take.
    /// `is_free` (none: all are) is asked for a task's `quiesced`, on whichever thread does it.
    void endAll(const Status& cause, IsFree is_free = nullptr);
    /// True while a task of any batch is not terminal.
    bool anyRunning() const;

    std::uint32_t live() const { return live_.load(std::memory_order_relaxed); }

  private:
    static constexpr std::uint32_t kChunk = 256;
    Batch* slot(std::uint32_t index) const;
    /// The slot that `id` may be in; null when no batch ever had such an id.
    Batch* slotOf(BatchID id) const;
    bool popFree(std::uint32_t& index);
    /// Takes a slot that was never used. CapacityExceeded; ResourceExhausted.
    Status takeUnused(std::uint32_t& index);
    void pushFree(std::uint32_t index);
    void lastSubmitIsOver();
    void endWhatIsLeft();

    const std::uint32_t max_batches_;
    std::atomic<std::uint32_t> live_{0};
    std::atomic<std::uint32_t> used_{0};  ///< Slots ever used.
    std::atomic<std::uint64_t> free_head_{
        UINT32_MAX};                                 ///< Tag in the upper half, index in the lower; UINT32_MAX: empty.
    std::unique_ptr<std::atomic<Batch*>[]> chunks_;  ///< Arrays of kChunk, made on first use, owned.

    // The end. Any thread; the hot path counts its submits and looks at ends_ when it was the only one.
    std::atomic<std::uint32_t> submits_{0};
    std::atomic<bool> ends_{false};  ///< endAll was called.
    std::atomic<std::uint32_t> asked_to_end_{
        0};                 ///< Calls of endWhatIsLeft that are not served; one thread serves all.
    std::mutex end_mutex_;  ///< Of the rest, which two callers of endAll may set; held for a moment.
    Status end_cause_;
    IsFree is_free_;
};

}  // namespace troupe
