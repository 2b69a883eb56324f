#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "base/clock.h"

namespace troupe {

/// When to try again what broke: at once the first time, then after 10 ms, doubled each time up to 1 s; one time is
/// forgotten for every 2 s of peace. Not tuned. One thread.
class BackOff {
  public:
    /// It broke at `now`. Returns the time before which not to try: half of the pause is fixed, half at random, so that
    /// what broke together does not return together.
    template <class Random>
    TimePoint broke(TimePoint now, Random& random) {
        const auto peace = now - last_;
        if (strikes_ != 0 && peace > Duration::zero())
            strikes_ -= static_cast<unsigned>(std::min<std::int64_t>(strikes_, peace / kForgive));
        strikes_ = std::min(strikes_ + 1, kMostStrikes);
        last_ = now;
        if (strikes_ <= 1) return now;
        const Duration whole = std::min<Duration>(kFirst * (1 << (strikes_ - 2)), kLast);
        std::uniform_int_distribution<std::int64_t> jitter(whole.count() / 2, whole.count());
        return now + Duration(jitter(random));
    }
    /// What was held against it was something else's fault.
    void forget() { strikes_ = 0; }

  private:
    static constexpr std::chrono::milliseconds kFirst{10};
    static constexpr std::chrono::seconds kLast{1};
    static constexpr std::chrono::seconds kForgive{2};
    static constexpr unsigned kMostStrikes = 9;

    unsigned strikes_ = 0;  ///< Times lately.
    TimePoint last_{};
};

}  // namespace troupe
