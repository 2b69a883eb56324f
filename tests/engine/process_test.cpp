// Transfers to a real peer process: one that stops, dies and comes back.

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <csignal>
#include <optional>
#include <sstream>
#include <thread>

#include <caf/send.hpp>

#include "apps/support/child_process.h"
#include "base/endpoint.h"
#include "engine/actor_api.h"
#include "tests/support/engine_pair.h"
#include "tests/support/standstill.h"

namespace troupe::test {
namespace {

constexpr std::size_t kBytes = 32u << 20;

/// A peer_process; killed with the test.
class PeerProcess {
  public:
    explicit PeerProcess(std::uint16_t port = 0) {
        auto child = apps::ChildProcess::start({TROUPE_PEER_PROCESS, std::to_string(kBytes), std::to_string(port)});
        EXPECT_TRUE(child) << child.status().toString();
        if (!child) return;
        child_.emplace(std::move(*child));
        const auto line = child_->readLine(kPatience);
        EXPECT_TRUE(line) << line.status().toString();
        if (line) std::istringstream(*line) >> segment_ >> address_;
    }

    const std::string& segment() const { return segment_; }
    std::uint64_t address() const { return address_; }
    std::uint16_t port() const { return Endpoint::parse(segment_)->port; }
    void proceed() { child_->signal(SIGCONT); }
    void stop() { bringToStandstill(*child_); }
    void end() {
        child_->closeInput();
        EXPECT_EQ(*child_->wait(kPatience), 0);
    }
    void kill() {
        child_->signal(SIGKILL);
        EXPECT_EQ(*child_->wait(kPatience), 128 + SIGKILL);
    }

  private:
    std::optional<apps::ChildProcess> child_;
    std::string segment_;
    std::uint64_t address_ = 0;
};

/// An initiator and a peer in another process.
class Process : public testing::Test {
  protected:
    Process() { begin(patient()); }

    /// A peer that is stopped for as long as this test is held up stays one that is up.
    static EngineSetup patient() {
        EngineSetup setup;
        setup.config.keepalive_timeout = std::chrono::milliseconds(kPatience);
        return setup;
    }
    void begin(const EngineSetup& setup) {
        engine_ = startEngine(setup);
        EXPECT_TRUE(engine_->registerLocalMemory(local_.data(), local_.size()));
        peer_.emplace();
        const auto segment = engine_->openSegment(peer_->segment());
        EXPECT_TRUE(segment) << segment.status().toString();
        if (segment) segment_ = *segment;
    }
    TransferRequest request(Opcode opcode, std::size_t offset, std::size_t length) {
        return makeRequest(opcode, segment_, local_.data() + offset, peer_->address() + offset, length);
    }
    TransferStatus write(std::size_t length) { return runBatch(*engine_, {request(Opcode::Write, 0, length)}); }

    /// Transfers until one works again; within patience.
    TransferStatus writeUntilItWorks(std::size_t length) {
        const auto limit = Clock::now() + kPatience;
        for (;;) {
            // A peer that has just come back may not have installed its transport yet: then it takes no submit.
            BatchHolder batch(*engine_, 1);
            TransferStatus status;
            if (batch.submit({request(Opcode::Write, 0, length)})) status = batch.wait();
            if (status.s == TransferStatusEnum::COMPLETED || Clock::now() > limit) return status;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }

    Buffer local_{kBytes};
    std::unique_ptr<TransferEngine> engine_;
    std::optional<PeerProcess> peer_;
    SegmentID segment_ = kInvalidSegmentID;
};

TEST_F(Process, BytesGoOverAndComeBack) {
    local_.fillPattern(1);
    expectCompleted(write(kBytes), kBytes);
    local_.fill(std::byte{0});
    expectCompleted(runBatch(*engine_, {request(Opcode::Read, 0, kBytes)}), kBytes);
    EXPECT_TRUE(local_.holdsPattern(1));
}

TEST_F(Process, CancelingWhatAStoppedPeerHoldsUpEndsItAndFreesTheBuffer) {
    expectCompleted(write(4096), 4096);
    peer_->stop();
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        SCOPED_TRACE(opcode == Opcode::Write ? "write" : "read");
        BatchHolder batch(*engine_, 3);
        ASSERT_TRUE(batch.submit({request(opcode, 0, kBytes), request(opcode, 0, 64), request(opcode, 64, 64)}));
        ASSERT_TRUE(engine_->cancelTransfer(batch.id(), 1));
        while (!isTerminal(batch.task(1).s)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(batch.task(1).s, TransferStatusEnum::CANCELED) << batch.task(1).error.toString();
        EXPECT_EQ(batch.task(0).s, TransferStatusEnum::PENDING);
        EXPECT_EQ(batch.task(2).s, TransferStatusEnum::PENDING) << "its neighbour goes on";
        ASSERT_TRUE(engine_->cancelTransfer(batch.id()));
        const auto status = batch.wait();
        local_.protect(PROT_NONE);
        local_.protect(PROT_READ | PROT_WRITE);
        EXPECT_EQ(status.s, TransferStatusEnum::CANCELED);
        EXPECT_TRUE(status.quiesced);
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.task(i).error.code(), Code::Canceled);
        EXPECT_TRUE(engine_->cancelTransfer(batch.id())) << "nothing is left to cancel";
        EXPECT_EQ(engine_->cancelTransfer(batch.id(), 3).code(), Code::InvalidArgument);
    }
    EXPECT_EQ(engine_->cancelTransfer(0).code(), Code::StaleHandle);
    peer_->proceed();
    local_.fillPattern(5);
    expectCompleted(writeUntilItWorks(kBytes), kBytes);
    local_.fill(std::byte{0});
    expectCompleted(runBatch(*engine_, {request(Opcode::Read, 0, kBytes)}), kBytes);
    EXPECT_TRUE(local_.holdsPattern(5));
}

TEST_F(Process, ADeadlineAgainstAStoppedPeerIsATimeoutAndQuiesced) {
    expectCompleted(write(4096), 4096);
    peer_->stop();
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        SCOPED_TRACE(opcode == Opcode::Write ? "write" : "read");
        BatchHolder batch(*engine_, 2);
        auto large = request(opcode, 0, kBytes);
        large.deadline = Clock::now() + std::chrono::milliseconds(200);
        auto small = request(opcode, 0, 64);
        small.deadline = large.deadline;
        ASSERT_TRUE(batch.submit({large, small}));
        const auto status = batch.wait();
        local_.protect(PROT_NONE);
        local_.protect(PROT_READ | PROT_WRITE);
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(batch.task(i).s, TransferStatusEnum::TIMEOUT) << batch.task(i).error.toString();
            EXPECT_EQ(batch.task(i).error.code(), Code::Timeout);
            EXPECT_TRUE(batch.task(i).quiesced);
        }
        EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT);
    }
    peer_->proceed();
    local_.fillPattern(2);
    expectCompleted(writeUntilItWorks(kBytes), kBytes);
    local_.fill(std::byte{0});
    expectCompleted(runBatch(*engine_, {request(Opcode::Read, 0, kBytes)}), kBytes);
    EXPECT_TRUE(local_.holdsPattern(2));
}

TEST_F(Process, ARequestWithoutADeadlineHasTheTransferTimeoutOfTheConfig) {
    static_assert(kDefaultDeadline == kForever, "programs that say kForever mean the same");
    EngineSetup setup = patient();
    setup.config.transfer_timeout = std::chrono::milliseconds(200);
    engine_.reset();
    begin(setup);
    auto plain = request(Opcode::Write, 0, kBytes);
    EXPECT_EQ(plain.deadline, kDefaultDeadline);
    auto patient = plain;
    patient.deadline = Clock::now() + std::chrono::hours(24);
    peer_->stop();
    BatchHolder batch(*engine_, 2);
    ASSERT_TRUE(batch.submit({plain, patient}));
    while (!isTerminal(batch.task(0).s)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(batch.task(0).s, TransferStatusEnum::TIMEOUT) << batch.task(0).error.toString();
    EXPECT_EQ(batch.task(1).s, TransferStatusEnum::PENDING) << batch.task(1).error.toString();
    peer_->proceed();
}

TEST_F(Process, TheLogSaysNothingOfTheWayToAPeerThatEndedInOrder) {
    std::ostringstream text;
    EngineSetup setup = patient();
    setup.config.host_peers = true;
    setup.options.log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    setup.options.log->set_level(spdlog::level::info);
    engine_.reset();
    begin(setup);
    expectCompleted(write(4096), 4096);
    if (engine_->explainSegment(segment_)->transport != "host")
        GTEST_SKIP() << "this process may not copy from and to others";
    peer_->end();
    const auto limit = Clock::now() + kPatience;
    while (engine_->probePeerAliveByID(segment_, kPatience).code() != Code::PeerDown && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 3; ++i) {
        BatchHolder batch(*engine_, 1);
        if (batch.submit({request(Opcode::Write, 0, 64)})) {
            EXPECT_EQ(batch.wait().s, TransferStatusEnum::FAILED);
        }
    }
    EXPECT_TRUE(engine_->freeEngine());
    EXPECT_THAT(text.str(), testing::HasSubstr("goes by host"));
    EXPECT_THAT(text.str(), testing::Not(testing::HasSubstr("goes by tcp"))) << "of course nobody listens there";
}

TEST_F(Process, AProbeOfAStoppedPeerIsATimeoutAndOfAKilledOneAnError) {
    EXPECT_TRUE(engine_->probePeerAliveByID(segment_, kPatience));
    peer_->stop();
    const Status stopped = engine_->probePeerAliveByID(segment_, std::chrono::milliseconds(200));
    expectCode(stopped, Code::Timeout);
    peer_->proceed();
    const auto limit = Clock::now() + kPatience;
    while (!engine_->probePeerAliveByID(segment_) && Clock::now() < limit) {
    }
    EXPECT_TRUE(engine_->probePeerAliveByID(segment_, kPatience));
    peer_->kill();
    const Status dead = engine_->probePeerAliveByID(segment_);
    EXPECT_TRUE(dead.code() == Code::PeerDown || dead.code() == Code::Timeout) << dead.toString();
}

TEST_F(Process, WhatIsSubmittedToAPeerThatIsSilentAndDownEndsWithThatToo) {
    EngineSetup setup = patient();
    setup.config.keepalive_timeout = Config().keepalive_timeout;
    engine_.reset();
    begin(setup);
    peer_->stop();
    expectCode(write(kBytes).error, Code::PeerDown);
    // By itself it would try each transport again and again, and end with the last of their time-outs.
    expectCode(write(64).error, Code::PeerDown);
    peer_->proceed();
    expectCompleted(writeUntilItWorks(64), 64);
}

TEST_F(Process, AKilledPeerFailsEveryTaskWithACause) {
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        SCOPED_TRACE(opcode == Opcode::Write ? "write" : "read");
        constexpr std::size_t kTasks = 64;
        BatchHolder batch(*engine_, kTasks);
        ASSERT_TRUE(batch.submit(std::vector<TransferRequest>(kTasks, request(opcode, 0, kBytes))));
        const auto limit = Clock::now() + kPatience;
        while (batch.task(0).transferred_bytes == 0 && Clock::now() < limit) std::this_thread::yield();
        peer_->kill();
        const auto status = batch.wait();
        local_.protect(PROT_NONE);
        local_.protect(PROT_READ | PROT_WRITE);
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED) << toString(status.s) << status.error.toString();
        EXPECT_FALSE(status.error.message().empty());
        for (std::size_t i = 0; i < kTasks; ++i) {
            const auto task = batch.task(i);
            ASSERT_TRUE(isTerminal(task.s));
            if (task.s == TransferStatusEnum::COMPLETED) continue;
            EXPECT_EQ(task.s, TransferStatusEnum::FAILED) << toString(task.s);
            EXPECT_THAT(task.error.code(),
                        testing::AnyOf(Code::ConnectionLost, Code::ConnectionRefused, Code::PeerDown))
                << task.error.toString();
            EXPECT_TRUE(task.quiesced);
        }
        // Later work fails too instead of hanging.
        EXPECT_EQ(write(4096).s, TransferStatusEnum::FAILED);
        const std::uint16_t port = peer_->port();
        peer_.emplace(port);
        expectCompleted(writeUntilItWorks(4096), 4096);
    }
}

TEST_F(Process, APeerRestartedOnTheSamePortIsUsedAgainWithoutReopening) {
    const std::uint16_t port = peer_->port();
    for (int round = 0; round < 3; ++round) {
        local_.fillPattern(static_cast<std::uint64_t>(round));
        expectCompleted(writeUntilItWorks(kBytes), kBytes);
        const auto before = (*engine_->getSegmentDescByID(segment_))->incarnation;
        peer_->kill();
        peer_.emplace(port);
        local_.fillPattern(static_cast<std::uint64_t>(round) + 100);
        expectCompleted(writeUntilItWorks(kBytes), kBytes);
        EXPECT_NE((*engine_->getSegmentDescByID(segment_))->incarnation, before);
        local_.fill(std::byte{0});
        expectCompleted(runBatch(*engine_, {request(Opcode::Read, 0, kBytes)}), kBytes);
        EXPECT_TRUE(local_.holdsPattern(static_cast<std::uint64_t>(round) + 100));
    }
}

TEST_F(Process, ARestartWhileIdleIsNoticedByTheNextTransfer) {
    expectCompleted(write(4096), 4096);
    const std::uint16_t port = peer_->port();
    peer_->kill();
    peer_.emplace(port);
    expectCompleted(writeUntilItWorks(4096), 4096);
}

TEST_F(Process, OpenOfASilentlyStoppedPeerEndsInTime) {
    EngineSetup setup;
    setup.config.open_timeout = std::chrono::milliseconds(500);
    const auto late = startEngine(setup);
    peer_->stop();
    EXPECT_FALSE(late->openSegment(peer_->segment()));
    peer_->proceed();
    EXPECT_TRUE(engine_->probePeerAliveByID(segment_, kPatience));
}

class StuckUnregister : public Process {
  protected:
    StuckUnregister() {
        EngineSetup setup = patient();
        setup.config.unregister_timeout = std::chrono::milliseconds(200);
        begin(setup);
    }
};

TEST_F(StuckUnregister, PastTheBoundIsBusyAndNamesTheBatches) {
    expectCompleted(write(4096), 4096);
    peer_->stop();
    {
        BatchHolder batch(*engine_, 2);
        ASSERT_TRUE(batch.submit({request(Opcode::Write, 0, kBytes)}));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The engine has taken it on.
        const Status stuck = engine_->unregisterLocalMemory(local_.data());
        expectCode(stuck, Code::BatchBusy);
        EXPECT_THAT(stuck.message(), testing::HasSubstr(std::to_string(batch.id())));
        // The region stays registered: new work on it is accepted.
        EXPECT_TRUE(batch.submit({request(Opcode::Write, 0, 64)}));
        peer_->proceed();
        const auto status = batch.wait();
        EXPECT_TRUE(status.s == TransferStatusEnum::COMPLETED || status.s == TransferStatusEnum::FAILED);
    }
    EXPECT_TRUE(engine_->unregisterLocalMemory(local_.data()));
}

TEST_F(StuckUnregister, FreeEngineDoesNotWaitForAnUnregisterOfTheActorApi) {
    EngineSetup setup = patient();
    setup.config.unregister_timeout = std::chrono::minutes(10);
    peer_.reset();
    begin(setup);
    expectCompleted(write(4096), 4096);
    peer_->stop();
    BatchHolder batch(*engine_, 1);
    ASSERT_TRUE(batch.submit({request(Opcode::Write, 0, kBytes)}));
    ActorApi* const api = engine_->actorApi();
    caf::anon_send(api->actor(), UnregisterMemory{local_.data()});
    // It is under way when the region is out of reach for new work.
    const auto limit = Clock::now() + kPatience;
    const auto probe = makeRequest(Opcode::Write, kLocalSegmentID, local_.data(), 8, 8);
    for (Status refused; refused.code() != Code::AddressNotRegistered && Clock::now() < limit;) {
        BatchHolder again(*engine_, 1);
        refused = again.submit({probe});
    }
    // Within the time-out of this test, not the ten minutes.
    EXPECT_TRUE(engine_->freeEngine());
    EXPECT_NE(api->actor(), nullptr) << "the object lives as long as the engine's";
}

TEST_F(StuckUnregister, NewWorkIsRefusedWhileItWaits) {
    EngineSetup setup = patient();
    setup.config.unregister_timeout = std::chrono::milliseconds(kPatience);
    peer_.reset();
    begin(setup);
    expectCompleted(write(4096), 4096);
    peer_->stop();
    BatchHolder batch(*engine_, 2);
    ASSERT_TRUE(batch.submit({request(Opcode::Write, 0, kBytes)}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The engine has taken it on.
    Status unregistered;
    std::thread other([&] { unregistered = engine_->unregisterLocalMemory(local_.data()); });
    BatchHolder later(*engine_, 1);
    const auto limit = Clock::now() + kPatience;
    const auto probe = makeRequest(Opcode::Write, kLocalSegmentID, local_.data(), 8, 8);
    // Refused as soon as the other thread began.
    Status refused = later.submit({probe});
    while (refused.code() != Code::AddressNotRegistered && Clock::now() < limit) {
        BatchHolder again(*engine_, 1);
        refused = again.submit({probe});
    }
    expectCode(refused, Code::AddressNotRegistered);
    expectCode(engine_->unregisterLocalMemory(local_.data()), Code::BatchBusy);
    expectCode(engine_->registerLocalMemory(local_.data(), 16), Code::AddressOverlapped);
    peer_->proceed();
    other.join();
    EXPECT_TRUE(unregistered) << unregistered.toString();
    EXPECT_TRUE(isTerminal(batch.task(0).s));
}

TEST_F(Process, FreeEngineWithAStoppedPeerEndsInBoundedTimeAndCancels) {
    expectCompleted(write(4096), 4096);
    peer_->stop();
    const auto batch = *engine_->allocateBatchID(2);
    ASSERT_TRUE(engine_->submitTransfer(batch, {request(Opcode::Write, 0, kBytes), request(Opcode::Read, 0, 64)}));
    std::optional<Result<TransferStatus>> seen;
    std::atomic<bool> waiting{false};
    std::thread waiter([&] {
        waiting = true;
        seen.emplace(engine_->waitTransfer(batch, kPatience));
    });
    while (!waiting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_TRUE(engine_->freeEngine());
    local_.protect(PROT_NONE);
    local_.protect(PROT_READ | PROT_WRITE);
    waiter.join();
    ASSERT_TRUE(seen.has_value());
    if (*seen) {
        EXPECT_EQ((*seen)->s, TransferStatusEnum::CANCELED) << (*seen)->error.toString();
        EXPECT_EQ((*seen)->error.code(), Code::Canceled);
        EXPECT_TRUE((*seen)->quiesced);
    }
    peer_->proceed();
}

}  // namespace
}  // namespace troupe::test
