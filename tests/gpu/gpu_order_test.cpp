// What a request waits for: default streams, streams of other GPUs and of graphs, requests of no bytes, and what
// becomes of those that wait when the GPU or the engine ends.

#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/events_fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace gpu::testing;
using std::chrono::milliseconds;

constexpr std::uint64_t kBytes = 300000;

class GpuOrder : public GpuEvents {
  protected:
    /// A stream that waits for the default stream, as cudaStreamCreate makes it.
    std::uintptr_t makeBlockingStream() {
        gpu(0);
        cuda::api::ContextHandle context = nullptr;
        EXPECT_EQ(call().devicePrimaryCtxRetain.function(&context, 0), cuda::api::Result::Success);
        const cuda::CurrentContext current(runtime->driver(), context);
        cuda::api::StreamHandle stream = nullptr;
        EXPECT_EQ(call().streamCreate.function(&stream, 0), cuda::api::Result::Success);
        EXPECT_EQ(call().devicePrimaryCtxRelease.function(0), cuda::api::Result::Success);
        return reinterpret_cast<std::uintptr_t>(stream);
    }
    void destroy(std::uintptr_t stream) {
        EXPECT_EQ(call().streamDestroy.function(reinterpret_cast<cuda::api::StreamHandle>(stream)),
                  cuda::api::Result::Success);
    }
    /// Holds a stream of the application until the future it is of has a value.
    void hold(std::uintptr_t stream, std::promise<void>& until) {
        must(gpu(0).notify(
            device::StreamRef(stream),
            [](void* ended) { static_cast<std::promise<void>*>(ended)->get_future().wait(); }, &until));
    }
    bool staysPending(const BatchHolder& batch) {
        const auto early = a->waitTransfer(batch.id(), milliseconds(30));
        EXPECT_TRUE(early);
        return early && early->s == TransferStatusEnum::PENDING;
    }
};

/// 0 and 1 are the one of all threads, 2 that of this thread; and the first waits for streams that are not made to be
/// independent of it.
TEST_F(GpuOrder, DefaultStreamsAreWaitedFor) {
    const std::uintptr_t blocking = makeBlockingStream();
    for (const auto& [works, named] :
         {std::pair<std::uintptr_t, std::uintptr_t>{0, 0}, {1, 1}, {0, 1}, {2, 2}, {blocking, 0}, {2, 0}}) {
        SCOPED_TRACE(std::to_string(works) + " works, and " + std::to_string(named) + " is named");
        Memory source = make("gpu0", kBytes);
        Memory fresh = make("gpu0", kBytes);
        Memory target = make("host", kBytes);
        registerAll(*a, source);
        registerAll(*b, target);
        source.write(0, noise(kBytes, 1));
        fresh.write(0, noise(kBytes, 2));
        std::promise<void> ended;
        hold(works, ended);
        must(gpu(0).copy(device::StreamRef(works), source.addr(), fresh.addr(), kBytes));
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        request.wait_stream = handle(named);
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request}));
        EXPECT_TRUE(staysPending(batch));
        ended.set_value();
        expectCompleted(batch.wait(), kBytes);
        EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 2));
        EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
        EXPECT_TRUE(b->unregisterLocalMemory(target.pointer()));
    }
    destroy(blocking);
}

/// Nothing that the application does on its default stream is waited for by who did not ask for it.
TEST_F(GpuOrder, WhoNamesNoStreamWaitsForNone) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    std::promise<void> ended;
    hold(0, ended);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes)}),
                    kBytes);
    ended.set_value();
    must(gpu(0).synchronize(device::StreamRef(0)));
}

TEST_F(GpuOrder, AStreamOfAnotherGpuIsRefusedAndAnEventOfItIsNot) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    gpu(0);
    LongKernel kernel(gpu(1));
    auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
    request.wait_stream = handle(kernel.stream().get());
    BatchHolder batch(*a, 1);
    const Status refused = batch.submit({request});
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(),
                AllOf(HasSubstr("request 0: wait_stream: cuda:0: cuEventRecord: CUDA_ERROR_INVALID_HANDLE"),
                      HasSubstr("; the stream is of cuda:1: record an event on it, and wait for that")));
    const device::DeviceEvent event = must(gpu(1).makeEvent());
    must(gpu(1).record(event, kernel.stream()));
    request.wait_stream.reset();
    request.wait_event = handle(event.get());
    ASSERT_TRUE(batch.submit({request}));
    EXPECT_TRUE(staysPending(batch));
    kernel.end();
    expectCompleted(batch.wait(), kBytes);
}

TEST_F(GpuOrder, AStreamThatIsCapturedIsRefusedAndTheGraphIsWhole) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    const std::uintptr_t stream = makeBlockingStream();
    // 2 is a stream of its own, and goes on.
    for (const std::uintptr_t named : {stream, std::uintptr_t{0}, std::uintptr_t{1}, std::uintptr_t{2}}) {
        SCOPED_TRACE(named);
        control.captureStream(stream, true);
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        request.wait_stream = handle(named);
        BatchHolder batch(*a, 1);
        const Status submitted = batch.submit({request});
        if (named == 2) {
            EXPECT_TRUE(submitted) << submitted.toString();
        } else {
            expectCode(submitted, Code::InvalidArgument);
            EXPECT_THAT(submitted.message(),
                        AllOf(HasSubstr("request 0: wait_stream: cuda:0: the "), HasSubstr("captured into a graph")));
        }
        EXPECT_TRUE(control.captureStream(stream, false));
    }
    destroy(stream);
}

/// Of an event CUDA has no question that it does not forbid.
TEST_F(GpuOrder, AnEventOfAGraphIsRefusedByName) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent event = must(gpu(0).makeEvent());
    control.captureStream(stream.get(), true);
    must(gpu(0).record(event, stream));
    auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
    request.wait_event = handle(event.get());
    BatchHolder batch(*a, 1);
    const Status refused = batch.submit({request});
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("request 0: wait_event: cuda:0: cuEventQuery: CUDA_ERROR_CAPTURED_EVENT"));
    EXPECT_TRUE(gpu(0).state());
    control.captureStream(stream.get(), false);
}

TEST_F(GpuOrder, ARequestOfNoBytesWaitsAndTellsAsOthersDo) {
    Memory local = registered(*a, "gpu0", kBytes);
    for (const bool by_stream : {false, true}) {
        for (const bool reads : {false, true}) {
            LongKernel kernel(gpu(0));
            const device::DeviceEvent event = recorded(kernel.stream());
            const device::DeviceEvent done = must(gpu(0).makeEvent());
            auto request = makeRequest(reads ? Opcode::Read : Opcode::Write, segment, local.pointer(), 0, 0);
            waitFor(request, by_stream, by_stream ? kernel.stream().get() : event.get());
            request.done_event = handle(done.get());
            BatchHolder batch(*a, 2);
            ASSERT_TRUE(batch.submit({request, makeRequest(Opcode::Write, segment, local.pointer(), 0, 0)}));
            EXPECT_TRUE(staysPending(batch));
            EXPECT_EQ(batch.task(1).s, TransferStatusEnum::COMPLETED) << "which waits for nothing";
            EXPECT_FALSE(must(gpu(0).isDone(done)));
            kernel.end();
            expectCompleted(batch.wait(), 0);
            const auto limit = Clock::now() + test::kPatience;
            while (!must(gpu(0).isDone(done)) && Clock::now() < limit) std::this_thread::yield();
            EXPECT_TRUE(must(gpu(0).isDone(done)));
        }
    }
    // Without anything to wait for it tells all the same.
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    auto request = makeRequest(Opcode::Write, segment, local.pointer(), 0, 0);
    request.done_event = handle(done.get());
    const unsigned records = control.count("cuEventRecord");
    expectCompleted(runBatch(*a, {request}), 0);
    EXPECT_EQ(control.count("cuEventRecord"), records + 1);
}

TEST_F(GpuOrder, ARequestOfNoBytesThatWaitsEndsByItsDeadlineAndByCancel) {
    Memory local = registered(*a, "gpu0", kBytes);
    LongKernel kernel(gpu(0));
    auto request = makeRequest(Opcode::Write, segment, local.pointer(), 0, 0);
    request.wait_stream = handle(kernel.stream().get());
    BatchHolder canceled(*a, 1);
    ASSERT_TRUE(canceled.submit({request}));
    auto late = request;
    late.deadline = Clock::now() + milliseconds(20);
    EXPECT_EQ(runBatch(*a, {late}).s, TransferStatusEnum::TIMEOUT);
    ASSERT_TRUE(a->cancelTransfer(canceled.id()));
    EXPECT_EQ(canceled.wait().s, TransferStatusEnum::CANCELED);
    request.source = nullptr;
    BatchHolder batch(*a, 1);
    expectCode(batch.submit({request}), Code::InvalidArgument);
}

TEST_F(GpuOrder, ATaskThatWaitsEndsWithTheGpuThatItWaitsFor) {
    Memory source = make("gpu0", kBytes);
    Memory well = make("gpu1", kBytes);
    Memory target = make("host", kBytes);
    for (Memory* memory : {&source, &well}) registerAll(*a, *memory);
    registerAll(*b, target);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent event = must(gpu(0).makeEvent());
    // Until the loss.
    control.hold(true);
    control.delay(stream.get(), 1000);
    must(gpu(0).record(event, stream));
    std::vector<TransferRequest> requests(4,
                                          makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes));
    requests[0].wait_event = handle(event.get());
    requests[1].wait_stream = handle(stream.get());
    requests[2].wait_event = handle(event.get());
    requests[2].length = 0;
    requests[3].source = well.pointer();
    BatchHolder batch(*a, requests.size());
    ASSERT_TRUE(batch.submit(requests));
    std::this_thread::sleep_for(milliseconds(10));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.task(i).s, TransferStatusEnum::PENDING) << i;
    control.lose(0, cuda::api::Result::IllegalAddress);
    control.hold(false);
    batch.wait();
    for (std::size_t i = 0; i < 3; ++i) test::expectFailed(batch.task(i), Code::DeviceLost);
    expectCompleted(batch.task(3), kBytes);
}

TEST_F(GpuOrder, AnEngineIsFreedWhileATaskWaits) {
    EngineSetup without_kernel = setup();
    // Giving that back waits for the application's.
    without_kernel.config.gpu_pack = "off";
    a = startEngine(without_kernel);
    segment = open(*a, b->localSegmentName());
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    target.write(0, noise(kBytes, 5));
    LongKernel kernel(gpu(0));
    const device::DeviceEvent event = recorded(kernel.stream());
    for (const bool by_stream : {false, true}) {
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        waitFor(request, by_stream, by_stream ? kernel.stream().get() : event.get());
        const auto batch = must(a->allocateBatchID(1));
        ASSERT_TRUE(a->submitTransfer(batch, {request}));
    }
    EXPECT_TRUE(a->freeEngine());
    a.reset();
    kernel.end();
    must(gpu(0).synchronize(kernel.stream()));
    EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 5));
}

}  // namespace
}  // namespace troupe::gpu
