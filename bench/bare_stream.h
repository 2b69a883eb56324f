#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace troupe::bench {

/// Payloads from this size on are received straight into place; a copy of a smaller one costs less than a call.
inline constexpr std::size_t kDirectBytes = 16384;

/// Leads every request, reply and acknowledgement of the bare loop. Both ends are this program, so it goes as it is.
struct BareHeader {
    std::uint64_t id = 0;
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t op = 0;
    std::uint64_t unused = 0;  ///< As long as a header of a real protocol.
};

/// Opens a connection of the bare loop.
struct BareHello {
    std::uint32_t write = 0;
    std::uint32_t batch = 0;
    std::uint64_t block = 0;
    std::uint32_t spin = 0;  ///< The server spins on its socket too.
    std::uint32_t unused = 0;
};

/// One connection: exact sends and receives, blocking or spinning. Every call returns false once the peer has gone.
/// Used by one thread.
class BareStream {
  public:
    explicit BareStream(UniqueFd fd, bool spin = false) : fd_(std::move(fd)), flags_(spin ? kSpin : 0) {}

    void setSpin(bool spin) { flags_ = spin ? kSpin : 0; }
    bool send(const void* data, std::size_t bytes);
    bool receive(void* data, std::size_t bytes);
    /// Sends each header followed by its payload at `base` + offset.
    bool sendPairs(std::span<BareHeader> headers, char* base);
    /// Receives `count` header and payload pairs whose payloads have `block` bytes, each into `base` + offset, and
    /// keeps the headers in `headers`. An offset outside [0, limit - block] ends the connection.
    bool receivePairs(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit);

  private:
    static constexpr int kSpin = 0x40;  ///< MSG_DONTWAIT.
    static constexpr std::size_t kBufferBytes = 256u << 10;

    bool sendAll(iovec* parts, std::size_t count);
    bool receiveAll(iovec* parts, std::size_t count);
    bool receiveDirect(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit);
    bool receiveBuffered(std::span<BareHeader> headers, std::size_t block, char* base, std::size_t limit);
    /// Makes at least `bytes` available at buffer_[begin_].
    bool fill(std::size_t bytes);

    UniqueFd fd_;
    int flags_;
    std::vector<iovec> parts_;
    std::vector<char> buffer_;
    std::size_t begin_ = 0;  ///< First byte of the buffer not used yet.
    std::size_t end_ = 0;
};

}  // namespace troupe::bench
