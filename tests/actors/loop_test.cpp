#include "actors/loop.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <future>
#include <new>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/behavior.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>

#include "actors/hosted_actor.h"
#include "base/cpu.h"

namespace troupe::test {
namespace {

constexpr auto kNoTime = std::chrono::microseconds(0);

constexpr std::chrono::seconds kPatience{60};

template <class Done>
bool eventually(Done&& done) {
    const TimePoint limit = Clock::now() + kPatience;
    while (!done()) {
        if (Clock::now() > limit) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
}

caf::actor_system_config& oneThread(caf::actor_system_config& config) {
    config.set("scheduler.max-threads", 1);
    return config;
}

/// Adds up what it is sent; checks that it never runs twice at once and only on its loop's turn.
class Adder final : public HostedActor {
  public:
    struct Seen {
        std::atomic<std::uint64_t> sum{0};
        std::atomic<int> wrong{0};
        std::atomic<int> batches{0};
        std::atomic<std::thread::id> last_thread{};
        std::uint64_t unguarded = 0;  ///< Touched without a lock: one owner.
    };
    Adder(caf::actor_config& config, Loop& loop, Seen& seen)
        : HostedActor(config, loop, makeSilentLogger()), seen_(seen) {}

    void handle(const std::uint64_t& value) {
        if (busy_.exchange(true)) ++seen_.wrong;
        if (!loop().onTurn()) ++seen_.wrong;
        if (value == kThrows) {
            busy_ = false;
            throw std::runtime_error("told to");
        }
        seen_.unguarded += value;
        seen_.last_thread = std::this_thread::get_id();
        seen_.sum.store(seen_.unguarded);
        busy_ = false;
    }
    static constexpr std::uint64_t kThrows = UINT64_MAX;

  protected:
    caf::behavior make_behavior() override {
        return {[this](std::uint64_t value) { handle(value); }};
    }
    void afterMessages() override { ++seen_.batches; }

  private:
    Seen& seen_;
    std::atomic<bool> busy_{false};
};

/// Sees whether its loop polls on for longer than it may after work that this one had.
class SpinWatch final : public Pollable {
  public:
    explicit SpinWatch(Duration longest) : longest_(longest), fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
    void poke() {
        const std::uint64_t one = 1;
        EXPECT_EQ(::write(fd_.get(), &one, sizeof one), 8);
    }
    bool poll(TimePoint now) override {
        std::uint64_t value = 0;
        if (::read(fd_.get(), &value, sizeof value) == 8) {
            quiet_.clear();
            worked_ = true;
            return true;
        }
        if (worked_) quiet_.push_back(now);
        return false;
    }
    /// The loop looks at its clock after each quiet poll: the first time before the second poll begins, and the last
    /// time that it decided to poll on after the last but one had begun. So these two are closer together than it may
    /// spin, however long it stood still in between.
    bool arm() override {
        if (quiet_.size() >= 3 && quiet_[quiet_.size() - 2] - quiet_[1] >= longest_) ++too_long;
        most_polls = std::max(most_polls.load(), quiet_.size());
        quiet_.clear();
        worked_ = false;
        ++sleeps;
        return true;
    }
    int waitFd() const override { return fd_.get(); }
    TimePoint nextDeadline() const override { return kForever; }

    std::atomic<std::uint64_t> sleeps{0};
    std::atomic<std::uint64_t> too_long{0};
    std::atomic<std::size_t> most_polls{0};

  private:
    const Duration longest_;
    bool worked_ = false;
    std::vector<TimePoint> quiet_;  ///< Polls that found nothing, since there was work.
    UniqueFd fd_;
};

/// Counts its polls; has something to do when its descriptor was written to.
class Poked final : public Pollable {
  public:
    Poked() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
    void poke() {
        const std::uint64_t one = 1;
        EXPECT_EQ(::write(fd_.get(), &one, sizeof one), 8);
    }
    bool poll(TimePoint) override {
        std::uint64_t value = 0;
        if (::read(fd_.get(), &value, sizeof value) != 8) return false;
        seen += value;
        return true;
    }
    bool arm() override { return true; }
    int waitFd() const override { return fd_.get(); }
    TimePoint nextDeadline() const override { return kForever; }

    std::atomic<std::uint64_t> seen{0};

  private:
    UniqueFd fd_;
};

class LoopTest : public testing::TestWithParam<bool> {
  protected:
    static constexpr std::chrono::microseconds kSpin{20};

    explicit LoopTest(Duration spin = kSpin) {
        Loop::Options options;
        options.name = "test.loop";
        options.spin = spin;
        options.drivable = GetParam();
        options.drive_grace = std::chrono::microseconds(100);
        loop_ = std::make_unique<Loop>(system_, options);
        EXPECT_TRUE(loop_->start());
    }
    ~LoopTest() override {
        for (const caf::actor& actor : actors_) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
        actors_.clear();
        // Ends when the loop has seen the exits.
        if (!ended_) onTurn([] {});
        loop_->stop();
    }

    /// `seen` is one of newSeen(): actors write to it until the loop stops.
    caf::actor spawnAdder(Adder::Seen& seen) {
        actors_.push_back(spawnHosted<Adder>(*loop_, seen));
        return actors_.back();
    }
    Adder::Seen& newSeen() { return seen_.emplace_back(); }
    /// Runs `work` on the loop's turn and waits for it.
    template <class Work>
    void onTurn(Work&& work) {
        std::promise<void> done;
        loop_->post([&] {
            work();
            done.set_value();
        });
        ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    }

    // What actors write to outlives the loop.
    std::deque<Adder::Seen> seen_;
    std::vector<std::uint64_t> values_;
    std::atomic<int> ends_{0};
    caf::actor_system_config config_;
    caf::actor_system system_{oneThread(config_)};
    std::unique_ptr<Loop> loop_;
    std::vector<caf::actor> actors_;
    bool ended_ = false;
};

TEST_P(LoopTest, PostedWorkRunsOnceAndOnTheTurn) {
    constexpr int kEach = 2000;
    int count = 0;  // Guarded by the turn.
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < kEach; ++i)
                loop_->post([&] {
                    if (!loop_->onTurn()) ++wrong;
                    ++count;
                });
        });
    for (auto& thread : threads) thread.join();
    EXPECT_FALSE(loop_->onTurn());
    onTurn([&] { EXPECT_EQ(count, 4 * kEach); });
    EXPECT_EQ(wrong, 0);
}

TEST_P(LoopTest, TimersFireInOrderOnceAndNotAfterACancel) {
    std::vector<int> fired;
    onTurn([&] {
        const TimePoint now = loop_->now();
        loop_->runAt(now + std::chrono::milliseconds(6), [&] { fired.push_back(3); });
        loop_->runAt(now + std::chrono::milliseconds(2), [&] { fired.push_back(1); });
        loop_->runAt(now + std::chrono::milliseconds(4), [&] { fired.push_back(2); });
        const auto never = loop_->runAt(now + std::chrono::milliseconds(3), [&] { fired.push_back(99); });
        loop_->cancelTimer(never);
        loop_->cancelTimer(never);
        loop_->cancelTimer(123456);
        loop_->runAt(now - std::chrono::seconds(1), [&] { fired.push_back(0); });
    });
    std::size_t count = 0;
    EXPECT_TRUE(eventually([&] {
        onTurn([&] { count = fired.size(); });
        return count >= 4;
    }));
    EXPECT_THAT(fired, testing::ElementsAre(0, 1, 2, 3));
}

TEST_P(LoopTest, ATimerMaySetAndCancelTimers) {
    std::atomic<int> fired{0};
    onTurn([&] {
        loop_->runAt(loop_->now(), [&] {
            const auto doomed = loop_->runAt(loop_->now(), [&] { fired += 100; });
            loop_->cancelTimer(doomed);
            loop_->runAt(loop_->now() + std::chrono::milliseconds(1), [&] { ++fired; });
            ++fired;
        });
    });
    EXPECT_TRUE(eventually([&] { return fired >= 2; }));
    onTurn([] {});
    EXPECT_EQ(fired, 2);
}

TEST_P(LoopTest, WatchedDescriptorsWakeItUntilTheyAreUnwatched) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const UniqueFd out(ends[0]);
    const UniqueFd in(ends[1]);
    std::atomic<int> got{0};
    onTurn([&] {
        loop_->watch(out.get(), EPOLLIN, [&](std::uint32_t events) {
            EXPECT_TRUE(events & EPOLLIN);
            char byte = 0;
            EXPECT_EQ(::read(out.get(), &byte, 1), 1);
            ++got;
            // From within: another callback for the same descriptor, which ends itself.
            loop_->watch(out.get(), EPOLLIN, [&](std::uint32_t) {
                char next = 0;
                EXPECT_EQ(::read(out.get(), &next, 1), 1);
                got += 10;
                loop_->unwatch(out.get());
            });
        });
    });
    ASSERT_EQ(::write(in.get(), "a", 1), 1);
    EXPECT_TRUE(eventually([&] { return got == 1; }));
    ASSERT_EQ(::write(in.get(), "b", 1), 1);
    EXPECT_TRUE(eventually([&] { return got == 11; }));
    ASSERT_EQ(::write(in.get(), "c", 1), 1);
    onTurn([&] { loop_->unwatch(out.get()); });
    onTurn([] {});
    EXPECT_EQ(got, 11);
}

TEST_P(LoopTest, RunsItsActorsAndTellsThemOfTheEndOfARun) {
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    for (std::uint64_t i = 1; i <= 1000; ++i) caf::anon_send(adder, i);
    EXPECT_TRUE(eventually([&] { return seen.sum == 500500; }));
    EXPECT_TRUE(eventually([&] { return seen.batches > 0; }));
    EXPECT_EQ(seen.wrong, 0);
}

TEST_P(LoopTest, DeliverRunsTheActorInTheCallersThreadWhenItMayDrive) {
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    onTurn([] {});
    bool in_my_thread = false;
    for (int i = 0; i < 1000 && !in_my_thread; ++i) {
        const std::uint64_t before = seen.sum;
        loop_->deliver(Clock::now(), *caf::actor_cast<Adder*>(adder), std::uint64_t{1});
        ASSERT_TRUE(eventually([&] { return seen.sum == before + 1; }));
        in_my_thread = seen.last_thread.load() == std::this_thread::get_id();
        if (!GetParam()) {
            EXPECT_FALSE(in_my_thread);
        }
    }
    EXPECT_EQ(in_my_thread, GetParam());
}

TEST_P(LoopTest, HelpAndDriveUntilOnTheTurnDoNothing) {
    onTurn([&] {
        loop_->help();
        EXPECT_EQ(loop_->driveUntil([] { return false; }, kNoTime), Loop::Drive::Busy);
        EXPECT_TRUE(loop_->onTurn());
    });
}

TEST_P(LoopTest, DriveUntilEndsAtItsTimeoutWhenNothingMoves) {
    const auto end = loop_->driveUntil([] { return false; }, std::chrono::milliseconds(2));
    EXPECT_NE(end, Loop::Drive::Done);
    if (!GetParam()) {
        EXPECT_EQ(end, Loop::Drive::Busy);
    }
    // The loop goes on by itself afterwards.
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    caf::anon_send(adder, std::uint64_t{5});
    EXPECT_TRUE(eventually([&] { return seen.sum == 5; }));
}

/// Notes the order in which values come, whichever way they come.
class Listing final : public HostedActor {
  public:
    Listing(caf::actor_config& config, Loop& loop, std::vector<std::uint64_t>& values, std::atomic<int>& ends)
        : HostedActor(config, loop, makeSilentLogger()), values_(values), ends_(ends) {}
    void handle(const std::uint64_t& value) {
        values_.push_back(value);
        if (value == kEcho) {
            // Of a handler's own messages to itself none may overtake it or run inside it.
            std::uint64_t next = kEcho + 1;
            tell(*this, next);
            values_.push_back(kEcho);
        }
    }
    static constexpr std::uint64_t kEcho = 1000;

  protected:
    caf::behavior make_behavior() override {
        return {[this](std::uint64_t value) { handle(value); }};
    }
    void afterMessages() override { ++ends_; }

  private:
    std::vector<std::uint64_t>& values_;
    std::atomic<int>& ends_;
};

TEST_P(LoopTest, InPlaceOrThroughTheMailboxTheOrderIsThatOfSending) {
    std::vector<std::uint64_t>& values = values_;
    const auto actor = spawnHosted<Listing>(*loop_, values, ends_);
    actors_.push_back(actor);
    auto& listing = *caf::actor_cast<Listing*>(actor);
    onTurn([] {});
    onTurn([&] {
        const auto say = [&](std::uint64_t value) { tell(listing, value); };
        say(1);
        EXPECT_EQ(values, (std::vector<std::uint64_t>{1})) << "nothing waits, so it is handled in place";
        say(2);
        caf::anon_send(actor, std::uint64_t{3});
        say(4);
        EXPECT_EQ(values, (std::vector<std::uint64_t>{1, 2})) << "4 must not overtake 3";
    });
    onTurn([&] { EXPECT_EQ(values, (std::vector<std::uint64_t>{1, 2, 3, 4})); });
    onTurn([&] {
        std::uint64_t echo = Listing::kEcho;
        tell(listing, echo);
        EXPECT_EQ(values.size(), 6u);
    });
    onTurn([&] {
        EXPECT_EQ(values, (std::vector<std::uint64_t>{1, 2, 3, 4, Listing::kEcho, Listing::kEcho, Listing::kEcho + 1}));
    });
}

TEST_P(LoopTest, AfterMessagesThatIsPutOffComesWithTheNextIteration) {
    const auto actor = spawnHosted<Listing>(*loop_, values_, ends_);
    actors_.push_back(actor);
    auto& listing = *caf::actor_cast<Listing*>(actor);
    onTurn([] {});
    int before = 0;
    onTurn([&] {
        before = ends_;
        for (std::uint64_t i = 0; i < 10; ++i) tell(listing, i, HostedActor::After::NextIteration);
        EXPECT_EQ(values_.size(), 10u);
        EXPECT_EQ(ends_, before);
    });
    EXPECT_TRUE(eventually([&] { return ends_ == before + 1; }));
}

TEST_P(LoopTest, AnExceptionInPlaceEndsTheActorAndTheMessagesAfterItAreDropped) {
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    onTurn([] {});
    std::atomic<bool> ended{false};
    adder->attach_functor([&](const caf::error&) { ended = true; });
    onTurn([&] {
        std::uint64_t bad = Adder::kThrows;
        tell(*caf::actor_cast<Adder*>(adder), bad);
    });
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
    onTurn([&] {
        std::uint64_t late = 1;
        tell(*caf::actor_cast<Adder*>(adder), late);
    });
    onTurn([] {});
    EXPECT_EQ(seen.sum, 0u);
}

/// Sets up what it is told to, all of which throws.
class Thrower final : public HostedActor {
  public:
    enum Where : std::uint64_t { Posted, Timer, Descriptor, WithinATimer, Home, AtEnd, Handler };

    Thrower(caf::actor_config& config, Loop& loop, Logger log = makeSilentLogger())
        : HostedActor(config, loop, std::move(log)), bell_(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)) {}

    void setUp(Where where) {
        switch (where) {
            case Posted: return loop().post([] { throw std::runtime_error("posted"); });
            case Timer: return static_cast<void>(loop().runAt(loop().now(), [] { throw 1; }));
            case Descriptor: return loop().watch(bell_.get(), EPOLLIN, [](std::uint32_t) { throw std::bad_alloc(); });
            case WithinATimer: loop().runAt(loop().now(), [this] { loop().post([] { throw 1; }); }); return;
            case Home: return std::thread([home = home()] { home.post([] { throw 1; }); }).join();
            case AtEnd: throws_at_end_ = true; return quit(caf::exit_reason::user_shutdown);
            case Handler: throw 1;
        }
    }

  protected:
    caf::behavior make_behavior() override {
        return {[this](std::uint64_t where) { setUp(static_cast<Where>(where)); }};
    }
    void atEnd() override {
        loop().unwatch(bell_.get());
        if (throws_at_end_) throw std::runtime_error("at its end");
    }

  private:
    UniqueFd bell_;
    bool throws_at_end_ = false;
};

TEST_P(LoopTest, WhatAnActorHadTheLoopCallEndsItByAnExceptionAndNobodyElse) {
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    for (std::uint64_t where = Thrower::Posted; where <= Thrower::Handler; ++where) {
        std::promise<bool> by_defect;
        const auto thrower = spawnHosted<Thrower>(*loop_);
        thrower->attach_functor(
            [&](const caf::error& why) { by_defect.set_value(why && why != caf::exit_reason::user_shutdown); });
        caf::anon_send(thrower, where);
        auto ended = by_defect.get_future();
        ASSERT_EQ(ended.wait_for(kPatience), std::future_status::ready) << where;
        EXPECT_TRUE(ended.get()) << where;
        caf::anon_send(adder, std::uint64_t{1});
    }
    EXPECT_TRUE(eventually([&] { return seen.sum == Thrower::Handler + 1; }));
}

/// Throws at every message.
class ThrowingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  protected:
    void sink_it_(const spdlog::details::log_msg&) override { throw 1; }
    void flush_() override {}
};

TEST_P(LoopTest, AnActorWhoseLogThrowsTooEndsAsWell) {
    std::atomic<bool> ended{false};
    const auto thrower =
        spawnHosted<Thrower>(*loop_, std::make_shared<spdlog::logger>("throwing", std::make_shared<ThrowingSink>()));
    thrower->attach_functor([&](const caf::error&) { ended = true; });
    caf::anon_send(thrower, std::uint64_t{Thrower::Timer});
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
}

TEST_P(LoopTest, WhatAnExceptionEndsWhileACallerDrivesIsNotTheCallers) {
    std::atomic<bool> ended{false};
    const auto thrower = spawnHosted<Thrower>(*loop_);
    thrower->attach_functor([&](const caf::error&) { ended = true; });
    caf::anon_send(thrower, std::uint64_t{Thrower::Timer});
    const auto driven = loop_->driveUntil([&] { return ended.load(); }, kPatience);
    EXPECT_TRUE(driven == Loop::Drive::Done || driven == Loop::Drive::Busy);
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
    // Nobody has kept the turn.
    onTurn([] {});
}

/// Becomes the keeper.
class Keeper final : public HostedActor {
  public:
    Keeper(caf::actor_config& config, Loop& loop) : HostedActor(config, loop, makeSilentLogger()) {}

  protected:
    caf::behavior make_behavior() override {
        loop().keepBy(this);
        return {[](std::uint64_t) {}};
    }
};

TEST_P(LoopTest, WorkOfNobodyIsTheKeepersAndWithoutOneTheLogHearsOfIt) {
    std::ostringstream text;
    Loop::Options options;
    options.name = "test.kept";
    options.log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    Loop loop(system_, options);
    ASSERT_TRUE(loop.start());
    std::atomic<bool> ended{false};
    const auto keeper = spawnHosted<Keeper>(loop);
    keeper->attach_functor([&](const caf::error&) { ended = true; });
    std::promise<void> runs;
    loop.post([&] { runs.set_value(); });
    runs.get_future().wait();
    loop.post([] { throw std::runtime_error("of nobody"); });
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
    std::promise<void> gone;
    loop.post([] { throw std::runtime_error("and nobody keeps it"); });
    loop.post([&] { gone.set_value(); });
    gone.get_future().wait();
    loop.stop();
    EXPECT_NE(text.str().find("and nobody keeps it"), std::string::npos) << text.str();
    EXPECT_EQ(text.str().find("of nobody"), std::string::npos) << text.str();
}

TEST_P(LoopTest, AThreadThatDrivesAnotherLoopKeepsItsOwnTurn) {
    Loop::Options options;
    options.name = "test.other";
    options.drivable = true;
    Loop other(system_, options);
    ASSERT_TRUE(other.start());
    std::uint64_t drives = 0;
    onTurn([&] {
        for (int i = 0; i < 100; ++i) {
            other.help();
            if (other.driveUntil([] { return true; }, kNoTime) == Loop::Drive::Done) ++drives;
            EXPECT_TRUE(loop_->onTurn());
            EXPECT_FALSE(other.onTurn());
        }
    });
    EXPECT_GT(drives, 0u);
    other.stop();
}

TEST_P(LoopTest, PollablesWakeItWhoeverDroveItLast) {
    Poked poked;
    onTurn([&] { loop_->addPollable(&poked); });
    for (std::uint64_t i = 1; i <= 200; ++i) {
        // Leaves the loop on standby, armed, or in between.
        if (i % 3 == 0) loop_->help();
        if (i % 5 == 0) static_cast<void>(loop_->driveUntil([] { return false; }, kNoTime));
        if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        poked.poke();
        ASSERT_TRUE(eventually([&] { return poked.seen == i; })) << "lost after " << i;
    }
    onTurn([&] { loop_->removePollable(&poked); });
    poked.poke();
    onTurn([] {});
    EXPECT_EQ(poked.seen, 200u);
}

TEST_P(LoopTest, TimersFireOnTimeAfterADriverLeft) {
    for (int i = 0; i < 50; ++i) {
        std::atomic<bool> fired{false};
        onTurn([&] { loop_->runAt(loop_->now() + std::chrono::milliseconds(1), [&] { fired = true; }); });
        loop_->help();
        ASSERT_TRUE(eventually([&] { return fired.load(); }));
    }
}

TEST_P(LoopTest, FourThreadsRaceToDriveAndNothingIsLost) {
    constexpr int kThreads = 4;
    constexpr int kEach = 3000;
    std::vector<caf::actor> adders;
    for (int t = 0; t < kThreads; ++t) adders.push_back(spawnAdder(newSeen()));
    Poked poked;
    onTurn([&] { loop_->addPollable(&poked); });
    std::atomic<int> lost{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (std::uint64_t i = 1; i <= kEach; ++i) {
                const auto done = [&] { return seen_[static_cast<std::size_t>(t)].sum.load() == i; };
                if (i % 2 == 0)
                    loop_->deliver(Clock::now(), *caf::actor_cast<Adder*>(adders[static_cast<std::size_t>(t)]),
                                   std::uint64_t{1});
                else
                    caf::anon_send(adders[static_cast<std::size_t>(t)], std::uint64_t{1});
                if (i % 16 == 0) poked.poke();
                if (i % 3 == 0) loop_->help();
                if (loop_->driveUntil(done, kPatience) != Loop::Drive::Done && !eventually(done)) {
                    ++lost;
                    return;
                }
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(lost, 0);
    for (auto& one : seen_) {
        EXPECT_EQ(one.sum, static_cast<std::uint64_t>(kEach));
        EXPECT_EQ(one.wrong, 0);
    }
    EXPECT_TRUE(eventually([&] { return poked.seen == kThreads * (kEach / 16); }));
    onTurn([&] { loop_->removePollable(&poked); });
}

TEST_P(LoopTest, ActorsOfTheHostRunOnItsSchedulerNotHere) {
    std::atomic<bool> answered{false};
    std::atomic<bool> on_turn{false};
    const auto host = system_.spawn([&](caf::event_based_actor*) -> caf::behavior {
        return {[&](std::uint64_t) {
            on_turn = loop_->onTurn();
            answered = true;
        }};
    });
    onTurn([&] { caf::anon_send(host, std::uint64_t{1}); });
    EXPECT_TRUE(eventually([&] { return answered.load(); }));
    EXPECT_FALSE(on_turn);
    caf::anon_send_exit(host, caf::exit_reason::user_shutdown);
}

TEST_P(LoopTest, ADriverThatSleepsIsWokenByWorkAndByStop) {
    if (!GetParam()) return;  // Nobody drives such a loop.
    std::atomic<bool> done{false};
    std::thread driver([&] {
        while (!done) static_cast<void>(loop_->driveUntil([&] { return done.load(); }, kPatience));
    });
    Adder::Seen& seen = newSeen();
    const auto adder = spawnAdder(seen);
    for (std::uint64_t i = 1; i <= 20; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        caf::anon_send(adder, std::uint64_t{1});
        ASSERT_TRUE(eventually([&] { return seen.sum == i; }));
    }
    loop_->post([&] { done = true; });
    driver.join();
    for (const caf::actor& actor : actors_) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    actors_.clear();
    onTurn([] {});
    std::thread stopped([&] { static_cast<void>(loop_->driveUntil([] { return false; }, kPatience)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    loop_->stop();
    stopped.join();
    ended_ = true;
}

TEST_P(LoopTest, StopIsIdempotentAndEndsDrivers) {
    loop_->stop();
    loop_->stop();
    EXPECT_EQ(loop_->driveUntil([] { return false; }, kNoTime), Loop::Drive::Busy);
    loop_->help();
    ended_ = true;
}

/// One that spins for so long that it is seen to.
class SpinningLoopTest : public LoopTest {
  protected:
    static constexpr std::chrono::milliseconds kLongSpin{2};
    SpinningLoopTest() : LoopTest(kLongSpin) {}

    /// There is work each time that the loop has just gone to sleep, until it was seen to spin.
    void expectItSpinsAndSleeps(SpinWatch& watch) {
        constexpr int kTimes = 100;
        constexpr std::size_t kPolls = 10;
        const TimePoint limit = Clock::now() + kPatience;
        for (int i = 0; i < kTimes || (watch.most_polls < kPolls && Clock::now() < limit); ++i) {
            const std::uint64_t before = watch.sleeps;
            watch.poke();
            ASSERT_TRUE(eventually([&] { return watch.sleeps != before; })) << "it never sleeps";
        }
        EXPECT_GE(watch.most_polls, kPolls) << "it never spins";
        EXPECT_EQ(watch.too_long, 0u);
    }
};

TEST_P(SpinningLoopTest, SpinsAtMostThatLongAfterWorkAndThenSleeps) {
    SpinWatch watch(kLongSpin);
    onTurn([&] { loop_->addPollable(&watch); });
    expectItSpinsAndSleeps(watch);
    onTurn([&] { loop_->removePollable(&watch); });
}

TEST_P(SpinningLoopTest, ADriverSpinsAtMostThatLongAfterWorkAndThenSleeps) {
    if (!GetParam()) return;  // Nobody drives such a loop.
    SpinWatch watch(kLongSpin);
    onTurn([&] { loop_->addPollable(&watch); });
    std::atomic<bool> driving{false};
    std::atomic<bool> stop{false};
    std::thread driver([&] {
        const auto done = [&] {
            if (loop_->onTurn()) driving = true;
            return stop.load();
        };
        while (!stop) static_cast<void>(loop_->driveUntil(done, kPatience));
    });
    EXPECT_TRUE(eventually([&] { return driving.load(); }));
    expectItSpinsAndSleeps(watch);
    stop = true;
    watch.poke();
    driver.join();
    onTurn([&] { loop_->removePollable(&watch); });
}

INSTANTIATE_TEST_SUITE_P(Modes, LoopTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "Drivable" : "ByItsThreadAlone"; });
INSTANTIATE_TEST_SUITE_P(Modes, SpinningLoopTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "Drivable" : "ByItsThreadAlone"; });

}  // namespace
}  // namespace troupe::test
