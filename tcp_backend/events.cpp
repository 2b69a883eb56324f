#include "tcp_backend/events.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/endpoint.h"

namespace troupe::tcp {

Status EventSet::open() {
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    return epoll_ ? Status::ok() : errnoStatus(Code::ResourceExhausted, "epoll_create1", errno);
}

Status EventSet::add(Link& link, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = &link;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link.fd.get(), &event) != 0)
        return errnoStatus(Code::ResourceExhausted, "epoll_ctl", errno);
    link.interest = events;
    return {};
}

Status EventSet::watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return errnoStatus(Code::ResourceExhausted, "epoll_ctl", errno);
    return {};
}

void EventSet::unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void EventSet::setInterest(Link& link, std::uint32_t events) {
    if (link.interest == events || !link.fd) return;
    epoll_event event{};
    event.events = events;
    event.data.ptr = &link;
    // Can fail only for a descriptor that is not in the set, which add() excludes.
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.fd.get(), &event) == 0) link.interest = events;
}

void EventSet::closeAbruptly(Link& link) {
    if (!link.fd) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.fd.get(), nullptr);
    const linger now{1, 0};
    ::setsockopt(link.fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    // Resets the connection even when a child made by fork holds the descriptor too; close would not, then.
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    ::connect(link.fd.get(), &nobody, sizeof nobody);
    link.fd.reset();
}

void EventSet::closeInOrder(Link& link) {
    if (!link.fd) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.fd.get(), nullptr);
    ::shutdown(link.fd.get(), SHUT_RDWR);
    link.fd.reset();
}

std::span<epoll_event> EventSet::ready(std::span<epoll_event> events) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    return events.first(count > 0 ? static_cast<std::size_t>(count) : 0);
}

}  // namespace troupe::tcp
