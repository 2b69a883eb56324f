#include <algorithm>
#include <cerrno>

#include "tcp_backend/crc32c.h"
#include "tcp_backend/lane.h"
#include "tcp_backend/prefetch.h"
#include "tcp_backend/readable.h"

namespace troupe::tcp {

bool Lane::send(TimePoint now, std::vector<Failure>& failed) {
    bool moved = false;
    std::size_t budget = kPassBytes;
    while (hasUnsent() && budget > 0) {
        Gather& gather = shared_.gather;
        fill(gather);
        const ssize_t sent = gather.send(fd.get());
        if (sent < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                blocked_ = true;
                break;
            }
            if (errno == EFAULT) {
                lose(now, errnoStatus(Code::InvalidArgument, "cannot read the local buffer", errno), true, failed,
                     firstFaulty());
                return true;
            }
            lose(now, errnoStatus(Code::ConnectionLost, "send", errno), true, failed);
            return true;
        }
        const auto bytes = static_cast<std::size_t>(sent);
        moved = true;
        shared_.pass_bytes += bytes;
        countSent(bytes);
        blocked_ = bytes < gather.bytes();
        if (blocked_) break;
        budget -= std::min(budget, bytes);
    }
    return moved;
}

/// Which request it is that a send met a fault in. The kernel takes small ones together, or none of them.
std::uint64_t Lane::firstFaulty() const {
    std::uint64_t seen = 0;
    for (std::uint64_t id = sent_; id != ring_.end() && seen < kSendBytes; ++id) {
        const WorkRequest& request = ring_[id].request;
        seen += kRequestBytes;
        if (request.opcode != Opcode::Write) continue;
        seen += request.length;
        if (firstUnreadable({reinterpret_cast<std::uint64_t>(request.local), request.length})) return id;
    }
    return sent_;
}

void Lane::fill(Gather& gather) {
    gather.clear();
    std::uint64_t offset = sent_offset_;
    for (std::uint64_t id = sent_; id != ring_.end() && gather.hasRoom() && gather.bytes() < kSendBytes; ++id) {
        Outstanding& entry = ring_[id];
        const WorkRequest& request = entry.request;
        const bool write = request.opcode == Opcode::Write;
        if (offset < kRequestBytes) {
            const bool crc = shared_.config.tcp_crc;
            if (crc && write && !entry.has_crc) {
                entry.crc = crc32c(0, request.local, request.length);
                entry.has_crc = true;
            }
            std::byte* header = gather.scratch(kRequestBytes);
            encodeRequest(
                {write ? Op::Write : Op::Read, crc, write && crc ? entry.crc : 0, id, request.remote, request.length},
                header);
            gather.add(header + offset, kRequestBytes - offset);
            offset = kRequestBytes;
        }
        if (write) {
            const std::uint64_t done = offset - kRequestBytes;
            const auto size = std::min<std::uint64_t>(request.length - done, kSendBytes);
            if (size != 0) gather.add(request.local + done, size);
            prefetchPayload(request.local + done, size);
            if (size < request.length - done) return;
        }
        offset = 0;
    }
}

void Lane::countSent(std::size_t bytes) {
    while (bytes != 0) {
        const WorkRequest& request = ring_[sent_].request;
        const std::uint64_t frame = kRequestBytes + (request.opcode == Opcode::Write ? request.length : 0);
        const std::uint64_t missing = frame - sent_offset_;
        if (bytes < missing) {
            sent_offset_ += bytes;
            return;
        }
        bytes -= missing;
        sent_offset_ = 0;
        ++sent_;
    }
}

}  // namespace troupe::tcp
