#pragma once

#include <cstdint>
#include <deque>

#include "actors/batch.h"

namespace troupe {

/// Tasks [next, end) of a batch that wait for one peer, of which `next` starts at `offset`. A single task may stop at
/// `limit`. Tasks that ended meanwhile may be among them.
struct Run {
    static constexpr std::uint32_t kAnyWorker = UINT32_MAX;

    /// All of one task.
    static Run of(Batch& batch, std::uint32_t index) {
        Run run;
        run.batch = &batch;
        run.next = index;
        run.end = index + 1;
        return run;
    }

    Batch* batch = nullptr;
    std::uint32_t next = 0;
    std::uint32_t end = 0;
    std::uint64_t offset = 0;
    std::uint64_t limit = UINT64_MAX;
    bool merge = true;
    std::uint32_t worker = kAnyWorker;  ///< Only through this one.
    /// It failed there: another is better, near or far, and this one is not to find out whether that path works again.
    std::uint32_t failed_on = kAnyWorker;
    std::uint64_t barred = 0;  ///< Workers whose transports declined it, as in Task::workers.

    // Set by RunPool::push.
    std::uint32_t peer = 0;  ///< In whose queue it is.
    Run* before = nullptr;   ///< In that queue.
    Run* after = nullptr;
    Run* batch_before = nullptr;  ///< In the list of its batch.
    Run* batch_after = nullptr;
};

/// The runs of one peer, first come first.
struct RunQueue {
    Run* first = nullptr;
    Run* last = nullptr;

    bool empty() const { return first == nullptr; }
};

/// Owns the runs of a tracker. Each is in a queue and in the list of its batch, so that either side drops it at once,
/// however many others wait: a batch that ends takes its runs along without a look at those of others.
///
/// What is dropped is used again, not freed: there are never more runs than tasks, whose memory stays as well.
class RunPool {
  public:
    void push(RunQueue& queue, std::uint32_t peer, const Run& run);
    /// `queue`: the one it is in.
    void drop(RunQueue& queue, Run& run);

  private:
    std::deque<Run> runs_;  ///< Their addresses stay.
    Run* spare_ = nullptr;  ///< Linked by `after`.
};

}  // namespace troupe
