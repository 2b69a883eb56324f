// VerbsNic: completions.

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

namespace {

/// Completions looked at in one pass.
constexpr int kPollsPerPass = 4;

/// The name that the documents have it under; ibv_wc_status_str has prose.
const char* name(ibv_wc_status status) {
    switch (status) {
        case IBV_WC_SUCCESS: return "success";
        case IBV_WC_LOC_LEN_ERR: return "local length error";
        case IBV_WC_LOC_QP_OP_ERR: return "local QP operation error";
        case IBV_WC_LOC_PROT_ERR: return "local protection error";
        case IBV_WC_WR_FLUSH_ERR: return "flushed";
        case IBV_WC_BAD_RESP_ERR: return "bad response";
        case IBV_WC_LOC_ACCESS_ERR: return "local access error";
        case IBV_WC_REM_INV_REQ_ERR: return "remote invalid request";
        case IBV_WC_REM_ACCESS_ERR: return "remote access error: the peer's device refused the key or the range";
        case IBV_WC_REM_OP_ERR: return "remote operation error";
        case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded: the peer's device does not answer";
        case IBV_WC_RNR_RETRY_EXC_ERR: return "receiver-not-ready retry counter exceeded";
        case IBV_WC_FATAL_ERR: return "fatal error";
        case IBV_WC_RESP_TIMEOUT_ERR: return "response timeout";
        case IBV_WC_GENERAL_ERR: return "general error";
        default: return "error";
    }
}

Code codeOf(ibv_wc_status status) {
    switch (status) {
        case IBV_WC_REM_ACCESS_ERR: return Code::AccessDenied;
        case IBV_WC_LOC_PROT_ERR: return Code::AddressNotRegistered;
        case IBV_WC_LOC_LEN_ERR:
        case IBV_WC_REM_INV_REQ_ERR: return Code::InvalidArgument;
        default: return Code::ConnectionLost;
    }
}

}  // namespace

bool VerbsNic::poll(TimePoint now, Sweep& sweep) {
    bool moved = false;
    if (!early_.empty()) {
        for (const Completion& done : early_.completed) sweep.completed.push_back(done);
        early_.clear();
        moved = true;
    }
    if (armed_) {
        armed_ = false;
        static_cast<void>(device_->api().drainChannel(queue_->channel()));
    }
    moved = takeMail(now) || moved;
    moved = pollCompletions(now, sweep) || moved;
    if (now >= next_deadline_) {
        runTimers(now);
        moved = true;
    }
    moved = flush(now) || moved;
    if (!failures_.empty()) {
        sweep.failed.insert(sweep.failed.end(), std::make_move_iterator(failures_.begin()),
                            std::make_move_iterator(failures_.end()));
        failures_.clear();
        moved = true;
    }
    if (!changes_.empty()) {
        sweep.paths.insert(sweep.paths.end(), changes_.begin(), changes_.end());
        changes_.clear();
        moved = true;
    }
    if (!proven_.empty()) {
        sweep.proven.insert(sweep.proven.end(), proven_.begin(), proven_.end());
        proven_.clear();
        moved = true;
    }
    return moved;
}

bool VerbsNic::takeMail(TimePoint now) {
    events_.clear();
    if (!mailbox_->take(events_)) return false;
    for (PairEvent& event : events_) onEvent(event, now);
    forgetOrphans();
    return true;
}

bool VerbsNic::pollCompletions(TimePoint now, Sweep& sweep) {
    bool moved = false;
    for (int i = 0; i < kPollsPerPass && !queue_lost_; ++i) {
        const std::uint32_t owed = queue_owed_;
        const int count = device_->api().pollCq(queue_->get(), completions_);
        if (count < 0) {
            loseQueue();
            break;
        }
        for (int at = 0; at < count; ++at) onCompletion(completions_[static_cast<std::size_t>(at)], now, sweep);
        moved = moved || count > 0;
        if (count == static_cast<int>(completions_.size())) continue;
        // It was empty just now: of pairs that were gone before, nothing is in it any more.
        queue_owed_ -= owed;
        queue_room_ += owed;
        moved = moved || owed != 0;
        break;
    }
    if (!arrived_.empty()) finishArrived(sweep);
    if (starved_ && moved) feedStarved();
    return moved;
}

/// What a NIC says of a READ is overtaken by nothing on its way to the processor, and may overtake the bytes on their
/// way to a GPU. So each GPU is asked to flush, once for all that came in this pass: it waits here, for some
/// microseconds, which is less than it takes to hand it to another thread and be told.
void VerbsNic::finishArrived(Sweep& sweep) {
    const KeyMap& keys = local_keys_.get();
    const auto rangeOf = [](const WorkRequest& request) {
        return ByteRange{reinterpret_cast<std::uint64_t>(request.local), request.length};
    };
    flushed_gpus_.clear();
    for (const WorkRequest& request : arrived_) keys.findFlushed(rangeOf(request), flushed_gpus_);
    std::vector<std::pair<device::Device*, Status>> failed;
    for (const auto& gpu : flushed_gpus_)
        if (Status flushed = gpu->flushNicWrites(); !flushed) failed.emplace_back(gpu.get(), std::move(flushed));
    for (const WorkRequest& request : arrived_) {
        flushed_gpus_.clear();
        if (!failed.empty()) keys.findFlushed(rangeOf(request), flushed_gpus_);
        const auto cause = std::find_if(failed.begin(), failed.end(), [&](const auto& each) {
            return std::any_of(flushed_gpus_.begin(), flushed_gpus_.end(),
                               [&](const auto& gpu) { return gpu.get() == each.first; });
        });
        if (cause == failed.end())
            sweep.complete(request.cookie, request.length);
        else
            failures_.push_back({request,
                                 cause->second.withContext(info_.name + ": the bytes came and may not be seen"), false,
                                 true, true});
    }
    // They keep GPUs open.
    flushed_gpus_.clear();
    arrived_.clear();
}

/// The device says that it cannot tell what has completed. The Connector ends every pair that the queue is of, and
/// makes another one.
void VerbsNic::loseQueue() {
    queue_lost_ = true;
    shared_.connector->queueLost(index_, queue_,
                                 {Code::ConnectionLost, "its completion queue cannot be read (ibv_poll_cq failed)"});
}

/// Lanes that found the completion queue spoken for try again.
void VerbsNic::feedStarved() {
    starved_ = false;
    for (const auto& path : paths_) {
        if (!path) continue;
        for (const auto& lane : path->lanes)
            if (lane->step == Lane::Step::Up && !lane->waiting.empty()) enlist(*lane);
    }
}

Lane* VerbsNic::laneOf(std::uint32_t pair) {
    if (pair == last_pair_ && last_lane_ != nullptr) return last_lane_;
    const auto found = lane_of_pair_.find(pair);
    if (found == lane_of_pair_.end()) return nullptr;
    last_pair_ = pair;
    last_lane_ = found->second;
    return last_lane_;
}

void VerbsNic::onCompletion(const ibv_wc& completion, TimePoint now, Sweep& sweep) {
    const auto pair = static_cast<std::uint32_t>(completion.wr_id >> 32);
    Lane* lane = laneOf(pair);
    // What is flushed was flushed for a cause, and the connector tells it before it breaks a pair.
    if (completion.status == IBV_WC_WR_FLUSH_ERR && lane != nullptr && lane->step == Lane::Step::Up && takeMail(now))
        lane = laneOf(pair);
    const auto low = static_cast<std::uint32_t>(completion.wr_id);
    SendQueue::Accounted accounted;
    const bool success = completion.status == IBV_WC_SUCCESS;
    // The first error of a pair is its cause, unless the pair was told to end.
    const bool is_cause =
        !success && completion.status != IBV_WC_WR_FLUSH_ERR && lane != nullptr && lane->step == Lane::Step::Up;
    if (lane != nullptr && success) {
        accounted = lane->queue.succeed(low, [&](const WorkRequest& request) {
            finish(*lane, request);
            lane->carried.add(request.length);
            if (request.opcode == Opcode::Read && local_keys_.get().hasFlushed())
                arrived_.push_back(request);
            else
                sweep.complete(request.cookie, request.length);
        });
    } else if (lane != nullptr) {
        accounted = lane->queue.fail(low, is_cause);
    }
    if (!accounted.known) {
        // Of a pair that was destroyed before its completions were read, or a device's mistake.
        ++strange_;
        log_->debug("{}: completion {:#x} ({}) of nothing that is outstanding", info_.name, completion.wr_id,
                    name(completion.status));
        return;
    }
    queue_room_ += accounted.released;
    if (success && lane->step == Lane::Step::Up) {
        prove(*lane);
        if (!lane->waiting.empty()) enlist(*lane);
        return;
    }
    if (!success && lane->step == Lane::Step::Up) {
        char vendor[32];
        std::snprintf(vendor, sizeof vendor, " (vendor 0x%" PRIx32 ")", completion.vendor_err);
        const Status cause(codeOf(completion.status),
                           describe(*lane) + " (" + lane->way + "): " + name(completion.status) + vendor);
        log_->debug("{}: {}", info_.name, cause.toString());
        strike(*lane, now);
        failWaiting(*lane, cause, true);
        // A request that was refused ends the pair and says nothing of the way to the peer.
        lane->lost = cause.code() == Code::ConnectionLost;
        beginDrain(*lane, cause, true, now, true);
    }
    if (lane->step == Lane::Step::Draining && lane->queue.idle()) beginEnd(*lane, now);
}

}  // namespace troupe::verbs
