#pragma once

#include "base/clock.h"

namespace troupe {

/// How long a loop that found nothing to do goes on polling before it sleeps: at most `longest`, and less while
/// sleeping turns out to be right. Knows no clock; one thread at a time, the holder of the loop's turn.
class AdaptiveSpin {
  public:
    /// Smallest time that is still worth trying; below it the loop sleeps at once.
    static constexpr Duration kSmallest = std::chrono::microseconds(2);

    /// `longest`: the setting `spin`. 0: never.
    explicit AdaptiveSpin(Duration longest) : longest_(longest), current_(longest) {}

    /// Something moved, or a sleep is over: the next quiet iteration is the first.
    void restart() { quiet_since_ = TimePoint{}; }

    /// After an iteration in which nothing moved, at `now`: poll again, or (false) sleep.
    bool goesOn(TimePoint now) {
        if (quiet_since_ == TimePoint{}) quiet_since_ = now;
        return now - quiet_since_ < current_;
    }

    /// A sleep took `time`, and something ended it (`woken`) or only its time-out did. One so short would have been
    /// cheaper spun through; after long ones, spinning was in vain.
    void slept(bool woken, Duration time) {
        if (woken && time < longest_)
            current_ = longest_;
        else
            current_ = current_ <= kSmallest ? Duration::zero() : current_ / 2;
    }

  private:
    const Duration longest_;
    Duration current_;         ///< At most longest_.
    TimePoint quiet_since_{};  ///< Zero: the last iteration moved something.
};

}  // namespace troupe
