#include "host_backend/device_mapper.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/endpoint.h"
#include "base/quiet_thread.h"

namespace troupe::host {

Status MapperBell::open() {
    fd_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return fd_ ? Status() : errnoStatus(Code::ResourceExhausted, "eventfd", errno);
}

void MapperBell::ring() {
    const std::lock_guard lock(mutex_);
    rang_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    // Can only fail when the counter is full, and then the descriptor is readable.
    static_cast<void>(!::write(fd_.get(), &one, sizeof one));
}

bool MapperBell::hear() {
    if (!rang_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(mutex_);
    rang_.store(false, std::memory_order_release);
    std::uint64_t count = 0;
    static_cast<void>(!::read(fd_.get(), &count, sizeof count));
    return true;
}

DeviceMapper::~DeviceMapper() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

Status DeviceMapper::start() {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) return {};
    auto thread = startQuietThread("troupe.map", [this] { run(); });
    if (!thread) return thread.status();
    thread_ = std::move(*thread);
    return {};
}

void DeviceMapper::give(Work work) {
    {
        const std::lock_guard lock(mutex_);
        work_.push_back(std::move(work));
    }
    changed_.notify_one();
}

void DeviceMapper::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
        if (work_.empty()) return;
        Work work = std::move(work_.front());
        work_.pop_front();
        lock.unlock();
        work();
        // With what it holds, which may take as long.
        work = nullptr;
        lock.lock();
    }
}

}  // namespace troupe::host
