#include "apps/sim/world.h"

#include "apps/sim/sim_loop.h"

namespace troupe::sim {

namespace {

// Lines of the trace that are kept: the last ones tell what went wrong.
constexpr std::size_t kTraceLines = 4000;

}  // namespace

World::World(std::uint64_t seed, bool tracing) : random_(seed), tracing_(tracing) {}

Duration World::span(Duration low, Duration high) {
    if (high <= low) return low;
    return low +
           Duration(static_cast<Duration::rep>(random_.below(static_cast<std::uint64_t>((high - low).count()) + 1)));
}

void World::at(TimePoint when, std::function<void()> what) {
    events_.emplace(std::make_pair(std::max(when, now_), next_event_++), std::move(what));
}

void World::run(TimePoint end, const std::function<bool()>& until) {
    while (!failed() && !(until && until()) && step(end)) {
    }
}

bool World::step(TimePoint end) {
    TimePoint first = events_.empty() ? kForever : events_.begin()->first.first;
    const TimePoint first_event = first;
    due_.clear();
    for (SimLoop* loop : loops_) {
        const TimePoint due = loop->due();
        if (due > first || due == kForever) continue;
        if (due < first) due_.clear();
        first = due;
        due_.push_back(loop);
    }
    if (first > end) {
        now_ = end;
        return false;
    }
    now_ = std::max(now_, first);
    const std::size_t event_too = first_event == first ? 1 : 0;
    const std::size_t pick = random_.below(due_.size() + event_too);
    ++steps_;
    if (pick == due_.size()) {
        const auto event = events_.extract(events_.begin());
        event.mapped()();
        return true;
    }
    SimLoop& loop = *due_[pick];
    loop.step();
    note(static_cast<std::uint64_t>(now_.time_since_epoch().count()) + pick);
    if (after_step) after_step(loop);
    return true;
}

void World::fail(const std::string& what) {
    if (violation_) return;
    violation_ = what;
    if (tracing_) keep("VIOLATION: " + what);
}

void World::keep(std::string line) {
    const double seconds = std::chrono::duration<double>(now_ - TimePoint(std::chrono::hours(1))).count();
    lines_.push_back(fmt::format("{:11.6f}  {}", seconds, line));
    if (lines_.size() > kTraceLines) lines_.pop_front();
}

}  // namespace troupe::sim
