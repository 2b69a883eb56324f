// The fake itself, through the driver's API: what the tests of cuda_backend rest on.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_backend/driver.h"
#include "tests/fake_cuda/control.h"

namespace troupe::fake_cuda {
namespace {

using namespace cuda::api;
using cuda::CudaDriver;
using cuda::invoke;

class FakeCuda : public ::testing::Test {
  protected:
    using Result = cuda::api::Result;  // Not the project's.

    void SetUp() override {
        control.reset();
        auto loaded = CudaDriver::load({Control::path(), false});
        ASSERT_TRUE(loaded) << loaded.status().toString();
        driver = *loaded;
        for (int device = 0; device < 2; ++device) use(call().devicePrimaryCtxRetain, &context[device], device);
        use(call().ctxSetCurrent, context[0]);
    }
    void TearDown() override {
        use(call().ctxSetCurrent, ContextHandle{nullptr});
        for (int device = 0; device < 2; ++device) use(call().devicePrimaryCtxRelease, device);
        EXPECT_EQ(control.violations(), "");
        EXPECT_EQ(control.leftovers(), "");
    }

    const Calls& call() const { return driver->calls(); }
    template <class Signature, class... Arguments>
    Result get(const cuda::Call<Signature>& function, Arguments... arguments) {
        return invoke(function, arguments...).result;
    }
    template <class Signature, class... Arguments>
    void use(const cuda::Call<Signature>& function, Arguments... arguments) {
        EXPECT_EQ(get(function, arguments...), Result::Success) << function.name;
    }
    DevicePtr allocate(std::size_t bytes) {
        DevicePtr memory = 0;
        use(call().memAlloc, &memory, bytes);
        return memory;
    }
    StreamHandle makeStream() {
        StreamHandle stream = nullptr;
        use(call().streamCreate, &stream, kStreamNonBlocking);
        return stream;
    }

    Control control;
    std::shared_ptr<const CudaDriver> driver;
    ContextHandle context[2] = {};
};

using FakeCudaDeathTest = FakeCuda;

TEST_F(FakeCudaDeathTest, TheHostCannotTouchMemoryOfAGpu) {
    const DevicePtr memory = allocate(4096);
    EXPECT_DEATH(*reinterpret_cast<volatile char*>(memory) = 1, "");
    EXPECT_DEATH(static_cast<void>(*reinterpret_cast<volatile char*>(memory)), "");
    use(call().memFree, memory);
    // Nor afterwards.
    EXPECT_DEATH(*reinterpret_cast<volatile char*>(memory) = 1, "");
}

TEST_F(FakeCuda, AStreamKeepsItsOrderAndDoesNotHoldTheCaller) {
    const DevicePtr memory = allocate(1 << 20);
    StreamHandle stream = makeStream();
    control.hold(true);
    for (int value = 0; value < 20; ++value)
        use(call().memsetD8Async, memory, static_cast<unsigned char>(value), std::size_t{1} << 20, stream);
    EXPECT_EQ(get(call().streamQuery, stream), Result::NotReady);
    control.hold(false);
    use(call().streamSynchronize, stream);
    EXPECT_EQ(control.read(memory, 1 << 20), std::vector<std::uint8_t>(1 << 20, 19));
    use(call().streamDestroy, stream);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, StreamsOvertakeEachOtherUnlessAnEventOrdersThem) {
    const DevicePtr memory = allocate(4096);
    StreamHandle slow = makeStream();
    StreamHandle fast = makeStream();
    EventHandle event = nullptr;
    use(call().eventCreate, &event, kEventDisableTiming);
    // Never recorded, it is done.
    use(call().eventQuery, event);
    std::atomic<bool> go{false};
    const auto waitForGo = [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
    };
    use(call().launchHostFunc, slow, static_cast<HostFunction>(waitForGo), static_cast<void*>(&go));
    use(call().memsetD8Async, memory, static_cast<unsigned char>(1), std::size_t{4096}, slow);
    use(call().eventRecord, event, slow);
    EXPECT_EQ(get(call().eventQuery, event), Result::NotReady);
    // No event: done at once, and overwritten by the slow one.
    use(call().memsetD8Async, memory, static_cast<unsigned char>(2), std::size_t{4096}, fast);
    use(call().streamSynchronize, fast);
    EXPECT_EQ(control.read(memory, 1)[0], 2);
    use(call().streamWaitEvent, fast, event, 0u);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(3), std::size_t{4096}, fast);
    EXPECT_EQ(get(call().streamQuery, fast), Result::NotReady);
    // Recorded anew it stands for that; who waits already waits for what it stood for before.
    StreamHandle third = makeStream();
    use(call().eventRecord, event, third);
    use(call().streamSynchronize, third);
    use(call().eventQuery, event);
    EXPECT_EQ(get(call().streamQuery, fast), Result::NotReady);
    use(call().streamDestroy, third);
    go = true;
    use(call().streamSynchronize, fast);
    EXPECT_EQ(control.read(memory, 1)[0], 3);
    use(call().eventDestroy, event);
    use(call().streamDestroy, slow);
    use(call().streamDestroy, fast);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, WhatTheDriverRefusesIsRefused) {
    StreamHandle stream = makeStream();
    const DevicePtr memory = allocate(1000);
    const DevicePtr other = allocate(1000);
    // Out of range, before, after, and what was freed.
    EXPECT_EQ(get(call().memcpyAsync, memory, other, std::size_t{1001}, stream), Result::InvalidValue);
    EXPECT_EQ(get(call().memcpyAsync, memory + 1, other, std::size_t{1000}, stream), Result::InvalidValue);
    EXPECT_EQ(get(call().memcpyAsync, memory - 1, other, std::size_t{1}, stream), Result::InvalidValue);
    use(call().memFree, other);
    EXPECT_EQ(get(call().memcpyAsync, memory, other, std::size_t{1}, stream), Result::InvalidValue);
    EXPECT_EQ(get(call().memFree, other), Result::InvalidValue);
    EXPECT_EQ(get(call().memFree, memory + 1), Result::InvalidValue);
    DevicePtr none = 0;
    EXPECT_EQ(get(call().memAlloc, &none, std::size_t{0}), Result::InvalidValue);
    DeviceHandle device = 0;
    EXPECT_EQ(get(call().deviceGet, &device, 2), Result::InvalidDevice);
    use(call().streamDestroy, stream);
    use(call().memFree, memory);
    EXPECT_EQ(control.violations(), "");
}

TEST_F(FakeCuda, WhatADriverWouldNotDefineIsAViolation) {
    StreamHandle stream = makeStream();
    const DevicePtr memory = allocate(64);
    EXPECT_EQ(get(call().memsetD8Async, memory, static_cast<unsigned char>(0), std::size_t{1}, StreamHandle{nullptr}),
              Result::InvalidHandle);
    EXPECT_NE(control.violations().find("stream 0"), std::string::npos);
    use(call().ctxSetCurrent, context[1]);
    EXPECT_EQ(get(call().streamQuery, stream), Result::InvalidContext);
    EXPECT_NE(control.violations().find("another device"), std::string::npos);
    use(call().ctxSetCurrent, ContextHandle{nullptr});
    EXPECT_EQ(get(call().streamQuery, stream), Result::InvalidContext);
    EXPECT_NE(control.violations().find("without a current context"), std::string::npos);
    use(call().ctxSetCurrent, context[0]);
    use(call().streamDestroy, stream);
    EXPECT_EQ(get(call().streamQuery, stream), Result::InvalidHandle);
    EXPECT_NE(control.violations().find("not there"), std::string::npos);
    use(call().memFree, memory);
    control.forgetViolations();
}

TEST_F(FakeCuda, WhatCouldSpoilAGraphThatIsCapturedIsRefusedUnlessItsThreadAsksForLeave) {
    StreamHandle stream = makeStream();
    const DevicePtr memory = allocate(64);
    EventHandle event = nullptr;
    use(call().eventCreate, &event, kEventDisableTiming);
    control.captureGraph(true);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(0), std::size_t{1}, stream);
    use(call().eventRecord, event, stream);
    EXPECT_EQ(control.violations(), "");
    EXPECT_EQ(get(call().eventQuery, event), Result::StreamCaptureUnsupported);
    EXPECT_NE(control.violations().find("spoilt a graph"), std::string::npos);
    control.forgetViolations();
    auto mode = CaptureMode::Relaxed;
    use(call().threadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CaptureMode::Global);
    use(call().streamSynchronize, stream);
    use(call().eventQuery, event);
    use(call().threadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CaptureMode::Relaxed);
    EXPECT_EQ(get(call().memFree, memory), Result::StreamCaptureUnsupported);
    control.forgetViolations();
    control.captureGraph(false);
    use(call().eventDestroy, event);
    use(call().streamDestroy, stream);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, AStreamWaitsForAWordThatItsGpuReachesAndNoOther) {
    void* pinned = nullptr;
    use(call().memHostAlloc, &pinned, std::size_t{4096}, kMemHostAllocPortable);
    DevicePtr managed = 0;
    use(call().memAllocManaged, &managed, std::size_t{4096}, kMemAttachGlobal);
    StreamHandle stream = makeStream();
    const auto addr = reinterpret_cast<DevicePtr>(pinned);
    auto* const word = new (pinned) std::atomic<std::uint32_t>(4);
    std::uint32_t pageable = 0;
    const auto wait = [&](DevicePtr address, unsigned flags) {
        return get(call().streamWaitValue32, stream, address, std::uint32_t{5}, flags);
    };
    EXPECT_EQ(wait(addr + 2, kStreamWaitValueGeq), Result::InvalidValue);
    EXPECT_EQ(wait(addr, 3), Result::InvalidValue);
    EXPECT_EQ(wait(managed, kStreamWaitValueGeq), Result::InvalidValue);
    EXPECT_EQ(wait(reinterpret_cast<DevicePtr>(&pageable), kStreamWaitValueGeq), Result::InvalidValue);
    EXPECT_EQ(wait(addr, kStreamWaitValueGeq), Result::Success);
    EXPECT_EQ(get(call().streamQuery, stream), Result::NotReady);
    word->store(6);
    use(call().streamSynchronize, stream);
    EXPECT_EQ(wait(addr, kStreamWaitValueAnd), Result::Success);
    use(call().streamSynchronize, stream);
    // CU_STREAM_WAIT_VALUE_EQ.
    EXPECT_EQ(wait(addr, 1), Result::Success);
    EXPECT_EQ(get(call().streamQuery, stream), Result::NotReady);
    word->store(5);
    use(call().streamSynchronize, stream);
    use(call().streamDestroy, stream);
    use(call().memFreeHost, pinned);
    use(call().memFree, managed);
}

TEST_F(FakeCuda, TheWordOfAStreamThatWaitsMayNotGo) {
    void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use(call().memHostRegister, memory, std::size_t{4096}, kMemHostRegisterPortable | kMemHostRegisterDeviceMap);
    StreamHandle stream = makeStream();
    use(call().streamWaitValue32, stream, reinterpret_cast<DevicePtr>(memory), std::uint32_t{1}, kStreamWaitValueGeq);
    use(call().memHostUnregister, memory);
    use(call().streamSynchronize, stream);
    EXPECT_NE(control.violations().find("a word that its GPU does not reach any more"), std::string::npos);
    control.forgetViolations();
    use(call().streamDestroy, stream);
    ::munmap(memory, 4096);
}

TEST_F(FakeCuda, TheLegacyStreamAndBlockingOnesWaitForEachOther) {
    const DevicePtr memory = allocate(4096);
    const auto legacy = reinterpret_cast<StreamHandle>(kStreamLegacy);
    StreamHandle blocking = nullptr;
    use(call().streamCreate, &blocking, 0u);
    StreamHandle apart = makeStream();
    std::atomic<bool> go{false};
    const auto waitForGo = [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
    };
    use(call().launchHostFunc, blocking, static_cast<HostFunction>(waitForGo), static_cast<void*>(&go));
    use(call().memsetD8Async, memory, static_cast<unsigned char>(1), std::size_t{4096}, blocking);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(2), std::size_t{4096}, legacy);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(3), std::size_t{4096}, blocking);
    use(call().streamSynchronize, apart);
    EXPECT_EQ(get(call().streamQuery, legacy), Result::NotReady);
    go = true;
    use(call().streamSynchronize, blocking);
    EXPECT_EQ(get(call().streamQuery, legacy), Result::Success);
    EXPECT_EQ(control.read(memory, 1)[0], 3);
    ContextHandle of_stream = nullptr;
    use(call().streamGetCtx, reinterpret_cast<StreamHandle>(kStreamPerThread), &of_stream);
    EXPECT_EQ(of_stream, context[0]);
    for (StreamHandle stream : {blocking, apart}) use(call().streamDestroy, stream);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, AGraphThatIsCapturedIsSpoiltByWhatIsAskedOfItsStreamsAndEvents) {
    const DevicePtr memory = allocate(64);
    StreamHandle stream = nullptr;
    use(call().streamCreate, &stream, 0u);
    EventHandle event = nullptr;
    use(call().eventCreate, &event, kEventDisableTiming);
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    const auto legacy = reinterpret_cast<StreamHandle>(kStreamLegacy);
    const auto status = [&](StreamHandle of) {
        auto out = CaptureStatus::None;
        EXPECT_EQ(get(call().streamIsCapturing, of, &out), Result::Success);
        return out;
    };
    control.captureStream(handle, true);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(1), std::size_t{64}, stream);
    use(call().eventRecord, event, stream);
    EXPECT_EQ(status(stream), CaptureStatus::Active);
    auto of_legacy = CaptureStatus::None;
    EXPECT_EQ(get(call().streamIsCapturing, legacy, &of_legacy), Result::StreamCaptureImplicit);
    EXPECT_TRUE(control.captureStream(handle, false));
    EXPECT_EQ(control.read(memory, 1)[0], 0) << "nothing of it is done";
    ContextHandle of_stream = nullptr;
    const std::vector<std::pair<std::function<Result()>, Result>> spoil{
        {[&] { return get(call().streamQuery, stream); }, Result::StreamCaptureUnsupported},
        {[&] { return get(call().streamSynchronize, stream); }, Result::StreamCaptureUnsupported},
        {[&] { return get(call().streamGetCtx, stream, &of_stream); }, Result::StreamCaptureUnsupported},
        {[&] { return get(call().eventQuery, event); }, Result::CapturedEvent},
        {[&] { return get(call().eventRecord, event, legacy); }, Result::StreamCaptureImplicit}};
    for (const auto& [ask, refused] : spoil) {
        control.captureStream(handle, true);
        use(call().eventRecord, event, stream);
        EXPECT_EQ(ask(), refused);
        EXPECT_EQ(status(stream), CaptureStatus::Invalidated);
        EXPECT_FALSE(control.captureStream(handle, false));
    }
    // Recorded elsewhere an event is part of it no more.
    StreamHandle other = makeStream();
    control.captureStream(handle, true);
    use(call().eventRecord, event, stream);
    EXPECT_EQ(get(call().streamWaitEvent, other, event, 0u), Result::Success);
    EXPECT_NE(control.violations().find("drawn into a graph"), std::string::npos);
    control.forgetViolations();
    use(call().eventRecord, event, other);
    use(call().streamSynchronize, other);
    use(call().eventQuery, event);
    EXPECT_TRUE(control.captureStream(handle, false));
    for (StreamHandle each : {stream, other}) use(call().streamDestroy, each);
    use(call().eventDestroy, event);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, AnEventIsRecordedOnStreamsOfItsOwnContextOnly) {
    StreamHandle stream = makeStream();
    EventHandle event = nullptr;
    use(call().ctxSetCurrent, context[1]);
    use(call().eventCreate, &event, kEventDisableTiming);
    EXPECT_EQ(get(call().eventRecord, event, stream), Result::InvalidHandle);
    ContextHandle of_stream = nullptr;
    use(call().streamGetCtx, stream, &of_stream);
    EXPECT_EQ(of_stream, context[0]);
    DeviceHandle device = -1;
    use(call().ctxGetDevice, &device);
    EXPECT_EQ(device, 1);
    use(call().eventDestroy, event);
    use(call().ctxSetCurrent, context[0]);
    use(call().streamDestroy, stream);
}

TEST_F(FakeCuda, PageableMemoryIsCopiedWhileTheCallerWaits) {
    StreamHandle stream = makeStream();
    const DevicePtr memory = allocate(5000);
    std::vector<std::uint8_t> bytes(5000, 7);
    use(call().memcpyAsync, memory, reinterpret_cast<DevicePtr>(bytes.data()), bytes.size(), stream);
    EXPECT_EQ(control.count("pageable copies"), 1u);
    EXPECT_EQ(control.read(memory, 5000), bytes);
    use(call().streamDestroy, stream);
    use(call().memFree, memory);
}

TEST_F(FakeCuda, AnAddressMayReturnWithOtherMemoryAndAnotherId) {
    control.reuseAddresses(true);
    const auto idOf = [&](DevicePtr memory) {
        unsigned long long id = 0;
        auto attribute = PointerAttribute::BufferId;
        void* value = &id;
        use(call().pointerGetAttributes, 1u, &attribute, &value, memory);
        return id;
    };
    const DevicePtr first = allocate(4u << 20);
    const auto first_id = idOf(first);
    control.write(first, std::vector<std::uint8_t>(100, 1));
    use(call().memFree, first);
    const DevicePtr second = allocate(4u << 20);
    EXPECT_EQ(second, first);
    EXPECT_NE(idOf(second), first_id);
    EXPECT_EQ(control.read(second, 100), std::vector<std::uint8_t>(100, 0));
    use(call().memFree, second);
}

TEST_F(FakeCuda, ALostContextEndsWhatItsStreamsHaveAndNothingOfAnother) {
    StreamHandle stream = makeStream();
    const DevicePtr memory = allocate(16);
    use(call().ctxSetCurrent, context[1]);
    StreamHandle neighbour = makeStream();
    use(call().ctxSetCurrent, context[0]);
    control.lose(0, Result::IllegalAddress, 1);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(1), std::size_t{16}, stream);
    use(call().memsetD8Async, memory, static_cast<unsigned char>(2), std::size_t{16}, stream);
    EXPECT_EQ(get(call().streamSynchronize, stream), Result::IllegalAddress);
    EXPECT_EQ(control.read(memory, 1)[0], 1);
    DevicePtr more = 0;
    EXPECT_EQ(get(call().memAlloc, &more, std::size_t{1}), Result::IllegalAddress);
    use(call().ctxSetCurrent, context[1]);
    use(call().streamSynchronize, neighbour);
    use(call().streamDestroy, neighbour);
    use(call().streamDestroy, stream);
    use(call().ctxSetCurrent, context[0]);
    // A new start is all that helps.
    EXPECT_EQ(get(call().memFree, memory), Result::IllegalAddress);
    EXPECT_EQ(control.leftovers(), "2 contexts, 1 memory");
    use(call().ctxSetCurrent, ContextHandle{nullptr});
    use(call().devicePrimaryCtxRelease, 0);
    EXPECT_EQ(control.leftovers(), "1 contexts");
    use(call().devicePrimaryCtxRetain, &context[0], 0);
    use(call().ctxSetCurrent, context[0]);
    use(call().memAlloc, &more, std::size_t{1});
    use(call().memFree, more);
}

TEST_F(FakeCuda, ADmabufHasTheLengthOfItsRangeAndItsBytesAreForDevicesOnly) {
    const DevicePtr memory = allocate(100000);
    control.write(memory, std::vector<std::uint8_t>(100000, 7));
    const DevicePtr begin = memory / 4096 * 4096 + 8192;
    int dmabuf = -1;
    use(call().memGetHandleForAddressRange, static_cast<void*>(&dmabuf), begin, std::size_t{4096},
        RangeHandleType::DmaBufFd, 0ull);
    EXPECT_EQ(::lseek(dmabuf, 0, SEEK_END), 4096);
    std::uint8_t byte = 0;
    EXPECT_EQ(::pread(dmabuf, &byte, 1, 4000), 1);
    EXPECT_EQ(byte, 0) << "who reads it gets nothing of the memory";
    // By another descriptor of it, too.
    const int second = ::dup(dmabuf);
    const Control::DeviceFile file = control.openDmabuf(second);
    ASSERT_GE(file.fd, 0);
    EXPECT_EQ(::pread(file.fd, &byte, 1, static_cast<off_t>(file.offset)), 1);
    EXPECT_EQ(byte, 7);
    // The memory's own file is no dma-buf.
    EXPECT_EQ(control.openDmabuf(file.fd).fd, -1);
    EXPECT_EQ(control.openDmabuf(-1).fd, -1);
    use(call().memFree, memory);
    EXPECT_EQ(control.openDmabuf(dmabuf).fd, -1) << "its memory was freed";
    for (const int fd : {dmabuf, second, file.fd}) ::close(fd);
}

TEST_F(FakeCuda, APeerMemoryDriverHasRangesOfOneAllocation) {
    const DevicePtr memory = allocate(100000);
    control.write(memory + 500, std::vector<std::uint8_t>(10, 9));
    const Control::DeviceFile file = control.openPeerMemory(memory + 500, 99500);
    ASSERT_GE(file.fd, 0);
    std::uint8_t byte = 0;
    EXPECT_EQ(::pread(file.fd, &byte, 1, static_cast<off_t>(file.offset)), 1);
    EXPECT_EQ(byte, 9);
    ::close(file.fd);
    EXPECT_EQ(control.openPeerMemory(memory + 500, 99501).fd, -1);
    EXPECT_EQ(control.openPeerMemory(reinterpret_cast<std::uint64_t>(&byte), 1).fd, -1);
    use(call().memFree, memory);
    EXPECT_EQ(control.openPeerMemory(memory, 1).fd, -1);
}

TEST_F(FakeCuda, AChildOfForkHasNoDriver) {
    const pid_t child = ::fork();
    if (child == 0) {
        int count = 0;
        ::_exit(get(call().deviceGetCount, &count) == Result::NotInitialized ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

TEST_F(FakeCuda, VirtualMemoryNeedsAMappingAndAccess) {
    AllocationProp properties{};
    properties.type = AllocationType::Pinned;
    properties.location = {LocationType::Device, 0};
    std::size_t unit = 0;
    use(call().memGetAllocationGranularity, &unit, &properties, Granularity::Minimum);
    AllocationHandle handle = 0;
    EXPECT_EQ(get(call().memCreate, &handle, unit + 1, &properties, 0ull), Result::InvalidValue);
    use(call().memCreate, &handle, unit, &properties, 0ull);
    DevicePtr address = 0;
    use(call().memAddressReserve, &address, 2 * unit, std::size_t{0}, DevicePtr{0}, 0ull);
    StreamHandle stream = makeStream();
    const auto touch = [&](DevicePtr at, std::size_t bytes) {
        return get(call().memsetD8Async, at, static_cast<unsigned char>(1), bytes, stream);
    };
    EXPECT_EQ(touch(address, 1), Result::InvalidValue);
    EXPECT_EQ(get(call().memMap, address, 2 * unit, std::size_t{0}, handle, 0ull), Result::InvalidValue);
    use(call().memMap, address, unit, std::size_t{0}, handle, 0ull);
    EXPECT_EQ(touch(address, 1), Result::InvalidValue);
    EXPECT_NE(control.violations().find("cuMemSetAccess"), std::string::npos);
    control.forgetViolations();
    const AccessDesc access{{LocationType::Device, 0}, AccessFlags::ReadWrite};
    use(call().memSetAccess, address, unit, &access, std::size_t{1});
    EXPECT_EQ(touch(address, unit), Result::Success);
    EXPECT_EQ(touch(address, unit + 1), Result::InvalidValue);
    // The mapping keeps the memory.
    use(call().memRelease, handle);
    use(call().streamSynchronize, stream);
    EXPECT_EQ(control.read(address, 1)[0], 1);
    EXPECT_EQ(get(call().memUnmap, address, unit / 2), Result::InvalidValue);
    use(call().memUnmap, address, unit);
    EXPECT_EQ(get(call().memAddressFree, address, unit), Result::InvalidValue);
    use(call().memAddressFree, address, 2 * unit);
    use(call().streamDestroy, stream);
}

}  // namespace
}  // namespace troupe::fake_cuda
