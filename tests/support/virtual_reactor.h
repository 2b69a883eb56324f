#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/reactor.h"

namespace troupe::test {

/// A Reactor whose time passes only when the test says so. It watches no files: code that tries fails the test. One
/// thread.
class VirtualReactor : public Reactor {
  public:
    TimePoint now() const override { return now_; }
    void watch(int fd, std::uint32_t, std::function<void(std::uint32_t)>) override {
        ADD_FAILURE() << "there are no files here, and " << fd << " is watched";
    }
    void unwatch(int) override {}
    TimerId runAt(TimePoint when, std::function<void()> fire) override {
        timers_.emplace(std::pair(when, ++last_timer_), std::move(fire));
        return last_timer_;
    }
    void cancelTimer(TimerId timer) override {
        std::erase_if(timers_, [&](const auto& entry) { return entry.first.second == timer; });
    }
    void post(std::function<void()> work) override { posted_.push_back(std::move(work)); }

    /// Lets `span` pass, and does in order of time what falls due in it.
    void advance(Duration span) {
        const TimePoint end = now_ + span;
        runPosted();
        while (!timers_.empty() && timers_.begin()->first.first <= end) {
            now_ = std::max(now_, timers_.begin()->first.first);
            const auto fire = std::move(timers_.begin()->second);
            timers_.erase(timers_.begin());
            fire();
            runPosted();
        }
        now_ = end;
    }

  private:
    void runPosted() {
        while (!posted_.empty()) {
            const auto work = std::move(posted_.front());
            posted_.pop_front();
            work();
        }
    }

    // Away from the epoch, where a time of 0 would be a special one.
    TimePoint now_{std::chrono::hours(1)};
    std::map<std::pair<TimePoint, TimerId>, std::function<void()>> timers_;
    std::deque<std::function<void()>> posted_;
    TimerId last_timer_ = 0;
};

}  // namespace troupe::test
