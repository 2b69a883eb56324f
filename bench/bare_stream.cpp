#include "bench/bare_stream.h"

#include <limits.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troupe::bench {

namespace {

/// Drops `bytes` from the front of the parts; returns how many parts are wholly done.
std::size_t advance(iovec* parts, std::size_t count, std::size_t bytes) {
    std::size_t done = 0;
    while (done < count && bytes >= parts[done].iov_len) bytes -= parts[done++].iov_len;
    if (done < count && bytes > 0) {
        parts[done].iov_base = static_cast<char*>(parts[done].iov_base) + bytes;
        parts[done].iov_len -= bytes;
    }
    return done;
}

bool mayRetry() { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

bool BareStream::sendAll(iovec* parts, std::size_t count) {
    static_assert(kSpin == MSG_DONTWAIT);
    while (count > 0) {
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = std::min<std::size_t>(count, IOV_MAX);
        const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | flags_);
        if (sent < 0 && mayRetry()) continue;
        if (sent < 0) return false;
        const std::size_t done = advance(parts, count, static_cast<std::size_t>(sent));
        parts += done;
        count -= done;
    }
    return true;
}

bool BareStream::receiveAll(iovec* parts, std::size_t count) {
    while (count > 0) {
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = count;
        // One call for a whole payload, not one for each piece as it comes: a tenth faster.
        const ssize_t got = ::recvmsg(fd_.get(), &message, flags_ != 0 ? flags_ : MSG_WAITALL);
        if (got < 0 && mayRetry()) continue;
        if (got <= 0) return false;
        const std::size_t done = advance(parts, count, static_cast<std::size_t>(got));
        parts += done;
        count -= done;
    }
    return true;
}

bool BareStream::send(const void* data, std::size_t bytes) {
    iovec part{const_cast<void*>(data), bytes};
    return sendAll(&part, 1);
}

bool BareStream::receive(void* data, std::size_t bytes) {
    // Small payloads may have drawn what follows them into the buffer already.
    const std::size_t buffered = std::min(bytes, end_ - begin_);
    if (buffered > 0) std::memcpy(data, buffer_.data() + begin_, buffered);
    begin_ += buffered;
    iovec part{static_cast<char*>(data) + buffered, bytes - buffered};
    return part.iov_len == 0 || receiveAll(&part, 1);
}

bool BareStream::sendPairs(std::span<BareHeader> headers, char* base) {
    parts_.clear();
    for (auto& header : headers) {
        parts_.push_back({&header, sizeof header});
        parts_.push_back({base + header.offset, header.length});
    }
    return sendAll(parts_.data(), parts_.size());
}

bool BareStream::receivePairs(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit) {
    return block >= kDirectBytes ? receiveDirect(headers, block, base, limit)
                                 : receiveBuffered(headers, block, base, limit);
}

bool BareStream::receiveDirect(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit) {
    if (!receive(&headers[0], sizeof(BareHeader))) return false;
    for (std::size_t i = 0; i < headers.size(); ++i) {
        if (headers[i].length != block || headers[i].offset > limit - block) return false;
        // One call takes the payload and the header behind it.
        iovec parts[2] = {{base + headers[i].offset, block}, {nullptr, sizeof(BareHeader)}};
        const bool last = i + 1 == headers.size();
        if (!last) parts[1].iov_base = &headers[i + 1];
        if (!receiveAll(parts, last ? 1 : 2)) return false;
    }
    return true;
}

bool BareStream::fill(std::size_t bytes) {
    if (end_ - begin_ >= bytes) return true;
    buffer_.resize(kBufferBytes);
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    while (end_ < bytes) {
        const ssize_t got = ::recv(fd_.get(), buffer_.data() + end_, buffer_.size() - end_, flags_);
        if (got < 0 && mayRetry()) continue;
        if (got <= 0) return false;
        end_ += static_cast<std::size_t>(got);
    }
    return true;
}

bool BareStream::receiveBuffered(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit) {
    for (auto& header : headers) {
        if (!fill(sizeof header)) return false;
        std::memcpy(&header, buffer_.data() + begin_, sizeof header);
        begin_ += sizeof header;
        if (header.length != block || header.offset > limit - block) return false;
        if (!fill(block)) return false;
        std::memcpy(base + header.offset, buffer_.data() + begin_, block);
        begin_ += block;
    }
    return true;
}

}  // namespace troupe::bench
