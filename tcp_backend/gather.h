#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace troupe::tcp {

/// One sendmsg in the making: small pieces (headers, texts) from an arena of its own, payloads from where they lie.
/// One per Nic, reused for every call, so that a steady state allocates nothing.
class Gather {
  public:
    Gather();

    void clear() {
        count_ = 0;
        used_ = 0;
        bytes_ = 0;
    }
    /// Room for one more frame: a header, a text or payload.
    bool hasRoom() const { return count_ + 2 <= kMaxPieces && used_ + kFrameArena <= kArenaBytes; }
    std::size_t bytes() const { return bytes_; }

    /// `size` bytes (at most kFrameArena a frame) to fill in before send; not part of the message until add().
    std::byte* scratch(std::size_t size) {
        std::byte* at = arena_.data() + used_;
        used_ += size;
        return at;
    }
    /// Appends bytes to the message; joined to the last piece when they follow it in memory.
    void add(const std::byte* data, std::size_t size) {
        bytes_ += size;
        if (count_ != 0) {
            iovec& last = pieces_[count_ - 1];
            if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
                last.iov_len += size;
                return;
            }
        }
        pieces_[count_++] = {const_cast<std::byte*>(data), size};
    }

    /// One non-blocking sendmsg without SIGPIPE: bytes taken, or -1 with errno.
    ssize_t send(int fd);

  private:
    static constexpr std::size_t kMaxPieces = 1024;    // IOV_MAX of Linux.
    static constexpr std::size_t kFrameArena = 256;    // A header and the longest text.
    static constexpr std::size_t kArenaBytes = 33024;  // 1024 request headers and one frame.

    std::vector<std::byte> arena_;
    std::vector<iovec> pieces_;
    std::size_t count_ = 0;
    std::size_t used_ = 0;
    std::size_t bytes_ = 0;
};

}  // namespace troupe::tcp
