#pragma once

#include <chrono>

namespace troupe {

/// Monotonic time in nanoseconds: deadlines, timers and latencies. Never wall-clock time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// "No deadline".
inline constexpr TimePoint kForever = TimePoint::max();

/// `start + span`, where a span of a century or more (microseconds::max() among them) means kForever.
template <class Rep, class Period>
TimePoint saturatedAdd(TimePoint start, std::chrono::duration<Rep, Period> span) {
    constexpr std::chrono::hours kCentury{24 * 365 * 100};
    return span >= kCentury ? kForever : start + std::chrono::duration_cast<Duration>(span);
}

}  // namespace troupe
