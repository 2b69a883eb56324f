#include "verbs_backend/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/endpoint.h"

namespace troupe::verbs {

Status Mailbox::open() {
    fd_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return fd_ ? Status() : errnoStatus(Code::ResourceExhausted, "eventfd", errno);
}

void Mailbox::put(PairEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    any_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    // Can only fail when the counter is full, and then the descriptor is readable.
    static_cast<void>(!::write(fd_.get(), &one, sizeof one));
}

bool Mailbox::take(std::vector<PairEvent>& events) {
    if (!any_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    any_.store(false, std::memory_order_release);
    std::uint64_t count = 0;
    static_cast<void>(!::read(fd_.get(), &count, sizeof count));
    return !events.empty();
}

}  // namespace troupe::verbs
