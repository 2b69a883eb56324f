#include "apps/sim/sim_loop.h"

#include <algorithm>
#include <utility>

#include "apps/sim/network.h"

namespace troupe::sim {

namespace {

// What one iteration takes; a loop of a slow process takes a multiple.
constexpr auto kLongestStep = 10 * kMicrosecond;

}  // namespace

SimLoop::SimLoop(caf::actor_system& system, World& world, Network& network, const Seat& seat, std::string name)
    : Loop(system, Options{std::move(name), {}, false, {}}), world_(world), network_(network), seat_(seat) {
    world_.addLoop(this);
}

SimLoop::~SimLoop() { world_.removeLoop(this); }

void SimLoop::watch(int fd, std::uint32_t, std::function<void(std::uint32_t)>) {
    world_.fail(fmt::format("{}: descriptor {} is watched, and there are none here", seat_.label, fd));
}

Result<std::unique_ptr<Stream>> SimLoop::connect(const SocketAddress& address) {
    return network_.connect(*this, address);
}

void SimLoop::step(const std::function<void()>& first) {
    const bool moved = runOnce(now(), first);
    again_ = moved || !armPollables();
    // Most steps are short; some are not, for the thread was not running.
    Duration takes = world_.span(Duration(1), kLongestStep);
    if (world_.random().below(200) == 0) takes *= 50;
    rests_ = world_.now() + takes * seat_.slowness;
}

TimePoint SimLoop::due() const {
    const TimePoint from = std::max({rests_, seat_.stands, world_.now()});
    if (busy()) return from;
    const TimePoint wake = nextWake();
    if (wake == kForever) return kForever;
    return wake < from + seat_.ahead ? from : wake - seat_.ahead;
}

}  // namespace troupe::sim
