#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/endpoint.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe {

class Reactor;

/// One end of a byte stream between two processes, as the control plane uses it: it blocks never, and a callback of the
/// reactor tells when it can go on. A socket (makeStream), or a simulated one. Everything on the reactor's turn.
class Stream {
  public:
    virtual ~Stream() = default;  ///< Closes it; the callback is not called any more.

    /// Calls `ready` with the epoll events each time there is one of `events` (EPOLLIN | EPOLLOUT, level-triggered).
    /// Replaces what was watched before. The callback may destroy the stream.
    virtual void watch(std::uint32_t events, std::function<void(std::uint32_t)> ready) = 0;
    /// Of a stream that Reactor::connect gave, once it is writable: as connectOutcome(fd).
    virtual Status connectOutcome() = 0;
    /// Bytes taken, or the negative errno of sendmsg(2).
    virtual ssize_t send(std::span<iovec> parts) = 0;
    /// Bytes received, 0 at the end of the stream, or the negative errno of recv(2).
    virtual ssize_t receive(std::span<std::byte> room) = 0;
    /// The other end reads the end of the stream after what was sent.
    virtual void endOutput() = 0;
};

/// Where streams to this process arrive. Everything on the reactor's turn.
class Listener {
  public:
    virtual ~Listener() = default;  ///< Closes it.

    /// Calls `ready` while a stream waits to be accepted.
    virtual void watch(std::function<void()> ready) = 0;
    virtual void unwatch() = 0;

    struct Accepted {
        std::unique_ptr<Stream> stream;
        std::string peer;  ///< Its address, for messages.
    };
    /// NotFound: none waits. ConnectionLost: one was gone before it was accepted. ResourceExhausted: the process has no
    /// descriptor left, and the listener stays ready.
    virtual Result<Accepted> accept() = 0;
};

/// A stream over a socket, connected or connecting.
std::unique_ptr<Stream> makeStream(Reactor& reactor, UniqueFd fd);
/// A listener over what listenOn gave.
std::unique_ptr<Listener> makeListener(Reactor& reactor, UniqueFd fd);

}  // namespace troupe
