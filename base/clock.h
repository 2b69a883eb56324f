#pragma once

#include <chrono>

namespace troupe {

/// Monotonic time in nanoseconds: deadlines, timers and latencies. Never wall-clock time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// "No deadline".
inline constexpr TimePoint kForever = TimePoint::max();

/// `start + span`, saturated at kForever.
inline TimePoint saturatedAdd(TimePoint start, Duration span) {
    return span >= kForever - start ? kForever : start + span;
}

}  // namespace troupe
