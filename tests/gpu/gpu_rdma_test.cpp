// Memory of a GPU by RDMA, straight to and from it: whole engines on the software device and the fake driver.

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/gpu/rdma_fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = 300001;

using GpuRdma = GpuRdmaTest;

TEST_F(GpuRdma, BytesOfEveryShapeGoStraightBetweenGpusAndHosts) {
    EngineSetup untried = rdma();
    // What finds out whether a kernel packs pages copies some.
    untried.config.gpu_pack = "off";
    start(untried);
    for (const auto& [here, there] : std::vector<std::pair<std::string, std::string>>{
             {"gpu0", "host"}, {"gpu0", "pinned"}, {"host", "gpu1"}, {"gpu0", "gpu1"}, {"gpu1", "gpu1"}})
        exchangeBetween(here, there);
    // No copy of a GPU, no staging.
    EXPECT_EQ(control.count("operations"), 0u);
}

TEST_F(GpuRdma, ARegionOfManyChunksHasEachImportedAtItsPlace) {
    EngineSetup chunked = rdma();
    chunked.config.rdma_max_chunk_bytes = 64u << 10;
    start(chunked);
    exchangeBetween("gpu0", "gpu1");
    // 82 chunks with each of two devices, at either end.
    EXPECT_EQ(soft->dmabufs().size(), 2u * 2u * (kRoom / (64u << 10) + 1));
    EXPECT_EQ(control.count("cuMemGetHandleForAddressRange"), 2u);
}

/// Small allocations lie anywhere in a block: their first and last page are not theirs alone.
TEST_F(GpuRdma, PartsOfAllocationsThatBeginOnNoPageAreReachedToTheByte) {
    start();
    constexpr std::uint64_t kAllocation = 100000;
    struct Part {
        std::uint64_t begin;
        std::uint64_t bytes;
    };
    bool begins_on_no_page = false;
    for (const Part part : {Part{0, kAllocation}, Part{777, 5}, Part{4095, 2}, Part{8192, 4096}, Part{12345, 80001},
                            Part{kAllocation - 1, 1}}) {
        SCOPED_TRACE(std::to_string(part.bytes) + " bytes at " + std::to_string(part.begin));
        Memory local = make("gpu0", kAllocation);
        Memory remote = make("gpu1", kAllocation);
        begins_on_no_page = begins_on_no_page || local.addr() % 4096 != 0;
        ASSERT_TRUE(a->registerLocalMemory(local.pointer(part.begin), part.bytes));
        ASSERT_TRUE(b->registerLocalMemory(remote.pointer(part.begin), part.bytes, "cuda:1"));
        ASSERT_TRUE(a->syncSegmentCache());
        const Bytes before = noise(kAllocation, 1);
        for (Memory* memory : {&local, &remote}) memory->write(0, before);
        expectByRdma(local, part.begin, remote, part.begin, part.bytes);
        // Beside it nothing changed.
        for (Memory* memory : {&local, &remote}) {
            const Bytes inside = memory->read(part.begin, part.bytes);
            Bytes wanted = before;
            std::copy(inside.begin(), inside.end(), wanted.begin() + static_cast<std::ptrdiff_t>(part.begin));
            EXPECT_TRUE(memory->read(0, kAllocation) == wanted);
        }
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer(part.begin)));
        EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer(part.begin)));
    }
    EXPECT_TRUE(begins_on_no_page);
}

TEST_F(GpuRdma, OnePieceOfVirtualMemoryIsReachedAsAnyOther) {
    start();
    Memory local = make("virtual0", 2u << 20);
    Memory remote = make("private1", 2u << 20);
    registerAll(*a, local);
    registerRemote(remote);
    expectByRdma(local, 1, remote, 4097, kBytes);
    EXPECT_EQ(move(Opcode::Read, local, 5, remote, 6, 100).gpu, "straight, by dma-buf");
    EXPECT_EQ(control.count("cuPointerSetAttribute"), 0u) << "it has no such attribute";
}

TEST_F(GpuRdma, ItIsExportedOnceAndTheFileIsClosedWhileTheRegistrationsStayUntilItIsUnregistered) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerAll(*a, local);
    EXPECT_EQ(control.count("cuMemGetHandleForAddressRange"), 1u);
    EXPECT_EQ(control.count("cuPointerSetAttribute"), 1u);
    EXPECT_EQ(soft->dmabufs().size(), 2u) << "by each of two devices";
    EXPECT_EQ(openDmabufs(), 0u);
    EXPECT_EQ(soft->count("mr"), 2u);
    registerRemote(remote);
    expectByRdma(local, 0, remote, 0, kBytes);
    EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
    EXPECT_EQ(soft->count("mr"), 2u);
    EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
    EXPECT_EQ(soft->count("mr"), 0u);
}

TEST_F(GpuRdma, AfterUnregisterNoByteOfAPeerArrives) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerAll(*a, local);
    registerRemote(remote);
    expectByRdma(local, 0, remote, 0, kBytes);
    const Bytes before = remote.read(0, kBytes);
    local.write(0, noise(kBytes, 99));
    soft->hold(true);
    {
        // Its first try waits in the device when the key goes.
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)}));
        const auto limit = Clock::now() + test::kPatience;
        while (soft->held() == 0 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_NE(soft->held(), 0u);
        EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
        soft->hold(false);
        const TransferStatus status = batch.wait();
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
        EXPECT_TRUE(status.quiesced);
    }
    EXPECT_TRUE(remote.read(0, kBytes) == before);
}

TEST_F(GpuRdma, UnregisteringWaitsForOnesOwnTransfers) {
    EngineSetup impatient = rdma();
    impatient.config.unregister_timeout = std::chrono::milliseconds(100);
    start(impatient);
    Memory local = make("gpu0", kBytes);
    Memory remote = make("host", kBytes);
    registerAll(*a, local);
    registerRemote(remote);
    local.write(0, noise(kBytes, 7));
    soft->hold(true);
    BatchHolder batch(*a, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)}));
    expectCode(a->unregisterLocalMemory(local.pointer()), Code::BatchBusy);
    soft->hold(false);
    expectCompleted(batch.wait(), kBytes);
    EXPECT_TRUE(remote.read(0, kBytes) == noise(kBytes, 7));
    EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
    EXPECT_EQ(soft->count("mr"), 2u) << "those of the peer";
}

TEST_F(GpuRdma, MemoryThatIsNotForPeersIsSourceAndDestinationAndNothingElse) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    Memory hidden = make("gpu1", kBytes);
    ASSERT_TRUE(a->registerLocalMemory(local.pointer(), kBytes, "*", false));
    ASSERT_TRUE(b->registerLocalMemory(hidden.pointer(), kBytes, "*", false));
    registerRemote(remote);
    expectByRdma(local, 9, remote, 1, kBytes - 9);
    const Bytes before = hidden.read(0, kBytes);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read})
        test::expectFailed(runBatch(*a, {makeRequest(opcode, segment, local.pointer(), hidden.addr(), kBytes)}),
                           Code::AccessDenied);
    EXPECT_TRUE(hidden.read(0, kBytes) == before);
}

TEST_F(GpuRdma, NothingOfAGpuIsSentInline) {
    start();
    Memory host = make("host", 4096);
    Memory gpu0 = make("gpu0", 4096);
    Memory remote = make("gpu1", 4096);
    for (Memory* memory : {&host, &gpu0}) registerAll(*a, *memory);
    registerRemote(remote);
    for (const std::uint64_t bytes : {1, 8, 63, 64}) expectByRdma(gpu0, 5, remote, 77, bytes);
    EXPECT_EQ(soft->inlined(), 0u);
    // The device does take it so: from memory that the processor can read.
    expectByRdma(host, 5, remote, 77, 64);
    EXPECT_EQ(soft->inlined(), 1u);
}

TEST_F(GpuRdma, WhereNoDmabufIsToBeHadAPeerMemoryDriverLendsTheAddress) {
    loadPeerMemory();
    start();
    for (const bool driver_refuses : {true, false}) {
        if (driver_refuses)
            control.fail("cuMemGetHandleForAddressRange", cuda::api::Result::NotSupported, 2);
        else
            soft->fail("regDmabufMr", EOPNOTSUPP, 2);
        Memory local = make("gpu0", kRoom);
        Memory remote = make("gpu1", 100000);
        registerAll(*a, local);
        registerRemote(remote);
        EXPECT_TRUE(soft->dmabufs().empty());
        EXPECT_EQ(soft->count("mr"), 4u);
        expectByRdma(local, 12345, remote, 1, 99999);
        expectByRdma(local, 0, remote, 0, 1);
        EXPECT_EQ(move(Opcode::Write, local, 5, remote, 6, 100).gpu, "straight, by its address (peer memory driver)");
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
        EXPECT_EQ(soft->count("mr"), 0u);
        EXPECT_EQ(openDmabufs(), 0u);
    }
}

TEST_F(GpuRdma, AKernelsBytesAreCarriedWhetherByEventOrByStreamAndTheDoneEventComesAfterThem) {
    start();
    for (const bool by_stream : {false, true}) {
        Memory source = make("gpu0", kBytes);
        Memory fresh = make("gpu0", kBytes);
        Memory target = make("gpu1", kBytes);
        registerAll(*a, source);
        registerRemote(target);
        source.write(0, noise(kBytes, 1));
        fresh.write(0, noise(kBytes, 2));
        const device::DeviceStream stream = must(gpu(0).makeStream());
        const device::DeviceEvent written = must(gpu(0).makeEvent());
        const device::DeviceEvent done = must(gpu(0).makeEvent());
        control.delay(stream.get(), 50000);
        must(gpu(0).copy(stream, source.addr(), fresh.addr(), kBytes));
        must(gpu(0).record(written, stream));
        const auto handle = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        if (by_stream)
            request.wait_stream = handle(stream.get());
        else
            request.wait_event = handle(written.get());
        expectCompleted(runBatch(*a, {request}), kBytes);
        EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 2));

        target.write(0, noise(kBytes, 3));
        auto back = makeRequest(Opcode::Read, segment, source.pointer(), target.addr(), kBytes);
        back.done_event = handle(done.get());
        BatchHolder reading(*a, 1);
        ASSERT_TRUE(reading.submit({back}));
        // From here on, whether the bytes are there or not.
        must(gpu(0).wait(stream, done));
        must(gpu(0).copy(stream, fresh.addr(), source.addr(), kBytes));
        expectCompleted(reading.wait(), kBytes);
        must(gpu(0).synchronize(stream));
        EXPECT_TRUE(fresh.read(0, kBytes) == noise(kBytes, 3));
        EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
        EXPECT_TRUE(b->unregisterLocalMemory(target.pointer()));
    }
}

}  // namespace
}  // namespace troupe::gpu
