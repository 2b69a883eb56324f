#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::host {

/// Wakes a HostNic when the mapper has done something for it: a descriptor that becomes readable. Any thread rings, one
/// hears.
class MapperBell {
  public:
    /// Once, before all else. ResourceExhausted: no descriptor is left.
    Status open();
    int fd() const { return fd_.get(); }
    void ring();
    /// Whether it rang since it was heard last; without a lock when it did not.
    bool hear();

  private:
    UniqueFd fd_;
    std::mutex mutex_;
    std::atomic<bool> rang_{false};
};

/// The thread of an engine that maps memory of other processes' GPUs and gives it back. A driver may take a millisecond
/// for either, and to give back also as long as a GPU is busy, which no data loop should wait for.
///
/// What it is given it does in that order, one after the other: what is given back comes after its mapping.
class DeviceMapper {
  public:
    using Work = std::function<void()>;

    DeviceMapper() = default;
    /// Does all that it was given before.
    ~DeviceMapper();
    DeviceMapper(const DeviceMapper&) = delete;
    DeviceMapper& operator=(const DeviceMapper&) = delete;

    /// Has a thread from here on; engines that map nothing have none. ResourceExhausted: the system gives none. Any
    /// thread.
    Status start();
    /// Needs start(). Any thread; never blocks. `work` throws nothing, and is destroyed on the thread that did it.
    void give(Work work);

  private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> work_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace troupe::host
