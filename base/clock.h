#pragma once

#include <chrono>

namespace troupe {

/// Monotonic time in nanoseconds: deadlines, timers and latencies. Never wall-clock time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// "No deadline".
inline constexpr TimePoint kForever = TimePoint::max();

/// `start + span`, where a span of a century or more (microseconds::max() among them) means kForever, and one of minus
/// a century or less is as good as that.
template <class Rep, class Period>
TimePoint saturatedAdd(TimePoint start, std::chrono::duration<Rep, Period> span) {
    constexpr std::chrono::hours kCentury{24 * 365 * 100};
    if (span >= kCentury) return kForever;
    return start + (span <= -kCentury ? -kCentury : std::chrono::duration_cast<Duration>(span));
}

}  // namespace troupe
