// TransferEngine: batches and transfers. The hot path.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/batch_tracker.h"
#include "engine/engine_core.h"
#include "transports/task_events.h"

namespace troupe {

namespace {

/// Checks one request against what the caller's thread can know. `regions` is the snapshot, `hint` the region that
/// served the request before: neighbours usually share it.
Status checkRequest(const TransferRequest& request, std::size_t index, const EngineCore& core, const RegionMap& regions,
                    const Region*& hint) {
    const auto fail = [index](Code code, const std::string& message) {
        return Status(code, "request " + std::to_string(index) + ": " + message);
    };
    if (const Status reached = core.segments.check(request.target_id); !reached)
        return fail(reached.code(), reached.message());
    if (request.opcode != Opcode::Read && request.opcode != Opcode::Write)
        return fail(Code::InvalidArgument, "opcode is neither READ nor WRITE");
    if (request.length == 0) return Status::ok();
    const ByteRange source{reinterpret_cast<std::uint64_t>(request.source), request.length};
    if (request.source == nullptr) return fail(Code::InvalidArgument, "source is null");
    const bool written = request.opcode == Opcode::Read;
    if (hint != nullptr && hint->range.contains(source) && (hint->writable || !written)) return Status::ok();
    const Status covered = regions.covers(source, false, written);
    if (!covered) return fail(covered.code(), "source: " + covered.message());
    hint = regions.find(source.addr);
    return Status::ok();
}

/// Memory that something may still write or read is nobody's: what a READ brought there might be overwritten once more.
Status checkQuarantine(const std::vector<TransferRequest>& requests, const Quarantine& quarantine) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const ByteRange source{reinterpret_cast<std::uint64_t>(requests[i].source), requests[i].length};
        const Status held = quarantine.heldIn(source, Clock::now());
        if (!held) return held.withContext("request " + std::to_string(i) + ": source " + source.toString());
    }
    return Status::ok();
}

void fillTask(Task& task, const TransferRequest& request, const Config& settings, TimePoint default_deadline) {
    task.local = static_cast<std::byte*>(request.source);
    task.remote = request.target_offset;
    task.length = request.length;
    task.segment = request.target_id;
    task.deadline = request.deadline == kDefaultDeadline ? default_deadline : request.deadline;
    task.opcode = request.opcode;
    const auto retries = std::max<std::int64_t>(request.advise_retry_cnt, settings.retry_count);
    task.retries_left = static_cast<std::uint16_t>(std::min<std::int64_t>(retries, UINT16_MAX));
    task.begin();
}

device::EventHandles eventsOf(const TransferRequest& request) {
    const auto number = [](void* handle) { return reinterpret_cast<std::uintptr_t>(handle); };
    device::EventHandles handles{number(request.wait_event), std::nullopt, number(request.done_event)};
    if (request.wait_stream) handles.wait_stream = number(*request.wait_stream);
    return handles;
}

/// The events of a request, by its place.
using PlacedEvents = std::pair<std::size_t, std::unique_ptr<device::TaskEvents>>;

/// Of the requests that have any to wait for or to record.
Result<std::vector<PlacedEvents>> makeEvents(const std::vector<TransferRequest>& requests, const EngineCore& core,
                                             const RegionMap& regions, unsigned loop) {
    std::vector<PlacedEvents> made;
    device::EventsOfSubmit events;
    std::shared_ptr<device::Staging> staging;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const device::EventHandles handles = eventsOf(requests[i]);
        if (!handles.any()) continue;
        const auto which = [i] { return "request " + std::to_string(i) + ": "; };
        const Region* const region = regions.find(reinterpret_cast<std::uint64_t>(requests[i].source));
        if (region == nullptr || region->place == nullptr)
            return Status(Code::InvalidArgument, which() + "events need a source in memory of a GPU");
        const int gpu = region->place->memory.device;
        if (!staging || staging->device().info().ordinal != gpu) staging = core.staging->find(loop, gpu);
        if (!staging) return Status(Code::Unsupported, which() + "no transport here copies for " + region->location);
        auto of_request = events.make(i, staging, handles);
        if (!of_request) return of_request.status();
        if (*of_request) made.emplace_back(i, std::move(*of_request));
    }
    if (const Status begun = events.begin(); !begun) return begun;
    return made;
}

}  // namespace

Result<BatchID> TransferEngine::allocateBatchID(std::size_t capacity) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    if (capacity == 0 || capacity > core.settings().max_batch_tasks)
        return {Code::InvalidArgument, "a batch holds 1 to " + std::to_string(core.settings().max_batch_tasks) +
                                           " tasks (max_batch_tasks), not " + std::to_string(capacity)};
    const auto tracker = core.next_tracker.fetch_add(1, std::memory_order_relaxed) % core.trackers.size();
    return core.batches->allocate(static_cast<std::uint32_t>(capacity), static_cast<std::uint32_t>(tracker));
}

Status TransferEngine::submitTransfer(BatchID batch, const std::vector<TransferRequest>& requests) {
    return submit(batch, requests, nullptr);
}

Status TransferEngine::submit(BatchID id, const std::vector<TransferRequest>& requests,
                              std::function<void(BatchID)> on_done) {
    EngineCore& core = *core_;
    // Counted before the engine's life is looked at, so that freeEngine, and what ends the tasks after a defect, sees
    // either no submit or its tasks. And looked at before that, so that callers who go on submitting after the end do
    // not keep it waiting.
    if (const Status usable = core.usable(); !usable) return usable;
    const BatchTable::Submit counted(*core.batches);
    if (const Status usable = core.usable(); !usable) return usable;
    const auto batch = core.batches->find(id);
    if (!batch) return BatchTable::stale(id);
    const auto& regions = core.regions.regions();
    const std::uint64_t version = regions.version();
    const auto snapshot = regions.load();
    const Region* hint = nullptr;
    bool any_events = false;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Status good = checkRequest(requests[i], i, core, *snapshot, hint);
        if (!good) return good;
        any_events = any_events || eventsOf(requests[i]).any();
    }
    if (!core.quarantine.empty())
        if (const Status free = checkQuarantine(requests, core.quarantine); !free) return free;
    if (requests.size() > batch->capacity())
        return Status(Code::CapacityExceeded, "batch " + std::to_string(id) + " has room for " +
                                                  std::to_string(batch->capacity()) + ", not for " +
                                                  std::to_string(requests.size()));
    const auto noRoom = [&] {
        return Status(Code::CapacityExceeded, "batch " + std::to_string(id) + " holds " +
                                                  std::to_string(batch->capacity()) + " tasks and has " +
                                                  std::to_string(batch->claimed()) + "; " +
                                                  std::to_string(requests.size()) + " more do not fit");
    };
    std::vector<PlacedEvents> events;
    if (any_events) [[unlikely]] {
        // Looked at before events are recorded for tasks that there is no room for; `claim` decides.
        if (requests.size() > batch->capacity() - batch->claimed()) return noRoom();
        auto made = makeEvents(requests, core, *snapshot, batch->tracker());
        if (!made) return made.status();
        events = std::move(*made);
    }
    const auto count = static_cast<std::uint32_t>(requests.size());
    const std::int64_t first = batch->claim(count);
    if (first < 0) return noRoom();
    if (on_done) batch->onDone(std::move(on_done));
    if (count == 0) return Status::ok();

    const Config& settings = core.settings();
    const TimePoint now = Clock::now();
    const TimePoint deadline = settings.transfer_timeout.count() == 0 ? kForever : now + settings.transfer_timeout;
    for (std::uint32_t i = 0; i < count; ++i)
        fillTask(batch->task(static_cast<std::uint32_t>(first) + i), requests[i], settings, deadline);
    for (auto& [index, of_task] : events)
        batch->task(static_cast<std::uint32_t>(first + static_cast<std::int64_t>(index))).events = std::move(of_task);
    Loop& loop = *core.data_loops[batch->tracker()];
    loop.deliver(now, *caf::actor_cast<BatchTracker*>(core.trackers[batch->tracker()]),
                 SubmitTasks{&*batch, static_cast<std::uint32_t>(first), count, version});
    return Status::ok();
}

Result<TransferStatus> TransferEngine::getTransferStatus(BatchID id, std::size_t task) const {
    const EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    const auto batch = core.batches->find(id);
    if (!batch) return BatchTable::stale(id);
    if (task >= batch->claimed())
        return Status(Code::InvalidArgument,
                      "batch " + std::to_string(id) + " has " + std::to_string(batch->claimed()) +
                          (batch->claimed() == 1 ? " task" : " tasks") + "; there is no task " + std::to_string(task));
    TransferStatus status = batch->taskStatus(static_cast<std::uint32_t>(task));
    if (isTerminal(status.s)) return status;
    core.data_loops[batch->tracker()]->help();
    return batch->taskStatus(static_cast<std::uint32_t>(task));
}

Result<TransferStatus> TransferEngine::getBatchTransferStatus(BatchID id) const {
    const EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    const auto batch = core.batches->find(id);
    if (!batch) return BatchTable::stale(id);
    Loop& loop = *core.data_loops[batch->tracker()];
    loop.noteWait();
    if (!batch->done()) loop.help();
    return batch->summary();
}

Result<TransferStatus> TransferEngine::waitTransfer(BatchID id, std::chrono::microseconds timeout) const {
    const EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    const auto batch = core.batches->find(id);
    if (!batch) return BatchTable::stale(id);
    Loop& loop = *core.data_loops[batch->tracker()];
    loop.noteWait();
    TransferStatus status;
    if (batch->done()) {
        status = batch->summary();
        if (status.s != TransferStatusEnum::PENDING) return status;
    }
    if (const Status may = core.mayWait(); !may) return may;
    const bool bounded = timeout != std::chrono::microseconds::max();
    const TimePoint deadline = bounded ? saturatedAdd(Clock::now(), timeout) : kForever;
    for (;;) {
        auto drive = loop.driveUntil([&] { return batch->done(); }, timeout);
        if (drive == Loop::Drive::Busy) {
            loop.sleepers.fetch_add(1, std::memory_order_seq_cst);
            loop.wakeFromStandby();
            drive = batch->sleepUntilDone(deadline) ? Loop::Drive::Done : Loop::Drive::TimedOut;
            loop.sleepers.fetch_sub(1, std::memory_order_seq_cst);
        }
        status = batch->summary();
        if (status.s != TransferStatusEnum::PENDING || drive == Loop::Drive::TimedOut) return status;
        // It was done, and another thread has submitted since: that is waited for, too, for the rest of the time.
        if (!bounded) continue;
        timeout = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
        if (timeout <= timeout.zero()) return status;
    }
}

Status TransferEngine::cancelTransfer(BatchID batch) { return cancel(batch, EndTasks::kAllTasks); }

Status TransferEngine::cancelTransfer(BatchID batch, std::size_t task) {
    if (const auto status = getTransferStatus(batch, task); !status) return status.status();
    return cancel(batch, static_cast<std::uint32_t>(task));
}

Status TransferEngine::cancel(BatchID id, std::uint32_t task) {
    EngineCore& core = *core_;
    // As for submit: freeEngine waits until this is on its way.
    if (const Status usable = core.usable(); !usable) return usable;
    const BatchTable::Submit counted(*core.batches);
    if (const Status usable = core.usable(); !usable) return usable;
    const auto batch = core.batches->find(id);
    if (!batch) return BatchTable::stale(id);
    if (batch->done()) return Status::ok();
    core.data_loops[batch->tracker()]->deliver(Clock::now(),
                                               *caf::actor_cast<BatchTracker*>(core.trackers[batch->tracker()]),
                                               EndTasks{id, task, Status(Code::Canceled, "canceled by the caller")});
    return Status::ok();
}

Status TransferEngine::freeBatchID(BatchID batch) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.batches->free(batch);
}

}  // namespace troupe
