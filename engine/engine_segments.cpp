// TransferEngine: segments, metadata, topology.

#include <utility>

#include "engine/engine_core.h"
#include "topology/local_matrix.h"
#include "topology/machine.h"

namespace troupe {

Result<SegmentID> TransferEngine::openSegment(const std::string& name) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Result<SegmentID>>(core.directory, [&](auto reply) {
        return OpenSegment{name, Clock::now() + core.settings().open_timeout, std::move(reply)};
    });
}

Status TransferEngine::closeSegment(SegmentID segment) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Status>(core.directory, [&](auto reply) { return CloseSegment{segment, std::move(reply)}; });
}

Result<std::shared_ptr<const SegmentDesc>> TransferEngine::getSegmentDescByID(SegmentID segment) const {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    if (segment == kLocalSegmentID) {
        std::vector<InstalledTransport> transports;
        {
            const std::lock_guard lock(core.transports_list_mutex);
            for (const auto& installed : core.transports)
                transports.push_back({installed.transport, {}, installed.preference, {}});
        }
        return std::make_shared<const SegmentDesc>(
            SegmentDirectory::describe(core.local, *core.regions.regions().load(), transports));
    }
    const auto peer = core.segments.peer(segment);
    if (!peer) return SegmentBoard::closed(segment);
    return peer->desc;
}

Status TransferEngine::syncSegmentCache(const std::string& name) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Status>(core.directory, [&](auto reply) {
        return SyncSegments{name, Clock::now() + core.settings().open_timeout, std::move(reply)};
    });
}

Status TransferEngine::updateLocalSegmentDesc() {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Status>(core.directory, [&](auto reply) { return PublishLocal{std::move(reply)}; });
}

Status TransferEngine::probePeerAliveByID(SegmentID segment, std::chrono::milliseconds timeout) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Status>(core.directory, [&](auto reply) {
        return ProbePeer{segment, saturatedAdd(Clock::now(), timeout), std::move(reply)};
    });
}

Result<RouteExplanation> TransferEngine::explainSegment(SegmentID segment) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    return core.ask<Result<RouteExplanation>>(core.directory, [&](auto reply) {
        return ExplainSegment{segment, std::nullopt, {}, 0, std::move(reply)};
    });
}

Result<RouteExplanation> TransferEngine::explain(BatchID id, std::size_t index) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    SegmentID segment = kInvalidSegmentID;
    std::optional<std::uint64_t> carriers;
    std::optional<TaskHistory> history;
    std::uint64_t length = 0;
    std::uint32_t tracker = 0;
    {
        const auto batch = core.batches->find(id);
        if (!batch) return BatchTable::stale(id);
        if (index >= batch->claimed())
            return {Code::InvalidArgument, "batch " + std::to_string(id) + " has no task " + std::to_string(index)};
        const Task& task = batch->task(static_cast<std::uint32_t>(index));
        const TransferStatusEnum state = task.status(std::memory_order_acquire);
        // Its submitter is writing it.
        if (state == TransferStatusEnum::WAITING)
            return {Code::InvalidArgument, "batch " + std::to_string(id) + ": task " + std::to_string(index) +
                                               " is being submitted by another thread at this moment"};
        // The tracker's own field, until the task's end is published.
        if (isTerminal(state)) {
            carriers = task.workers;
            history = task.history ? *task.history : TaskHistory();
        }
        segment = task.segment;
        length = task.length;
        tracker = batch->tracker();
    }
    if (!history) {
        const auto so_far = core.ask<Result<TaskHistory>>(core.trackers[tracker], [&](auto reply) {
            return TellHistory{id, static_cast<std::uint32_t>(index), std::move(reply)};
        });
        if (!so_far) return so_far.status();
        history = *so_far;
    }
    return core.ask<Result<RouteExplanation>>(core.directory, [&](auto reply) {
        return ExplainSegment{segment, carriers, std::move(*history), length, std::move(reply)};
    });
}

PriorityMatrix TransferEngine::getLocalTopology() const {
    // init has read it; before, this is what it would find.
    if (core_->begun()) return core_->local.matrix;
    auto found = localMatrix(core_->settings(), discoverMachine());
    if (found) return std::move(found->matrix);
    core_->options.log->warn("getLocalTopology: {}", found.status().message());
    return {};
}

}  // namespace troupe
