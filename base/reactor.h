#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"

namespace troupe {

class FaultInjector;
class Stream;
struct SocketAddress;

/// What code on an event loop may ask of it: descriptors, connections, timers, deferred calls and the time.
///
/// Everything that is not a data path (control connections, metadata stores) does its I/O through this, so that
/// it runs the same on a real loop and under virtual time. Thread rule: every call is made on the loop's own
/// turn, except `post`, which any thread may call.
class Reactor {
  public:
    using TimerId = std::uint64_t;  ///< 0 is never a live timer.

    virtual ~Reactor() = default;

    virtual TimePoint now() const = 0;

    /// Calls `ready` with the epoll events each time `fd` has one of `events` (EPOLLIN | EPOLLOUT, level-triggered).
    /// The caller keeps owning `fd`. Watching a watched fd replaces its events and callback.
    virtual void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) = 0;
    /// Ends it; `ready` is not called again. Must precede close(fd). Unknown fds are ignored.
    virtual void unwatch(int fd) = 0;

    /// Starts to connect to `address`, as startConnect does; the stream (base/stream.h) is writable once the outcome is
    /// known.
    virtual Result<std::unique_ptr<Stream>> connect(const SocketAddress& address);

    /// Calls `fire` once at or after `when`. A timer may cancel itself or others from its callback.
    virtual TimerId runAt(TimePoint when, std::function<void()> fire) = 0;
    /// Unknown or fired ids are ignored.
    virtual void cancelTimer(TimerId timer) = 0;

    /// Calls `work` on the loop's turn, in the order posted. Any thread.
    virtual void post(std::function<void()> work) = 0;

    /// Who breaks things here on purpose; null, as nearly always: nobody. It outlives the loop.
    virtual FaultInjector* faults() const { return nullptr; }
};

}  // namespace troupe
