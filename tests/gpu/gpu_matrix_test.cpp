// Every pair of memories, both directions, through each way within a process and by TCP.

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/exchange.h"
#include "tests/gpu/fixture.h"

namespace troupe::gpu {
namespace {

using namespace gpu::testing;

const std::vector<std::string> kKinds = {"host", "pinned", "managed", "gpu0", "gpu1", "virtual0"};

class GpuMatrix : public GpuTest {
  protected:
    /// Many small pages of one batch, scattered at both ends.
    void exchangePages(const EngineSetup& with) {
        auto a = startEngine(with);
        auto b = startEngine(with);
        const SegmentID segment = open(*a, b->localSegmentName());
        constexpr std::size_t kPages = 300;
        constexpr std::uint64_t kPage = 4096;
        for (const char* there : {"host", "gpu1"}) {
            for (const SegmentID to : {segment, kLocalSegmentID}) {
                Memory local = make("gpu0", kPages * 2 * kPage);
                Memory remote = make(there, kPages * 2 * kPage);
                registerAll(*a, local);
                registerAll(to == segment ? *b : *a, remote);
                const auto there_at = [](std::size_t page) { return 2 * (kPages - 1 - page) * kPage; };
                for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
                    Memory& from = opcode == Opcode::Write ? local : remote;
                    Memory& to_fill = opcode == Opcode::Write ? remote : local;
                    const Bytes sent = noise(local.size(), opcode == Opcode::Write ? 3 : 4);
                    from.write(0, sent);
                    to_fill.write(0, Bytes(remote.size(), 0));
                    std::vector<TransferRequest> requests;
                    Bytes wanted(remote.size(), 0);
                    for (std::size_t i = 0; i < kPages; ++i) {
                        requests.push_back(
                            makeRequest(opcode, to, local.pointer(2 * i * kPage), remote.addr(there_at(i)), kPage));
                        const std::uint64_t source = opcode == Opcode::Write ? 2 * i * kPage : there_at(i);
                        const std::uint64_t target = opcode == Opcode::Write ? there_at(i) : 2 * i * kPage;
                        std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(source), kPage,
                                    wanted.begin() + static_cast<std::ptrdiff_t>(target));
                    }
                    expectCompleted(runBatch(*a, requests), kPages * kPage);
                    ASSERT_TRUE(to_fill.read(0, wanted.size()) == wanted);
                }
                EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
                EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(remote.pointer()));
            }
        }
    }
};

TEST_F(GpuMatrix, WithinTheProcess) {
    auto engine = startEngine(setup());
    for (const std::string& here : kKinds) {
        for (const std::string& there : kKinds) {
            Memory local = make(here, kRoom);
            Memory remote = make(there, kRoom);
            registerAll(*engine, local);
            registerAll(*engine, remote);
            exchange(*engine, kLocalSegmentID, local, remote);
            EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
            EXPECT_TRUE(engine->unregisterLocalMemory(remote.pointer()));
        }
    }
    EXPECT_EQ(control.count("pageable copies"), 0u);
}

TEST_F(GpuMatrix, ByTcp) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    for (const std::string& here : kKinds) {
        for (const std::string& there : kKinds) {
            Memory local = make(here, kRoom);
            Memory remote = make(there, kRoom);
            registerAll(*a, local);
            registerAll(*b, remote);
            exchange(*a, segment, local, remote);
            EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
            EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
        }
    }
    EXPECT_EQ(control.count("pageable copies"), 0u);
}

TEST_F(GpuMatrix, ByTcpWithChecksums) {
    EngineSetup checked = setup();
    checked.config.tcp_crc = true;
    auto a = startEngine(checked);
    auto b = startEngine(checked);
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("gpu0", kRoom);
    Memory remote = make("gpu1", kRoom);
    registerAll(*a, local);
    registerAll(*b, remote);
    exchange(*a, segment, local, remote);
}

TEST_F(GpuMatrix, SixtyFourMebibytes) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    constexpr std::uint64_t kBytes = 64u << 20;
    Memory local = make("gpu0", kBytes);
    Memory remote = make("virtual1", kBytes);
    registerAll(*a, local);
    registerAll(*b, remote);
    const Bytes sent = noise(kBytes, 5);
    local.write(0, sent);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)}),
                    kBytes);
    EXPECT_TRUE(remote.read(0, kBytes) == sent);
    local.write(0, noise(kBytes, 6));
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, segment, local.pointer(), remote.addr(), kBytes)}), kBytes);
    EXPECT_TRUE(local.read(0, kBytes) == sent);
}

TEST_F(GpuMatrix, ManySmallPagesOfOneBatch) { exchangePages(setup()); }

TEST_F(GpuMatrix, ManySmallPagesWithChecksums) {
    EngineSetup checked = setup();
    checked.config.tcp_crc = true;
    exchangePages(checked);
}

TEST_F(GpuMatrix, CompletedMeansThatItIsInTheGpusMemoryHoweverSlowThatIs) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    control.latency(3000, 0, 2000);
    constexpr std::uint64_t kBytes = 200000;
    for (const SegmentID to : {segment, kLocalSegmentID}) {
        Memory local = make("gpu0", kBytes);
        Memory remote = make("gpu1", kBytes);
        registerAll(*a, local);
        registerAll(to == segment ? *b : *a, remote);
        for (unsigned round = 0; round < 5; ++round) {
            const Bytes sent = noise(kBytes, 10 + round);
            local.write(0, sent);
            expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, to, local.pointer(), remote.addr(), kBytes)}),
                            kBytes);
            ASSERT_TRUE(remote.read(0, kBytes) == sent);
            const Bytes back = noise(kBytes, 20 + round);
            remote.write(0, back);
            expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, to, local.pointer(), remote.addr(), kBytes)}),
                            kBytes);
            ASSERT_TRUE(local.read(0, kBytes) == back);
        }
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(remote.pointer()));
    }
}

/// More than the rings, the windows and a slice hold many times over.
TEST_F(GpuMatrix, ManyMegabytesAtOddPlaces) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    constexpr std::uint64_t kMuch = kMany + 1;
    for (const auto& [to, here, there] :
         std::vector<std::tuple<SegmentID, const char*, const char*>>{{kLocalSegmentID, "gpu0", "gpu1"},
                                                                      {kLocalSegmentID, "gpu0", "host"},
                                                                      {segment, "gpu0", "gpu1"},
                                                                      {segment, "gpu1", "host"},
                                                                      {segment, "managed", "gpu0"}}) {
        SCOPED_TRACE(std::string(here) + " and " + there);
        Memory local = make(here, kMuch + 100);
        Memory remote = make(there, kMuch + 100);
        registerAll(*a, local);
        registerAll(to == segment ? *b : *a, remote);
        local.write(5, noise(kMuch, 2));
        expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, to, local.pointer(5), remote.addr(77), kMuch)}),
                        kMuch);
        EXPECT_TRUE(remote.read(77, kMuch) == noise(kMuch, 2));
        local.write(0, noise(kMuch, 3));
        expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, to, local.pointer(11), remote.addr(77), kMuch)}),
                        kMuch);
        EXPECT_TRUE(local.read(11, kMuch) == noise(kMuch, 2));
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(remote.pointer()));
    }
}

/// Which way the bytes of a GPU went is part of how a task went.
TEST_F(GpuMatrix, ExplainSaysHowMemoryOfAGpuIsCarried) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    const auto way = [&](SegmentID to, const char* here, const char* there) {
        Memory local = make(here, 4096);
        Memory remote = make(there, 4096);
        TransferEngine& owner = to == segment ? *b : *a;
        registerAll(*a, local);
        registerAll(owner, remote);
        BatchHolder batch(*a, 1);
        EXPECT_TRUE(batch.submit({makeRequest(Opcode::Write, to, local.pointer(), remote.addr(), 4096)}));
        expectCompleted(batch.wait(), 4096);
        const auto explained = a->explain(batch.id(), 0);
        EXPECT_TRUE(explained) << explained.status().toString();
        if (!explained->gpu.empty()) {
            EXPECT_NE(explained->toString().find(" (" + explained->gpu + ")"), std::string::npos);
        }
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE(owner.unregisterLocalMemory(remote.pointer()));
        return explained->gpu;
    };
    EXPECT_EQ(way(kLocalSegmentID, "gpu0", "gpu0"), "copied by the GPU");
    EXPECT_EQ(way(kLocalSegmentID, "gpu0", "gpu1"), "copied by the GPU");
    EXPECT_EQ(way(kLocalSegmentID, "pinned", "gpu1"), "copied by the GPU");
    EXPECT_EQ(way(kLocalSegmentID, "managed", "gpu1"), "copied by the GPU");
    EXPECT_EQ(way(kLocalSegmentID, "gpu0", "host"), "staged through pinned memory");
    EXPECT_EQ(way(kLocalSegmentID, "gpu1", "virtual0"), "staged through pinned memory");
    EXPECT_EQ(way(kLocalSegmentID, "host", "pinned"), "");
    EXPECT_EQ(way(segment, "gpu0", "host"), "staged through pinned memory here");
    EXPECT_EQ(way(segment, "host", "gpu0"), "staged through pinned memory there");
    EXPECT_EQ(way(segment, "gpu0", "gpu1"), "staged through pinned memory at both ends");
    EXPECT_EQ(way(segment, "host", "host"), "");
}

TEST_F(GpuMatrix, ExplainNamesNoWayOfATaskThatMovedNothing) {
    auto a = startEngine(setup());
    auto b = startEngine(setup());
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("gpu0", 4096);
    Memory remote = make("host", 4096);
    registerAll(*a, local);
    registerAll(*b, remote);
    for (const bool is_late : {false, true}) {
        // What nobody registered at the owner, and a deadline that is over.
        auto request = makeRequest(Opcode::Write, segment, local.pointer(), remote.addr() + (is_late ? 0 : 4096), 4096);
        if (is_late) request.deadline = Clock::now() - std::chrono::milliseconds(1);
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request}));
        EXPECT_EQ(batch.wait().s, is_late ? TransferStatusEnum::TIMEOUT : TransferStatusEnum::FAILED);
        const auto explained = a->explain(batch.id(), 0);
        ASSERT_TRUE(explained) << explained.status().toString();
        EXPECT_EQ(explained->gpu, "") << explained->toString();
    }
}

/// Where the GPUs reach each other no byte goes through the host.
TEST_F(GpuMatrix, BetweenGpusOfAProcessItGoesByPeerAccess) {
    for (const bool first_is_first : {true, false}) {
        auto engine = startEngine(setup());
        Memory local = make("gpu0", kRoom);
        Memory remote = make("gpu1", kRoom);
        for (Memory* memory : {first_is_first ? &local : &remote, first_is_first ? &remote : &local})
            registerAll(*engine, *memory);
        const unsigned before = control.count("copies by peer access");
        exchange(*engine, kLocalSegmentID, local, remote);
        exchange(*engine, kLocalSegmentID, remote, local);
        EXPECT_GT(control.count("copies by peer access"), before);
    }
    EXPECT_EQ(control.count("copies between GPUs through the host"), 0u);
}

}  // namespace
}  // namespace troupe::gpu
