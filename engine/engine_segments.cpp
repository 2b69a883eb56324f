// TransferEngine: segments, metadata, topology.

#include <algorithm>
#include <utility>

#include "engine/engine_core.h"
#include "topology/local_matrix.h"
#include "topology/location.h"
#include "topology/machine.h"

namespace troupe {

namespace {

/// None: it is in no region that the descriptor has.
const BufferDesc* findBuffer(const SegmentDesc& desc, std::uint64_t addr) {
    const auto found = std::find_if(desc.buffers.begin(), desc.buffers.end(),
                                    [addr](const BufferDesc& buffer) { return addr - buffer.addr < buffer.length; });
    return found == desc.buffers.end() ? nullptr : &*found;
}

bool isOnDevice(const SegmentDesc& desc, std::uint64_t addr) {
    const BufferDesc* const buffer = findBuffer(desc, addr);
    if (buffer == nullptr) return false;
    const auto location = parseLocation(buffer->location);
    return location && location->kind == Location::Kind::Cuda;
}

/// The transport by which a task's bytes came to their end: not one that declined them.
const std::string& carrierOf(const RouteExplanation& explanation) {
    for (auto attempt = explanation.attempts.rbegin(); attempt != explanation.attempts.rend(); ++attempt)
        if (attempt->cause.isOk() && !attempt->transport.empty()) return attempt->transport;
    return explanation.transport;
}

/// RouteExplanation::gpu of a task that `transport` carries between `here` and `there` of the segment with `desc`.
std::string describeDeviceWay(const EngineCore& core, const std::string& transport, const SegmentDesc& desc,
                              const ByteRange& here, const ByteRange& there) {
    const auto regions = core.regions.regions().load();
    DeviceRequest request;
    request.here = here;
    request.from = regions->findTaken(here.addr);
    request.there = there;
    request.owner = desc.incarnation;
    request.is_there_on_device = isOnDevice(desc, there.addr);
    if (desc.incarnation == core.local.incarnation) request.to = regions->findTaken(there.addr);
    if (!request.is_there_on_device && (request.from == nullptr || !request.from->isOnDevice())) return {};
    const std::lock_guard lock(core.transports_list_mutex);
    const auto found = std::find_if(core.transports.begin(), core.transports.end(),
                                    [&](const auto& installed) { return installed.transport->name() == transport; });
    return found == core.transports.end() ? std::string() : found->transport->deviceWay(request);
}

}  // namespace

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
    ByteRange here;
    std::uint64_t there = 0;
    bool has_arrived = false;
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
        here = task.source();
        there = task.remote;
        has_arrived = task.transferred.load(std::memory_order_relaxed) != 0;
        tracker = batch->tracker();
    }
    if (!history) {
        const auto so_far = core.ask<Result<TaskHistory>>(core.trackers[tracker], [&](auto reply) {
            return TellHistory{id, static_cast<std::uint32_t>(index), std::move(reply)};
        });
        if (!so_far) return so_far.status();
        history = *so_far;
    }
    auto explained = core.ask<Result<RouteExplanation>>(core.directory, [&](auto reply) {
        return ExplainSegment{segment, carriers, std::move(*history), length, std::move(reply)};
    });
    if (!explained || explained->nics.empty() || !has_arrived) return explained;
    auto desc = getSegmentDescByID(segment);
    const auto peer = core.segments.peer(segment);
    // A transfer needs no descriptor to reach what was registered since that was fetched; this does.
    if (desc && peer && explained->owner && explained->owner->state == PeerState::Up && !findBuffer(**desc, there))
        if (syncSegmentCache(peer->name)) desc = getSegmentDescByID(segment);
    if (desc) explained->gpu = describeDeviceWay(core, carrierOf(*explained), **desc, here, {there, length});
    return explained;
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
