#include "host_backend/host_nic.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

namespace {

/// What a request costs beside its bytes, in bytes of copying: bounds a poll over many tiny ones.
constexpr std::uint64_t kRequestCost = 256;

ByteRange remoteRange(const WorkRequest& request) { return {request.remote, request.length}; }

}  // namespace

HostNic::HostNic(NicInfo info, Incarnation incarnation, const RegistrationTable& regions, std::uint64_t chunk_bytes)
    : info_(std::move(info)),
      incarnation_(incarnation),
      regions_(regions.regions()),
      chunk_bytes_(std::max<std::uint64_t>(chunk_bytes, 1)) {}

Result<PathId> HostNic::openPath(std::shared_ptr<const Peer> peer) {
    if (!peer || !peer->desc) return {Code::InvalidArgument, info_.name + ": a path needs a peer with a descriptor"};
    if (peer->desc->incarnation != incarnation_)
        return {Code::TransportMissing, info_.name + ": '" + peer->name + "' is incarnation " +
                                            peer->desc->incarnation.toString() + ", this process is " +
                                            incarnation_.toString()};
    paths_[next_path_].peer = peer->name;
    return next_path_++;
}

void HostNic::closePath(PathId path, const Status& cause) {
    endAll(path, cause, false);
    paths_.erase(path);
}

void HostNic::resetPath(PathId path, const Status& cause) { endAll(path, cause, true); }

void HostNic::endAll(PathId path, const Status& cause, bool retryable) {
    if (!jobs_.empty() && jobs_.front().path == path) {
        started_ = false;
        done_bytes_ = 0;
    }
    const auto keeps = [&](const Job& job) { return job.path != path; };
    const auto ends = std::stable_partition(jobs_.begin(), jobs_.end(), keeps);
    for (auto job = ends; job != jobs_.end(); ++job) {
        ended_.push_back({job->request, cause, retryable, true});
        retire(*job);
    }
    jobs_.erase(ends, jobs_.end());
}

void HostNic::retire(const Job& job) {
    const auto path = paths_.find(job.path);
    if (path == paths_.end()) return;
    path->second.bytes -= job.request.length;
    path->second.requests -= 1;
}

std::size_t HostNic::post(PathId path, std::span<const WorkRequest> requests) {
    const auto found = paths_.find(path);
    if (found == paths_.end()) {
        const Status cause(Code::StaleHandle, info_.name + ": path " + std::to_string(path) + " is closed");
        for (const auto& request : requests) ended_.push_back({request, cause, false, true});
        return requests.size();
    }
    Path& target = found->second;
    std::size_t taken = 0;
    // Any length is taken while there is room at all, or a request longer than the window would wait for ever.
    for (; taken < requests.size(); ++taken) {
        if (target.bytes >= info_.window_bytes || target.requests >= info_.window_requests) break;
        target.bytes += requests[taken].length;
        target.requests += 1;
        jobs_.push_back({requests[taken], path});
    }
    return taken;
}

Status HostNic::check(const WorkRequest& request, const RegionMap& regions) {
    const ByteRange range = remoteRange(request);
    if (last_region_.length != 0 && last_region_.contains(range)) return Status::ok();
    if (auto status = regions.covers(range, true, request.opcode == Opcode::Write); !status) return status;
    if (const Region* region = regions.find(range.addr); region && region->writable) last_region_ = region->range;
    return Status::ok();
}

/// Copies the next piece of the first job, at most `budget` bytes; returns how many.
std::uint64_t HostNic::copyPiece(const WorkRequest& request, std::uint64_t budget) {
    auto* const remote = reinterpret_cast<std::byte*>(request.remote);
    std::byte* const to = request.opcode == Opcode::Read ? request.local : remote;
    const std::byte* const from = request.opcode == Opcode::Read ? remote : request.local;
    const std::uint64_t left = request.length - done_bytes_;
    const std::uint64_t piece = std::min(left, budget);
    if (to == from) return left;
    const ByteRange target{reinterpret_cast<std::uintptr_t>(to), request.length};
    const ByteRange source{reinterpret_cast<std::uintptr_t>(from), request.length};
    if (!target.overlaps(source)) {
        copier_.copy(to + done_bytes_, from + done_bytes_, piece);
    } else {
        // The pieces go away from where the target lies, so that none overwrites what a later one reads.
        const std::uint64_t at = to < from ? done_bytes_ : left - piece;
        std::memmove(to + at, from + at, piece);
    }
    return piece;
}

bool HostNic::poll(TimePoint, Sweep& sweep) {
    const bool moved = !jobs_.empty() || !ended_.empty();
    std::move(ended_.begin(), ended_.end(), std::back_inserter(sweep.failed));
    ended_.clear();
    if (jobs_.empty()) return moved;
    const RegionMap& regions = regions_.get();
    last_region_ = {};
    std::uint64_t budget = chunk_bytes_;
    while (!jobs_.empty() && budget > 0) {
        const Job& job = jobs_.front();
        if (!started_) {
            if (auto status = check(job.request, regions); !status) {
                const auto path = paths_.find(job.path);
                const std::string who = path == paths_.end() ? std::string() : path->second.peer;
                sweep.failed.push_back(
                    {job.request, status.withContext(info_.name + " to '" + who + "'"), false, true});
                retire(job);
                jobs_.pop_front();
                budget -= std::min(budget, kRequestCost);
                continue;
            }
            started_ = true;
        }
        const std::uint64_t copied = copyPiece(job.request, budget);
        done_bytes_ += copied;
        budget -= std::min(budget, copied + kRequestCost);
        if (done_bytes_ < job.request.length) break;
        sweep.complete(job.request.cookie, job.request.length);
        retire(job);
        jobs_.pop_front();
        started_ = false;
        done_bytes_ = 0;
    }
    return moved;
}

bool HostNic::servesPeerIn(const ByteRange& range) const {
    return started_ && remoteRange(jobs_.front().request).overlaps(range);
}

void HostNic::cutPeersIn(const ByteRange& range) {
    if (!servesPeerIn(range)) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    started_ = false;
    done_bytes_ = 0;
    ended_.push_back({job.request,
                      Status(Code::AddressNotRegistered, info_.name + ": " + remoteRange(job.request).toString() +
                                                             " was unregistered during the copy"),
                      false, true});
    retire(job);
}

}  // namespace troupe
