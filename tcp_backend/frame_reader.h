#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace troupe::tcp {

/// Payloads from this size are received straight into place, with only the next header behind them; smaller ones are
/// received by the buffer-full and copied out. Between what is measured to gain by the one (pages of 4 KiB) and by the
/// other (blocks of 64 KiB); the value between is that of a bare loop.
inline constexpr std::size_t kDirectBytes = 16 << 10;

/// Where the payload of a frame goes.
struct Payload {
    std::byte* to = nullptr;   ///< Null: read and dropped.
    std::uint64_t length = 0;  ///< 0: the frame is only its header.
    bool staged = false;       ///< The handler has room for it piece by piece; `to` is the reader's then.
};

/// What a handler has for the next bytes of a staged payload.
enum class Room : std::uint8_t {
    Here,   ///< This much.
    Later,  ///< None now: nothing is received until there is.
    Drop,   ///< The rest of the payload is not wanted.
};

/// How one receive pass ended.
enum class ReadEnd : std::uint8_t {
    Drained,    ///< The socket has no more for now.
    Budget,     ///< There may be more.
    Closed,     ///< Orderly end of the stream.
    Failed,     ///< FrameReader::error() says why.
    Violation,  ///< The handler refused a header.
    Starved,    ///< There is no room for a staged payload.
};

/// Cuts a stream into frames: a header of `HeaderBytes`, then a payload as long as the handler says.
///
/// Of the stream only a part of one header is ever kept between calls (everything else goes to its destination at
/// once), so all connections of a Nic share one scratch buffer. The handler has
///   bool onHeader(const std::byte* header, Payload& next)   false ends the connection
///   void onBytes(std::byte* data, std::size_t size)   payload bytes as they come, in order
///   void onPayload()                                        a payload of more than 0 bytes is complete
///   bool onFault()                                          the rest of a payload cannot be put where it belongs: true
///                                                           to have it dropped, false to end the connection
///   std::size_t headerRoom() const                          how many frames it can take now, at most
///   Room roomFor(std::span<std::byte>& here)                   of a staged payload: room for its next bytes
///   void onStaged(std::size_t size)                         so many were put there, after onBytes
///   void onSilence()                                        the wire has nothing for the room that was given
template <std::size_t HeaderBytes>
class FrameReader {
  public:
    void reset() {
        kept_ = 0;
        payload_ = {};
        expect_large_ = false;
        room_ = 0;
        stash_.clear();
    }
    /// The payload being received: what is missing, and where it goes.
    const Payload& payload() const { return payload_; }
    /// The errno of the read that ended as Failed. Kept here: whoever looks has called others since.
    int error() const { return error_; }

    /// Receives about `budget` bytes, less what it received; `moved` tells whether anything came.
    template <class Handler>
    ReadEnd read(int fd, std::span<std::byte> scratch, std::size_t& budget, Handler& handler, bool& moved) {
        // Who gave room may have taken it back since.
        room_ = 0;
        while (budget > 0) {
            if (payload_.staged && !prepareStaged(handler)) [[unlikely]]
                return refused_ ? ReadEnd::Violation : ReadEnd::Starved;
            iovec pieces[2];
            int count = 0;
            std::size_t wanted = 0;
            std::size_t direct = 0;
            if (payload_.length != 0 && payload_.to) {
                direct = static_cast<std::size_t>(
                    std::min<std::uint64_t>(payload_.staged ? room_ : payload_.length, kMostAtOnce));
                pieces[count++] = {payload_.to, direct};
                wanted = direct;
            }
            if (direct == payload_.length || !payload_.to) {
                std::memcpy(scratch.data(), kept_bytes_.data(), kept_);
                const std::size_t room = lookahead(scratch.size(), handler.headerRoom());
                if (room > kept_) {
                    pieces[count++] = {scratch.data() + kept_, room - kept_};
                    wanted += room - kept_;
                }
            }
            if (count == 0) return ReadEnd::Budget;
            const ssize_t got = receive(fd, pieces, count);
            if (got == 0) return ReadEnd::Closed;
            if (got < 0) {
                error_ = errno;
                if (error_ == EFAULT && direct != 0 && handler.onFault()) {
                    payload_.to = nullptr;
                    continue;
                }
                if (payload_.staged) handler.onSilence();
                return error_ == EAGAIN || error_ == EWOULDBLOCK ? ReadEnd::Drained : ReadEnd::Failed;
            }
            moved = true;
            const auto received = static_cast<std::size_t>(got);
            budget -= std::min(budget, received);
            const std::size_t placed = std::min(direct, received);
            if (placed != 0) take(placed, handler);
            if (received > placed && !parse(scratch.data(), kept_ + received - placed, handler))
                return ReadEnd::Violation;
            if (received < wanted) return stash_.empty() ? ReadEnd::Drained : ReadEnd::Starved;
        }
        return ReadEnd::Budget;
    }

  private:
    static constexpr std::size_t kMostAtOnce = 1u << 20;

    static ssize_t receive(int fd, iovec* pieces, int count) {
        ssize_t got = 0;
        if (count == 1) {
            do got = ::recv(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT);
            while (got < 0 && errno == EINTR);
            return got;
        }
        msghdr message{};
        message.msg_iov = pieces;
        message.msg_iovlen = static_cast<std::size_t>(count);
        do got = ::recvmsg(fd, &message, MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        return got;
    }

    /// Makes room for the next bytes of a staged payload, and puts there what was received before there was any. False:
    /// there is none, or what was received is `refused_`.
    template <class Handler>
    bool prepareStaged(Handler& handler) {
        while (!stash_.empty()) {
            if (payload_.staged && !findRoom(handler)) return false;
            const std::vector<std::byte> stash = std::exchange(stash_, {});
            refused_ = !parse(stash.data(), stash.size(), handler);
            if (refused_) return false;
        }
        return !payload_.staged || findRoom(handler);
    }

    template <class Handler>
    bool findRoom(Handler& handler) {
        if (room_ != 0) return true;
        std::span<std::byte> here;
        switch (handler.roomFor(here)) {
            case Room::Here:
                payload_.to = here.data();
                room_ = here.size();
                return true;
            case Room::Later: return false;
            case Room::Drop: break;
        }
        payload_.to = nullptr;
        payload_.staged = false;
        return true;
    }

    /// How far to fill the scratch buffer, counted from its start (with what is kept of a header).
    std::size_t lookahead(std::size_t capacity, std::size_t frames) const {
        if (frames == 0) return 0;
        // A dropped payload is read by the buffer-full too; one frame more may follow it.
        if (expect_large_ && !(payload_.length != 0 && !payload_.to)) return HeaderBytes;
        return frames >= capacity / HeaderBytes ? capacity : frames * HeaderBytes;
    }

    template <class Handler>
    void take(std::size_t size, Handler& handler) {
        handler.onBytes(payload_.to, size);
        payload_.to += size;
        payload_.length -= size;
        if (payload_.staged) [[unlikely]] {
            room_ -= size;
            handler.onStaged(size);
        }
        if (payload_.length == 0) {
            payload_ = {};
            handler.onPayload();
        }
    }

    template <class Handler>
    bool parse(const std::byte* at, std::size_t have, Handler& handler) {
        kept_ = 0;
        while (have != 0) {
            if (payload_.length == 0) {
                if (have < HeaderBytes) break;
                Payload next;
                if (!handler.onHeader(at, next)) return false;
                at += HeaderBytes;
                have -= HeaderBytes;
                expect_large_ = next.length >= kDirectBytes;
                payload_ = next;
                continue;
            }
            if (payload_.staged && !findRoom(handler)) [[unlikely]] {
                stash_.assign(at, at + have);
                return true;
            }
            const auto size =
                static_cast<std::size_t>(std::min<std::uint64_t>(have, payload_.staged ? room_ : payload_.length));
            if (payload_.to) {
                std::memcpy(payload_.to, at, size);
                take(size, handler);
            } else {
                payload_.length -= size;
                if (payload_.length == 0) handler.onPayload();
            }
            at += size;
            have -= size;
        }
        kept_ = have;
        std::memcpy(kept_bytes_.data(), at, kept_);
        return true;
    }

    std::array<std::byte, HeaderBytes> kept_bytes_{};  ///< The first bytes of a header that is not complete.
    std::size_t kept_ = 0;
    Payload payload_;
    bool expect_large_ = false;
    std::uint64_t room_ = 0;        ///< Of a staged payload: bytes from `payload_.to` on that are free.
    bool refused_ = false;          ///< What was stashed broke the rules.
    int error_ = 0;                 ///< The last errno of the socket.
    std::vector<std::byte> stash_;  ///< Received before there was room for it; at most what `scratch` holds.
};

}  // namespace troupe::tcp
