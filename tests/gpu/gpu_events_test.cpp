// Order with the work of a GPU: a kernel that takes its time writes the source, another reads the destination.

#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/events_fixture.h"
#include "transports/event_captures.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = 300000;

TEST_F(GpuEvents, ADelayedKernelsBytesAreCarriedWhetherByEventOrByStream) {
    for (const bool by_stream : {false, true}) {
        for (const SegmentID to : {segment, kLocalSegmentID}) {
            Memory source = make("gpu0", kBytes);
            Memory fresh = make("gpu0", kBytes);
            Memory target = make("gpu1", kBytes);
            registerAll(*a, source);
            registerAll(to == segment ? *b : *a, target);
            source.write(0, noise(kBytes, 1));
            fresh.write(0, noise(kBytes, 2));
            const device::DeviceStream stream = must(gpu(0).makeStream());
            const device::DeviceEvent event = must(gpu(0).makeEvent());
            control.delay(stream.get(), 50000);
            must(gpu(0).copy(stream, source.addr(), fresh.addr(), kBytes));
            must(gpu(0).record(event, stream));
            auto request = makeRequest(Opcode::Write, to, source.pointer(), target.addr(), kBytes);
            waitFor(request, by_stream, by_stream ? stream.get() : event.get());
            expectCompleted(runBatch(*a, {request}), kBytes);
            EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 2));
            EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
            EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(target.pointer()));
        }
    }
}

TEST_F(GpuEvents, TheDoneEventIsRecordedBeforeTheTaskIsCompleted) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    source.write(0, noise(kBytes, 3));
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    Memory copy = make("gpu0", kBytes);
    auto request = makeRequest(Opcode::Read, segment, target.pointer(), source.addr(), kBytes);
    request.done_event = handle(done.get());
    const unsigned records = control.count("cuEventRecord");
    expectCompleted(runBatch(*a, {request}), kBytes);
    EXPECT_GT(control.count("cuEventRecord"), records);
    // A stream of the application orders with it.
    must(gpu(0).wait(stream, done));
    must(gpu(0).copy(stream, copy.addr(), target.addr(), kBytes));
    must(gpu(0).synchronize(stream));
    EXPECT_TRUE(copy.read(0, kBytes) == noise(kBytes, 3));
}

/// It says of its own task that it is done, and waits for no other's.
TEST_F(GpuEvents, TheDoneEventDoesNotWaitForCopiesOfOtherTasks) {
    Memory local = make("gpu0", kBytes);
    Memory other = make("gpu0", kBytes);
    Memory remote = make("host", kBytes);
    for (Memory* memory : {&local, &other}) registerAll(*a, *memory);
    registerAll(*b, remote);
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    const unsigned before = control.count("copies");
    // Long after everything else of this test.
    control.latency(3000000);
    BatchHolder slow(*a, 2);
    // One in each of the streams that copy within a GPU.
    const auto slow_request = makeRequest(Opcode::Write, kLocalSegmentID, local.pointer(), other.addr(), kBytes / 2);
    ASSERT_TRUE(slow.submit({slow_request, slow_request}));
    const auto limit = Clock::now() + test::kPatience;
    while (control.count("copies") < before + 2 && Clock::now() < limit) std::this_thread::yield();
    control.latency(0);
    auto quick = makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), 1000);
    quick.done_event = handle(done.get());
    expectCompleted(runBatch(*a, {quick}), 1000);
    while (!must(gpu(0).isDone(done)) && Clock::now() < limit) std::this_thread::yield();
    EXPECT_EQ(slow.task(0).s, TransferStatusEnum::PENDING);
    EXPECT_EQ(slow.task(1).s, TransferStatusEnum::PENDING);
    expectCompleted(slow.wait(), kBytes / 2 * 2);
}

TEST_F(GpuEvents, ATaskWhoseEventNeverComesEndsByItsDeadlineOrByCancelAndHoldsNobody) {
    Memory local = registered(*a, "gpu0", kBytes);
    Memory remote = registered(*b, "host", kBytes);
    LongKernel kernel(gpu(0));
    const device::DeviceEvent blocked = recorded(kernel.stream());
    auto request = makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes);
    request.wait_event = handle(blocked.get());
    {
        BatchHolder late(*a, 1);
        BatchHolder canceled(*a, 1);
        auto with_deadline = request;
        with_deadline.deadline = Clock::now() + std::chrono::milliseconds(20);
        ASSERT_TRUE(late.submit({with_deadline}));
        ASSERT_TRUE(canceled.submit({request}));
        // Others go on meanwhile.
        expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, local.pointer(), remote.addr(), kBytes)}),
                        kBytes);
        EXPECT_EQ(late.wait().s, TransferStatusEnum::TIMEOUT);
        ASSERT_TRUE(a->cancelTransfer(canceled.id()));
        EXPECT_EQ(canceled.wait().s, TransferStatusEnum::CANCELED);
    }
    EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
}

TEST_F(GpuEvents, OfManyThatWaitSomeAreCanceledAndTheOthersGoOut) {
    constexpr std::size_t kTasks = 1000;
    constexpr std::uint64_t kEach = 64;
    Memory local = registered(*a, "gpu0", kTasks * kEach);
    Memory remote = registered(*b, "host", kTasks * kEach);
    local.write(0, noise(kTasks * kEach, 4));
    remote.write(0, noise(kTasks * kEach, 5));
    LongKernel kernel(gpu(0));
    const device::DeviceEvent event = recorded(kernel.stream());
    std::vector<TransferRequest> requests;
    for (std::uint64_t i = 0; i < kTasks; ++i) {
        requests.push_back(
            makeRequest(Opcode::Write, segment, local.pointer(i * kEach), remote.addr() + i * kEach, kEach));
        requests.back().wait_event = handle(event.get());
    }
    BatchHolder batch(*a, kTasks);
    ASSERT_TRUE(batch.submit(requests));
    for (std::size_t i = 0; i < kTasks; i += 3) ASSERT_TRUE(a->cancelTransfer(batch.id(), i));
    kernel.end();
    batch.wait();
    std::size_t canceled = 0;
    for (std::size_t i = 0; i < kTasks; ++i) {
        const auto status = a->getTransferStatus(batch.id(), i);
        ASSERT_TRUE(status);
        const bool arrived = status->s == TransferStatusEnum::COMPLETED;
        ASSERT_TRUE(arrived || i % 3 == 0) << i << ": " << status->error.toString();
        if (!arrived) ++canceled;
        const auto expected = noise(kTasks * kEach, arrived ? 4 : 5);
        const auto there = remote.read(i * kEach, kEach);
        ASSERT_TRUE(std::equal(there.begin(), there.end(), expected.begin() + static_cast<long>(i * kEach))) << i;
    }
    EXPECT_GT(canceled, 0u);
}

/// As recorded at submit: what the application does with its event afterwards is its own affair.
TEST_F(GpuEvents, AnEventThatIsRecordedAgainAfterSubmitOrGivenBackLetsNothingBeginEarlier) {
    for (const bool given_back : {false, true}) {
        for (const SegmentID to : {segment, kLocalSegmentID}) {
            Memory source = make("gpu0", kBytes);
            Memory fresh = make("gpu0", kBytes);
            Memory target = make("gpu1", kBytes);
            registerAll(*a, source);
            registerAll(to == segment ? *b : *a, target);
            source.write(0, noise(kBytes, 1));
            fresh.write(0, noise(kBytes, 2));
            const device::DeviceStream idle = must(gpu(0).makeStream());
            LongKernel kernel(gpu(0));
            must(gpu(0).copy(kernel.stream(), source.addr(), fresh.addr(), kBytes));
            device::DeviceEvent event = recorded(kernel.stream());
            auto request = makeRequest(Opcode::Write, to, source.pointer(), target.addr(), kBytes);
            request.wait_event = handle(event.get());
            BatchHolder batch(*a, 1);
            ASSERT_TRUE(batch.submit({request}));
            if (given_back) {
                event.reset();
            } else {
                must(gpu(0).record(event, idle));
                must(gpu(0).synchronize(idle));
            }
            // Time enough for what would begin now to end.
            const auto early = a->waitTransfer(batch.id(), std::chrono::milliseconds(50));
            ASSERT_TRUE(early);
            EXPECT_EQ(early->s, TransferStatusEnum::PENDING);
            kernel.end();
            expectCompleted(batch.wait(), kBytes);
            EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 2));
            EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
            EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(target.pointer()));
        }
    }
}

TEST_F(GpuEvents, AnEventThatIsRecordedAgainBehindALongKernelIsNotWaitedForTwice) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    source.write(0, noise(kBytes, 1));
    LongKernel first(gpu(0));
    LongKernel second(gpu(0));
    const device::DeviceEvent event = recorded(first.stream());
    auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
    request.wait_event = handle(event.get());
    BatchHolder batch(*a, 1);
    ASSERT_TRUE(batch.submit({request}));
    must(gpu(0).record(event, second.stream()));
    first.end();
    expectCompleted(batch.wait(), kBytes);
    EXPECT_FALSE(must(gpu(0).isDone(event)));
    EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 1));
    // Who names it now means that.
    BatchHolder next(*a, 1);
    ASSERT_TRUE(next.submit({request}));
    const auto early = a->waitTransfer(next.id(), std::chrono::milliseconds(50));
    ASSERT_TRUE(early);
    EXPECT_EQ(early->s, TransferStatusEnum::PENDING);
    second.end();
    expectCompleted(next.wait(), kBytes);
}

TEST_F(GpuEvents, TasksWhoseEventsHaveNothingToDoWithEachOtherDoNotWaitForEachOther) {
    constexpr std::size_t kOthers = 40;
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    LongKernel endless(gpu(0));
    const auto request = [&](const device::DeviceEvent& event) {
        auto made = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        made.wait_event = handle(event.get());
        return made;
    };
    std::vector<device::DeviceEvent> events;
    std::vector<TransferRequest> waiting;
    for (std::size_t i = 0; i < kOthers; ++i) {
        events.push_back(recorded(endless.stream()));
        waiting.push_back(request(events.back()));
    }
    BatchHolder late(*a, kOthers);
    ASSERT_TRUE(late.submit(waiting));
    for (int round = 0; round < 3; ++round) {
        LongKernel kernel(gpu(0));
        const device::DeviceEvent event = recorded(kernel.stream());
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request(event)}));
        kernel.end();
        expectCompleted(batch.wait(), kBytes);
    }
    EXPECT_EQ(late.task(0).s, TransferStatusEnum::PENDING);
    endless.end();
    expectCompleted(late.wait(), kOthers * kBytes);
}

/// However many they are: an event is asked for once, and waited for by one stream.
TEST_F(GpuEvents, ManyTasksOfASubmitWithOneEventCostTheDriverWhatOneDoes) {
    constexpr std::size_t kTasks = 30000;
    constexpr std::uint64_t kEach = 16;
    Memory local = registered(*a, "gpu0", kTasks * kEach);
    Memory remote = registered(*b, "host", kTasks * kEach);
    local.write(0, noise(kTasks * kEach, 1));
    for (const bool by_stream : {false, true}) {
        remote.write(0, noise(kTasks * kEach, 2));
        LongKernel kernel(gpu(0));
        const device::DeviceEvent event = recorded(kernel.stream());
        std::vector<TransferRequest> requests;
        for (std::uint64_t i = 0; i < kTasks; ++i) {
            requests.push_back(
                makeRequest(Opcode::Write, segment, local.pointer(i * kEach), remote.addr() + i * kEach, kEach));
            waitFor(requests.back(), by_stream, by_stream ? kernel.stream().get() : event.get());
        }
        const auto calls = [this] {
            return std::vector<unsigned>{control.count("cuStreamWaitEvent"), control.count("cuEventRecord"),
                                         control.count("cuStreamCreate")};
        };
        const auto before = calls();
        BatchHolder batch(*a, kTasks);
        ASSERT_TRUE(batch.submit(requests));
        EXPECT_EQ(calls(), (std::vector<unsigned>{before[0] + (by_stream ? 0 : 1), before[1] + 1,
                                                  before[2] + (by_stream ? 0 : 1)}));
        kernel.end();
        expectCompleted(batch.wait(), kTasks * kEach);
        EXPECT_TRUE(remote.read(0, kTasks * kEach) == noise(kTasks * kEach, 1));
    }
}

/// What is done at submit, or was never recorded, costs a look.
TEST_F(GpuEvents, AnEventThatIsDoneIsNotWaitedFor) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent done = recorded(stream);
    const device::DeviceEvent never = must(gpu(0).makeEvent());
    must(gpu(0).synchronize(stream));
    const unsigned streams = control.count("cuStreamCreate");
    for (const device::DeviceEvent* event : {&done, &never}) {
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        request.wait_event = handle(event->get());
        expectCompleted(runBatch(*a, {request}), kBytes);
    }
    EXPECT_EQ(control.count("cuStreamCreate"), streams);
}

/// Tasks that end early leave streams behind that wait: until their event comes, and not for ever.
TEST_F(GpuEvents, WhatTasksWaitedForThatEndedEarlyIsBoundedAndGivenBack) {
    constexpr std::size_t kMost = device::EventCaptures::kMost;
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
    std::vector<device::DeviceEvent> events;
    LongKernel kernel(gpu(0));
    const unsigned streams = control.count("cuStreamCreate");
    for (int round = 0; round < 2; ++round) {
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < kMost / 2; ++i) {
            events.push_back(recorded(kernel.stream()));
            request.wait_event = handle(events.back().get());
            requests.push_back(request);
        }
        BatchHolder batch(*a, requests.size());
        ASSERT_TRUE(batch.submit(requests));
        ASSERT_TRUE(a->cancelTransfer(batch.id()));
        EXPECT_EQ(batch.wait().s, TransferStatusEnum::CANCELED);
    }
    EXPECT_EQ(control.count("cuStreamCreate"), streams + kMost);
    BatchHolder batch(*a, 1);
    const Status refused = batch.submit({request});
    expectCode(refused, Code::CapacityExceeded);
    EXPECT_THAT(refused.message(), HasSubstr("request 0: wait_event: cuda:0: "));
    kernel.end();
    must(gpu(0).synchronize(kernel.stream()));
    {
        // As many again, with what is there.
        LongKernel other(gpu(0));
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < kMost; ++i) {
            events[i] = recorded(other.stream());
            request.wait_event = handle(events[i].get());
            requests.push_back(request);
        }
        BatchHolder more(*a, requests.size());
        const auto submitted = [&] {
            // The streams of the driver come to their ends one by one.
            const auto limit = Clock::now() + test::kPatience;
            Status status = more.submit(requests);
            while (status.code() == Code::CapacityExceeded && Clock::now() < limit) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                status = more.submit(requests);
            }
            return status;
        };
        ASSERT_TRUE(submitted());
        other.end();
        expectCompleted(more.wait(), kMost * kBytes);
    }
    EXPECT_EQ(control.count("cuStreamCreate"), streams + kMost + 1) << "and that of the second kernel";
    request.wait_event = nullptr;
    ASSERT_TRUE(batch.submit({request}));
    expectCompleted(batch.wait(), kBytes);
}

/// And the batch is as it was: there is room in it for what is right.
TEST_F(GpuEvents, WhatTheDriverDoesNotTakeIsRefusedByNameAndChangesNothing) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    for (const auto& [by_stream, call] : {std::pair{false, "cuEventQuery"},
                                          {false, "cuStreamCreate"},
                                          {false, "cuEventCreate"},
                                          {false, "cuStreamWaitEvent"},
                                          {false, "cuEventRecord"},
                                          {true, "cuEventCreate"},
                                          {true, "cuStreamIsCapturing"},
                                          {true, "cuEventRecord"},
                                          {true, "cuEventQuery"}}) {
        SCOPED_TRACE(call);
        // Each makes its own streams.
        const auto engine = startEngine(setup());
        const SegmentID to = open(*engine, b->localSegmentName());
        registerAll(*engine, source);
        LongKernel kernel(gpu(0));
        const device::DeviceEvent event = recorded(kernel.stream());
        auto good = makeRequest(Opcode::Write, to, source.pointer(), target.addr(), kBytes);
        auto bad = good;
        waitFor(bad, by_stream, by_stream ? kernel.stream().get() : event.get());
        BatchHolder batch(*engine, 2);
        control.fail(call, cuda::api::Result::InvalidHandle);
        const Status refused = batch.submit({good, bad});
        expectCode(refused, Code::InvalidArgument);
        EXPECT_THAT(refused.message(),
                    HasSubstr(std::string("request 1: ") + (by_stream ? "wait_stream" : "wait_event") +
                              ": cuda:0: " + call + ": CUDA_ERROR_INVALID_HANDLE"));
        EXPECT_TRUE(gpu(0).state());
        ASSERT_TRUE(batch.submit({good, bad}));
        kernel.end();
        expectCompleted(batch.wait(), 2 * kBytes);
    }
}

/// It is the tasks that end, as without an event: others of the submit may be of another GPU.
TEST_F(GpuEvents, OfALostGpuTheTasksThatWaitForItEndAndOthersOfTheSubmitDoNot) {
    Memory source = make("gpu0", kBytes);
    Memory well = make("gpu1", kBytes);
    Memory target = make("host", kBytes);
    registerAll(*a, source);
    registerAll(*a, well);
    registerAll(*b, target);
    well.write(0, noise(kBytes, 7));
    for (const bool by_stream : {false, true}) {
        const device::DeviceStream stream = by_stream ? device::DeviceStream{} : must(gpu(0).makeStream());
        const device::DeviceEvent event = by_stream ? device::DeviceEvent{} : recorded(stream);
        auto lost = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        // Nobody asks the driver about it.
        waitFor(lost, by_stream, by_stream ? 1 : event.get());
        if (!by_stream) control.lose(0, cuda::api::Result::IllegalAddress);
        BatchHolder batch(*a, 2);
        ASSERT_TRUE(batch.submit({lost, makeRequest(Opcode::Write, segment, well.pointer(), target.addr(), kBytes)}));
        batch.wait();
        test::expectFailed(batch.task(0), Code::DeviceLost);
        expectCompleted(batch.task(1), kBytes);
        EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 7));
    }
}

TEST_F(GpuEvents, TheContextOfTheThreadThatSubmitsStaysCurrent) {
    Memory source = registered(*a, "gpu0", kBytes);
    Memory target = registered(*b, "host", kBytes);
    gpu(1);
    cuda::api::ContextHandle other = nullptr;
    ASSERT_EQ(call().devicePrimaryCtxRetain.function(&other, 1), cuda::api::Result::Success);
    for (cuda::api::ContextHandle mine : {static_cast<cuda::api::ContextHandle>(nullptr), other}) {
        LongKernel kernel(gpu(0));
        const device::DeviceEvent event = recorded(kernel.stream());
        auto request = makeRequest(Opcode::Write, segment, source.pointer(), target.addr(), kBytes);
        request.wait_event = handle(event.get());
        request.wait_stream = handle(kernel.stream().get());
        BatchHolder batch(*a, 1);
        ASSERT_EQ(call().ctxSetCurrent.function(mine), cuda::api::Result::Success);
        EXPECT_TRUE(batch.submit({request}));
        cuda::api::ContextHandle now = nullptr;
        EXPECT_EQ(call().ctxGetCurrent.function(&now), cuda::api::Result::Success);
        EXPECT_EQ(now, mine);
        EXPECT_EQ(call().ctxSetCurrent.function(nullptr), cuda::api::Result::Success);
        kernel.end();
        expectCompleted(batch.wait(), kBytes);
    }
    EXPECT_EQ(call().devicePrimaryCtxRelease.function(1), cuda::api::Result::Success);
}

/// In the mode that holds for all threads, as PyTorch captures them.
TEST_F(GpuEvents, AGraphThatTheApplicationCapturesMeanwhileIsNotSpoilt) {
    control.captureGraph(true);
    for (const SegmentID to : {segment, kLocalSegmentID}) {
        Memory source = registered(*a, "gpu0", kBytes);
        Memory target = registered(to == segment ? *b : *a, "gpu1", kBytes);
        source.write(0, noise(kBytes, 1));
        LongKernel kernel(gpu(0));
        const device::DeviceEvent event = recorded(kernel.stream());
        const device::DeviceEvent done = must(gpu(0).makeEvent());
        auto request = makeRequest(Opcode::Write, to, source.pointer(), target.addr(), kBytes);
        request.wait_event = handle(event.get());
        request.wait_stream = handle(kernel.stream().get());
        request.done_event = handle(done.get());
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request}));
        kernel.end();
        expectCompleted(batch.wait(), kBytes);
        EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 1));
        EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
        EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(target.pointer()));
    }
    control.captureGraph(false);
}

TEST_F(GpuEvents, WhatCannotBeWaitedForIsRefused) {
    Memory host = registered(*a, "host", kBytes);
    Memory remote = registered(*b, "host", kBytes);
    gpu(0);
    const device::DeviceEvent event = must(gpu(0).makeEvent());
    auto request = makeRequest(Opcode::Write, segment, host.pointer(), remote.addr(), 10);
    request.done_event = handle(event.get());
    BatchHolder batch(*a, 1);
    const Status refused = batch.submit({request});
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("memory of a GPU"));
}

}  // namespace
}  // namespace troupe::gpu
