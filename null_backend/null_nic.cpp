#include "null_backend/null_nic.h"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe {

Result<PathId> NullNic::openPath(std::shared_ptr<const Peer>) {
    paths_.emplace_back();
    return static_cast<PathId>(paths_.size() - 1);
}

void NullNic::closePath(PathId path, const Status&) {
    if (path < paths_.size()) paths_[path].open = false;
}

std::size_t NullNic::post(PathId path, std::span<const WorkRequest> requests) {
    if (path >= paths_.size() || !paths_[path].open) {
        const Status cause(Code::StaleHandle, info_.name + ": path " + std::to_string(path) + " is closed");
        for (const auto& request : requests) ended_.push_back({request, cause, false, true});
        return requests.size();
    }
    Path& target = paths_[path];
    if (target.epoch != epoch_) target = {true, epoch_, 0, 0};
    std::size_t taken = 0;
    while (taken < requests.size() && target.requests < info_.window_requests && target.bytes < info_.window_bytes) {
        // A run of one cookie is counted in registers and stored once.
        const std::uint64_t cookie = requests[taken].cookie;
        const std::uint64_t room = info_.window_bytes - target.bytes;
        const std::size_t end = std::min<std::size_t>(requests.size(), taken + info_.window_requests - target.requests);
        std::size_t next = taken;
        std::uint64_t bytes = 0;
        for (; next < end && requests[next].cookie == cookie && bytes < room; ++next) bytes += requests[next].length;
        const auto count = static_cast<std::uint32_t>(next - taken);
        if (!runs_.empty() && runs_.back().cookie == cookie) {
            runs_.back().requests += count;
            runs_.back().bytes += bytes;
        } else {
            runs_.push_back({cookie, count, bytes});
        }
        target.requests += count;
        target.bytes += bytes;
        taken = next;
    }
    return taken;
}

bool NullNic::poll(TimePoint, Sweep& sweep) {
    if (runs_.empty() && ended_.empty()) return false;
    sweep.completed.insert(sweep.completed.end(), runs_.begin(), runs_.end());
    runs_.clear();
    for (auto& failure : ended_) sweep.failed.push_back(std::move(failure));
    ended_.clear();
    ++epoch_;
    return true;
}

}  // namespace troupe
