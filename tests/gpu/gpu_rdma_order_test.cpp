// Memory of a GPU that does not order what NICs write (GPU_DIRECT_RDMA_WRITES_ORDERING is NONE): the software device's
// writes there are on their way until the driver flushes them, or the device that wrote them reads there.

#include <gmock/gmock.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tests/gpu/rdma_fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = 300001;
constexpr const char* kFlush = "cuFlushGPUDirectRDMAWrites";

using GpuRdmaOrder = GpuRdmaTest;

TEST_F(GpuRdmaOrder, ACompletedReadIsSeenByTheGpu) {
    disorder(true);
    start();
    exchangeBetween("gpu0", "host");
    EXPECT_GE(control.count(kFlush), 1u);
}

/// The owner is not asked: its driver is not this process's to flush.
TEST_F(GpuRdmaOrder, ACompletedWriteIsSeenByTheOwnersGpu) {
    disorder(true);
    EngineSetup chunked = rdma();
    chunked.config.rdma_max_chunk_bytes = 64u << 10;
    start(chunked);
    for (const char* here : {"host", "gpu0"}) exchangeBetween(here, "gpu1");
}

TEST_F(GpuRdmaOrder, WhatComesTogetherIsFlushedOnce) {
    disorder(true);
    start();
    constexpr std::uint64_t kPage = 4096;
    constexpr std::uint64_t kPages = 64;
    // Apart on one side, so that nothing is merged.
    Memory local = make("gpu0", 2 * kPages * kPage);
    Memory remote = make("host", kPages * kPage);
    registerAll(*a, local);
    registerRemote(remote);
    const Bytes sent = noise(remote.size(), 7);
    remote.write(0, sent);
    std::vector<TransferRequest> requests;
    for (std::uint64_t i = 0; i < kPages; ++i)
        requests.push_back(
            makeRequest(Opcode::Read, segment, local.pointer(2 * i * kPage), remote.addr(i * kPage), kPage));
    // Connected, and past the trial of each pair.
    expectCompleted(runBatch(*a, requests), kPages * kPage);
    const unsigned before = control.count(kFlush);
    soft->hold(true);
    BatchHolder batch(*a, kPages);
    ASSERT_TRUE(batch.submit(requests));
    const auto limit = Clock::now() + test::kPatience;
    while (soft->held() < kPages && Clock::now() < limit) std::this_thread::yield();
    ASSERT_EQ(soft->held(), kPages);
    soft->hold(false);
    expectCompleted(batch.wait(), kPages * kPage);
    for (std::uint64_t i = 0; i < kPages; ++i) {
        const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(i * kPage);
        ASSERT_TRUE(local.read(2 * i * kPage, kPage) == Bytes(begin, begin + static_cast<std::ptrdiff_t>(kPage))) << i;
    }
    // By each of two devices in one pass, or a few.
    EXPECT_LE(control.count(kFlush) - before, 8u);
}

TEST_F(GpuRdmaOrder, WhereTheGpuOrdersThemNobodyFlushesAndNothingIsReadBack) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerAll(*a, local);
    registerRemote(remote);
    expectByRdma(local, 0, remote, 0, kBytes);
    EXPECT_EQ(control.count(kFlush), 0u);
    EXPECT_EQ(soft->count("mr"), 4u) << "none to read back into";
}

TEST_F(GpuRdmaOrder, AFlushThatFailsFailsTheReadsOfThatGpuAlone) {
    disorder(true);
    start();
    Memory lost = make("gpu0", kBytes);
    Memory good = make("gpu1", kBytes);
    Memory remote = make("host", kBytes);
    for (Memory* memory : {&lost, &good}) registerAll(*a, *memory);
    registerRemote(remote);
    expectByRdma(lost, 0, remote, 0, kBytes);
    control.lose(0, cuda::api::Result::IllegalAddress);
    const auto status = runBatch(*a, {makeRequest(Opcode::Read, segment, lost.pointer(), remote.addr(), kBytes)});
    test::expectFailed(status, Code::DeviceLost);
    EXPECT_THAT(status.error.message(), HasSubstr("the bytes came and may not be seen: cuda:0"));
    expectByRdma(good, 0, remote, 0, kBytes);
    // What is on its way there goes with the registration.
    EXPECT_TRUE(a->unregisterLocalMemory(lost.pointer()));
}

TEST_F(GpuRdmaOrder, WithoutAFlushWhatIsWrittenGoesByTcpAndWhatIsReadByRdma) {
    disorder(false);
    start(rdma(true));
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    Memory host = make("host", kBytes);
    registerAll(*a, local);
    registerAll(*b, host);
    registerRemote(remote);
    const RouteExplanation into_own = move(Opcode::Read, local, 1, host, 2, kBytes - 2);
    EXPECT_EQ(into_own.transport, "tcp") << into_own.toString();
    EXPECT_THAT(into_own.toString(), HasSubstr("memory at cuda:0 may not be written by RDMA"));
    EXPECT_THAT(into_own.toString(), HasSubstr("GPU_DIRECT_RDMA_WRITES_ORDERING is NONE"));
    const RouteExplanation into_theirs = move(Opcode::Write, local, 1, remote, 2, kBytes - 2);
    EXPECT_EQ(into_theirs.transport, "tcp") << into_theirs.toString();
    EXPECT_THAT(into_theirs.toString(), HasSubstr("is memory of cuda:1, which does not see what RDMA devices write"));
    const RouteExplanation from_own = move(Opcode::Write, local, 1, host, 2, kBytes - 2);
    EXPECT_EQ(from_own.transport, "rdma") << from_own.toString();
    Memory here = make("host", kBytes);
    registerAll(*a, here);
    const RouteExplanation from_theirs = move(Opcode::Read, here, 1, remote, 2, kBytes - 2);
    EXPECT_EQ(from_theirs.transport, "rdma") << from_theirs.toString();
    EXPECT_EQ(control.count(kFlush), 0u);
}

/// A task is sent again by TCP where the device does not give what is read back into.
TEST_F(GpuRdmaOrder, WithoutRoomToReadBackIntoItGoesByTcp) {
    disorder(true);
    start(rdma(true));
    Memory local = make("host", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerAll(*a, local);
    registerRemote(remote);
    soft->fail("regMr", ENOMEM, 1000);
    const RouteExplanation way = move(Opcode::Write, local, 1, remote, 2, kBytes - 2);
    EXPECT_EQ(way.transport, "tcp") << way.toString();
    EXPECT_THAT(way.toString(), HasSubstr("register what is read back"));
    soft->fail("regMr", 0, 0);
    EXPECT_EQ(move(Opcode::Write, local, 1, remote, 2, kBytes - 2).transport, "rdma");
}

}  // namespace
}  // namespace troupe::gpu
