#include "apps/sim/sim_loop.h"

#include <algorithm>
#include <utility>

#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/mailbox_element.hpp>

#include "actors/hosted_actor.h"
#include "apps/sim/network.h"

namespace troupe::sim {

namespace {

// What one iteration takes; a loop of a slow process takes a multiple.
constexpr auto kLongestStep = 10 * kMicrosecond;

// How often a thread is interrupted before it sends something to another loop, and for how long at most. Longer than a
// Nic takes to flush a path, so that whole chains of messages fit in between.
constexpr std::uint64_t kSendsPerInterruption = 10;
constexpr auto kLongestInterruption = kMillisecond;

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
    stepped_before_ = std::exchange(stepped_, world_.now());
    sends_at_ = world_.now();
    world_.setStepping(this);
    const bool moved = runOnce(now(), first);
    again_ = moved || !armPollables();
    world_.setStepping(nullptr);
    // Most steps are short; some are not, for the thread was not running.
    Duration takes = world_.span(Duration(1), kLongestStep);
    if (world_.random().below(200) == 0) takes *= 50;
    // After all that it sent: its next step must not overtake that.
    rests_ = std::max(world_.now() + takes * seat_.slowness, sends_at_ + Duration(1));
}

// --- what one loop sends to another --------------------------------------------------------------------------------

TimePoint SimLoop::sends() {
    if (!seat_.dies && world_.random().below(kSendsPerInterruption) == 0) {
        sends_at_ += world_.span(Duration(1), kLongestInterruption);
        world_.count("interrupted");
    }
    return sends_at_;
}

TimePoint SimLoop::arrival() const {
    SimLoop* const sender = world_.stepping();
    return sender == nullptr || sender == this || seat_.dies ? world_.now() : sender->sends();
}

void SimLoop::arriveAt(TimePoint when, std::function<void()> what) {
    const std::uint64_t number = next_under_way_++;
    under_way_.emplace(number, std::move(what));
    world_.at(when, [this, number, alive = std::weak_ptr(alive_)] {
        if (!alive.expired()) receive(number);
    });
}

void SimLoop::receive(std::uint64_t number) {
    if (const auto arrived = under_way_.extract(number)) arrived.mapped()();
}

void SimLoop::receiveAll() {
    while (!under_way_.empty()) receive(under_way_.begin()->first);
}

bool SimLoop::holdBack(HostedActor& to, caf::mailbox_element_ptr& message) {
    const TimePoint when = arrival();
    if (when <= world_.now()) return false;
    // A function is copied, in principle; the message is not.
    auto held = std::make_shared<caf::mailbox_element_ptr>(std::move(message));
    arriveAt(when, [actor = caf::strong_actor_ptr(to.ctrl()), held] {
        static_cast<HostedActor*>(caf::actor_cast<caf::abstract_actor*>(actor))->enqueue(std::move(*held), nullptr);
    });
    return true;
}

void SimLoop::postFor(caf::weak_actor_ptr owner, std::function<void()> work) {
    const TimePoint when = arrival();
    if (when <= world_.now()) return Loop::postFor(std::move(owner), std::move(work));
    arriveAt(when, [this, whose = std::move(owner), held = std::move(work)]() mutable {
        Loop::postFor(std::move(whose), std::move(held));
    });
}

TimePoint SimLoop::due() const {
    const TimePoint from = std::max({rests_, seat_.stands, world_.now()});
    if (busy()) return from;
    const TimePoint wake = nextWake();
    if (wake == kForever) return kForever;
    return wake < from + seat_.ahead ? from : wake - seat_.ahead;
}

}  // namespace troupe::sim
