// Mapping memory of another process's GPU, and giving it back, takes as long as the driver likes: no loop waits for it,
// and its owner does.

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "tests/gpu/fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;
using std::chrono::milliseconds;

constexpr std::uint64_t kBytes = 1u << 20;
constexpr const char* kMap = "cuIpcOpenMemHandle";
constexpr const char* kUnmap = "cuIpcCloseMemHandle";

/// Calls of the driver that do not come back while this lives.
class HeldCall {
  public:
    HeldCall(fake_cuda::Control& control, const char* call) : control_(control), call_(call) {
        before_ = control_.count(call);
        control_.holdCall(call, true);
    }
    ~HeldCall() { end(); }
    HeldCall(const HeldCall&) = delete;
    HeldCall& operator=(const HeldCall&) = delete;

    void end() { control_.holdCall(call_, false); }
    /// Waits until one has begun.
    void expectBegun() {
        const auto limit = Clock::now() + test::kPatience;
        while (control_.count(call_) == before_ && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
        EXPECT_GT(control_.count(call_), before_) << call_;
    }

  private:
    fake_cuda::Control& control_;
    const char* call_;
    unsigned before_ = 0;
};

/// An engine with one data loop, and a peer that it has nothing but `host` to.
class GpuMapping : public GpuTest {
  protected:
    void SetUp() override {
        if (fabric_here_) ::setenv("FAKE_CUDA_FABRIC", "1", 1);
        GpuTest::SetUp();
        ::unsetenv("FAKE_CUDA_FABRIC");
    }
    void TearDown() override {
        engine.reset();
        GpuTest::TearDown();
    }
    void start(GpuPeerProcess& peer, bool tcp = false) {
        EngineSetup with_host = setup();
        with_host.config.host_peers = true;
        with_host.config.data_loops = 1;
        engine = startEngine(with_host);
        segment = open(*engine, peer.start(true, tcp));
    }
    static std::string text(std::uint64_t value) { return std::to_string(value); }
    static std::uint64_t makeThere(GpuPeerProcess& peer, const std::string& kind, std::uint64_t bytes = kBytes) {
        return peer.number("make " + kind + " " + text(bytes));
    }
    TransferRequest read(const Memory& to, std::uint64_t from, std::uint64_t bytes = kBytes) const {
        return makeRequest(Opcode::Read, segment, to.pointer(), from, bytes);
    }
    void expectReads(GpuPeerProcess& peer, Memory& to, std::uint64_t from, unsigned seed) {
        peer.must("fill " + text(from) + " " + text(kBytes) + " " + text(seed));
        expectCompleted(runBatch(*engine, {read(to, from)}), kBytes);
        EXPECT_TRUE(to.read(0, kBytes) == noise(kBytes, seed));
    }
    static bool waitFor(const std::function<bool()>& what) {
        const auto limit = Clock::now() + test::kPatience;
        while (Clock::now() < limit) {
            if (what()) return true;
            std::this_thread::sleep_for(milliseconds(1));
        }
        return false;
    }

    bool fabric_here_ = false;
    std::unique_ptr<TransferEngine> engine;
    SegmentID segment = kInvalidSegmentID;
};

TEST_F(GpuMapping, TheLoopGoesOnWhileMemoryIsMapped) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    Memory host = make("host", kBytes);
    registerAll(*engine, local);
    registerAll(*engine, host);
    const std::uint64_t on_gpu = makeThere(peer, "gpu1");
    const std::uint64_t on_host = makeThere(peer, "host");
    peer.must("fill " + text(on_gpu) + " " + text(kBytes) + " 7");
    HeldCall map(control, kMap);
    BatchHolder batch(*engine, 2);
    ASSERT_TRUE(batch.submit({read(local, on_gpu, 1000), read(local, on_gpu)}));
    map.expectBegun();
    // The same loop, and the same path.
    expectReads(peer, host, on_host, 4);
    expectCompleted(
        runBatch(*engine, {makeRequest(Opcode::Write, kLocalSegmentID, host.pointer(), local.addr(), kBytes)}), kBytes);
    EXPECT_FALSE(isTerminal(batch.task(0).s));
    EXPECT_FALSE(isTerminal(batch.task(1).s));
    map.end();
    expectCompleted(batch.wait(), kBytes + 1000);
    EXPECT_TRUE(local.read(0, kBytes) == noise(kBytes, 7));
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

TEST_F(GpuMapping, ATaskThatWaitsForAMappingIsCanceledAtOnce) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = makeThere(peer, "gpu0");
    HeldCall map(control, kMap);
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({read(local, remote)}));
    map.expectBegun();
    ASSERT_TRUE(engine->cancelTransfer(batch.id()));
    const auto status = batch.wait();
    EXPECT_EQ(status.s, TransferStatusEnum::CANCELED);
    EXPECT_TRUE(status.quiesced);
    EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
    map.end();
    registerAll(*engine, local);
    expectReads(peer, local, remote, 3);
}

TEST_F(GpuMapping, TheLoopGoesOnWhileMemoryIsGivenBackAndTheOwnerWaitsForIt) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    Memory host = make("host", kBytes);
    registerAll(*engine, local);
    registerAll(*engine, host);
    const std::uint64_t on_gpu = makeThere(peer, "gpu0");
    Memory served = make("host", kBytes);
    registerAll(*engine, served);
    expectReads(peer, local, on_gpu, 5);
    HeldCall unmap(control, kUnmap);
    auto unregistered = std::async(std::launch::async, [&] { return peer.ask("unregister " + text(on_gpu)); });
    unmap.expectBegun();
    expectCompleted(
        runBatch(*engine, {makeRequest(Opcode::Write, kLocalSegmentID, host.pointer(), served.addr(), kBytes)}),
        kBytes);
    EXPECT_EQ(unregistered.wait_for(milliseconds(50)), std::future_status::timeout)
        << "it may free the memory, which is mapped here";
    unmap.end();
    EXPECT_EQ(unregistered.get(), "ok");
    peer.must("free " + text(on_gpu));
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

TEST_F(GpuMapping, WhatIsTakenBackWhileItIsMappedIsGivenBackBeforeItsOwnerHearsOfIt) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = makeThere(peer, "gpu0");
    HeldCall map(control, kMap);
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({read(local, remote)}));
    map.expectBegun();
    auto unregistered = std::async(std::launch::async, [&] { return peer.ask("unregister " + text(remote)); });
    EXPECT_EQ(unregistered.wait_for(milliseconds(50)), std::future_status::timeout);
    map.end();
    EXPECT_EQ(unregistered.get(), "ok");
    peer.must("free " + text(remote));
    EXPECT_EQ(peer.ask("violations"), "ok ");
    const auto status = batch.wait();
    // The copy may have come first.
    if (status.s != TransferStatusEnum::COMPLETED) test::expectFailed(status, Code::AddressNotRegistered);
}

TEST_F(GpuMapping, AnOwnerThatDiesWhileItsMemoryIsMappedFailsTheTaskAndNothingIsLeft) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::string before = control.leftovers();
    const std::uint64_t remote = makeThere(peer, "gpu1");
    HeldCall map(control, kMap);
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({read(local, remote)}));
    map.expectBegun();
    peer.kill();
    const auto status = batch.wait();
    EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
    EXPECT_TRUE(status.quiesced);
    map.end();
    EXPECT_TRUE(waitFor([&] { return control.leftovers() == before; })) << control.leftovers() << ", was " << before;
}

TEST_F(GpuMapping, AnEngineEndsWhenWhatItHadMappedIsGivenBack) {
    GpuPeerProcess peer;
    start(peer);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t mapped = makeThere(peer, "gpu0");
    const std::uint64_t remote = makeThere(peer, "gpu0");
    expectReads(peer, local, mapped, 9);
    HeldCall map(control, kMap);
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({read(local, remote)}));
    map.expectBegun();
    auto ended = std::async(std::launch::async, [&] { return engine->freeEngine(); });
    static_cast<void>(ended.wait_for(milliseconds(30)));
    map.end();
    const Status outcome = ended.get();
    EXPECT_TRUE(outcome) << outcome.toString();
    for (const std::uint64_t addr : {mapped, remote}) {
        peer.must("unregister " + text(addr));
        peer.must("free " + text(addr));
    }
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

/// A driver of one NVLink domain.
class GpuFabric : public GpuMapping {
  protected:
    GpuFabric() { fabric_here_ = true; }
};

TEST_F(GpuFabric, MemoryWithFabricHandlesAloneIsMappedByThem) {
    GpuPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    start(peer);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = makeThere(peer, "fabric1");
    expectReads(peer, local, remote, 5);
    local.write(0, noise(kBytes, 6));
    expectCompleted(runBatch(*engine, {makeRequest(Opcode::Write, segment, local.pointer(), remote, kBytes)}), kBytes);
    EXPECT_EQ(peer.ask("check " + text(remote) + " " + text(kBytes) + " 6"), "ok");
    peer.must("unregister " + text(remote));
    peer.must("free " + text(remote));
    EXPECT_EQ(peer.ask("violations"), "ok ");
    EXPECT_GE(control.count("cuMemImportFromShareableHandle"), 1u);
}

/// The owner gives it, and this process's driver may not have it: no channel to the domain's daemon, for one.
TEST_F(GpuMapping, WhatTheDriverDoesNotImportGoesByTcpAndExplainSaysWhy) {
    GpuPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    start(peer, true);
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = makeThere(peer, "fabric0");
    peer.must("fill " + text(remote) + " " + text(kBytes) + " 5");
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({read(local, remote)}));
    expectCompleted(batch.wait(), kBytes);
    EXPECT_TRUE(local.read(0, kBytes) == noise(kBytes, 5));
    const auto way = engine->explain(batch.id(), 0);
    ASSERT_TRUE(way) << way.status().toString();
    EXPECT_THAT(way->toString(), HasSubstr("tcp by tcp0"));
    EXPECT_THAT(way->toString(), HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
}

}  // namespace
}  // namespace troupe::gpu
