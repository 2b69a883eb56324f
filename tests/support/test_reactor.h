#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/reactor.h"
#include "base/unique_fd.h"

namespace troupe::test {

/// A Reactor on poll(2) and real time, driven by the test itself: whoever calls runOnce or runUntil is the loop.
/// Callbacks may watch, unwatch, start and cancel anything, themselves included.
///
/// `post` may be called from any thread: its queue is the one thing under the mutex.
class TestReactor : public Reactor {
  public:
    TestReactor() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

    TimePoint now() const override { return Clock::now(); }

    void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) override {
        watched_[fd] = {events, std::make_shared<const Ready>(std::move(ready))};
    }
    void unwatch(int fd) override { watched_.erase(fd); }

    TimerId runAt(TimePoint when, std::function<void()> fire) override {
        timers_.emplace(std::pair(when, ++last_timer_), std::move(fire));
        return last_timer_;
    }
    void cancelTimer(TimerId timer) override {
        std::erase_if(timers_, [&](const auto& entry) { return entry.first.second == timer; });
    }

    void post(std::function<void()> work) override {
        {
            const std::lock_guard lock(mutex_);
            posted_.push_back(std::move(work));
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
    }

    /// One turn: waits at most `longest` for something to do, and does it. True when anything ran.
    bool runOnce(Duration longest) {
        const auto events = wait(longest);
        bool ran = runPosted();
        for (const auto& [fd, bits] : events) {
            // An earlier callback of this turn may have unwatched it, or replaced it by another file.
            const auto found = watched_.find(fd);
            if (found == watched_.end()) continue;
            const auto ready = found->second.ready;
            (*ready)(bits);
            ran = true;
        }
        return runTimers() || ran;
    }

    /// Runs until `done` is true; false when it is not within `bound`, which only a broken test reaches.
    bool runUntil(const std::function<bool()>& done, Duration bound = std::chrono::seconds(20)) {
        const TimePoint end = now() + bound;
        while (!done()) {
            if (now() >= end) return false;
            runOnce(std::min<Duration>(end - now(), std::chrono::milliseconds(50)));
        }
        return true;
    }

    /// Runs until nothing is ready and nothing is posted; timers that are not due stay.
    void runIdle() {
        while (runOnce(Duration::zero())) {
        }
    }

    std::size_t watchedCount() const { return watched_.size(); }
    std::size_t timerCount() const { return timers_.size(); }
    /// The events a file is watched for; 0 when it is not.
    std::uint32_t watchedEvents(int fd) const {
        const auto found = watched_.find(fd);
        return found == watched_.end() ? 0 : found->second.events;
    }

  private:
    using Ready = std::function<void(std::uint32_t)>;
    struct Watched {
        std::uint32_t events = 0;
        std::shared_ptr<const Ready> ready;  ///< Shared, so that it survives being replaced while it runs.
    };

    std::vector<std::pair<int, std::uint32_t>> wait(Duration longest) {
        {
            const std::lock_guard lock(mutex_);
            if (!posted_.empty()) longest = Duration::zero();
        }
        if (!timers_.empty()) longest = std::min(longest, timers_.begin()->first.first - now());
        // The poll and epoll bits used here have the same values on Linux.
        std::vector<pollfd> files{{wake_.get(), POLLIN, 0}};
        for (const auto& [fd, watched] : watched_) files.push_back({fd, static_cast<short>(watched.events), 0});
        const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(std::max(longest, Duration::zero()));
        ::poll(files.data(), files.size(), static_cast<int>(rounded.count()));
        std::uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
        std::vector<std::pair<int, std::uint32_t>> events;
        for (std::size_t i = 1; i < files.size(); ++i)
            if (files[i].revents != 0) events.emplace_back(files[i].fd, static_cast<std::uint32_t>(files[i].revents));
        return events;
    }

    bool runPosted() {
        std::vector<std::function<void()>> work;
        {
            const std::lock_guard lock(mutex_);
            work.swap(posted_);
        }
        for (auto& each : work) each();
        return !work.empty();
    }

    bool runTimers() {
        bool ran = false;
        const TimePoint due = now();
        while (!timers_.empty() && timers_.begin()->first.first <= due) {
            const auto fire = std::move(timers_.begin()->second);
            timers_.erase(timers_.begin());
            fire();
            ran = true;
        }
        return ran;
    }

    UniqueFd wake_;
    std::map<int, Watched> watched_;
    std::map<std::pair<TimePoint, TimerId>, std::function<void()>> timers_;
    TimerId last_timer_ = 0;
    std::mutex mutex_;
    std::vector<std::function<void()>> posted_;
};

}  // namespace troupe::test
