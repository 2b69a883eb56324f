#include "actors/run_queue.h"

#include <utility>

namespace troupe {

void RunPool::push(RunQueue& queue, std::uint32_t peer, const Run& run) {
    if (spare_ == nullptr) spare_ = &runs_.emplace_back();
    Run& fresh = *std::exchange(spare_, spare_->after);
    fresh = run;
    fresh.peer = peer;

    fresh.before = queue.last;
    fresh.after = nullptr;
    (queue.last != nullptr ? queue.last->after : queue.first) = &fresh;
    queue.last = &fresh;

    Run*& head = run.batch->active.runs;
    fresh.batch_before = nullptr;
    fresh.batch_after = head;
    if (head != nullptr) head->batch_before = &fresh;
    head = &fresh;
}

void RunPool::drop(RunQueue& queue, Run& run) {
    (run.before != nullptr ? run.before->after : queue.first) = run.after;
    (run.after != nullptr ? run.after->before : queue.last) = run.before;
    (run.batch_before != nullptr ? run.batch_before->batch_after : run.batch->active.runs) = run.batch_after;
    if (run.batch_after != nullptr) run.batch_after->batch_before = run.batch_before;
    run.after = std::exchange(spare_, &run);
}

}  // namespace troupe
