#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/reactor.h"
#include "base/status.h"
#include "base/stream.h"
#include "base/unique_fd.h"
#include "control/control_frame.h"

namespace troupe {

/// How a ControlChannel behaves. A timeout of 0 is none.
struct ControlChannelOptions {
    std::string peer;               ///< Whom it reaches, for messages: "10.0.0.1:7000".
    bool connecting = false;        ///< The stream comes from Reactor::connect and its outcome is not known yet.
    Duration connect_timeout{0};    ///< While connecting.
    Duration handshake_timeout{0};  ///< From the connection until handshakeDone().
    Duration linger_timeout{std::chrono::milliseconds(500)};  ///< Longest life after finish().
    std::uint64_t max_descriptor_bytes = 0;  ///< Longest Descriptor accepted from the peer; 0: none is accepted.
    /// Most bytes that wait to be sent. An end that answers with descriptors needs room for one of them and a little.
    std::uint64_t max_queued_bytes = 1u << 20;
};

/// What a ControlChannel tells its owner. Each is called on the loop's turn, never from within a call that the owner
/// makes to the channel. The owner may call anything from them, destroy the channel included.
struct ControlChannelHandlers {
    std::function<void()> onConnected;          ///< The connect succeeded; only with `connecting`. May be empty.
    std::function<void(ControlFrame)> onFrame;  ///< A frame came, header checked, body not yet decoded.
    /// The channel ended; called exactly once unless it is destroyed first, and nothing is called after it. The
    /// status is never Ok: what close() or finish() was given, or
    /// ConnectionRefused, Timeout, ConnectionLost: the connect failed; Timeout: connect or handshake took too long;
    /// ConnectionLost: the peer closed, or the connection broke; ProtocolError: bytes that are no frames;
    /// CapacityExceeded: the peer reads too slowly for what is sent to it.
    std::function<void(const Status&)> onClosed;
};

/// One control connection: frames out through a bounded queue, frames in from a bounded reader, no decision about
/// either. It owns the stream and blocks never.
///
/// Thread rule: everything, construction and destruction included, happens on the reactor's turn. One turn reads at
/// most 64 KiB and writes at most 1 MiB, so that a busy peer does not hold the loop. The reactor outlives it.
///
/// Memory is bounded whatever the peer does: one frame half read (kMaxControlBody, or max_descriptor_bytes), one
/// read's worth of small frames, and max_queued_bytes to send.
class ControlChannel {
  public:
    /// Takes over `stream`, connected or connecting. Watching begins at once.
    ControlChannel(Reactor& reactor, std::unique_ptr<Stream> stream, ControlChannelOptions options,
                   ControlChannelHandlers handlers);
    /// The same over a stream socket.
    ControlChannel(Reactor& reactor, UniqueFd fd, ControlChannelOptions options, ControlChannelHandlers handlers);
    /// Closes the stream; no handler is called any more. What is queued and not yet sent is lost: see finish().
    ~ControlChannel();
    ControlChannel(const ControlChannel&) = delete;
    ControlChannel& operator=(const ControlChannel&) = delete;

    /// Queues one encoded frame, and sends what the socket takes at once; while connecting it waits. Frames go out
    /// in order. CapacityExceeded: the bound would be passed, and the channel is closed with that. After the end, or
    /// after finish(): the status the channel ends with.
    Status send(std::string frame);
    /// The same for a frame that goes to many peers: the bytes are shared, not copied, but count here in full.
    Status send(std::shared_ptr<const std::string> frame);

    /// Ends the handshake timer. To be called when the owner is satisfied with the peer.
    void handshakeDone();

    /// From now on no fault of this engine (base/fault_injector.h) befalls it: over it they are mended.
    void spareFromFaults();

    /// Ends the channel now. onClosed follows with `reason` (Canceled in the place of Ok).
    void close(Status reason);
    /// Sends what is queued, then ends the stream, waits for the peer to close, at most linger_timeout, and closes
    /// with `reason`: so a last Error or Goodbye arrives although more bytes of the peer are on their way (a plain
    /// close would answer them with a reset, which discards what the peer has not read yet). No frame is delivered
    /// any more.
    void finish(Status reason);

    /// False from close(), finish() or any other end on.
    bool isOpen() const;
    /// When bytes last came, or when the channel was made: for keepalive.
    TimePoint lastReceived() const;
    /// A frame has come in part.
    bool isMidFrame() const;
    std::uint64_t queuedBytes() const;
    const std::string& peer() const;

  private:
    class Core;
    std::shared_ptr<Core> core_;  ///< Shared with the calls in flight on the reactor, which may outlive the channel.
};

}  // namespace troupe
