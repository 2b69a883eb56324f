// VerbsNic: from requests to work requests.

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/endpoint.h"
#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

namespace {

/// Work requests in one list, so that one pass stays short.
constexpr std::uint32_t kListMost = 64;
/// At least every so many work requests one is signalled: a completion costs, but only it makes room in the send queue.
constexpr std::uint32_t kSignalEvery = 16;

}  // namespace

bool VerbsNic::flush(TimePoint now) {
    if (ready_.empty()) return false;
    bool moved = false;
    // Lanes are put back by themselves while there is more to do.
    std::vector<Lane*> lanes;
    lanes.swap(ready_);
    for (Lane* lane : lanes) lane->is_listed = false;
    for (Lane* lane : lanes) {
        if (port_down_ && lane->step != Lane::Step::Up) {
            // A path that was opened meanwhile is as lost as those that the event found.
            if (lane->path->usable || !lane->waiting.empty()) suspend(*lane->path);
            if (lane->waiting.empty()) continue;
            // Each attempt in vain counts by itself, however many lanes it was made on.
            lane->incident = incidentOf(*lane);
            failWaiting(*lane, port_cause_.withContext(describe(*lane)), true);
        } else if (lane->step == Lane::Step::Idle) {
            order(*lane, now);
        } else if (lane->step == Lane::Step::Up) {
            moved = flush(*lane, now) || moved;
        }
    }
    // Its memory is used again, unless somebody was enlisted meanwhile.
    if (ready_.empty()) {
        lanes.clear();
        ready_.swap(lanes);
    }
    return moved;
}

Status VerbsNic::tooMany(const Lane& lane, const WorkRequest& request, std::uint32_t count) const {
    const std::uint64_t chunk = lane.path->keys.peer().desc->rdma_chunk_bytes;
    return {Code::CapacityExceeded,
            describe(lane) + ": a request of " + std::to_string(request.length) + " bytes makes " +
                std::to_string(count) + " work requests, and a queue pair takes " +
                std::to_string(std::min(lane.queue.capacity(), device_->completions)) +
                (chunk != 0 ? "; one key of the peer covers " + std::to_string(chunk) +
                                  " bytes (its rdma.max_chunk_bytes, or its device's max_mr_size)"
                            : "") +
                "; a WRITE to a GPU's memory may take each twice, to be read back; raise rdma.queue_depth, or lower "
                "slice_bytes"};
}

bool VerbsNic::flush(Lane& lane, TimePoint now) {
    // A new pair is on trial: that it is connected does not prove that it carries anything. Its first completion has
    // the rest follow.
    if (!lane.proven && !lane.queue.idle()) return false;
    work_.clear();
    pieces_.clear();
    built_.clear();
    while (!lane.waiting.empty() && work_.size() < kListMost && (lane.proven || built_.empty())) {
        const WorkRequest request = lane.waiting.front();
        const auto before = work_.size();
        const auto pieces_before = pieces_.size();
        std::uint32_t count = 0;
        const Status refused = build(lane, request, count);
        const bool too_many = refused && count > std::min(lane.queue.capacity(), device_->completions);
        if (!refused || too_many) {
            work_.resize(before);
            pieces_.resize(pieces_before);
            lane.waiting.pop_front();
            // What this path cannot do at all is declined: another transport may.
            const bool declined = too_many || refused.code() == Code::Unsupported;
            fail(lane,
                 {request, too_many ? tooMany(lane, request, count) : refused, false, true, true, 0, 0, declined});
            continue;
        }
        if (work_.size() > std::min(lane.queue.room(), queue_room_)) {
            // There is no room for it now; a completion makes some, and of the common queue anybody's does.
            starved_ = starved_ || work_.size() > queue_room_;
            work_.resize(before);
            pieces_.resize(pieces_before);
            break;
        }
        built_.push_back({request, count});
        lane.waiting.pop_front();
    }
    if (work_.empty()) return false;

    lane.used_at = now;
    int error = 0;
    const std::uint32_t posted = postList(lane, error);
    queue_room_ -= posted;
    std::uint32_t counted = 0;
    for (const Built& entry : built_) {
        if (counted + entry.work_requests <= posted) {
            lane.queue.push(entry.request, entry.work_requests);
        } else if (counted < posted) {
            // What was posted of it ends with the pair. The one more than was posted is not in the way: the room for
            // the whole list was there.
            lane.queue.pushPart(entry.request, posted - counted);
            queue_room_ -= 1;
        } else {
            fail(lane, {entry.request, errnoStatus(Code::ConnectionLost, describe(lane) + ": post", error), true, true,
                        true});
        }
        counted += entry.work_requests;
    }
    if (error != 0) {
        const Status cause = errnoStatus(Code::ConnectionLost, describe(lane) + ": post", error);
        log_->warn("{}: {}", info_.name, cause.message());
        strike(lane, now);
        failWaiting(lane, cause, true);
        beginDrain(lane, cause, true, now, true);
        // The last one posted need not be signalled, so no count could tell that the queue has drained.
        if (lane.step == Lane::Step::Draining) {
            lane.deadline = now;
            watchTimer(now);
        }
        return true;
    }
    if (lane.proven && !lane.waiting.empty() && std::min(lane.queue.room(), queue_room_) != 0) enlist(lane);
    return true;
}

/// Appends the work requests of one request to work_: cut where the remote key changes, with several pieces where the
/// local one does. AddressNotRegistered: a key is missing.
Status VerbsNic::build(Lane& lane, const WorkRequest& request, std::uint32_t& work_requests) {
    const KeyMap& keys = local_keys_.get();
    const std::uint64_t local_chunk = shared_.memory->chunkBytes();
    const bool is_write = request.opcode == Opcode::Write;
    auto local = reinterpret_cast<std::uint64_t>(request.local);
    std::uint64_t remote = request.remote;
    std::uint64_t left = request.length;
    while (left != 0) {
        const auto key = lane.path->keys.find(remote, lane.remote_device);
        if (!key) return key.status();
        std::uint64_t take = std::min({left, key->length, std::uint64_t{device_->max_message}});
        ibv_send_wr work{};
        work.opcode = is_write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
        work.wr.rdma.remote_addr = remote;
        work.wr.rdma.rkey = key->key;
        // An index for now: pieces_ may move.
        work.wr_id = pieces_.size();
        std::uint64_t gathered = 0;
        bool on_device = false;
        while (gathered < take && work.num_sge < static_cast<int>(lane.segments)) {
            const RegionKeys* region = keys.find(local);
            if (region == nullptr) {
                char text[64];
                std::snprintf(text, sizeof text, "local address 0x%" PRIx64 " is not registered", local);
                return {Code::AddressNotRegistered, info_.name + ": " + text};
            }
            const std::uint64_t offset = local - region->region().range.addr;
            const std::uint64_t chunk = offset / local_chunk;
            const std::uint64_t here =
                std::min({take - gathered, local_chunk - offset % local_chunk, region->region().range.length - offset});
            pieces_.push_back({local, static_cast<std::uint32_t>(here), region->localKey(chunk, index_)});
            ++work.num_sge;
            on_device = on_device || region->region().isOnDevice();
            gathered += here;
            local += here;
        }
        // What goes with the work request is read by this processor.
        if (is_write && gathered <= lane.inlined && !on_device) work.send_flags |= IBV_SEND_INLINE;
        work_.push_back(work);
        ++work_requests;
        if (is_write && key->read_back)
            if (Status added = buildReadBack(remote, key->key, work_requests); !added) return added;
        remote += gathered;
        left -= gathered;
    }
    return {};
}

/// Appends a READ of one byte that was just written. A pair's READ is served after its WRITEs, and on the bus the
/// peer's NIC may not have it overtake them: when the byte has come back, they are in the GPU's memory. That is what
/// NCCL and NVSHMEM do for GPUs that do not order what NICs write; only its owner could ask the driver.
Status VerbsNic::buildReadBack(std::uint64_t remote, std::uint32_t key, std::uint32_t& work_requests) {
    const auto sink = device_->sink();
    if (!sink) return sink.status().withContext(info_.name);
    ibv_send_wr work{};
    work.opcode = IBV_WR_RDMA_READ;
    work.wr.rdma.remote_addr = remote;
    work.wr.rdma.rkey = key;
    work.wr_id = pieces_.size();
    work.num_sge = 1;
    pieces_.push_back(*sink);
    work_.push_back(work);
    ++work_requests;
    return {};
}

/// Posts work_ as one list: one doorbell. Returns how many were taken; `error` is why not all.
std::uint32_t VerbsNic::postList(Lane& lane, int& error) {
    const std::uint64_t first = lane.queue.nextNumber();
    for (std::size_t i = 0; i < work_.size(); ++i) {
        ibv_send_wr& work = work_[i];
        work.sg_list = &pieces_[work.wr_id];
        work.wr_id = std::uint64_t{lane.pair} << 32 | static_cast<std::uint32_t>(first + i);
        const bool last = i + 1 == work_.size();
        if (last || (first + i) % kSignalEvery == 0) work.send_flags |= IBV_SEND_SIGNALED;
        work.next = last ? nullptr : &work_[i + 1];
    }
    ibv_send_wr* bad = nullptr;
    error = device_->api().postSend(lane.qp, work_.data(), &bad);
    if (error == 0) return static_cast<std::uint32_t>(work_.size());
    return bad == nullptr ? 0 : static_cast<std::uint32_t>(bad - work_.data());
}

}  // namespace troupe::verbs
