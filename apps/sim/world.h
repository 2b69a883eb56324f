#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/support/random.h"
#include "base/clock.h"

namespace troupe::sim {

class SimLoop;

using apps::Random;

inline constexpr auto kMicrosecond = std::chrono::microseconds(1);
inline constexpr auto kMillisecond = std::chrono::milliseconds(1);

/// Time, chance and what will happen: everything in a simulation that could differ between two runs comes from here, so
/// one seed is one run. Picks which loop runs next; among those that could, by chance. One thread.
class World {
  public:
    World(std::uint64_t seed, bool tracing);
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    /// The true time. Processes have clocks of their own that may have jumped ahead of it.
    TimePoint now() const { return now_; }
    Random& random() { return random_; }
    bool chance(std::uint64_t percent) { return random_.chance(percent); }
    /// A span in [low, high].
    Duration span(Duration low, Duration high);

    void at(TimePoint when, std::function<void()> what);
    void after(Duration span, std::function<void()> what) { at(now_ + span, std::move(what)); }

    void addLoop(SimLoop* loop) { loops_.push_back(loop); }
    void removeLoop(SimLoop* loop) { std::erase(loops_, loop); }
    /// The loop that is in the middle of a step; null: none.
    SimLoop* stepping() const { return stepping_; }
    void setStepping(SimLoop* loop) { stepping_ = loop; }

    /// Runs until `end`, the first violation, or `until` holds; asks it after every step.
    void run(TimePoint end, const std::function<bool()>& until);
    /// Called after every step of a loop, with it.
    std::function<void(SimLoop&)> after_step;

    /// A rule was broken. The first one is kept.
    void fail(const std::string& what);
    const std::optional<std::string>& violation() const { return violation_; }
    bool failed() const { return violation_.has_value(); }

    /// A line of the trace. Nothing is formatted when nobody reads it.
    template <class... Args>
    void say(fmt::format_string<Args...> text, Args&&... args) {
        if (tracing_) keep(fmt::format(text, std::forward<Args>(args)...));
    }
    bool tracing() const { return tracing_; }
    const std::deque<std::string>& lines() const { return lines_; }
    /// Mixes a number into the fingerprint of the run: two runs of one seed have the same.
    void note(std::uint64_t value) { fingerprint_ = apps::mixBits(fingerprint_ ^ value); }
    std::uint64_t fingerprint() const { return fingerprint_; }

    void count(const std::string& what, std::uint64_t by = 1) { counts_[what] += by; }
    const std::map<std::string, std::uint64_t>& counts() const { return counts_; }
    std::uint64_t steps() const { return steps_; }

  private:
    bool step(TimePoint end);
    void keep(std::string line);

    Random random_;
    const bool tracing_;
    // Away from the epoch, where a time of 0 would be a special one.
    TimePoint now_{std::chrono::hours(1)};
    std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
    std::uint64_t next_event_ = 0;
    std::vector<SimLoop*> loops_;
    std::vector<SimLoop*> due_;  ///< Scratch of step.
    SimLoop* stepping_ = nullptr;
    std::optional<std::string> violation_;
    std::deque<std::string> lines_;
    std::uint64_t fingerprint_ = 0;
    std::uint64_t steps_ = 0;
    std::map<std::string, std::uint64_t> counts_;
};

}  // namespace troupe::sim
