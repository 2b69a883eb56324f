#include "transports/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/cuda_backend/cuda_fixture.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

class CudaDeviceTest : public CudaTest {
  protected:
    bool isActive(int ordinal) {
        unsigned flags = 0;
        int active = 0;
        EXPECT_TRUE(invoke(call().devicePrimaryCtxGetState, ordinal, &flags, &active));
        return active != 0;
    }
    api::ContextHandle current() {
        api::ContextHandle context = nullptr;
        EXPECT_TRUE(invoke(call().ctxGetCurrent, &context));
        return context;
    }
    /// Each call of a Device, by name.
    std::vector<std::pair<std::string, std::function<Status()>>> everything(Device& device, const DeviceStream& stream,
                                                                            const DeviceEvent& event,
                                                                            const DeviceMemory& memory) {
        const std::uint64_t at = memory.get();
        return {
            {"cuMemAlloc", [&] { return device.allocate(64).status(); }},
            {"cuMemHostAlloc", [&] { return device.allocateHost(64).status(); }},
            {"cuMemHostRegister",
             [&] {
                 return device.pin({page_.addr, 4096}).status();
             }},
            {"cuStreamCreate", [&] { return device.makeStream().status(); }},
            {"cuEventCreate", [&] { return device.makeEvent().status(); }},
            {"cuMemcpyAsync", [&, at] { return device.copy(stream, at, at + 32, 16); }},
            {"cuEventRecord", [&] { return device.record(event, stream); }},
            {"cuStreamWaitEvent", [&] { return device.wait(stream, event); }},
            {"cuEventQuery", [&] { return device.isDone(event).status(); }},
            {"cuLaunchHostFunc",
             [&] {
                 return device.notify(
                     stream, [](void*) {}, nullptr);
             }},
            {"cuStreamSynchronize", [&] { return device.synchronize(stream); }},
            {"cuModuleLoadData", [&] { return device.loadKernels(std::as_bytes(std::span("FAKE"))).status(); }},
        };
    }
    void SetUp() override {
        CudaTest::SetUp();
        page_ = {reinterpret_cast<std::uint64_t>(
                     ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
                 4096};
    }
    void TearDown() override {
        CudaTest::TearDown();
        ::munmap(reinterpret_cast<void*>(page_.addr), page_.length);
    }
    ByteRange page_;
};

TEST_F(CudaDeviceTest, GpusAreDescribedAndNoneIsOpened) {
    ASSERT_EQ(runtime->count(), 2);
    const DeviceInfo info = must(runtime->info(1));
    EXPECT_EQ(info.location, "cuda:1");
    EXPECT_EQ(info.name, "Fake GPU 1");
    EXPECT_EQ(info.pci, "0000:a1:00.0");
    EXPECT_EQ(info.major, 9);
    EXPECT_TRUE(info.dmabuf);
    EXPECT_NE(info.uuid, must(runtime->info(0)).uuid);
    EXPECT_TRUE(runtime->reaches(0, 1));
    EXPECT_TRUE(runtime->reaches(1, 1));
    EXPECT_FALSE(runtime->reaches(0, 2));
    EXPECT_EQ(control.count("contexts"), 0u);
    const auto none = runtime->open(2);
    EXPECT_EQ(none.status().code(), Code::NotFound);
    EXPECT_NE(none.status().message().find("there is no cuda:2: this process sees 2 GPUs"), std::string::npos);
}

TEST_F(CudaDeviceTest, TheNearestHostMemoryIsWhatTheDriverSaysElseSysfs) {
    EXPECT_EQ(must(runtime->info(0)).numa_node, -1) << "the fake's is no device of this machine";
    ::setenv("FAKE_CUDA_NUMA", "0", 1);
    control.reset();
    ::unsetenv("FAKE_CUDA_NUMA");
    const auto told = must(CudaRuntime::create({fake_cuda::Control::path(), false}));
    EXPECT_EQ(must(told->info(1)).numa_node, 0);
    const auto sysfs = std::filesystem::temp_directory_path() / ("sysfs-" + std::to_string(::getpid()));
    const auto device = sysfs / "bus/pci/devices/0000:1b:00.0";
    std::filesystem::create_directories(device);
    const auto node = [&] { return numaNodeOfPci("0000:1b:00.0", sysfs.string()); };
    EXPECT_EQ(node(), -1) << "there is no such file";
    for (const auto& [text, value] : {std::pair{"3\n", 3}, {"-1\n", -1}, {"", -1}, {"none\n", -1}}) {
        std::ofstream(device / "numa_node") << text;
        EXPECT_EQ(node(), value) << text;
    }
    std::filesystem::remove_all(sysfs);
}

TEST_F(CudaDeviceTest, OnlyTheGpuThatWasNamedGetsAContextAndGivesItBack) {
    {
        auto one = must(runtime->open(1));
        EXPECT_EQ(one, must(runtime->open(1)));
        EXPECT_TRUE(isActive(1));
        EXPECT_FALSE(isActive(0));
        const DeviceMemory memory = must(one->allocate(100));
        EXPECT_FALSE(isActive(0));
    }
    EXPECT_FALSE(isActive(1));
}

TEST_F(CudaDeviceTest, TheCallersCurrentContextIsAsItWas) {
    Device& device = gpu(1);
    const DeviceStream stream = must(device.makeStream());
    const DeviceEvent event = must(device.makeEvent());
    const DeviceMemory memory = must(device.allocate(64));
    api::ContextHandle zero = nullptr;
    api::ContextHandle one = nullptr;
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRetain, &zero, 0));
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRetain, &one, 1));
    for (const api::ContextHandle mine : {api::ContextHandle{nullptr}, zero, one}) {
        ASSERT_TRUE(invoke(call().ctxSetCurrent, mine));
        for (const auto& [name, run] : everything(device, stream, event, memory)) {
            EXPECT_TRUE(run()) << name;
            EXPECT_EQ(current(), mine) << name;
            // Nor does a failure leave anything.
            control.fail(name.c_str(), api::Result::InvalidValue);
            EXPECT_FALSE(run()) << name;
            EXPECT_EQ(current(), mine) << name;
        }
        EXPECT_TRUE(runtime->locate({memory.get(), 64}));
        EXPECT_EQ(current(), mine);
    }
    // Also on a thread that never had one.
    std::thread([&] {
        EXPECT_TRUE(device.copy(stream, memory.get(), memory.get() + 32, 16));
        EXPECT_EQ(current(), nullptr);
    }).join();
    ASSERT_TRUE(invoke(call().ctxSetCurrent, api::ContextHandle{nullptr}));
    must(device.synchronize(stream));
    invoke(call().devicePrimaryCtxRelease, 0);
    invoke(call().devicePrimaryCtxRelease, 1);
}

TEST_F(CudaDeviceTest, BytesPassBetweenEveryTwoKindsOfMemory) {
    const DeviceStream stream = must(gpu(0).makeStream());
    constexpr std::size_t kBytes = 300000;
    const DeviceMemory a = must(gpu(0).allocate(kBytes));
    const DeviceMemory b = must(gpu(0).allocate(kBytes));
    const DeviceMemory c = must(gpu(1).allocate(kBytes));
    const HostMemory pinned = must(gpu(0).allocateHost(kBytes));
    // The context of the GPU whose stream it is, whatever GPU the memory is on.
    for (const std::uint64_t to : {a.get(), b.get(), c.get(), pinned.get()}) {
        for (const std::uint64_t from : {a.get(), b.get(), c.get(), pinned.get()}) {
            if (to == from) continue;
            const auto bytes = noise(1001, static_cast<unsigned>(from >> 12));
            control.write(from + 17, bytes);
            must(gpu(0).copy(stream, to + 3, from + 17, bytes.size()));
            must(gpu(0).synchronize(stream));
            EXPECT_EQ(control.read(to + 3, bytes.size()), bytes);
        }
    }
    EXPECT_EQ(control.count("pageable copies"), 0u);
}

TEST_F(CudaDeviceTest, AnEventTellsWhenWhatCameBeforeItIsDone) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceEvent event = must(gpu(0).makeEvent());
    const DeviceMemory memory = must(gpu(0).allocate(8192));
    EXPECT_TRUE(must(gpu(0).isDone(event)));
    control.write(memory.get(), noise(4096));
    control.hold(true);
    must(gpu(0).copy(stream, memory.get() + 4096, memory.get(), 4096));
    must(gpu(0).record(event, stream));
    EXPECT_FALSE(must(gpu(0).isDone(event)));
    control.hold(false);
    must(gpu(0).synchronize(stream));
    EXPECT_TRUE(must(gpu(0).isDone(event)));
    EXPECT_EQ(control.read(memory.get() + 4096, 4096), noise(4096));
}

/// A kernel that is still at work writes the source; what comes behind its event carries the new bytes.
TEST_F(CudaDeviceTest, AStreamWaitsForAnEventOfAnotherGpu) {
    const DeviceStream kernel = must(gpu(0).makeStream());
    const DeviceEvent written = must(gpu(0).makeEvent());
    const DeviceStream ours = must(gpu(1).makeStream());
    const DeviceMemory source = must(gpu(0).allocate(100));
    const DeviceMemory fresh = must(gpu(0).allocate(100));
    const DeviceMemory target = must(gpu(1).allocate(100));
    control.write(source.get(), noise(100, 1));
    control.write(fresh.get(), noise(100, 2));
    control.delay(kernel.get(), 20000);
    must(gpu(0).copy(kernel, source.get(), fresh.get(), 100));
    must(gpu(0).record(written, kernel));
    must(gpu(1).wait(ours, written));
    must(gpu(1).copy(ours, target.get(), source.get(), 100));
    must(gpu(1).synchronize(ours));
    EXPECT_EQ(control.read(target.get(), 100), noise(100, 2));
}

TEST_F(CudaDeviceTest, ANotificationComesWhenTheStreamHasComeSoFar) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceMemory memory = must(gpu(0).allocate(100));
    std::atomic<int> calls{0};
    control.hold(true);
    must(gpu(0).copy(stream, memory.get() + 50, memory.get(), 50));
    must(gpu(0).notify(
        stream, [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); }, &calls));
    EXPECT_EQ(calls, 0);
    control.hold(false);
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(calls, 1);
}

TEST_F(CudaDeviceTest, AFailureNamesTheGpuTheCallAndCudasError) {
    Device& device = gpu(0);
    const DeviceStream stream = must(device.makeStream());
    const DeviceEvent event = must(device.makeEvent());
    const DeviceMemory memory = must(device.allocate(64));
    for (const auto& [name, run] : everything(device, stream, event, memory)) {
        control.fail(name.c_str(), api::Result::OutOfMemory);
        const Status status = run();
        EXPECT_EQ(status.code(), Code::ResourceExhausted) << name;
        EXPECT_NE(status.message().find("cuda:0: " + name + ": CUDA_ERROR_OUT_OF_MEMORY (2)"), std::string::npos)
            << status.message();
        EXPECT_TRUE(run()) << name;
        EXPECT_TRUE(device.state());
    }
    must(device.synchronize(stream));
}

TEST_F(CudaDeviceTest, WhatIsNoMemoryOfAGpuIsRefusedAndTheGpuIsWell) {
    const DeviceStream stream = must(gpu(0).makeStream());
    DeviceMemory freed = must(gpu(0).allocate(64));
    const DeviceMemory memory = must(gpu(0).allocate(64));
    const std::uint64_t addr = freed.get();
    freed.reset();
    EXPECT_EQ(gpu(0).copy(stream, memory.get(), addr, 64).code(), Code::InvalidArgument);
    EXPECT_EQ(gpu(0).copy(stream, memory.get(), memory.get() + 1, 64).code(), Code::InvalidArgument);
    EXPECT_TRUE(gpu(0).state());
}

/// Each sticky error, wherever it shows first.
TEST_F(CudaDeviceTest, ALostContextIsLostForThatGpuOnlyAndSaysSo) {
    for (const api::Result result :
         {api::Result::IllegalAddress, api::Result::EccUncorrectable, api::Result::LaunchFailed,
          api::Result::ContextIsDestroyed, api::Result::MpsClientTerminated}) {
        for (std::size_t index = 0; index < 12; ++index) {
            control.reset();
            auto made = must(CudaRuntime::create({fake_cuda::Control::path(), false}));
            {
                auto lost = must(made->open(0));
                auto well = must(made->open(1));
                DeviceStream stream = must(lost->makeStream());
                DeviceEvent event = must(lost->makeEvent());
                DeviceMemory memory = must(lost->allocate(64));
                const DeviceStream other = must(well->makeStream());
                auto calls = everything(*lost, stream, event, memory);
                ASSERT_LT(index, calls.size());
                control.fail(calls[index].first.c_str(), result);
                const Status first = calls[index].second();
                EXPECT_EQ(first.code(), Code::DeviceLost);
                EXPECT_NE(first.message().find(calls[index].first), std::string::npos) << first.message();
                EXPECT_NE(first.message().find("the context of cuda:0 is lost"), std::string::npos);
                // From now on the same of every call, without asking the driver.
                const unsigned asked = control.count("cuMemcpyAsync");
                const std::string cause = lost->state().message();
                EXPECT_TRUE(first.message().ends_with(cause)) << first.message();
                for (const auto& [name, run] : calls) {
                    const Status again = run();
                    EXPECT_EQ(again.code(), Code::DeviceLost) << name;
                    EXPECT_TRUE(again.message().ends_with(cause)) << again.message();
                }
                EXPECT_EQ(control.count("cuMemcpyAsync"), asked);
                EXPECT_TRUE(well->state());
                EXPECT_TRUE(well->synchronize(other));
                EXPECT_TRUE(well->allocate(10));
            }
            made.reset();
            // Of a lost context the driver gives nothing back until it ends.
            EXPECT_EQ(control.leftovers(), "");
            EXPECT_EQ(control.violations(), "");
        }
    }
    control.reset();
    runtime.reset();
}

/// Whatever the error is: a copy whose end is only ever asked for in vain would be under way for ever.
TEST_F(CudaDeviceTest, AnErrorThatIsTheOnlyAnswerForLongIsALoss) {
    // Of any kind: a context that was reset, and what no list of errors has.
    for (const api::Result result : {api::Result::InvalidContext, api::Result::Unknown}) {
        for (const bool by_query : {true, false}) {
            control.reset();
            auto made = must(CudaRuntime::create({fake_cuda::Control::path(), false}));
            {
                const auto device = must(made->open(0));
                const DeviceStream stream = must(device->makeStream());
                const DeviceEvent event = must(device->makeEvent());
                const auto ask = [&] {
                    return by_query ? device->isDone(event).status() : device->record(event, stream);
                };
                control.fail(by_query ? "cuEventQuery" : "cuEventRecord", result, 3);
                for (int time = 0; time < 3; ++time) EXPECT_EQ(ask().code(), Code::Internal);
                // One that passes is none.
                must(ask());
                must(device->state());
                control.fail(by_query ? "cuEventQuery" : "cuEventRecord", result, 1 << 30);
                EXPECT_EQ(ask().code(), Code::Internal);
                must(device->state());
                const TimePoint limit = Clock::now() + std::chrono::seconds(60);
                // As a loop that waits for a copy asks.
                while (device->state() && Clock::now() < limit) {
                    ask().isOk();
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                EXPECT_EQ(ask().code(), Code::DeviceLost);
                EXPECT_NE(device->state().message().find("nothing else for a second"), std::string::npos)
                    << device->state().message();
            }
        }
    }
    runtime.reset();
    control.reset();
}

/// Threads that say nothing about it may hardly do anything then, and what they do spoils the graph.
TEST_F(CudaDeviceTest, AGraphThatTheApplicationCapturesMeanwhileIsNotSpoilt) {
    const auto mode = [&] {
        api::CaptureMode exchanged = api::CaptureMode::ThreadLocal;
        EXPECT_TRUE(invoke(call().threadExchangeStreamCaptureMode, &exchanged));
        const api::CaptureMode before = exchanged;
        EXPECT_TRUE(invoke(call().threadExchangeStreamCaptureMode, &exchanged));
        return before;
    };
    control.captureGraph(true);
    {
        auto device = must(runtime->open(0));
        DeviceStream stream = must(device->makeStream());
        DeviceEvent event = must(device->makeEvent());
        DeviceMemory memory = must(device->allocate(64));
        for (const auto& [name, run] : everything(*device, stream, event, memory)) {
            EXPECT_TRUE(run()) << name << ": " << run().toString();
            EXPECT_EQ(mode(), api::CaptureMode::Global) << name << ": as the thread had it before";
        }
        const MemoryPlace place = must(runtime->locate({memory.get(), 64}));
        must(device->exportMemory(place, false));
        must(device->synchronize(stream));
    }
    control.captureGraph(false);
}

/// Of what is not the engine's own an error says nothing of the GPU, however often it comes.
TEST_F(CudaDeviceTest, AHandleThatIsNoneOfTheApplicationCostsNoGpu) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceEvent event = must(gpu(0).makeEvent());
    DeviceEvent gone = must(gpu(0).makeEvent());
    DeviceStream ended = must(gpu(0).makeStream());
    const EventRef foreign_event(gone.get());
    const StreamRef foreign_stream(ended.get());
    gone.reset();
    ended.reset();
    // Half as long again as an error of what is the engine's own may be the only answer.
    const TimePoint until = Clock::now() + std::chrono::milliseconds(1500);
    while (Clock::now() < until) {
        EXPECT_EQ(gpu(0).isDone(foreign_event).status().code(), Code::InvalidArgument);
        EXPECT_EQ(gpu(0).record(event, foreign_stream).code(), Code::InvalidArgument);
        EXPECT_EQ(gpu(0).record(foreign_event, stream).code(), Code::InvalidArgument);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(gpu(0).state());
    EXPECT_NE(control.violations(), "");
    control.forgetViolations();
}

/// A driver answers with the error of the context that an event is of.
TEST_F(CudaDeviceTest, AnEventOfAnotherGpuThatIsLostCostsNotThisOne) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceEvent other = must(gpu(1).makeEvent());
    const DeviceEvent own = must(gpu(0).makeEvent());
    control.lose(1, api::Result::IllegalAddress);
    const Status refused = gpu(0).isDone(EventRef(other.get())).status();
    EXPECT_EQ(refused.code(), Code::InvalidArgument);
    EXPECT_NE(refused.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << refused.message();
    EXPECT_TRUE(gpu(0).state());
    must(gpu(0).record(own, stream));
    control.lose(0, api::Result::LaunchFailed);
    EXPECT_EQ(gpu(0).isDone(EventRef(own.get())).status().code(), Code::DeviceLost);
    EXPECT_EQ(gpu(0).state().code(), Code::DeviceLost);
}

/// What it would be made in otherwise is the application's.
TEST_F(CudaDeviceTest, NothingIsGivenBackInAContextOfOthers) {
    DeviceMemory memory = must(gpu(0).allocate(64));
    const api::DevicePtr addr = memory.get();
    control.fail("cuCtxPushCurrent", api::Result::InvalidContext);
    const unsigned freed = control.count("cuMemFree");
    memory.reset();
    EXPECT_EQ(control.count("cuMemFree"), freed);
    // It is there still, and the application may free it.
    api::ContextHandle context = nullptr;
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRetain, &context, 0));
    ASSERT_TRUE(invoke(call().ctxPushCurrent, context));
    EXPECT_TRUE(invoke(call().memFree, addr));
    ASSERT_TRUE(invoke(call().ctxPopCurrent, &context));
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRelease, 0));
}

TEST_F(CudaDeviceTest, CopiesGoFromGpuToGpuOncePeerAccessIsEnabled) {
    const DeviceMemory here = must(gpu(0).allocate(4096));
    const DeviceMemory there = must(gpu(1).allocate(4096));
    control.write(here.get(), noise(4096));
    const DeviceStream stream = must(gpu(0).makeStream());
    const auto copied = [&] {
        must(gpu(0).copy(stream, there.get(), here.get(), 4096));
        must(gpu(0).synchronize(stream));
        EXPECT_EQ(control.read(there.get(), 4096), noise(4096));
        return std::pair(control.count("copies by peer access"), control.count("copies between GPUs through the host"));
    };
    EXPECT_EQ(copied(), std::pair(0u, 1u));
    must(gpu(0).reachPeer(gpu(1)));
    // The application may have done so, too.
    must(gpu(0).reachPeer(gpu(1)));
    EXPECT_EQ(copied(), std::pair(1u, 1u));
    EXPECT_EQ(gpu(0).reachPeer(gpu(0)).code(), Code::InvalidArgument);
    control.fail("cuCtxEnablePeerAccess", api::Result::PeerAccessUnsupported);
    const Status refused = gpu(1).reachPeer(gpu(0));
    EXPECT_EQ(refused.code(), Code::Unsupported);
    EXPECT_NE(refused.message().find("peer access to cuda:0"), std::string::npos) << refused.message();
}

TEST_F(CudaDeviceTest, AContextThatIsLostInMidCopyIsFoundByItsEvent) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceEvent event = must(gpu(0).makeEvent());
    {
        HostMemory pinned = must(gpu(0).allocateHost(4096));
        control.lose(0, api::Result::IllegalAddress, 1);
        control.hold(true);  // Not before all have begun.
        for (int copy = 0; copy < 3; ++copy) must(gpu(0).copy(stream, pinned.get(), pinned.get() + 2048, 100));
        must(gpu(0).record(event, stream));
        control.hold(false);
        Result<bool> done = gpu(0).isDone(event);
        while (done && !*done) done = gpu(0).isDone(event);
        EXPECT_EQ(done.status().code(), Code::DeviceLost);
        EXPECT_EQ(gpu(0).copy(stream, pinned.get(), pinned.get() + 2048, 100).code(), Code::DeviceLost);
    }
}

/// Which is to be had is the driver's to say, of the GPU.
TEST_F(CudaDeviceTest, WhatNicsWriteIsOrderedFlushedOrUnseen) {
    EXPECT_EQ(gpu(0).info().nic_writes, NicWrites::Ordered);
    must(gpu(0).flushNicWrites());
    EXPECT_EQ(control.count("cuFlushGPUDirectRDMAWrites"), 0u);
    const auto look = [&](api::WritesOrdering ordering, bool can_flush) {
        control.nicWrites(ordering, can_flush);
        return must(must(CudaRuntime::create({fake_cuda::Control::path(), false}))->open(1));
    };
    EXPECT_EQ(look(api::WritesOrdering::Owner, false)->info().nic_writes, NicWrites::Ordered);
    const auto unseen = look(api::WritesOrdering::None, false);
    EXPECT_EQ(unseen->info().nic_writes, NicWrites::Unseen);
    EXPECT_EQ(unseen->flushNicWrites().code(), Code::Unsupported);
    const auto flushed = look(api::WritesOrdering::None, true);
    EXPECT_EQ(flushed->info().nic_writes, NicWrites::Flushed);
    int asked = -1;
    control.onFlush([](void* argument, int device) { *static_cast<int*>(argument) = device; }, &asked);
    must(flushed->flushNicWrites());
    EXPECT_EQ(asked, 1) << "in its own context";
    control.fail("cuFlushGPUDirectRDMAWrites", api::Result::IllegalAddress);
    EXPECT_EQ(flushed->flushNicWrites().code(), Code::DeviceLost);
    control.onFlush(nullptr, nullptr);
}

TEST_F(CudaDeviceTest, ACopyOfWhatWasFreedNamesIt) {
    const DeviceStream stream = must(gpu(0).makeStream());
    const DeviceMemory there = must(gpu(0).allocate(4096));
    DeviceMemory freed = must(gpu(0).allocate(4096));
    const std::uint64_t gone = freed.get();
    freed.reset();
    const Status from = gpu(0).copy(stream, there.get(), gone + 5, 100);
    EXPECT_EQ(from.code(), Code::InvalidArgument);
    EXPECT_NE(from.message().find(hexAddress(gone + 5) + ", of its source"), std::string::npos) << from.toString();
    const Status to = gpu(0).copy(stream, gone, there.get(), 100);
    EXPECT_NE(to.message().find(hexAddress(gone) + ", of its destination"), std::string::npos) << to.toString();
    must(gpu(0).synchronize(stream));
    control.forgetViolations();
}

}  // namespace
}  // namespace troupe::cuda
