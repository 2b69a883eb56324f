#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <caf/actor_control_block.hpp>
#include <caf/execution_unit.hpp>
#include <caf/fwd.hpp>

#include "actors/adaptive_spin.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe {

class HostedActor;

/// Something a loop polls once per iteration: a NicWorker's Nic. All calls are made on the loop's turn.
class Pollable {
  public:
    virtual ~Pollable() = default;
    virtual bool poll(TimePoint now) = 0;  ///< True when something moved.
    virtual bool arm() = 0;                ///< As Nic::arm.
    virtual int waitFd() const = 0;        ///< As Nic::waitFd.
    virtual TimePoint nextDeadline() const = 0;
};

/// Runs actors, polls Nics, fires timers and watches descriptors, one step at a time, always by exactly one thread.
///
/// Who runs it: the loop has a thread of its own, which sleeps in epoll while there is nothing to do. A caller's
/// thread that would otherwise only wait (waitTransfer, a status poll, a submit that finds the loop asleep) may take
/// the *turn* and run the loop itself until its own condition holds: no wake-up, no hand-over of completions. The
/// turn is a mutex; everything the loop hosts is touched only by its holder, so one owner stays one owner.
///
/// A driver with nothing to do sleeps in place, in an epoll set of its own, and keeps the turn until its condition
/// holds.
///
/// With no driver, sleep has two forms. Armed: the Nics' descriptors are in the loop's epoll set and its thread wakes
/// by itself. Standby: a caller drove the loop a moment ago and is likely to come back, so the descriptors are out of
/// the set and a timer (`drive_grace`, and longer the longer drivers have come without a gap) brings the loop's thread
/// back if nobody does; this spares two epoll_ctl calls and a wake-up per transfer when a caller submits and waits in
/// turn.
///
/// CAF: hosted actors (HostedActor) run only here. An actor of the host program that a hosted actor writes to is
/// given to CAF's own scheduler, never run on this loop.
///
/// Exceptions: what an actor has the loop call (a timer, a watched descriptor, posted work, and all that is set up from
/// within those) is the actor's, and an exception that escapes from it ends that actor, as one from its handlers does.
/// What comes from outside (a post of another thread) is the keeper's. None of them leaves the loop.
class Loop : public Reactor {
  public:
    struct Options {
        std::string name;                 ///< Thread name, at most 15 characters.
        Duration spin{};                  ///< Longest busy wait before sleep; the loop adapts below it.
        bool drivable = false;            ///< Callers may take the turn.
        Duration drive_grace{};           ///< See Standby above.
        FaultInjector* faults = nullptr;  ///< See Reactor::faults.
        /// Gets the exceptions of work whose actor and keeper have ended. Null: those go on to whoever runs the loop.
        Logger log = nullptr;
    };

    Loop(caf::actor_system& system, Options options);
    ~Loop() override;  ///< stop().

    Status start();
    /// Ends the thread after the current iteration; hosted actors must have ended before. Idempotent.
    void stop();

    // --- Reactor -----------------------------------------------------------------------------------------------
    TimePoint now() const override { return Clock::now(); }
    /// When the current iteration began; cheaper than now(). On the turn.
    TimePoint iterationTime() const { return iterated_at_; }
    void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) override;
    void unwatch(int fd) override;
    TimerId runAt(TimePoint when, std::function<void()> fire) override;
    void cancelTimer(TimerId timer) override;
    void post(std::function<void()> work) override;
    FaultInjector* faults() const override { return options_.faults; }

    // --- what it hosts; on the loop's turn ------------------------------------------------------------------------
    void addPollable(Pollable* pollable);
    void removePollable(Pollable* pollable);
    /// True when the calling thread holds the turn.
    bool onTurn() const;
    /// True when it holds the turn of a loop, whosever.
    static bool onSomeTurn();
    /// The actor whose work is done at this moment, or null: what is set up now is its. On the turn.
    HostedActor* acting() const { return acting_; }
    /// Whose work is what no actor of the loop has set up, until it ends. On the turn.
    void keepBy(HostedActor* keeper) { keeper_ = keeper; }
    HostedActor* keeper() const { return keeper_; }

    // --- callers' threads -----------------------------------------------------------------------------------------

    enum class Drive { Done, TimedOut, Busy };

    /// Runs the loop in the calling thread until `done()` holds or `timeout` passes; blocks while there is nothing to
    /// do. Busy, within `spin`: somebody else runs the loop, and takes care of the work.
    template <class Done>
    Drive driveUntil(Done&& done, std::chrono::microseconds timeout);

    /// Hands `message` to an actor here (see `tell`) without waking the loop's thread. If the loop sleeps, one
    /// iteration runs in the calling thread, so that work starts at once; but a caller that was last seen to wait right
    /// after it submitted will run the loop in a moment anyhow, and then the messages of several submits share one
    /// iteration (should it not come after all, the grace timer brings the loop's thread).
    /// `now` is any recent time: reading the clock is a good part of what a small submit costs.
    template <class Actor, class Message>
    void deliver(TimePoint now, Actor& to, Message message);

    /// One iteration if the loop sleeps: what a status poll contributes.
    void help();

    /// A caller is going to sleep: nobody will drive, so the loop's thread must come now rather than after the grace.
    void wakeFromStandby();

    /// A caller waits for a batch: deliver learns from it how soon after a submit that is.
    void noteWait() {
        // Once learned it holds until a grace ends without a driver.
        if (!options_.drivable || waits_follow_.load(std::memory_order_relaxed)) return;
        const Duration since =
            Clock::now().time_since_epoch() - Duration(last_deliver_.load(std::memory_order_relaxed));
        waits_follow_.store(since < kWaitFollows, std::memory_order_relaxed);
    }

    /// Threads that sleep until a batch on this loop ends. While there are any, the loop does not go on standby.
    std::atomic<std::uint32_t> sleepers{0};

    caf::actor_system& system() const { return run_unit_.system(); }
    /// Where hosted actors are scheduled; for HostedActor only.
    caf::execution_unit* hostUnit() { return &host_unit_; }

  protected:
    // --- the simulator (apps/sim), which has no threads and a time of its own: the loop is never started ------------

    /// One iteration at `now`, on the turn, after `first`. True when something moved.
    bool runOnce(TimePoint now, const std::function<void()>& first);
    /// Nothing waits for the next iteration but what nextWake names.
    bool idle() const { return inboxEmpty() && ready_.empty() && after_due_.empty(); }
    bool armPollables();
    TimePoint nextWake() const;
    /// post, and HostedActor::Home's, whose work is `owner`'s. Any thread.
    virtual void postFor(caf::weak_actor_ptr owner, std::function<void()> work);
    /// Somebody sends `message` to an actor here. True: it was taken, and arrives later.
    virtual bool holdBack(HostedActor& to, caf::mailbox_element_ptr& message);

  private:
    friend class HostedActor;

    /// Queues hosted actors that became ready. Any thread.
    class HostUnit final : public caf::execution_unit {
      public:
        HostUnit(caf::actor_system* system, Loop* loop) : caf::execution_unit(system), loop_(loop) {}
        void exec_later(caf::resumable* actor) override;

      private:
        Loop* loop_;
    };

    /// The context actors run in: what they make ready that is not hosted here goes to CAF's scheduler.
    class RunUnit final : public caf::execution_unit {
      public:
        explicit RunUnit(caf::actor_system* system) : caf::execution_unit(system) {}
        void exec_later(caf::resumable* actor) override;
    };

    // A wait that comes within this after a submit belongs to it: the caller has nothing to do meanwhile.
    static constexpr auto kWaitFollows = std::chrono::microseconds(20);

    enum class Sleep : std::uint8_t { Awake, Armed, Standby, Driver };
    enum class Progress { Moved, Quiet };

    /// Work for later, and whose it is.
    template <class Function>
    struct Owned {
        caf::weak_actor_ptr owner;  ///< Null: the keeper's.
        Function work;
    };
    using Callback = Owned<std::function<void()>>;
    caf::weak_actor_ptr owner() const;
    template <class Function, class... Args>
    void run(const Owned<Function>& callback, const Args&... args);

    void makeReady(HostedActor* actor);
    /// What ended a sleep of the loop's thread.
    struct Woken {
        bool any = false;    ///< Something did, not the time-out.
        bool rung = false;   ///< The bell.
        bool grace = false;  ///< The grace timer.
        bool nic = false;    ///< A Nic or a watched descriptor.
    };
    Woken waitForEvents(int timeout_ms);
    void threadMain();
    Progress iterate(TimePoint now);
    Progress iterate() { return iterate(Clock::now()); }
    /// Leaves the loop to the next driver, with the grace timer as a safety net. False: there is work, nothing changed.
    bool sleepStandby();
    bool sleepStandby(TimePoint now);
    bool runReady();
    /// Calls the actor's afterMessages at the start of the next iteration.
    void runAfterMessages(HostedActor* actor);
    void finishMessages();
    bool runActors();
    bool runPosted();
    bool fireTimers(TimePoint now);
    bool dispatchReady(int timeout_ms);
    void runUntilQuiet();
    /// Leaves the loop to its thread, which anything that happens wakes. False: there is work, poll again.
    bool sleepArmed();
    void setPollableInterest(bool on);
    /// Sleeps until something happens or `deadline`, keeping the turn.
    void sleepAsDriver(TimePoint deadline);
    /// During a drive: the grace timer must not fire in the middle of it.
    void holdOffThread();
    int timeoutFor(TimePoint wake) const;
    void ring();
    bool inboxEmpty() const;

    void noteDeliver(TimePoint now) { last_deliver_.store(now.time_since_epoch().count(), std::memory_order_relaxed); }
    bool tryTakeTurn();
    void giveTurnBack();
    void releaseTurnAfterDriving();
    void scheduleGrace(TimePoint now);
    void armGrace(TimePoint now);
    void setGraceTimer(TimePoint now, Duration span);

    HostUnit host_unit_;
    RunUnit run_unit_;
    const Options options_;

    // The turn. A lock, because its holder may be any thread; held for as long as a thread runs the loop.
    std::mutex turn_;
    std::atomic<std::uint32_t> wanted_{0};  ///< Callers that would drive if the loop's thread let go.

    // Written by any thread: the inbox, and whether its reader must be woken. The Dekker pair (push, then load
    // parked_) against (store parked_, then look into the inbox) needs sequential consistency.
    std::atomic<HostedActor*> inbox_{nullptr};
    std::atomic<Sleep> parked_{Sleep::Awake};
    std::atomic<bool> stopping_{false};
    // Set by drivers, read by deliver without the turn: guesses, wrong ones cost time only.
    std::atomic<bool> waits_follow_{false};      ///< Callers wait right after they submit.
    std::atomic<std::int64_t> last_deliver_{0};  ///< Clock::now() of the last deliver, as a count.
    std::mutex posted_mutex_;  ///< Guards posted_: rare control-plane calls, not worth a lock-free queue.
    std::vector<Callback> posted_;
    std::atomic<bool> has_posted_{false};

    // Everything below is touched only by the holder of the turn.
    std::vector<HostedActor*> ready_;
    std::vector<HostedActor*> running_;
    std::vector<HostedActor*> after_due_;  ///< Each holds a reference.
    std::vector<Pollable*> pollables_;
    HostedActor* acting_ = nullptr;
    HostedActor* keeper_ = nullptr;
    using Watch = Owned<std::function<void(std::uint32_t)>>;
    std::unordered_map<int, std::shared_ptr<const Watch>> watches_;
    std::map<std::pair<TimePoint, TimerId>, Callback> timers_;
    std::unordered_map<TimerId, TimePoint> timer_times_;
    TimerId next_timer_ = 1;
    bool interest_on_ = false;             ///< The Nics' descriptors are in the epoll set.
    bool driver_expected_ = false;         ///< The last drivers came back within the grace.
    const Loop* driver_was_on_ = nullptr;  ///< The loop whose turn the driver had before it took this one, too.
    Duration grace_{};                     ///< How long the last driver is waited for; at least options_.drive_grace.
    TimePoint grace_ends_{};               ///< When the grace timer is set to fire.
    TimePoint thread_wakes_{};             ///< When the loop's thread returns from its sleep by itself.
    TimePoint driven_since_{};             ///< Drivers have come since then without a gap; zero: none is expected.
    TimePoint last_drive_{};
    TimePoint iterated_at_{};
    AdaptiveSpin spin_;

    UniqueFd epoll_;  ///< Where the loop's thread sleeps.
    UniqueFd bell_;
    UniqueFd driver_epoll_;  ///< Where a driver sleeps.
    UniqueFd driver_bell_;
    UniqueFd grace_timer_;
    std::thread thread_;
};

template <class Done>
Loop::Drive Loop::driveUntil(Done&& done, std::chrono::microseconds timeout) {
    if (!options_.drivable || onTurn()) return Drive::Busy;
    wanted_.fetch_add(1, std::memory_order_relaxed);
    // The loop's thread lets go at the end of its iteration; beyond the spin bound it is cheaper to sleep than to
    // compete.
    constexpr int kTriesPerLook = 32;
    bool have = tryTakeTurn();
    for (const TimePoint until = have ? TimePoint{} : Clock::now() + options_.spin; !have && !done();) {
        for (int i = 0; i < kTriesPerLook && !have; ++i) {
            cpuRelax();
            have = tryTakeTurn();
        }
        if (!have && Clock::now() > until) break;
    }
    wanted_.fetch_sub(1, std::memory_order_relaxed);
    if (!have) return done() ? Drive::Done : Drive::Busy;
    driver_expected_ = true;
    setPollableInterest(false);
    // The clock is read once an iteration; a drive that ends within one costs no reading of its own.
    spin_.restart();
    TimePoint deadline{};
    bool finished = done();
    while (!finished && !stopping_.load(std::memory_order_relaxed)) {
        const bool moved = iterate() == Progress::Moved;
        if (deadline == TimePoint{}) deadline = saturatedAdd(iterated_at_, timeout);
        holdOffThread();
        finished = done();
        if (finished) break;
        if (moved) {
            spin_.restart();
            continue;
        }
        const TimePoint now = Clock::now();
        if (now >= deadline) {
            driver_expected_ = false;
            break;
        }
        if (!spin_.goesOn(now)) {
            sleepAsDriver(deadline);
            spin_.restart();
        }
    }
    releaseTurnAfterDriving();
    return finished ? Drive::Done : Drive::TimedOut;
}

template <class Actor, class Message>
void Loop::deliver(TimePoint now, Actor& to, Message message) {
    if (!options_.drivable || onTurn()) return tell(to, message);
    const bool share =
        waits_follow_.load(std::memory_order_relaxed) && parked_.load(std::memory_order_relaxed) == Sleep::Standby;
    // With the turn held nobody sleeps on the inbox, so a message rings no bell.
    if (!tryTakeTurn()) return tell(to, message);
    iterated_at_ = now;
    if (share) {
        noteDeliver(now);
        tell(to, message, Actor::After::NextIteration);
        if (sleepStandby(now)) return giveTurnBack();
        iterate();
    } else {
        tell(to, message);
        iterate();
        noteDeliver(Clock::now());
    }
    releaseTurnAfterDriving();
}

}  // namespace troupe
