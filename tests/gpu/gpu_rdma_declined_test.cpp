// Memory of a GPU that RDMA cannot have, or not all of it, and GPUs that are lost: on the software device and the fake
// driver.

#include <gmock/gmock.h>

#include <cerrno>

#include "tests/gpu/rdma_fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = 300001;

class GpuRdmaDeclined : public GpuRdmaTest {
  protected:
    /// Both directions go by TCP, after rdma has said why it does not take it.
    void expectByTcp(Memory& local, Memory& remote, std::initializer_list<const char*> why, std::uint64_t bytes) {
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            const RouteExplanation way = move(opcode, local, 5, remote, 1, bytes - 5);
            EXPECT_THAT(way.toString(), HasSubstr("tcp by tcp0"));
            for (const char* part : why) EXPECT_THAT(way.toString(), HasSubstr(part));
        }
    }
};

TEST_F(GpuRdmaDeclined, WhatOneOfTwoDevicesRefusesNeitherHasAndTcpCarriesIt) {
    start(rdma(true));
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerRemote(remote);
    for (const int taken : {0, 1}) {
        SCOPED_TRACE(taken);
        soft->fail("regDmabufMr", EOPNOTSUPP, 1, taken);
        registerAll(*a, local);
        EXPECT_EQ(soft->count("mr"), 2u) << "those of the peer";
        EXPECT_EQ(openDmabufs(), 0u);
        const std::string device = "device a" + std::to_string(taken);
        expectByTcp(local, remote,
                    {"memory at cuda:0 cannot be used by RDMA: as a dma-buf", device.c_str(), "older than 5.12",
                     "by its address", "peer memory support"},
                    kBytes);
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
    }
    // Nothing of it stays: registered again, both have it.
    registerAll(*a, local);
    EXPECT_EQ(soft->count("mr"), 4u);
    expectByRdma(local, 0, remote, 0, kBytes);
}

TEST_F(GpuRdmaDeclined, WithAPeerMemoryDriverTheAddressIsRegisteredWithBoth) {
    loadPeerMemory();
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerRemote(remote);
    soft->fail("regDmabufMr", EOPNOTSUPP, 1, 1);
    registerAll(*a, local);
    EXPECT_EQ(soft->count("mr"), 4u);
    expectByRdma(local, 1, remote, 2, kBytes - 2);
}

TEST_F(GpuRdmaDeclined, WhatThePeersDevicesDoNotReachGoesByTcp) {
    start(rdma(true));
    Memory local = make("gpu0", kBytes);
    Memory remote = make("gpu1", kBytes);
    registerAll(*a, local);
    control.fail("cuMemGetHandleForAddressRange", cuda::api::Result::NotSupported);
    registerRemote(remote);
    EXPECT_EQ(soft->count("mr"), 2u);
    expectByTcp(local, remote, {"memory of cuda:1, which no RDMA device there reaches"}, kBytes);
}

TEST_F(GpuRdmaDeclined, SeveralVirtualAllocationsInOneRegionGoByTcpAndOneOfThemByRdma) {
    loadPeerMemory();
    start(rdma(true));
    Memory local = make("virtual0", 3u << 20);
    Memory remote = make("host", 3u << 20);
    registerRemote(remote);
    registerAll(*a, local);
    expectByTcp(local, remote, {"cuMemGetHandleForAddressRange", "by its address"}, 3u << 20);
    EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
    ASSERT_TRUE(a->registerLocalMemory(local.pointer(2u << 20), 1u << 20));
    expectByRdma(local, (2u << 20) + 5, remote, 3, kBytes);
}

TEST_F(GpuRdmaDeclined, WithoutAnotherTransportTheTaskFailsWithTheReason) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("host", kBytes);
    registerRemote(remote);
    soft->fail("regDmabufMr", EOPNOTSUPP);
    registerAll(*a, local);
    const auto status = runBatch(*a, {makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)});
    test::expectFailed(status, Code::Unsupported);
    EXPECT_THAT(status.error.message(), HasSubstr("by its address"));
}

TEST_F(GpuRdmaDeclined, ALostGpuIsLostByItselfAndItsRegionsCanBeGivenBack) {
    start();
    Memory lost = make("gpu0", kBytes);
    Memory more = make("gpu0", kBytes);
    Memory good = make("gpu1", kBytes);
    Memory remote = make("host", kBytes);
    for (Memory* memory : {&lost, &good}) registerAll(*a, *memory);
    registerRemote(remote);
    expectByRdma(lost, 0, remote, 0, kBytes);
    {
        const device::DeviceEvent event = must(gpu(0).makeEvent());
        control.lose(0, cuda::api::Result::IllegalAddress);
        // What waits for that GPU's work ends with it.
        auto request = makeRequest(Opcode::Write, segment, lost.pointer(), remote.addr(), kBytes);
        request.wait_event = reinterpret_cast<void*>(event.get());
        const auto waited = runBatch(*a, {request});
        test::expectFailed(waited, Code::DeviceLost);
        EXPECT_THAT(waited.error.message(), HasSubstr("cuda:0"));
    }
    expectCode(a->registerLocalMemory(more.pointer(), kBytes), Code::DeviceLost);
    // Others, and the connections, do not notice.
    expectByRdma(good, 0, remote, 0, kBytes);
    EXPECT_EQ(soft->count("mr"), 6u);
    EXPECT_TRUE(a->unregisterLocalMemory(lost.pointer()));
    EXPECT_EQ(soft->count("mr"), 4u);
}

/// Between the look at what it is and its export.
TEST_F(GpuRdmaDeclined, AGpuThatIsLostWhileItsMemoryIsExportedSaysSo) {
    start();
    Memory local = make("gpu0", kBytes);
    Memory remote = make("host", kBytes);
    registerRemote(remote);
    control.fail("cuMemGetHandleForAddressRange", cuda::api::Result::IllegalAddress);
    registerAll(*a, local);
    const auto status = runBatch(*a, {makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)});
    EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
    EXPECT_THAT(status.error.message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_EQ(soft->count("mr"), 2u) << "those of the peer";
}

}  // namespace
}  // namespace troupe::gpu
