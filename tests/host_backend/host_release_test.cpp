// What a process of this host was given is taken back when memory is unregistered, the transport uninstalled or the
// engine ended; and what is said when it is stopped and cannot let go.

#include <gmock/gmock.h>

#include <thread>

#include "base/byte_range.h"
#include "tests/host_backend/host_process_fixture.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

EngineSetup impatientSetup() {
    EngineSetup setup = hostSetup();
    setup.config.unregister_timeout = std::chrono::milliseconds(200);
    return setup;
}

class StoppedGrantee : public HostProcess {
  protected:
    StoppedGrantee() : HostProcess(impatientSetup()) {}
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoppedGrantee, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Mapped" : "Vm"; });

TEST_P(StoppedGrantee, KeepsTheRegionInQuarantineAndIsNamed) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->transfer("write", own(), 4096), "COMPLETED");
    peer_->stop();
    for (int attempt = 0; attempt < 2; ++attempt) {
        const Status held = release();
        EXPECT_EQ(held.code(), Code::BatchBusy);
        EXPECT_THAT(held.message(), HasSubstr("process " + std::to_string(peer_->pid())));
        EXPECT_THAT(held.message(), HasSubstr(ByteRange{own(), kBytes}.toString()));
    }
    EXPECT_EQ(engine_->registerLocalMemory(data_, 4096).code(), Code::AddressOverlapped) << "the range stays claimed";
    auto listed = engine_->quarantine();
    ASSERT_EQ(listed.entries.size(), 1u) << "once, however often it was asked for";
    EXPECT_EQ(listed.entries[0].range, (ByteRange{own(), kBytes}));
    EXPECT_EQ(listed.entries[0].region, (ByteRange{own(), kBytes}));
    EXPECT_THAT(listed.entries[0].holder, HasSubstr("process " + std::to_string(peer_->pid())));
    EXPECT_THAT(listed.entries[0].nic, StartsWith("host"));
    EXPECT_EQ(listed.bytes, kBytes);
    EXPECT_EQ(listed.proven, 0u);
    // Unregister failed and changed nothing: what is in it may be moved.
    const auto within = runBatch(*engine_, {makeRequest(Opcode::Write, kLocalSegmentID, data_, own(kBytes / 2), 4096)});
    EXPECT_EQ(within.s, TransferStatusEnum::COMPLETED) << within.error.toString();
    peer_->proceed();
    const auto leaves = Clock::now() + kPatience;
    do {
        listed = engine_->quarantine();
    } while (!listed.entries.empty() && Clock::now() < leaves);
    EXPECT_TRUE(listed.entries.empty()) << "it leaves by itself, as soon as the process lets go";
    EXPECT_EQ(listed.proven, listed.ever);
    Status released;
    const auto limit = Clock::now() + kPatience;
    do {
        released = release();
    } while (!released && Clock::now() < limit);
    EXPECT_TRUE(released) << released.toString();
    EXPECT_THAT(peer_->transfer("write", own(), 4096), StartsWith("FAILED AddressNotRegistered"));
}

TEST_P(StoppedGrantee, IsProvenGoneOnceItIsKilled) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->transfer("write", own(), 4096), "COMPLETED");
    peer_->stop();
    EXPECT_EQ(release().code(), Code::BatchBusy);
    EXPECT_EQ(engine_->quarantine().entries.size(), 1u);
    peer_->kill();
    const Status released = release();
    EXPECT_TRUE(released) << released.toString();
    EXPECT_TRUE(engine_->quarantine().entries.empty());
}

TEST_P(StoppedGrantee, DoesNotKeepTheEngineFromEnding) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->transfer("write", own(), 4096), "COMPLETED");
    peer_->stop();
    for (int attempt = 0; attempt < 2; ++attempt) {
        const Status ended = engine_->freeEngine();
        EXPECT_EQ(ended.code(), Code::BatchBusy);
        EXPECT_THAT(ended.message(), StartsWith("the engine has ended, but "));
        EXPECT_THAT(ended.message(), HasSubstr("process " + std::to_string(peer_->pid())));
        EXPECT_THAT(ended.message(), HasSubstr(ByteRange{own(), kBytes}.toString()));
    }
    EXPECT_EQ(engine_->unregisterLocalMemory(data_).code(), Code::NotInitialised);
    const auto listed = engine_->quarantine();
    ASSERT_EQ(listed.entries.size(), 1u) << "the end of the engine takes nothing out of its hands";
    EXPECT_THAT(listed.entries[0].holder, HasSubstr("process " + std::to_string(peer_->pid())));
    peer_->kill();
}

TEST_P(StoppedGrantee, KeepsItsTransportInstalledUntilItLetsGo) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->ask("fill 1"), "OK");
    EXPECT_EQ(peer_->transfer("write", own(), kBytes), "COMPLETED");
    peer_->stop();
    const Status busy = engine_->uninstallTransport("host");
    EXPECT_EQ(busy.code(), Code::BatchBusy);
    EXPECT_THAT(busy.message(), HasSubstr("process " + std::to_string(peer_->pid())));
    EXPECT_NE(engine_->getTransport("host"), nullptr);
    EXPECT_EQ(engine_->quarantine().entries.size(), 1u);
    expectCode(engine_->installTransport("host"), Code::AlreadyExists);
    EXPECT_EQ(release().code(), Code::BatchBusy) << "who holds it is still known";
    peer_->proceed();
    // Nothing has changed, not for others either.
    Buffer other(kBytes);
    ASSERT_TRUE(engine_->registerLocalMemory(other.data(), kBytes));
    EXPECT_EQ(peer_->transfer("write", other.address(), kBytes), "COMPLETED");
    EXPECT_TRUE(other.holdsOnly(std::byte{1}, 0, kBytes));
    EXPECT_THAT(peer_->ask("explain"), StartsWith("host by host0"));
    Status done;
    const auto limit = Clock::now() + kPatience;
    do {
        done = engine_->uninstallTransport("host");
    } while (!done && Clock::now() < limit);
    EXPECT_TRUE(done) << done.toString();
    EXPECT_EQ(engine_->getTransport("host"), nullptr);
    const Status released = release();
    EXPECT_TRUE(released) << released.toString();
    EXPECT_TRUE(engine_->freeEngine());
}

/// Stops a peer in the middle of its copies into the memory of this process, again and again.
class StoppedInMidCopy : public StoppedGrantee {
  protected:
    void beginAndStop(int round) {
        begin();
        EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
        EXPECT_EQ(peer_->ask("fill 1"), "OK");
        std::memset(data_, 0, kBytes);
        EXPECT_EQ(peer_->ask("loop " + std::to_string(own()) + " " + std::to_string(kBytes)), "OK");
        const auto limit = Clock::now() + kPatience;
        while (*static_cast<volatile std::byte*>(data_ + kBytes - 1) != std::byte{1} && Clock::now() < limit)
            std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(137 * round));
        peer_->stop();
    }
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoppedInMidCopy, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Mapped" : "Vm"; });

TEST_P(StoppedInMidCopy, TheOwnersEndSaysThatItMayStillWrite) {
    beginAndStop(3);
    const Status ended = engine_->freeEngine();
    EXPECT_EQ(ended.code(), Code::BatchBusy);
    EXPECT_THAT(ended.message(), HasSubstr("process " + std::to_string(peer_->pid())));
    peer_->proceed();
    EXPECT_THAT(peer_->ask("ended"), StartsWith("FAILED"));
    std::memset(data_, 9, kBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(holdsOnly(std::byte{9}));
}

TEST_P(StoppedInMidCopy, NeitherUninstallNorUnregisterGivesItsMemoryBack) {
    for (int round = 0; round < 4; ++round) {
        beginAndStop(round);
        EXPECT_EQ(engine_->uninstallTransport("host").code(), Code::BatchBusy);
        EXPECT_EQ(release().code(), Code::BatchBusy);
        EXPECT_NE(engine_->getTransport("host"), nullptr);
        peer_->proceed();
        const auto limit = Clock::now() + kPatience;
        Status released = release();
        while (!released && Clock::now() < limit) released = release();
        ASSERT_TRUE(released) << released.toString();
        if (mapped()) break;
        // From the moment that it is given back on, nothing is written.
        std::memset(data_, 9, kBytes);
        EXPECT_THAT(peer_->ask("ended"), StartsWith("FAILED AddressNotRegistered"));
        EXPECT_TRUE(holdsOnly(std::byte{9}));
        ASSERT_TRUE(engine_->registerLocalMemory(data_, kBytes));
    }
}

class BusyPeer : public HostProcess {};

INSTANTIATE_TEST_SUITE_P(Kinds, BusyPeer, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Mapped" : "Vm"; });

TEST_P(BusyPeer, DoesNotKeepTheTransportAndComesByTcpThen) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->ask("fill 1"), "OK");
    EXPECT_EQ(peer_->ask("loop " + std::to_string(own()) + " " + std::to_string(kBytes)), "OK");
    auto limit = Clock::now() + kPatience;
    while (*static_cast<volatile std::byte*>(data_ + kBytes - 1) != std::byte{1} && Clock::now() < limit)
        std::this_thread::yield();
    const Status done = engine_->uninstallTransport("host");
    EXPECT_TRUE(done) << done.toString();
    const Status released = engine_->unregisterLocalMemory(data_);
    EXPECT_TRUE(released) << released.toString();
    // It may have found nobody there before it was told of the other way.
    EXPECT_THAT(peer_->ask("ended"), StartsWith("FAILED"));
    Buffer other(kBytes);
    ASSERT_TRUE(engine_->registerLocalMemory(other.data(), kBytes));
    std::string written;
    limit = Clock::now() + kPatience;
    do {
        written = peer_->transfer("write", other.address(), kBytes);
    } while (written != "COMPLETED" && Clock::now() < limit);
    EXPECT_EQ(written, "COMPLETED");
    EXPECT_TRUE(other.holdsOnly(std::byte{1}, 0, kBytes));
    EXPECT_THAT(peer_->ask("explain"), StartsWith("tcp by tcp0"));
}

}  // namespace
}  // namespace troupe::test
