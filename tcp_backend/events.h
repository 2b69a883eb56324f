#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::tcp {

/// A socket of a Nic, as its epoll set knows it. Stays where it is while it is in the set.
struct Link {
    enum class Kind : std::uint8_t { Listener, Lane, Server };

    explicit Link(Kind of) : kind(of) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    const Kind kind;
    UniqueFd fd;                 ///< Empty while there is no connection.
    std::uint32_t interest = 0;  ///< Epoll events it is registered for.
};

/// The epoll set of one Nic: its own descriptor is readable while any link is ready.
class EventSet {
  public:
    /// ResourceExhausted when the system has no descriptors left.
    Status open();
    int fd() const { return epoll_.get(); }

    /// Registers a link's descriptor until closeAbruptly or closeInOrder. Closing the descriptor alone would not end
    /// it: a child made by fork may hold another.
    Status add(Link& link, std::uint32_t events);
    /// Costs a system call only when the interest differs.
    void setInterest(Link& link, std::uint32_t events);
    /// Closes so that nothing that was written and not yet sent is sent any more: the peer gets a reset.
    void closeAbruptly(Link& link);
    /// What was written still arrives.
    void closeInOrder(Link& link);
    /// A descriptor that only wakes: what it is for is looked at in each pass. In `ready` its event has a null pointer.
    /// Until unwatch, which comes before it is closed.
    Status watch(int fd);
    void unwatch(int fd);
    /// What is ready now; never waits. The part of `events` that was filled in.
    std::span<epoll_event> ready(std::span<epoll_event> events);

  private:
    UniqueFd epoll_;
};

}  // namespace troupe::tcp
