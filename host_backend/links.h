#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::host {

/// A descriptor of a HostNic, as its epoll set knows it. Stays where it is while it is in the set.
struct Link {
    enum class Kind : std::uint8_t {
        Listener,
        Connection,   ///< From an initiator.
        Process,      ///< The pidfd of that.
        Path,         ///< To an owner.
        PathProcess,  ///< The pidfd of that.
    };
    Link(Kind of, void* whose) : kind(of), owner(whose) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    const Kind kind;
    void* const owner;  ///< GrantServer::Connection or RemotePath.
};

/// The epoll set of one HostNic; level-triggered.
class Links {
  public:
    Status open();
    int fd() const { return epoll_.get(); }
    Status add(Link& link, int fd, std::uint32_t events);
    void change(Link& link, int fd, std::uint32_t events);
    /// Call before each close: a child made by fork may hold the descriptor too, and then closing would not end it.
    void remove(int fd);
    /// A descriptor that only wakes: what it is for is looked at in each pass. Its events have a null pointer.
    Status watch(int fd);
    /// What is ready now; never waits.
    std::span<epoll_event> ready(std::span<epoll_event> events);

  private:
    UniqueFd epoll_;
};

}  // namespace troupe::host
