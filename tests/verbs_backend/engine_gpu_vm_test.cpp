// Memory of a GPU that no RDMA device reaches, beside memory that they do. Runs in the VM, with the fake driver: what
// its dma-bufs are no kernel knows, and its addresses cannot be pinned.

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "tests/gpu/memory.h"
#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;
using ::testing::HasSubstr;

class VerbsVmGpu : public cuda::testing::CudaTest {
  protected:
    static constexpr std::uint64_t kBytes = (1u << 20) + 77;

    EngineSetup with(const std::string& device, bool tcp) const {
        EngineSetup setup = rdmaSetup(device);
        setup.tcp = tcp;
        setup.config.gpu_driver = fake_cuda::Control::path();
        setup.options.log = log_;
        return setup;
    }
    std::string logged() const { return said_.str(); }
    gpu::testing::Memory make(const std::string& kind) {
        return {kind, kBytes, *runtime, control, [this](int ordinal) -> device::Device& { return gpu(ordinal); }};
    }
    /// Writes and reads; returns what explain says of the read.
    static std::string exchange(TransferEngine& engine, SegmentID segment, gpu::testing::Memory& local,
                                gpu::testing::Memory& remote) {
        using cuda::testing::noise;
        BatchHolder batch(engine, 2);
        local.write(0, noise(kBytes, 1));
        EXPECT_TRUE(batch.submit({makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)}));
        expectCompleted(batch.wait(), kBytes);
        EXPECT_TRUE(remote.read(0, kBytes) == noise(kBytes, 1));
        remote.write(0, noise(kBytes, 2));
        EXPECT_TRUE(batch.submit({makeRequest(Opcode::Read, segment, local.pointer(), remote.addr(), kBytes)}));
        expectCompleted(batch.wait(), 2 * kBytes);
        EXPECT_TRUE(local.read(0, kBytes) == noise(kBytes, 2));
        const auto way = engine.explain(batch.id(), 1);
        EXPECT_TRUE(way) << way.status().toString();
        return way ? way->toString() : "";
    }

  private:
    std::ostringstream said_;
    const Logger log_ = std::make_shared<spdlog::logger>("vm", std::make_shared<spdlog::sinks::ostream_sink_mt>(said_));
};

TEST_F(VerbsVmGpu, WhatNoDeviceTakesIsStagedOverTcpAndTheLogAndExplainSayWhy) {
    const auto a = startRdma(with("rxe_0a", true));
    const auto b = startRdma(with("rxe_0b", true));
    auto gpu0 = make("gpu0");
    auto gpu1 = make("gpu1");
    auto host = make("host");
    auto other = make("host");
    for (auto* memory : {&gpu0, &host}) ASSERT_TRUE(a->registerLocalMemory(memory->pointer(), kBytes));
    for (auto* memory : {&gpu1, &other}) ASSERT_TRUE(b->registerLocalMemory(memory->pointer(), kBytes));
    const std::string log = logged();
    EXPECT_THAT(log, HasSubstr("goes by other transports: memory at cuda:0 cannot be used by RDMA: as a dma-buf"));
    EXPECT_THAT(log, HasSubstr("memory at cuda:1"));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();

    const std::string here = exchange(*a, *segment, gpu0, other);
    EXPECT_THAT(here, HasSubstr("memory at cuda:0 cannot be used by RDMA"));
    EXPECT_THAT(here, HasSubstr("tcp by tcp0"));
    const std::string there = exchange(*a, *segment, host, gpu1);
    EXPECT_THAT(there, HasSubstr("memory of cuda:1, which no RDMA device there reaches"));
    EXPECT_THAT(there, HasSubstr("tcp by tcp0"));
    exchange(*a, *segment, gpu0, gpu1);
    EXPECT_THAT(exchange(*a, *segment, host, other), HasSubstr("rdma by"));
}

TEST_F(VerbsVmGpu, WithoutAnotherTransportTheTaskFailsWithTheReason) {
    const auto a = startRdma(with("rxe_0a", false));
    const auto b = startRdma(with("rxe_0b", false));
    auto gpu0 = make("gpu0");
    auto host = make("host");
    ASSERT_TRUE(a->registerLocalMemory(gpu0.pointer(), kBytes));
    ASSERT_TRUE(b->registerLocalMemory(host.pointer(), kBytes));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    const auto status = runBatch(*a, {makeRequest(Opcode::Write, *segment, gpu0.pointer(), host.addr(), kBytes)});
    expectFailed(status, Code::Unsupported);
    EXPECT_THAT(status.error.message(), HasSubstr("by its address"));
}

}  // namespace
}  // namespace troupe
