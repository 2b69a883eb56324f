#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/faults/fault_line.h"
#include "apps/faults/network.h"
#include "apps/faults/rails.h"
#include "apps/faults/redis_process.h"
#include "apps/faults/resources.h"
#include "apps/faults/scenario.h"
#include "apps/faults/target.h"
#include "apps/faults/traffic.h"
#include "apps/support/session.h"

namespace troupe::apps::faults {

/// What one round of a scenario came to.
struct Round {
    std::optional<Duration> detected;   ///< From the fault to the first operation that failed.
    std::optional<Duration> ended;      ///< From the fault until all that was under way at it had ended.
    std::optional<Duration> opened;     ///< How long the open of a stopped target took to fail.
    std::optional<Duration> moved;      ///< Traffic::firstMove. By RDMA with rails only.
    std::optional<Duration> recovered;  ///< From the end of the fault to the first operation begun after it, completed.
    double lost = 0;                    ///< Of the throughput, while the fault lasted: 0..1.
    /// Of that to the other targets, compared with what they had while nothing was sent to this one (Step::Control),
    /// or, without, with what they had before; below 0: they had more.
    double bystanders_lost = 0;
    std::int64_t memory_grown = 0;       ///< Of this process, resident, bytes: from the first operations to the end.
    std::int64_t descriptors_grown = 0;  ///< The same.
    Tally tally;
    std::string broken;  ///< What the scenario or the engine's promises did not allow; empty: nothing.
};

/// One round: an engine here, targets in other processes, verified traffic, and the scenario's steps. One thread.
class Stage {
  public:
    struct Options {
        EngineArguments engine;
        Traffic::Options traffic;
        /// A segment that somebody else serves, in the place of targets that are started: the begin of its memory
        /// is written. Of scenarios that play anywhere (playsAnywhere). Empty: none.
        std::string at = {};
    };

    /// `tick` is called every few milliseconds; false ends the round early, with Canceled.
    Stage(const Scenario& scenario, const Options& options, std::function<bool()> tick);
    ~Stage();

    /// The error of what could not be set up or done: not of the engine under test.
    Result<Round> run();

    // --- for those who have steps of their own, one call after the other --------------------------------------------

    /// Sets the scene, and waits until operations complete.
    Status open();
    /// Forgets when things broke and were mended: another fault begins.
    void beginAnother();
    Status perform(const Step& step) { return carryOut(step); }
    /// Runs until all is well again. False: it was not in time.
    Result<bool> awaitRecovery();
    /// Begins nothing more, and waits until what is under way has ended or counts as hung.
    Status settle();
    /// Of all traffic so far.
    Tally tally() const;
    /// Of the fault that began last.
    std::optional<Duration> recovery() const;
    /// Of the last error of run, open or perform: this machine lacks what it takes (root, a redis-server, a module of
    /// the kernel), and nothing had been broken yet. Else what went wrong may be the engine's fault.
    bool machineLacks() const { return machine_lacks_; }
    /// A target that nothing happens to; null without bystanders.
    const Target* bystander() const { return peers_.size() > 1 ? peers_.back().target.get() : nullptr; }

  private:
    static constexpr std::chrono::seconds kStartBound{20};  ///< For a process that is started.

    /// Something traffic runs to.
    struct Peer {
        std::unique_ptr<Target> target;  ///< Null: somebody else's.
        std::unique_ptr<Traffic> traffic;
        ByteRange memory;
        SegmentID segment = kInvalidSegmentID;
        bool rests = false;
        std::optional<Resources> resources;  ///< Of its target, of a bystander: with traffic, before anything broke.
    };

    Status meetNeeds();
    Target::Options targetOptions() const;
    Status addPeer(unsigned number);
    Status launchTarget(Peer& peer, unsigned number);
    Status aim(Peer& peer);
    Status pump(TimePoint until);
    /// Until `done`, for at most `bound`; false: it was not.
    Result<bool> pumpUntil(const std::function<bool()>& done, Duration bound);
    Status waitUp(Target& target);
    Status carryOut(const Step& step);
    Status act(const Step& step);
    void noteFault();
    Status actOnLinks(const Step& step);
    Status killTarget();
    Status meanwhile(const std::function<Status()>& what);
    Status startTarget();
    Status actOnInitiator(const std::string& what);
    Status useShortLivedPeers(unsigned count);
    Status openStopped();
    Status actOnTargetsEngine(const std::string& what);
    Status openFaultLine();
    Status setStorm(const std::string& what);
    Status actOnRedis(const std::string& what);
    Status registerAnew();
    Status runControl(Duration time);
    std::uint64_t bystanderBytes() const;
    Status noteResources();
    void compareResources();
    Traffic::Options trafficOptions() const;
    void finish();
    void lookForRecord(TimePoint now);
    bool hasRecovered() const;

    const Scenario& scenario_;
    const Options& options_;
    const std::function<bool()> tick_;
    std::optional<Network> network_;
    std::optional<Rails> rails_;  ///< By RDMA, where there are some.
    std::unique_ptr<RedisProcess> redis_;
    std::unique_ptr<Session> session_;
    std::unique_ptr<FaultLine> fault_line_;  ///< To the victim's engine.
    std::span<std::byte> memory_;
    std::vector<Peer> peers_;  ///< The first is the victim.
    std::optional<ChildProcess> initiator_;
    bool machine_lacks_ = false;
    bool has_broken_ = false;  ///< A step broke something, since the begin or beginAnother.
    bool unregisters_ = false;
    TimePoint next_unregister_{};
    TimePoint next_look_{};

    TimePoint began_{};
    std::optional<TimePoint> fault_at_;
    TimePoint lasted_until_{};  ///< When the mending began that was done at `healed_at_`.
    std::optional<TimePoint> healed_at_;
    std::uint64_t bytes_at_begin_ = 0;
    std::uint64_t bytes_at_fault_ = 0;
    std::uint64_t bystander_bytes_at_begin_ = 0;
    std::uint64_t bystander_bytes_at_fault_ = 0;
    std::uint64_t bytes_at_heal_ = 0;
    std::uint64_t bystander_bytes_at_heal_ = 0;
    std::optional<double> control_;  ///< Bytes a second of the bystanders, while nothing is sent to the victim.
    Resources resources_;            ///< Of this process, with traffic, before anything broke.
    Round round_;
};

}  // namespace troupe::apps::faults
