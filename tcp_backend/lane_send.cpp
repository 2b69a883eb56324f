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
        waits_for_gpu_ = false;
        fill(gather);
        if (gather.bytes() == 0) [[unlikely]] {
            if (!gpu_failure_) {
                const Status why = gpu_failure_;
                lose(now, why, true, failed, sent_);
                return true;
            }
            break;
        }
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
        if (ring_[id].device != Gpu::kNone) continue;
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
        if (write && entry.device != Gpu::kNone) [[unlikely]] {
            if (!addStaged(gather, id, offset)) return;
            offset = 0;
            continue;
        }
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

/// The same for a WRITE from a GPU: as much of it as has come from there. False: not all of its frame is in the
/// message.
bool Lane::addStaged(Gather& gather, std::uint64_t id, std::uint64_t offset) {
    Outstanding& entry = ring_[id];
    const ByteRange range{reinterpret_cast<std::uint64_t>(entry.request.local), entry.request.length};
    const auto staging = shared_.gpu.at(entry.device);
    const auto stop = [&](const Status& why) {
        waits_for_gpu_ = true;
        if (id == sent_) gpu_failure_ = why;
        return false;
    };
    if (!staging) return stop(staging.status());
    if (blocked_) blocked_ = !isWritable(fd.get());
    if (!blocked_) copyAhead(id, **staging);
    if (shared_.config.tcp_crc && !entry.has_crc) {
        const auto sum = staged_.checksum(id, **staging, range);
        if (!sum) return stop(staged_.state(id));
        entry.crc = *sum;
        entry.has_crc = true;
    }
    const std::uint64_t done = offset < kRequestBytes ? 0 : offset - kRequestBytes;
    const auto bytes = staged_.ready(id, **staging, range, done, !blocked_);
    // The header goes with the first bytes: what cannot be sent has not been announced then.
    if (bytes.empty()) return stop(staged_.state(id));
    if (offset < kRequestBytes) {
        std::byte* header = gather.scratch(kRequestBytes);
        encodeRequest({Op::Write, entry.has_crc, entry.crc, id, entry.request.remote, entry.request.length}, header);
        gather.add(header + offset, kRequestBytes - offset);
    }
    gather.add(bytes.data(), bytes.size());
    return done + bytes.size() == entry.request.length;
}

/// Begins to copy this and what is sent after it.
void Lane::copyAhead(std::uint64_t id, device::Staging& staging) {
    const int device = staging.device().info().ordinal;
    staged_.goAhead(id, ring_.end(), staging, [&](std::uint64_t number, ByteRange& range) {
        const Outstanding& entry = ring_[number];
        if (entry.request.opcode != Opcode::Write) return true;
        if (entry.device == device)
            range = {reinterpret_cast<std::uint64_t>(entry.request.local), entry.request.length};
        return entry.device == device;
    });
}

/// Of the frame of a WRITE from a GPU the bytes from `before` to `after` were sent.
void Lane::countStaged(std::uint64_t id, std::uint64_t before, std::uint64_t after) {
    const Outstanding& entry = ring_[id];
    if (entry.request.opcode != Opcode::Write) return;
    staged_.consume(id, after - std::min(after, std::max(before, std::uint64_t{kRequestBytes})));
    if (after == kRequestBytes + entry.request.length) staged_.finish(id);
}

void Lane::countSent(std::size_t bytes) {
    while (bytes != 0) {
        const WorkRequest& request = ring_[sent_].request;
        const std::uint64_t frame = kRequestBytes + (request.opcode == Opcode::Write ? request.length : 0);
        const std::uint64_t missing = frame - sent_offset_;
        if (ring_[sent_].device != Gpu::kNone) [[unlikely]]
            countStaged(sent_, sent_offset_, sent_offset_ + std::min<std::uint64_t>(bytes, missing));
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
