// Memory of GPUs in another process of this host: by mapping it where that can be had, else by TCP.

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/gpu/exchange.h"
#include "tests/gpu/fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = (3u << 20) + 77;

class GpuProcess : public GpuTest {
  protected:
    static EngineSetup withHost() {
        EngineSetup with_host = setup();
        with_host.config.host_peers = true;
        return with_host;
    }
    static EngineSetup withoutTcp() {
        EngineSetup alone = withHost();
        alone.tcp = false;
        return alone;
    }
    static std::string text(std::uint64_t value) { return std::to_string(value); }

    /// `count` pieces of `bytes`, one behind the other at both ends.
    static std::vector<TransferRequest> piecesOf(Opcode opcode, SegmentID segment, const Memory& local,
                                                 std::uint64_t remote, std::uint64_t count, std::uint64_t bytes) {
        std::vector<TransferRequest> requests;
        for (std::uint64_t i = 0; i < count; ++i)
            requests.push_back(makeRequest(opcode, segment, local.pointer(i * bytes), remote + i * bytes, bytes));
        return requests;
    }
    /// Which transports carried it.
    static std::string carrierOf(TransferEngine& engine, BatchID batch) {
        const auto way = engine.explain(batch, 0);
        EXPECT_TRUE(way) << way.status().toString();
        return way ? way->toString() : "";
    }
    /// Both directions, at odd places. Returns what explain says of the last.
    std::string exchange(TransferEngine& engine, GpuPeerProcess& peer, SegmentID segment, Memory& local,
                         std::uint64_t remote, unsigned seed, std::uint64_t bytes = kBytes - 100) {
        SCOPED_TRACE(local.kind());
        local.write(3, noise(bytes, seed));
        BatchHolder batch(engine, 2);
        EXPECT_TRUE(batch.submit({makeRequest(Opcode::Write, segment, local.pointer(3), remote + 5, bytes)}));
        expectCompleted(batch.wait(), bytes);
        EXPECT_EQ(peer.ask("check " + text(remote + 5) + " " + text(bytes) + " " + text(seed)), "ok");
        peer.must("fill " + text(remote + 5) + " " + text(bytes) + " " + text(seed + 1));
        EXPECT_TRUE(batch.submit({makeRequest(Opcode::Read, segment, local.pointer(3), remote + 5, bytes)}));
        expectCompleted(batch.wait(), 2 * bytes);
        EXPECT_TRUE(local.read(3, bytes) == noise(bytes, seed + 1));
        return carrierOf(engine, batch.id());
    }
};

TEST_F(GpuProcess, EveryPairOfMemories) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, true));
    unsigned seed = 1;
    for (const char* here : {"host", "pinned", "managed", "gpu0", "gpu1", "virtual0"}) {
        Memory local = make(here, kBytes);
        registerAll(*engine, local);
        for (const char* there : {"host", "pinned", "managed", "gpu0", "gpu1", "virtual1", "private0"}) {
            SCOPED_TRACE(there);
            const std::uint64_t remote = peer.number(std::string("make ") + there + " " + text(kBytes));
            for (const std::uint64_t bytes : std::vector<std::uint64_t>{1, 4097, (64u << 10) + 1, kBytes - 100}) {
                SCOPED_TRACE(bytes);
                exchange(*engine, peer, segment, local, remote, seed, bytes);
                seed += 2;
            }
            peer.must("unregister " + text(remote));
            peer.must("free " + text(remote));
        }
        EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
    }
    EXPECT_EQ(peer.ask("violations"), "ok ");
    EXPECT_EQ(control.count("pageable copies"), 0u);
}

TEST_F(GpuProcess, BetweenGpusItIsMappedAndNoByteGoesThroughTheHost) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    // Without TCP there is no other way.
    const SegmentID segment = open(*engine, peer.start(true, false));
    for (const char* there : {"gpu0", "gpu1"}) {
        Memory local = make("gpu0", kBytes);
        registerAll(*engine, local);
        const std::uint64_t remote = peer.number(std::string("make ") + there + " " + text(kBytes));
        EXPECT_THAT(exchange(*engine, peer, segment, local, remote, 5), HasSubstr("(mapped by an IPC handle)"));
        EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
    }
    EXPECT_GE(control.count("cuIpcOpenMemHandle"), 1u);
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

TEST_F(GpuProcess, VirtualMemoryIsMappedByItsDescriptors) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make virtual0 " + text(kBytes));
    // Within one allocation of the several.
    EXPECT_THAT(exchange(*engine, peer, segment, local, remote, 5, 1u << 20), HasSubstr("(mapped by its descriptor)"));
    EXPECT_GE(control.count("cuMemImportFromShareableHandle"), 1u);
}

TEST_F(GpuProcess, WhatCannotBeMappedGoesByTcpAndExplainSaysWhy) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, true));
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make private0 " + text(kBytes));
    const std::string way = exchange(*engine, peer, segment, local, remote, 5);
    EXPECT_THAT(way, HasSubstr("tcp by tcp0"));
    EXPECT_THAT(way, HasSubstr("(staged through pinned memory at both ends)"));
    EXPECT_THAT(way, HasSubstr("cannot be given to other processes"));
    EXPECT_THAT(way, HasSubstr("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
    // Who carried it, and not who was asked first.
    EXPECT_THAT(way, ::testing::StartsWith("tcp by tcp0"));
}

/// A driver opens no handle of memory in the process that it is of.
TEST_F(GpuProcess, EnginesOfOneProcessUseTheMemoryWhereItIs) {
    auto a = startEngine(withoutTcp());
    auto b = startEngine(withoutTcp());
    const SegmentID segment = open(*a, b->localSegmentName());
    for (const char* here : {"gpu0", "gpu1", "virtual0"}) {
        for (const char* there : {"gpu0", "virtual0"}) {
            SCOPED_TRACE(std::string(here) + " and " + there);
            Memory local = make(here, kBytes);
            Memory remote = make(there, kBytes);
            registerAll(*a, local);
            registerAll(*b, remote);
            // Of virtual memory each allocation by itself.
            const std::uint64_t bytes = (1u << 20) + 7;
            for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
                Memory& from = opcode == Opcode::Write ? local : remote;
                Memory& to = opcode == Opcode::Write ? remote : local;
                from.write(3, noise(bytes, 5));
                to.write(3, noise(bytes, 6));
                BatchHolder batch(*a, 1);
                ASSERT_TRUE(batch.submit({makeRequest(opcode, segment, local.pointer(3), remote.addr(3), bytes)}));
                expectCompleted(batch.wait(), bytes);
                EXPECT_TRUE(to.read(3, bytes) == noise(bytes, 5));
                EXPECT_THAT(carrierOf(*a, batch.id()),
                            HasSubstr(there[0] == 'g' ? "(copied by the GPU)" : "(mapped by its descriptor)"));
            }
            // It is given back while the other engine has it open, and used no more.
            EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
            test::expectFailed(runBatch(*a, {makeRequest(Opcode::Read, segment, local.pointer(), remote.addr(), 1)}),
                               Code::AddressNotRegistered);
            EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        }
    }
    EXPECT_EQ(control.count("cuIpcOpenMemHandle"), 0u);
}

TEST_F(GpuProcess, UnregisteringWaitsForTheCopiesOfAnotherEngineOfTheProcess) {
    auto a = startEngine(withoutTcp());
    auto b = startEngine(withoutTcp());
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("gpu0", kBytes);
    auto remote = std::make_unique<Memory>(make("gpu0", kBytes));
    registerAll(*a, local);
    registerAll(*b, *remote);
    control.latency(30000);
    const unsigned before = control.count("copies");
    BatchHolder batch(*a, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, segment, local.pointer(), remote->addr(), kBytes)}));
    const auto limit = Clock::now() + test::kPatience;
    while (control.count("copies") == before && Clock::now() < limit) std::this_thread::yield();
    EXPECT_TRUE(b->unregisterLocalMemory(remote->pointer()));
    // What is copied there from now on the fake tells of.
    remote.reset();
    control.latency(0);
    static_cast<void>(batch.wait());
}

TEST_F(GpuProcess, WithoutAnotherWayItFailsWithTheReason) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("host", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make gpu0 " + text(kBytes));
    const auto status = runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(), remote, 1000)});
    test::expectFailed(status, Code::Unsupported);
    EXPECT_THAT(status.error.message(), HasSubstr("a GPU there"));
    EXPECT_THAT(status.error.message(), HasSubstr("tcp carries memory of GPUs, staged"));
}

/// What is exported is an allocation, what is registered a part of it, and what is asked for a part of that.
TEST_F(GpuProcess, RegionsInsideAnAllocationAreReachedAtTheirPlaces) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu1", kBytes);
    ASSERT_TRUE(engine->registerLocalMemory(local.pointer(1000), kBytes - 1000));
    const std::uint64_t first = peer.number("make_part gpu0 " + text(kBytes) + " 12345 600001");
    const std::uint64_t second = first + 700000;
    peer.must("register " + text(second) + " 300007");
    const std::uint64_t base = first - 12345;
    peer.must("fill " + text(base) + " " + text(kBytes) + " 4");
    const Bytes there = noise(kBytes, 4);
    for (const auto& [at, bytes] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {first, 600001}, {first + 3, 599998}, {first + 600000, 1}, {second, 300007}, {second + 511, 4097}}) {
        expectCompleted(runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(1003), at, bytes)}), bytes);
        const auto begin = there.begin() + static_cast<std::ptrdiff_t>(at - base);
        EXPECT_TRUE(local.read(1003, bytes) == Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes)));
        // Back where it came from: nothing may change there.
        expectCompleted(runBatch(*engine, {makeRequest(Opcode::Write, segment, local.pointer(1003), at, bytes)}),
                        bytes);
    }
    EXPECT_EQ(peer.ask("check " + text(base) + " " + text(kBytes) + " 4"), "ok");
    // What lies between them, and beside, is of the same mapping and nobody's to touch.
    for (const std::uint64_t outside : {first - 1, first + 600001, second - 1, second + 300007})
        test::expectFailed(runBatch(*engine, {makeRequest(Opcode::Write, segment, local.pointer(1003), outside, 1)}),
                           Code::AddressNotRegistered);
    EXPECT_EQ(peer.ask("check " + text(base) + " " + text(kBytes) + " 4"), "ok");
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

/// Sizes and places around those that anything here is cut by, and one that is far more.
TEST_F(GpuProcess, BytesOfEveryShapeGoToAnotherProcessesGpu) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    constexpr std::uint64_t kMuch = kMany;
    Memory local = make("gpu0", kMuch + 8192);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make gpu1 " + text(kMuch + 8192));
    std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
    shapes.push_back({kMuch, 511, 3});
    unsigned seed = 1;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(shape.bytes);
        ++seed;
        const std::uint64_t there = remote + shape.remote;
        local.write(shape.local, noise(shape.bytes, seed));
        expectCompleted(
            runBatch(*engine, {makeRequest(Opcode::Write, segment, local.pointer(shape.local), there, shape.bytes)}),
            shape.bytes);
        EXPECT_EQ(peer.ask("check " + text(there) + " " + text(shape.bytes) + " " + text(seed)), "ok");
        local.write(shape.local, noise(shape.bytes, seed + 100));
        expectCompleted(
            runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(shape.local), there, shape.bytes)}),
            shape.bytes);
        EXPECT_TRUE(local.read(shape.local, shape.bytes) == noise(shape.bytes, seed));
    }
}

/// Of the GPU that copies: its own process's tasks fail, and the owner has its memory back all the same.
TEST_F(GpuProcess, AGpuThatIsLostWithMemoryMappedHoldsNoOwner) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu0", kBytes);
    Memory good = make("gpu1", kBytes);
    registerAll(*engine, local);
    registerAll(*engine, good);
    const std::uint64_t remote = peer.number("make gpu0 " + text(kBytes));
    exchange(*engine, peer, segment, local, remote, 5);
    control.latency(1000);
    BatchHolder batch(*engine, 16);
    ASSERT_TRUE(batch.submit(piecesOf(Opcode::Read, segment, local, remote, 16, 1000)));
    control.lose(0, cuda::api::Result::IllegalAddress, 3);
    const auto status = batch.wait();
    test::expectFailed(status, Code::DeviceLost);
    EXPECT_TRUE(status.quiesced);
    control.latency(0);
    // By the other GPU it goes on.
    exchange(*engine, peer, segment, good, remote, 7);
    peer.must("unregister " + text(remote));
    EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
}

/// Of the owner of what is mapped: what it can still say of its memory it says, and nobody waits for ever.
TEST_F(GpuProcess, AnOwnerThatLosesItsGpuTakesItsMemoryBack) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t mapped = peer.number("make gpu1 " + text(kBytes));
    const std::uint64_t fresh = peer.number("make gpu1 " + text(kBytes));
    exchange(*engine, peer, segment, local, mapped, 5);
    peer.must("lose 1");
    // What is mapped already no call of the owner stands in the way of; what is not it cannot give any more, or had
    // exported before.
    for (const std::uint64_t remote : {mapped, fresh}) {
        const auto status = runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(), remote, 1000)});
        EXPECT_TRUE(isTerminal(status.s));
        EXPECT_TRUE(status.quiesced);
        peer.must("unregister " + text(remote));
        const auto gone = runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(), remote, 1000)});
        test::expectFailed(gone, Code::AddressNotRegistered);
    }
    EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
}

TEST_F(GpuProcess, UnregisterTakesTheMappingBackBeforeItReturns) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make gpu0 " + text(kBytes));
    exchange(*engine, peer, segment, local, remote, 5);
    // With copies under way that take their time.
    control.latency(20000);
    BatchHolder batch(*engine, 4);
    ASSERT_TRUE(batch.submit(piecesOf(Opcode::Read, segment, local, remote, 4, 1000)));
    peer.must("unregister " + text(remote));
    // The fake tells of memory that is freed while somebody maps it.
    peer.must("free " + text(remote));
    EXPECT_EQ(peer.ask("violations"), "ok ");
    batch.wait();
    control.latency(0);
    const auto gone = runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(), remote, 10)});
    test::expectFailed(gone, Code::AddressNotRegistered);
}

TEST_F(GpuProcess, UnregisteringOnesOwnMemoryWaitsForWhatUsesIt) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    constexpr std::uint64_t kMuch = 32u << 20;
    Memory local = make("gpu0", kMuch);
    const std::uint64_t remote = peer.number("make gpu1 " + text(kMuch));
    peer.must("fill " + text(remote) + " " + text(kMuch) + " 8");
    for (int round = 0; round < 3; ++round) {
        registerAll(*engine, local);
        BatchHolder batch(*engine, 1);
        ASSERT_TRUE(batch.submit({makeRequest(Opcode::Read, segment, local.pointer(), remote, kMuch)}));
        const Status gone = engine->unregisterLocalMemory(local.pointer());
        EXPECT_TRUE(gone) << gone.toString();
        const auto status = engine->getBatchTransferStatus(batch.id());
        ASSERT_TRUE(status);
        expectCompleted(*status, kMuch);
        EXPECT_TRUE(local.read(0, kMuch) == noise(kMuch, 8));
        local.write(0, noise(kMuch, 9));
    }
}

/// A driver maps an allocation once, however many of its regions were granted: work in one must not hold another.
TEST_F(GpuProcess, ARegionIsGivenBackWhileAnotherOfItsAllocationIsBusy) {
    auto engine = startEngine(withHost());
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, false));
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::uint64_t first = peer.number("make_part gpu0 " + text(kBytes) + " 4096 100000");
    const std::uint64_t second = first + 200000;
    peer.must("register " + text(second) + " 100000");
    for (const std::uint64_t each : {first, second})
        expectCompleted(runBatch(*engine, {makeRequest(Opcode::Read, segment, local.pointer(), each, 1000)}), 1000);
    // A copy of the second that does not end before the first is gone.
    control.hold(true);
    BatchHolder batch(*engine, 1);
    const unsigned copies = control.count("cuMemcpyAsync");
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Read, segment, local.pointer(), second, 1000)}));
    const auto limit = Clock::now() + test::kPatience;
    while (control.count("cuMemcpyAsync") == copies && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    peer.must("unregister " + text(first));
    EXPECT_FALSE(isTerminal(batch.task(0).s));
    control.hold(false);
    expectCompleted(batch.wait(), 1000);
    peer.must("unregister " + text(second));
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

TEST_F(GpuProcess, AnExporterThatIsKilledFailsWhatRunsAndNothingIsLeft) {
    auto engine = startEngine(withHost());
    Memory local = make("gpu0", kBytes);
    registerAll(*engine, local);
    const std::string before = control.leftovers();
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, true));
    const std::uint64_t remote = peer.number("make gpu1 " + text(kBytes));
    exchange(*engine, peer, segment, local, remote, 5);
    control.latency(2000);
    BatchHolder batch(*engine, 64);
    ASSERT_TRUE(batch.submit(piecesOf(Opcode::Write, segment, local, remote, 64, 4096)));
    peer.kill();
    const auto status = batch.wait();
    EXPECT_TRUE(isTerminal(status.s));
    EXPECT_TRUE(status.quiesced);
    // What completed before the end is complete, the rest says whose end it was.
    if (status.s != TransferStatusEnum::COMPLETED) {
        const Code code = status.error.code();
        EXPECT_TRUE(code == Code::PeerDown || code == Code::ConnectionLost || code == Code::ConnectionRefused)
            << status.error.toString();
    }
    control.latency(0);
    ASSERT_TRUE(engine->closeSegment(segment));
    const auto limit = Clock::now() + test::kPatience;
    while (control.leftovers() != before && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(control.leftovers(), before);
}

TEST_F(GpuProcess, AStoppedPeerKeepsTheRegionRegisteredAndIsNamed) {
    EngineSetup impatient = withHost();
    impatient.config.unregister_timeout = std::chrono::milliseconds(300);
    GpuPeerProcess peer;
    auto engine = startEngine(impatient);
    Memory served = make("gpu0", kBytes);
    registerAll(*engine, served);
    peer.start(true, false);
    const std::uint64_t theirs = peer.number("make gpu0 " + text(kBytes));
    peer.must("read " + engine->localSegmentName() + " " + text(theirs) + " " + text(served.addr()) + " 1000");
    peer.stop();
    const Status refused = engine->unregisterLocalMemory(served.pointer());
    peer.goOn();
    expectCode(refused, Code::BatchBusy);
    EXPECT_THAT(refused.message(), HasSubstr(text(static_cast<std::uint64_t>(peer.pid()))));
    const auto limit = Clock::now() + test::kPatience;
    Status done = refused;
    while (!done && Clock::now() < limit) done = engine->unregisterLocalMemory(served.pointer());
    EXPECT_TRUE(done) << done.toString();
}

}  // namespace
}  // namespace troupe::gpu
