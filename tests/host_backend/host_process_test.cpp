// Engines in two processes of one host: what goes by the host transport, and what happens when one of them stops, dies,
// comes back, or may not.

#include <gmock/gmock.h>

#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "host_backend/probe.h"
#include "tests/host_backend/host_process_fixture.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kUser = "uid=12345";

INSTANTIATE_TEST_SUITE_P(Kinds, HostProcess, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Mapped" : "Vm"; });

TEST_P(HostProcess, BytesGoBothWaysWithoutAWire) {
    begin();
    open();
    const auto route = engine_->explainSegment(segment_);
    ASSERT_TRUE(route);
    EXPECT_EQ(route->transport, "host") << route->toString();
    std::memset(data_, 0x11, kBytes);
    expectCompleted(run(Opcode::Write, 0, kBytes), kBytes);
    EXPECT_EQ(peer_->ask("check 17"), "OK");
    EXPECT_EQ(peer_->ask("fill 34"), "OK");
    BatchHolder batch(*engine_, 1);
    ASSERT_TRUE(batch.submit({request(Opcode::Read, 0, peer_->address(), kBytes)}));
    expectCompleted(batch.wait(), kBytes);
    EXPECT_TRUE(holdsOnly(std::byte{34}));
    const auto carried = engine_->explain(batch.id(), 0);
    ASSERT_TRUE(carried);
    EXPECT_THAT(carried->toString(), StartsWith("host by host0"));
    // And when the other one asks.
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_THAT(peer_->ask("explain"), StartsWith("host by host0"));
    EXPECT_EQ(peer_->ask("fill 51"), "OK");
    EXPECT_EQ(peer_->transfer("write", own(), kBytes), "COMPLETED");
    EXPECT_TRUE(holdsOnly(std::byte{51}));
}

TEST_P(HostProcess, ScatteredPagesArriveWhereTheyBelong) {
    begin();
    open();
    constexpr std::size_t kPage = 4096;
    std::vector<std::size_t> slots(kBytes / kPage);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
    std::vector<TransferRequest> there;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        std::memset(data_ + i * kPage, static_cast<int>(i % 251), kPage);
        there.push_back(request(Opcode::Write, i * kPage, peer_->address(slots[i] * kPage), kPage));
    }
    expectCompleted(runBatch(*engine_, there), kBytes);
    std::memset(data_, 0, kBytes);
    expectCompleted(run(Opcode::Read, 0, kBytes), kBytes);
    for (std::size_t i = 0; i < slots.size(); ++i)
        for (const std::size_t at : {std::size_t{0}, kPage - 1})
            ASSERT_EQ(data_[slots[i] * kPage + at], static_cast<std::byte>(i % 251));
}

TEST_P(HostProcess, WhatIsNotRegisteredOrNotAccessibleIsRefusedAsByTcp) {
    begin();
    open();
    expectFailed(runBatch(*engine_, {request(Opcode::Write, 0, peer_->address(kBytes - 8), 16)}),
                 Code::AddressNotRegistered);
    expectFailed(runBatch(*engine_, {request(Opcode::Read, 0, UINT64_MAX - 8, 16)}), Code::InvalidArgument);
    Buffer secret(4096);
    ASSERT_TRUE(engine_->registerLocalMemory(secret.data(), secret.size(), "*", false));
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_THAT(peer_->transfer("read", secret.address(), 16), StartsWith("FAILED AccessDenied"));
}

TEST_P(HostProcess, AfterUnregisterNoByteOfAPeerArrives) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->ask("fill 1"), "OK");
    EXPECT_EQ(peer_->ask("loop " + std::to_string(own()) + " " + std::to_string(kBytes)), "OK");
    const auto limit = Clock::now() + kPatience;
    while (*static_cast<volatile std::byte*>(data_ + kBytes - 1) != std::byte{1} && Clock::now() < limit)
        std::this_thread::yield();
    const Status unregistered = engine_->unregisterLocalMemory(data_);
    ASSERT_TRUE(unregistered) << unregistered.toString();
    ASSERT_EQ(::mprotect(data_, kBytes, PROT_READ), 0);
    const std::vector<std::byte> before(data_, data_ + kBytes);
    EXPECT_THAT(peer_->ask("ended"), StartsWith("FAILED AddressNotRegistered"));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(std::memcmp(before.data(), data_, kBytes), 0);
    ASSERT_EQ(::mprotect(data_, kBytes, PROT_READ | PROT_WRITE), 0);
    if (!mapped()) return;
    EXPECT_TRUE(engine_->freeLocalMemory(data_));
}

TEST_P(HostProcess, AnOwnerKilledInMidCopyEndsTheTask) {
    for (int round = 0; round < 5; ++round) {
        begin();
        open();
        std::vector<TransferRequest> requests(64, request(Opcode::Write, 0, peer_->address(), kBytes));
        BatchHolder batch(*engine_, requests.size());
        ASSERT_TRUE(batch.submit(requests));
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        peer_->kill();
        const auto status = batch.wait();
        EXPECT_TRUE(isTerminal(status.s));
        EXPECT_TRUE(status.quiesced);
        // The rest of 512 MiB cannot have been done already, unless the machine stood still.
        if (status.s != TransferStatusEnum::COMPLETED) {
            EXPECT_THAT(status.error.code(),
                        testing::AnyOf(Code::ConnectionLost, Code::ConnectionRefused, Code::PeerDown));
        }
        ASSERT_TRUE(engine_->closeSegment(segment_));
    }
}

TEST_P(HostProcess, AnInitiatorKilledInMidCopyHoldsNothing) {
    begin();
    EXPECT_EQ(peer_->ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_->ask("loop " + std::to_string(own()) + " " + std::to_string(kBytes)), "OK");
    peer_->kill();
    const Status released = release();
    EXPECT_TRUE(released) << released.toString();
}

TEST_P(HostProcess, ARestartedOwnerIsUsedAgain) {
    begin();
    open();
    std::memset(data_, 1, kBytes);
    expectCompleted(run(Opcode::Write, 0, kBytes), kBytes);
    const auto port = peer_->port();
    peer_->kill();
    begin(port);
    std::memset(data_, 2, kBytes);
    expectCompleted(runUntilCompleted(*engine_, request(Opcode::Write, 0, peer_->address(), kBytes)), kBytes);
    EXPECT_EQ(peer_->ask("check 2"), "OK");
    const auto route = engine_->explainSegment(segment_);
    ASSERT_TRUE(route);
    EXPECT_EQ(route->transport, "host") << route->toString();
}

/// A host_peer whose process has this number, which is free. Nothing where the kernel's counter may not be set (not
/// root, or /proc/sys is read-only).
std::unique_ptr<HostPeer> peerWithNumber(pid_t number, bool mapped) {
    // Others start processes, too.
    constexpr int kTries = 200;
    for (int i = 0; i < kTries; ++i) {
        std::ofstream last("/proc/sys/kernel/ns_last_pid");
        if (!(last << number - 1 << std::flush)) return nullptr;
        auto peer = std::make_unique<HostPeer>(mapped);
        if (peer->pid() == number) return peer;
    }
    ADD_FAILURE() << "no process got the number " << number;
    return nullptr;
}

TEST_P(HostProcess, AnotherProcessWithTheNumberOfADeadOwnerIsNotTakenForIt) {
    begin();
    open();
    std::memset(data_, 1, kBytes);
    expectCompleted(run(Opcode::Write, 0, kBytes), kBytes);
    const pid_t number = peer_->pid();
    peer_->kill();
    const auto other = peerWithNumber(number, mapped());
    if (!other && !HasFailure()) GTEST_SKIP() << "/proc/sys/kernel/ns_last_pid cannot be written here";
    ASSERT_TRUE(other);
    EXPECT_EQ(other->ask("fill 7"), "OK");
    // Addresses of the dead one, and of the living.
    for (const std::uint64_t address : {peer_->address(), other->address()}) {
        BatchHolder batch(*engine_, 1);
        if (!batch.submit({request(Opcode::Write, 0, address, kBytes)})) continue;
        EXPECT_EQ(batch.wait().s, TransferStatusEnum::FAILED);
    }
    EXPECT_EQ(other->ask("check 7"), "OK");
}

TEST_P(HostProcess, AStoppedOwnersMemoryIsReachedAllTheSame) {
    begin();
    open();
    expectCompleted(run(Opcode::Write, 0, 4096), 4096);
    peer_->stop();
    std::memset(data_, 7, kBytes);
    expectCompleted(run(Opcode::Write, 0, kBytes), kBytes);
    peer_->proceed();
    EXPECT_EQ(peer_->ask("check 7"), "OK");
}

// --- when it is not possible ---------------------------------------------------------------------------------------

/// What a peer with `limits` says of its way to this process, after it copied by it.
std::string routeOf(const std::vector<std::string>& limits) {
    Buffer memory(4096);
    const auto engine = startEngine(hostSetup());
    EXPECT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    HostPeer peer(false, limits);
    EXPECT_EQ(peer.ask("open " + engine->localSegmentName()), "OK");
    EXPECT_EQ(peer.ask("fill 5"), "OK");
    EXPECT_EQ(peer.transfer("write", memory.address(), memory.size()), "COMPLETED");
    EXPECT_TRUE(memory.holdsOnly(std::byte{5}, 0, memory.size()));
    return peer.ask("explain");
}

/// What `initiator` says of its way to `owner`, after it copied by it.
std::string routeBetween(HostPeer& initiator, HostPeer& owner) {
    EXPECT_EQ(initiator.ask("open " + owner.segment()), "OK");
    EXPECT_EQ(initiator.ask("fill 6"), "OK");
    EXPECT_EQ(initiator.transfer("write", owner.address(), kBytes), "COMPLETED");
    EXPECT_EQ(owner.ask("check 6"), "OK");
    return initiator.ask("explain");
}

class HostFallback : public testing::Test {
  protected:
    void SetUp() override {
        if (::geteuid() != 0) GTEST_SKIP() << "another user, namespace or filter takes root";
    }
};

TEST_F(HostFallback, AnotherUserGoesByTcp) {
    const std::string route = routeOf({kUser});
    EXPECT_THAT(route, StartsWith("tcp by tcp0; not host: "));
    EXPECT_THAT(route, HasSubstr("user 12345 may not use the memory of user 0"));
}

TEST_F(HostFallback, TwoUsersWithoutANumberInTheirUserNamespacesAreNotTakenForOne) {
    // To each the other looks like kernel.overflowuid, and so does it to itself.
    HostPeer owner(true, {"uid=12345", "newuser"});
    HostPeer initiator(true, {"uid=12346", "newuser"});
    const std::string route = routeBetween(initiator, owner);
    EXPECT_THAT(route, StartsWith("tcp by tcp0; not host: "));
    EXPECT_THAT(route, HasSubstr("who the users are cannot be told"));
}

TEST_F(HostFallback, AForbiddenSystemCallGoesByTcp) {
    const std::string route = routeOf({"novmwrite"});
    EXPECT_THAT(route, StartsWith("tcp by tcp0; not host: process_vm_writev: Operation not permitted"));
}

TEST_F(HostFallback, AProcessThatMayNotBeLookedIntoGoesByTcp) {
    // Two processes of one user who is not root, one of which is not dumpable: a ptrace check that fails.
    HostPeer owner(false, {kUser, "undumpable"});
    HostPeer initiator(false, {kUser});
    const std::string route = routeBetween(initiator, owner);
    EXPECT_THAT(route, StartsWith("tcp by tcp0; not host: process_vm_readv of process "));
    EXPECT_THAT(route, HasSubstr("Operation not permitted"));
    // The other way round nothing stands in the way.
    EXPECT_EQ(owner.ask("open " + initiator.segment()), "OK");
    EXPECT_EQ(owner.transfer("read", initiator.address(), kBytes), "COMPLETED");
    EXPECT_THAT(owner.ask("explain"), StartsWith("host by host0"));
}

TEST_F(HostFallback, WithoutProcessVmTheEnginesOwnMemoryIsMappedAllTheSame) {
    const auto engine = startEngine(hostSetup());
    const auto memory = engine->allocateLocalMemory(kBytes);
    ASSERT_TRUE(memory);
    auto* const data = static_cast<std::byte*>(*memory);
    const auto address = reinterpret_cast<std::uint64_t>(data);
    HostPeer peer(false, {"novm"});
    EXPECT_EQ(peer.ask("open " + engine->localSegmentName()), "OK");
    const std::string route = peer.ask("explain");
    EXPECT_THAT(route, StartsWith("host by host0, then tcp by tcp0; not host in part: process_vm_readv of process "));
    for (const char* fill : {"7", "8"}) {
        EXPECT_EQ(peer.ask(std::string("fill ") + fill), "OK");
        EXPECT_EQ(peer.transfer("write", address, kBytes), "COMPLETED");
        EXPECT_EQ(std::count(data, data + kBytes, static_cast<std::byte>(fill[0] - '0')),
                  static_cast<std::ptrdiff_t>(kBytes));
    }
    std::memset(data, 9, kBytes);
    EXPECT_EQ(peer.transfer("read", address, kBytes), "COMPLETED");
    EXPECT_EQ(peer.ask("check 9"), "OK");
    // Memory that cannot be mapped comes later, and the peer hears of it from somebody else.
    Buffer plain(kBytes);
    ASSERT_TRUE(engine->registerLocalMemory(plain.data(), plain.size()));
    EXPECT_EQ(peer.transfer("write", plain.address(), kBytes), "COMPLETED");
    EXPECT_TRUE(plain.holdsOnly(std::byte{9}, 0, kBytes));
    EXPECT_THAT(peer.ask("explain"), StartsWith("tcp by tcp0; not host: process_vm_readv of process "));
    EXPECT_THAT(peer.ask("explain"), HasSubstr("not all of its memory is the engine's own"));
    EXPECT_EQ(peer.transfer("write", address, kBytes), "COMPLETED");
}

TEST_F(HostFallback, TheMemoryOfAnotherUserIsNotMappedEither) {
    const auto engine = startEngine(hostSetup());
    ASSERT_TRUE(engine->allocateLocalMemory(kBytes));
    HostPeer peer(false, {kUser, "novm"});
    EXPECT_EQ(peer.ask("open " + engine->localSegmentName()), "OK");
    EXPECT_THAT(peer.ask("explain"), StartsWith("tcp by tcp0; not host: user 12345"));
}

TEST_F(HostFallback, AnotherPidNamespaceGoesByTcp) {
    // It cannot see this process, so it could not tell when it is gone, nor could it copy.
    const std::string route = routeOf({"newpid"});
    EXPECT_THAT(route, StartsWith("tcp by tcp0; not host: "));
    EXPECT_THAT(route, HasSubstr("pid namespace"));
}

TEST_F(HostFallback, AnotherNetworkNamespaceHasNoSocketOfOurs) {
    HostPeer peer(false, {"newnet"});
    TestReactor reactor;
    std::optional<Status> outcome;
    host::Probe probe(reactor,
                      {"troupe/" + peer.incarnation().toString(), Incarnation::random(), peer.incarnation(), ""},
                      kPatience, [&](const Status& status) { outcome = status; });
    probe.start();
    ASSERT_TRUE(reactor.runUntil([&] { return outcome.has_value(); }, kPatience));
    EXPECT_EQ(outcome->code(), Code::ConnectionRefused);
    EXPECT_THAT(outcome->message(), HasSubstr("another network namespace"));
}

TEST(HostRoute, ALargeCopyUsesEveryLoop) {
    EngineSetup setup = hostSetup();
    setup.config.data_loops = 2;
    const auto engine = startEngine(setup);
    Buffer memory(kBytes);
    ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    HostPeer peer(true);
    const auto segment = engine->openSegment(peer.segment());
    ASSERT_TRUE(segment);
    memory.fill(std::byte{9});
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, *segment, memory.data(), peer.address(), kBytes)}));
    expectCompleted(batch.wait(), kBytes);
    EXPECT_EQ(peer.ask("check 9"), "OK");
    EXPECT_THAT(engine->explain(batch.id(), 0)->nics, testing::ElementsAre("host0", "host1"));
}

TEST(HostRoute, APeerThatStoodStillDuringItsProbeIsReachedByHostOnceItGoesOn) {
    EngineSetup setup = hostSetup();
    setup.config.host_probe_timeout = std::chrono::milliseconds(100);
    // Nor is it given up as dead, which would have it described and looked at anew.
    setup.config.keepalive_timeout = std::chrono::milliseconds(kPatience);
    const auto engine = startEngine(setup);
    Buffer memory(kBytes);
    ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    HostPeer peer(true);
    const auto segment = engine->openSegment(peer.segment());
    ASSERT_TRUE(segment);
    RouteExplanation route;
    const auto goesBy = [&](const std::string& transport, const std::string& because = "") {
        for (const auto limit = Clock::now() + kPatience; Clock::now() < limit;) {
            const auto explained = engine->explainSegment(*segment);
            if (explained) route = *explained;
            if (explained && route.transport == transport && route.toString().find(because) != std::string::npos)
                return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    };
    ASSERT_TRUE(goesBy("host")) << route.toString();
    for (int round = 0; round < 2; ++round) {
        peer.stop();
        // A transport that is new has every peer looked for anew.
        ASSERT_TRUE(engine->uninstallTransport("host"));
        ASSERT_TRUE(engine->installTransport("host"));
        ASSERT_TRUE(goesBy("tcp", "did not answer on its host socket")) << route.toString();
        peer.proceed();
        memory.fill(std::byte{3});
        expectCompleted(
            runBatch(*engine, {makeRequest(Opcode::Write, *segment, memory.data(), peer.address(), kBytes)}), kBytes);
        EXPECT_EQ(peer.ask("check 3"), "OK");
        ASSERT_TRUE(goesBy("host")) << route.toString();
        memory.fill(std::byte{4});
        BatchHolder batch(*engine, 1);
        ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, *segment, memory.data(), peer.address(), kBytes)}));
        expectCompleted(batch.wait(), kBytes);
        EXPECT_EQ(peer.ask("check 4"), "OK");
        EXPECT_THAT(engine->explain(batch.id(), 0)->toString(), StartsWith("host by host0"));
    }
}

TEST(HostRoute, OneThatServesNoOtherProcessIsReachedByTcp) {
    const auto engine = startEngine(hostSetup());
    const auto other = startEngine();  // Its host.peers is off.
    const auto segment = engine->openSegment(other->localSegmentName());
    ASSERT_TRUE(segment);
    const auto route = engine->explainSegment(*segment);
    ASSERT_TRUE(route);
    EXPECT_EQ(route->transport, "tcp");
    EXPECT_THAT(route->toString(), HasSubstr("serves no other process"));
    expectCode(engine->explainSegment(12345), Code::StaleHandle);
    EXPECT_THAT(engine->explainSegment(kLocalSegmentID)->toString(), StartsWith("host by host0"));
}

}  // namespace
}  // namespace troupe::test
