// RemotePath: copying by process_vm_readv and process_vm_writev.

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/endpoint.h"
#include "host_backend/remote_path.h"

namespace troupe::host {

namespace {

/// Ranges of one call. The kernel takes IOV_MAX; beyond some hundred the call itself costs nothing any more, and
/// scattered pages are slow (2.9 GB/s): 256 of them take 0.3 ms.
constexpr std::size_t kMaxRanges = 256;
static_assert(kMaxRanges <= IOV_MAX);

iovec rangeAt(std::uint64_t addr, std::uint64_t bytes) { return {reinterpret_cast<void*>(addr), bytes}; }

/// Adds a range, or lengthens the last one when it goes on there on both sides.
void append(std::vector<iovec>& local, std::vector<iovec>& remote, const iovec& here, const iovec& there) {
    if (!local.empty()) {
        iovec& last_here = local.back();
        iovec& last_there = remote.back();
        if (static_cast<std::byte*>(last_here.iov_base) + last_here.iov_len == here.iov_base &&
            reinterpret_cast<std::uint64_t>(last_there.iov_base) + last_there.iov_len ==
                reinterpret_cast<std::uint64_t>(there.iov_base)) {
            last_here.iov_len += here.iov_len;
            last_there.iov_len += there.iov_len;
            return;
        }
    }
    local.push_back(here);
    remote.push_back(there);
}

}  // namespace

/// Puts together what one call moves: of the first jobs, those of one direction that are granted, up to `budget` bytes,
/// which is more than 0. The first job is ready. Returns the bytes.
std::uint64_t RemotePath::gather(std::uint64_t budget) {
    local_.clear();
    remote_.clear();
    pieces_.clear();
    const Opcode opcode = jobs_.front().request.opcode;
    std::uint64_t total = 0;
    for (Job& job : jobs_) {
        if (total >= budget || pieces_.size() == kMaxRanges || job.request.opcode != opcode) break;
        std::uint64_t missing = 0;
        if (job.device || (!pieces_.empty() && !isGranted(job, missing))) break;
        const std::uint64_t addr = job.request.remote + job.done;
        const GrantCache::Entry* const grant = grants_.find(addr);
        if (grant == nullptr || grant->data != nullptr || grant->device) break;
        const std::uint64_t left = job.request.length - job.done;
        const std::uint64_t piece = std::min({left, grant->range.end() - addr, std::max(budget - total, kNeverCut)});
        append(local_, remote_, {job.request.local + job.done, piece}, rangeAt(addr, piece));
        pieces_.push_back(piece);
        total += piece;
        if (piece < left) break;
    }
    return total;
}

std::uint64_t RemotePath::runVm(std::uint64_t budget, Sweep& sweep) {
    const std::uint64_t wanted = gather(budget);
    // The call names the process by its number alone. While it lives that number is its own; a look before keeps a
    // write from a successor, and a look afterwards proves that what was read was read from it.
    if (process_->ended()) {
        onProcessEnded(sweep.failed);
        return wanted;
    }
    // Last of all, as close to the call as can be: a stop in the middle of it cannot be noticed before it is over.
    if (wokeLate(sweep.failed)) return 0;
    const bool reads = jobs_.front().request.opcode == Opcode::Read;
    const ssize_t moved =
        reads ? ::process_vm_readv(process_->pid(), local_.data(), local_.size(), remote_.data(), remote_.size(), 0)
              : ::process_vm_writev(process_->pid(), local_.data(), local_.size(), remote_.data(), remote_.size(), 0);
    const int error = moved < 0 ? errno : 0;
    if (process_->ended()) {
        onProcessEnded(sweep.failed);
        return wanted;
    }
    if (error == EFAULT || error == ENOMEM) {
        // Nothing at all was moved, so it is the first one's fault.
        const WorkRequest request = jobs_.front().request;
        sweep.failed.push_back(failure(request, vmError(error, request), false));
        retire(request);
        jobs_.pop_front();
        return wanted;
    }
    if (error != 0) {
        broken(vmError(error, jobs_.front().request), sweep.failed);
        return wanted;
    }
    moved_.clear();
    advance(static_cast<std::uint64_t>(moved));
    for (const WorkRequest& request : moved_) sweep.complete(request.cookie, request.length);
    return wanted;
}

/// `bytes` of what was gathered have been moved, in order.
void RemotePath::advance(std::uint64_t bytes) {
    for (const std::uint64_t piece : pieces_) {
        Job& job = jobs_.front();
        const std::uint64_t part = std::min(piece, bytes);
        job.done += part;
        bytes -= part;
        if (job.done < job.request.length) return;
        moved_.push_back(job.request);
        retire(job.request);
        jobs_.pop_front();
    }
}

Status RemotePath::vmError(int error, const WorkRequest& request) const {
    const bool reads = request.opcode == Opcode::Read;
    const std::string what = (reads ? "process_vm_readv of " : "process_vm_writev to ") + process_->name() + " at " +
                             ByteRange{request.remote, request.length}.toString();
    switch (error) {
        case EFAULT:
            return {Code::AccessDenied, what + ": registered, but not mapped, or not for this (EFAULT), there or here"};
        case ENOMEM: return errnoStatus(Code::ResourceExhausted, what, error);
        case ESRCH: return {Code::ConnectionLost, what + ": it has ended"};
        default: return errnoStatus(Code::ConnectionLost, what, error);
    }
}

}  // namespace troupe::host
