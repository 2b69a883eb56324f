#include "host_backend/links.h"

#include <cerrno>

#include "base/endpoint.h"

namespace troupe::host {

namespace {

epoll_event eventFor(Link& link, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = &link;
    return event;
}

}  // namespace

Status Links::open() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    return epoll_ ? Status::ok() : errnoStatus(Code::ResourceExhausted, "epoll_create1", errno);
}

Status Links::add(Link& link, int fd, std::uint32_t events) {
    epoll_event event = eventFor(link, events);
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return errnoStatus(Code::ResourceExhausted, "epoll_ctl", errno);
    return {};
}

Status Links::watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return errnoStatus(Code::ResourceExhausted, "epoll_ctl", errno);
    return {};
}

void Links::change(Link& link, int fd, std::uint32_t events) {
    epoll_event event = eventFor(link, events);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Links::remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::span<epoll_event> Links::ready(std::span<epoll_event> events) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    return events.first(count > 0 ? static_cast<std::size_t>(count) : 0);
}

}  // namespace troupe::host
