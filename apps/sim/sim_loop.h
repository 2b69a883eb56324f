#pragma once

#include <functional>
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
};

/// A Loop without a thread, whose time is the world's. Everything else is the Loop that engines run on.
class SimLoop final : public Loop {
  public:
    SimLoop(caf::actor_system& system, World& world, Network& network, const Seat& seat, std::string name);
    ~SimLoop() override;

    TimePoint now() const override { return world_.now() + seat_.ahead; }
    void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) override;
    void unwatch(int) override {}
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

    const Seat& seat() const { return seat_; }
    World& world() const { return world_; }

  private:
    World& world_;
    Network& network_;
    const Seat& seat_;
    TimePoint rests_{};   ///< Until then the last step takes.
    bool again_ = false;  ///< The last step moved something, or the Nics would not be armed.
};

}  // namespace troupe::sim
