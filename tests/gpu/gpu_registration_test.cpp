// What memory is, is found out when it is registered.

#include <gmock/gmock.h>

#include "engine/device_memory.h"
#include "tests/gpu/fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

class GpuRegistration : public GpuTest {
  protected:
    static std::string locationOf(TransferEngine& engine, std::uint64_t addr) {
        const auto desc = engine.getSegmentDescByID(kLocalSegmentID);
        for (const BufferDesc& buffer : (*desc)->buffers)
            if (buffer.addr == addr) return buffer.location;
        return "not registered";
    }
};

TEST_F(GpuRegistration, AStarFindsTheGpu) {
    auto engine = startEngine(setup());
    Memory first = make("gpu0", 10000);
    Memory second = make("gpu1", 10000);
    Memory segments = make("virtual1", 5u << 20);
    for (Memory* memory : {&first, &second, &segments}) registerAll(*engine, *memory);
    EXPECT_EQ(locationOf(*engine, first.addr()), "cuda:0");
    EXPECT_EQ(locationOf(*engine, second.addr()), "cuda:1");
    EXPECT_EQ(locationOf(*engine, segments.addr()), "cuda:1");
    for (Memory* memory : {&first, &second, &segments}) EXPECT_TRUE(engine->unregisterLocalMemory(memory->pointer()));
}

TEST_F(GpuRegistration, APartOfAnAllocationAndTheRightNameAreGood) {
    auto engine = startEngine(setup());
    Memory memory = make("gpu1", 100000);
    EXPECT_TRUE(engine->registerLocalMemory(memory.pointer(12345), 777, "cuda:1"));
    EXPECT_EQ(locationOf(*engine, memory.addr(12345)), "cuda:1");
}

TEST_F(GpuRegistration, AWrongHintIsRefusedAndSaysWhatTheMemoryIs) {
    auto engine = startEngine(setup());
    Memory gpu0 = make("gpu0", 4096);
    Memory pinned = make("pinned", 4096);
    Memory host = make("host", 4096);
    const auto refused = [&](Memory& memory, const std::string& hint, const std::string& what) {
        const Status status = engine->registerLocalMemory(memory.pointer(), memory.size(), hint);
        expectCode(status, Code::InvalidArgument);
        EXPECT_THAT(status.message(), HasSubstr(what)) << hint;
        EXPECT_THAT(status.message(), HasSubstr("'" + hint + "'"));
        EXPECT_EQ(locationOf(*engine, memory.addr()), "not registered");
    };
    refused(gpu0, "cuda:1", "memory of cuda:0");
    refused(gpu0, "cpu:0", "memory of cuda:0");
    refused(pinned, "cuda:0", "pinned memory");
    refused(host, "cuda:0", "host memory");
    // The same memory is good when it is called what it is.
    for (Memory* memory : {&gpu0, &pinned, &host}) registerAll(*engine, *memory);
}

TEST_F(GpuRegistration, MemoryOfTwoKindsOrWithAHoleIsRefused) {
    auto engine = startEngine(setup());
    Memory memory = make("gpu0", 4096);
    const Status past = engine->registerLocalMemory(memory.pointer(), 1u << 20);
    expectCode(past, Code::InvalidArgument);
    cuda::testing::VirtualMemory pieces(runtime->driver(), 0, 3, 1);
    pieces.unmap(1);
    expectCode(engine->registerLocalMemory(reinterpret_cast<void*>(pieces.base()), pieces.bytes()),
               Code::InvalidArgument);
}

TEST_F(GpuRegistration, WithoutADriverANamedGpuIsRefusedWithTheReason) {
    EngineSetup none = setup();
    none.config.gpu_driver = "/nonexistent/libcuda.so.1";
    auto engine = startEngine(none);
    Memory host = make("host", 4096);
    const Status refused = engine->registerLocalMemory(host.pointer(), host.size(), "cuda:0");
    expectCode(refused, Code::Unsupported);
    EXPECT_THAT(refused.message(), HasSubstr("no CUDA driver"));
    EXPECT_THAT(refused.message(), HasSubstr("/nonexistent/libcuda.so.1"));
    registerAll(*engine, host);
}

/// A processor may not touch memory of a GPU: without the driver's word it is taken for what it is to that.
TEST_F(GpuRegistration, WithADriverThatCannotBeUsedAStarSaysSo) {
    auto engine = startEngine(setup());
    Memory memory = make("gpu0", 4096);
    control.fail("cuInit", cuda::api::Result::SystemDriverMismatch, 100);
    const Status refused = engine->registerLocalMemory(memory.pointer(), memory.size());
    control.fail("cuInit", cuda::api::Result::Success, 0);
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("whether it is memory of a GPU cannot be told: no CUDA driver"));
    EXPECT_THAT(refused.message(), HasSubstr("cuInit: "));
    // It is asked again.
    registerAll(*engine, memory);
}

/// CUDA counts as CUDA_VISIBLE_DEVICES says, and the matrix by PCI addresses.
TEST_F(GpuRegistration, DevicesAreChosenForTheGpuAtThatPciAddress) {
    const Config settings = setup().config;
    const auto gpuAt = [](int index, const std::string& pci) { return Gpu{index, Place{-1, {"pci0000:00", pci}}}; };
    Memory memory = make("gpu0", 4096);
    const auto located = [&](std::vector<Gpu> machine) {
        DeviceMemory found(settings, makeSilentLogger());
        found.setMachine(std::move(machine));
        Region region;
        region.range = {memory.addr(), memory.size()};
        EXPECT_TRUE(found.locate(region));
        EXPECT_EQ(region.location, "cuda:0");
        return region.locationOf(memory.addr());
    };
    const std::string own = must(runtime->info(0)).pci;
    EXPECT_EQ(located({gpuAt(0, "0000:01:00.0"), gpuAt(1, own)}), "cuda:1");
    EXPECT_EQ(located({gpuAt(0, own), gpuAt(1, "0000:a1:00.0")}), "cuda:0");
    EXPECT_EQ(located({gpuAt(0, "0000:01:00.0")}), "*") << "it is none of those, and not the first of them";
    EXPECT_EQ(located({}), "cuda:0") << "nobody has counted";
}

TEST_F(GpuRegistration, NoGpuIsOpenedButByMemoryOnIt) {
    auto engine = startEngine(setup());
    Memory host = make("host", 4096);
    registerAll(*engine, host);
    EXPECT_EQ(control.count("contexts"), 0u);
    Memory memory = make("gpu1", 4096);
    registerAll(*engine, memory);
    EXPECT_EQ(control.count("contexts"), 1u);
}

/// Without a kernel, which stays as long as the engine.
EngineSetup withoutKernel(EngineSetup setup) {
    setup.config.gpu_pack = "off";
    return setup;
}

TEST_F(GpuRegistration, WhatIsRefusedLeavesNothing) {
    auto engine = startEngine(withoutKernel(setup()));
    Memory memory = make("gpu0", 4096);
    const std::string before = control.leftovers();
    for (const char* call : {"cuMemHostRegister", "cuStreamCreate", "cuEventCreate", "cuMemGetAddressRange"}) {
        control.fail(call, cuda::api::Result::OutOfMemory);
        const Status refused = engine->registerLocalMemory(memory.pointer(), memory.size());
        expectCode(refused, Code::ResourceExhausted);
        EXPECT_THAT(refused.message(), HasSubstr(call));
        EXPECT_EQ(locationOf(*engine, memory.addr()), "not registered");
        EXPECT_EQ(control.leftovers(), before) << call;
    }
    registerAll(*engine, memory);
    EXPECT_NE(control.leftovers(), before);
    // With the last region on a GPU its rings go.
    EXPECT_TRUE(engine->unregisterLocalMemory(memory.pointer()));
    EXPECT_EQ(control.leftovers(), before);
}

TEST_F(GpuRegistration, ABatchIsAllOrNothingEverywhere) {
    auto engine = startEngine(withoutKernel(setup()));
    Memory first = make("gpu0", 4096);
    Memory second = make("gpu1", 4096);
    const std::string before = control.leftovers();
    // The second region's rings are refused when the first one is with every transport.
    control.fail("cuMemHostRegister", cuda::api::Result::OutOfMemory, 1, 3);
    expectCode(engine->registerLocalMemoryBatch({{first.pointer(), 4096}, {second.pointer(), 4096}}),
               Code::ResourceExhausted);
    EXPECT_EQ(locationOf(*engine, first.addr()), "not registered");
    EXPECT_EQ(control.leftovers(), before);
    EXPECT_TRUE(engine->registerLocalMemoryBatch({{first.pointer(), 4096}, {second.pointer(), 4096}}));
}

TEST_F(GpuRegistration, ATransportThatCannotTakeARegisteredRegionIsNotInstalled) {
    auto engine = startEngine(setup());
    for (const char* each : {"tcp", "host"}) ASSERT_TRUE(engine->uninstallTransport(each));
    Memory memory = make("gpu0", 4096);
    registerAll(*engine, memory);
    control.fail("cuStreamCreate", cuda::api::Result::OutOfMemory);
    expectCode(engine->installTransport("host"), Code::ResourceExhausted);
    EXPECT_EQ(engine->getTransport("host"), nullptr);
    EXPECT_TRUE(engine->installTransport("host"));
    Memory other = make("pinned", 4096);
    registerAll(*engine, other);
    expectCompleted(
        runBatch(*engine, {makeRequest(Opcode::Write, kLocalSegmentID, memory.pointer(), other.addr(), 4096)}), 4096);
}

/// The driver says of any address what is lost of the context that is current on the calling thread.
TEST_F(GpuRegistration, ALostContextOfTheThreadKeepsNoMemoryOfTheHostOut) {
    auto engine = startEngine(setup());
    Memory host = make("host", 4096);
    Memory other = make("host", 4096);
    Memory memory = make("gpu0", 4096);
    // Asked for its two ends.
    control.fail("cuPointerGetAttributes", cuda::api::Result::IllegalAddress, 1);
    registerAll(*engine, host);
    control.fail("cuPointerGetAttributes", cuda::api::Result::IllegalAddress, 1, 1);
    registerAll(*engine, other);
    control.fail("cuPointerGetAttributes", cuda::api::Result::IllegalAddress, 1);
    expectCode(engine->registerLocalMemory(memory.pointer(), memory.size()), Code::DeviceLost);
    expectCompleted(
        runBatch(*engine, {makeRequest(Opcode::Write, kLocalSegmentID, host.pointer(), other.addr(), 4096)}), 4096);
}

TEST_F(GpuRegistration, ALostGpuIsSaidToBeLostAndTheOtherWorks) {
    auto engine = startEngine(setup());
    Memory lost = make("gpu0", 4096);
    Memory good = make("gpu1", 4096);
    control.lose(0, cuda::api::Result::IllegalAddress);
    const Status refused = engine->registerLocalMemory(lost.pointer(), lost.size());
    EXPECT_EQ(refused.code(), Code::DeviceLost) << refused.toString();
    registerAll(*engine, good);
}

}  // namespace
}  // namespace troupe::gpu
