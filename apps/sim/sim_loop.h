#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/loop.h"
#include "apps/sim/world.h"
#include "base/stream.h"

namespace troupe::sim {

class Network;

/// A process as loops and Nics see it: where it is, what its clock says, how fast it runs.
struct Seat {
    int host = 0;
    std::string label;      ///< For the trace: "B2" is the second start on host B.
    Duration ahead{};       ///< Of its clock, before the true time.
    TimePoint stands{};     ///< No loop of it runs before this: the process is stopped.
    unsigned slowness = 1;  ///< Factor on what a step takes.
    bool dies = false;      ///< What its loops do is heard by nobody, and takes no time.
};

/// A Loop without a thread, whose time is the world's. Everything else is the Loop that engines run on.
///
/// A step is one moment of that time, but the thread that it stands for may be interrupted in the middle of it: between
/// two things that it sends to actors of other loops, which may run meanwhile. So what a step sends to another loop
/// arrives at that moment or a little later, in the order in which it was sent.
class SimLoop final : public Loop {
  public:
    SimLoop(caf::actor_system& system, World& world, Network& network, const Seat& seat, std::string name);
    ~SimLoop() override;

    TimePoint now() const override { return world_.now() + seat_.ahead; }
    void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) override;
    void unwatch(int) override {}
    void postFor(caf::weak_actor_ptr owner, std::function<void()> work) override;
    Result<std::unique_ptr<Stream>> connect(const SocketAddress& address) override;

    /// One iteration, after `first`, as a caller's that drives.
    void step(const std::function<void()>& first = {});
    /// The true time at which it should run next; kForever: not by itself.
    TimePoint due() const;
    bool busy() const { return again_ || !idle() || nextWake() <= now(); }
    /// Its own thread is in the middle of a step, or stopped.
    bool taken() const { return rests_ > world_.now() || seat_.stands > world_.now(); }
    /// By its own clock: when something falls due.
    TimePoint nextDue() const { return nextWake(); }
    /// When the step before this one began; true time. What an actor here hears was sent after that, if by one of its
    /// neighbours.
    TimePoint steppedBefore() const { return stepped_before_; }
    /// All that is on its way to this loop is there.
    void receiveAll();

    const Seat& seat() const { return seat_; }
    World& world() const { return world_; }

  private:
    bool holdBack(HostedActor& to, caf::mailbox_element_ptr& message) override;
    /// When what the sender's step sends now arrives here; its world's time: at once.
    TimePoint arrival() const;
    void arriveAt(TimePoint when, std::function<void()> what);
    void receive(std::uint64_t number);
    TimePoint sends();

    World& world_;
    Network& network_;
    const Seat& seat_;
    TimePoint rests_{};   ///< Until then the last step takes.
    bool again_ = false;  ///< The last step moved something, or the Nics would not be armed.
    TimePoint stepped_{};
    TimePoint stepped_before_{};
    TimePoint sends_at_{};                                      ///< Up to when the step that runs has come.
    std::map<std::uint64_t, std::function<void()>> under_way_;  ///< By number: of one sender the order of sending.
    std::uint64_t next_under_way_ = 0;
    const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace troupe::sim
