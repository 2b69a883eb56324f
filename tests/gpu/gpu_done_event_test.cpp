// What is given to a GPU behind a transfer's done_event, from when the submit returns, waits for the transfer, and for
// nothing else.

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/events_fixture.h"
#include "transports/done_events.h"

namespace troupe::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace gpu::testing;
using std::chrono::milliseconds;

constexpr std::uint64_t kBytes = 300000;
constexpr std::size_t kStreams = device::DoneEvents::kStreams;

class GpuDoneEvent : public GpuEvents {
  protected:
    bool isDone(const device::DeviceEvent& event) { return must(gpu(0).isDone(event)); }
    bool comes(const device::DeviceEvent& event) {
        const auto limit = Clock::now() + test::kPatience;
        while (!isDone(event) && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
        return isDone(event);
    }
    /// Into memory of GPU 0.
    static TransferRequest reading(SegmentID from, const Memory& into, const Memory& source,
                                   const device::DeviceEvent& done) {
        auto request = makeRequest(Opcode::Read, from, into.pointer(), source.addr(), kBytes);
        request.done_event = handle(done.get());
        return request;
    }
    /// The same behind the kernel.
    static TransferRequest reading(SegmentID from, const Memory& into, const Memory& source, const LongKernel& kernel,
                                   const device::DeviceEvent& done) {
        auto request = reading(from, into, source, done);
        request.wait_stream = handle(kernel.stream().get());
        return request;
    }
    static void awaitEnd(const BatchHolder& batch, std::size_t task) {
        const auto limit = Clock::now() + test::kPatience;
        while (!isTerminal(batch.task(task).s) && Clock::now() < limit) std::this_thread::yield();
    }
    /// An engine in place of the first one.
    void restart(const EngineSetup& with) {
        a = startEngine(with);
        segment = open(*a, b->localSegmentName());
    }
};

/// Keeps what an engine says.
struct Heard {
    std::ostringstream text;
    EngineSetup setup;
    explicit Heard(EngineSetup base) : setup(std::move(base)) {
        setup.options.log =
            std::make_shared<spdlog::logger>("troupe", std::make_shared<spdlog::sinks::ostream_sink_mt>(text, true));
        setup.options.log->set_level(spdlog::level::warn);
    }
    std::size_t count(const std::string& what) const {
        const std::string all = text.str();
        std::size_t found = 0;
        for (std::size_t at = all.find(what); at != std::string::npos; at = all.find(what, at + 1)) ++found;
        return found;
    }
};
constexpr const char* kRecordedAtEnd = "is recorded when its bytes are there, and not at submit";

TEST_F(GpuDoneEvent, WhatIsGivenToTheGpuBehindItAfterTheSubmitSeesTheBytes) {
    for (const SegmentID from : {segment, kLocalSegmentID}) {
        for (const char* kind : {"host", "gpu1", "gpu0"}) {
            SCOPED_TRACE(std::string(kind) + (from == segment ? " by tcp" : " in this process"));
            Memory target = make("gpu0", kBytes);
            Memory copy = make("gpu0", kBytes);
            Memory source = make(kind, kBytes);
            registerAll(*a, target);
            registerAll(from == segment ? *b : *a, source);
            source.write(0, noise(kBytes, 3));
            target.write(0, noise(kBytes, 4));
            const device::DeviceStream stream = must(gpu(0).makeStream());
            const device::DeviceEvent done = must(gpu(0).makeEvent());
            const device::DeviceEvent copied = must(gpu(0).makeEvent());
            LongKernel kernel(gpu(0));
            BatchHolder batch(*a, 1);
            ASSERT_TRUE(batch.submit({reading(from, target, source, kernel, done)}));
            must(gpu(0).wait(stream, done));
            must(gpu(0).copy(stream, copy.addr(), target.addr(), kBytes));
            must(gpu(0).record(copied, stream));
            // Time enough for what would not wait.
            std::this_thread::sleep_for(milliseconds(20));
            EXPECT_FALSE(isDone(copied));
            kernel.end();
            // Nobody has asked for the task.
            must(gpu(0).synchronize(stream));
            EXPECT_TRUE(copy.read(0, kBytes) == noise(kBytes, 3));
            expectCompleted(batch.wait(), kBytes);
            EXPECT_TRUE(a->unregisterLocalMemory(target.pointer()));
            EXPECT_TRUE((from == segment ? *b : *a).unregisterLocalMemory(source.pointer()));
        }
    }
}

TEST_F(GpuDoneEvent, ItComesHoweverTheTaskEnds) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    LongKernel kernel(gpu(0));
    using End = TransferStatusEnum;
    for (const End end : {End::TIMEOUT, End::CANCELED, End::FAILED}) {
        SCOPED_TRACE(toString(end));
        const device::DeviceEvent done = must(gpu(0).makeEvent());
        auto request = reading(segment, target, source, kernel, done);
        if (end == End::TIMEOUT) request.deadline = Clock::now() + milliseconds(30);
        if (end == End::FAILED) {
            request.wait_stream.reset();
            request.target_offset += kBytes;
        }
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request}));
        must(gpu(0).wait(stream, done));
        if (end == End::CANCELED) {
            EXPECT_FALSE(isDone(done));
            ASSERT_TRUE(a->cancelTransfer(batch.id()));
        }
        must(gpu(0).synchronize(stream));
        EXPECT_EQ(batch.wait().s, end);
    }
}

TEST_F(GpuDoneEvent, ItComesWhenTheEngineIsFreed) {
    EngineSetup without_kernel = setup();
    without_kernel.config.gpu_pack = "off";
    restart(without_kernel);
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    LongKernel kernel(gpu(0));
    const auto batch = must(a->allocateBatchID(1));
    ASSERT_TRUE(a->submitTransfer(batch, {reading(segment, target, source, kernel, done)}));
    must(gpu(0).wait(stream, done));
    EXPECT_TRUE(a->freeEngine());
    must(gpu(0).synchronize(stream));
}

TEST_F(GpuDoneEvent, OfALostGpuTheTaskEndsAndSaysSo) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    auto request = reading(segment, target, source, done);
    for (const bool before : {false, true}) {
        BatchHolder batch(*a, 1);
        if (before) {
            ASSERT_TRUE(batch.submit({request}));
        } else {
            control.latency(20000);
            ASSERT_TRUE(batch.submit({request}));
            control.lose(0, cuda::api::Result::IllegalAddress);
            control.latency(0);
        }
        batch.wait();
        test::expectFailed(batch.task(0), Code::DeviceLost);
    }
}

/// In the order in which they end, whatever that is.
TEST_F(GpuDoneEvent, OfAsManyTasksAsThereAreStreamsEachComesByItself) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    std::vector<std::unique_ptr<LongKernel>> kernels;
    std::vector<device::DeviceEvent> done;
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i < kStreams; ++i) {
        kernels.push_back(std::make_unique<LongKernel>(gpu(0)));
        done.push_back(must(gpu(0).makeEvent()));
        requests.push_back(reading(segment, target, source, *kernels.back(), done.back()));
    }
    BatchHolder batch(*a, kStreams);
    ASSERT_TRUE(batch.submit(requests));
    for (std::size_t i = kStreams; i-- > 0;) {
        for (std::size_t other = 0; other <= i; ++other) EXPECT_FALSE(isDone(done[other])) << other;
        kernels[i]->end();
        EXPECT_TRUE(comes(done[i])) << i;
    }
    expectCompleted(batch.wait(), kStreams * kBytes);
}

/// Late is allowed then, early is not; and no streams are made.
TEST_F(GpuDoneEvent, OfMoreTasksNoneComesBeforeItsTaskHasEnded) {
    constexpr std::size_t kTasks = 3 * kStreams;
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    std::vector<std::unique_ptr<LongKernel>> kernels;
    for (std::size_t i = 0; i < kTasks; ++i) kernels.push_back(std::make_unique<LongKernel>(gpu(0)));
    std::vector<device::DeviceEvent> done;
    BatchHolder batch(*a, kTasks);
    const unsigned streams = control.count("cuStreamCreate");
    for (std::size_t i = 0; i < kTasks; ++i) {
        done.push_back(must(gpu(0).makeEvent()));
        ASSERT_TRUE(batch.submit({reading(segment, target, source, *kernels[i], done.back())}));
    }
    EXPECT_EQ(control.count("cuStreamCreate"), streams);
    // 5 and 12 have no common divisor: each once, in no order of the streams'.
    for (std::size_t step = 0; step < kTasks; ++step) {
        const std::size_t ends = step * 5 % kTasks;
        kernels[ends]->end();
        awaitEnd(batch, ends);
        for (std::size_t later = step + 1; later < kTasks; ++later) EXPECT_FALSE(isDone(done[later * 5 % kTasks]));
    }
    expectCompleted(batch.wait(), kTasks * kBytes);
    for (const auto& event : done) EXPECT_TRUE(comes(event));
}

TEST_F(GpuDoneEvent, SoManyMayBeOutstandingAndOneMoreIsRefused) {
    constexpr std::size_t kMost = kStreams * device::DoneEvents::kMostEach;
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    LongKernel kernel(gpu(0));
    std::vector<device::DeviceEvent> done;
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i <= kMost; ++i) {
        done.push_back(must(gpu(0).makeEvent()));
        requests.push_back(reading(segment, target, source, kernel, done.back()));
        requests.back().length = 64;
    }
    BatchHolder batch(*a, requests.size());
    const Status refused = batch.submit(requests);
    EXPECT_EQ(refused.code(), Code::CapacityExceeded) << refused.toString();
    EXPECT_THAT(refused.message(), HasSubstr("request 512: done_event: "));
    const TransferRequest last = requests.back();
    requests.pop_back();
    ASSERT_TRUE(batch.submit(requests));
    kernel.end();
    expectCompleted(batch.wait(), kMost * 64);
    expectCompleted(runBatch(*a, {last}), 64);
    for (const auto& event : done) EXPECT_TRUE(comes(event));
}

TEST_F(GpuDoneEvent, RequestsOfOneSubmitThatNameTheSameHaveItWhenAllHaveEnded) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    LongKernel first(gpu(0));
    LongKernel second(gpu(0));
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    BatchHolder batch(*a, 2);
    const unsigned waits = control.count("cuStreamWaitValue32");
    ASSERT_TRUE(
        batch.submit({reading(segment, target, source, first, done), reading(segment, target, source, second, done)}));
    EXPECT_EQ(control.count("cuStreamWaitValue32"), waits + 1);
    first.end();
    awaitEnd(batch, 0);
    EXPECT_FALSE(isDone(done));
    second.end();
    expectCompleted(batch.wait(), 2 * kBytes);
    EXPECT_TRUE(comes(done));
}

TEST_F(GpuDoneEvent, WhatTheDriverDoesNotTakeIsRefusedByNameAndNothingWaits) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    auto good = makeRequest(Opcode::Read, segment, target.pointer(), source.addr(), kBytes);
    auto bad = good;
    bad.done_event = handle(done.get());
    for (const auto& [call, result] : {std::pair{"cuEventRecord", cuda::api::Result::InvalidHandle},
                                       {"cuStreamWaitValue32", cuda::api::Result::InvalidValue}}) {
        SCOPED_TRACE(call);
        BatchHolder batch(*a, 2);
        control.fail(call, result);
        const Status refused = batch.submit({good, bad});
        expectCode(refused, Code::InvalidArgument);
        EXPECT_THAT(refused.message(), HasSubstr(std::string("request 1: done_event: cuda:0: ") + call));
        // Of the stream that it would have waited in the next one is had at once.
        for (std::size_t i = 0; i < kStreams; ++i) {
            expectCompleted(runBatch(*a, {bad}), kBytes);
            EXPECT_TRUE(comes(done));
        }
        ASSERT_TRUE(batch.submit({good, bad}));
        expectCompleted(batch.wait(), 2 * kBytes);
    }
    // The driver's own word for it.
    device::DeviceEvent of_other = must(gpu(1).makeEvent());
    bad.done_event = handle(of_other.get());
    BatchHolder batch(*a, 1);
    const Status refused = batch.submit({bad});
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("CUDA_ERROR_INVALID_HANDLE"), HasSubstr("an event of cuda:0")));
}

/// What was recorded for requests before the one that is refused is done; and nothing was submitted.
TEST_F(GpuDoneEvent, ASubmitThatIsRefusedLeavesNoEventThatNeverComes) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    device::DeviceEvent of_other = must(gpu(1).makeEvent());
    auto request = reading(segment, target, source, done);
    auto bad = request;
    bad.done_event = handle(of_other.get());
    BatchHolder batch(*a, 2);
    expectCode(batch.submit({request, bad}), Code::InvalidArgument);
    must(gpu(0).wait(stream, done));
    must(gpu(0).synchronize(stream));
    // Where there is no room it is not recorded at all.
    const unsigned records = control.count("cuEventRecord");
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Read, segment, target.pointer(), source.addr(), kBytes)}));
    expectCode(batch.submit({request, request}), Code::CapacityExceeded);
    EXPECT_EQ(control.count("cuEventRecord"), records);
    expectCompleted(batch.wait(), kBytes);
}

/// Recorded anew it is part of the graph no more, which is whole all the same.
TEST_F(GpuDoneEvent, OneThatWasPartOfAGraphIsRecordedAndTheGraphIsWhole) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceStream captured = must(gpu(0).makeStream());
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    control.captureGraph(true);
    control.captureStream(captured.get(), true);
    must(gpu(0).record(done, captured));
    auto request = reading(segment, target, source, done);
    expectCompleted(runBatch(*a, {request}), kBytes);
    EXPECT_TRUE(control.captureStream(captured.get(), false));
    control.captureGraph(false);
    EXPECT_TRUE(comes(done));
}

/// The word of a stream goes round and round.
TEST_F(GpuDoneEvent, TheSameEventCanBeNamedAgainAndAgain) {
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const unsigned streams = control.count("cuStreamCreate");
    for (int round = 0; round < 100; ++round) {
        auto request = makeRequest(Opcode::Read, segment, target.pointer(), source.addr(), 1000);
        request.done_event = handle(done.get());
        BatchHolder batch(*a, 1);
        ASSERT_TRUE(batch.submit({request}));
        must(gpu(0).wait(stream, done));
        expectCompleted(batch.wait(), 1000);
    }
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.count("cuStreamCreate"), streams);
}

TEST_F(GpuDoneEvent, WhereTheDriverDoesNotSupportItOneIsRecordedAtTheEndAndTheLogSaysSoOnce) {
    Heard heard(setup());
    restart(heard.setup);
    Memory target = registered(*a, "gpu0", kBytes);
    Memory source = registered(*b, "host", kBytes);
    EXPECT_EQ(heard.count(kRecordedAtEnd), 0u);
    const device::DeviceEvent done = must(gpu(0).makeEvent());
    control.fail("cuStreamWaitValue32", cuda::api::Result::NotSupported, 1 << 30);
    for (int round = 0; round < 3; ++round) {
        LongKernel kernel(gpu(0));
        BatchHolder batch(*a, 1);
        const unsigned records = control.count("cuEventRecord");
        ASSERT_TRUE(batch.submit({reading(segment, target, source, kernel, done)}));
        EXPECT_EQ(control.count("cuEventRecord"), records + 1) << "that of the stream";
        kernel.end();
        expectCompleted(batch.wait(), kBytes);
        EXPECT_GT(control.count("cuEventRecord"), records + 1);
        EXPECT_TRUE(comes(done));
    }
    EXPECT_EQ(heard.count(kRecordedAtEnd), 1u);
    EXPECT_EQ(heard.count("cuStreamWaitValue32: CUDA_ERROR_NOT_SUPPORTED"), 1u);
    EXPECT_EQ(control.count("cuStreamWaitValue32"), 1u);
    a.reset();
}

TEST_F(GpuDoneEvent, TheOldWayIsTakenWithAnOldDriverAndWhereTheSettingsSaySo) {
    for (const bool by_setting : {false, true}) {
        a.reset();
        b.reset();
        for (auto& opened : gpus) opened.reset();
        runtime.reset();
        if (!by_setting) ::setenv("FAKE_CUDA_VERSION", "11060", 1);
        control.reset();
        ::unsetenv("FAKE_CUDA_VERSION");
        runtime = must(cuda::CudaRuntime::create({fake_cuda::Control::path(), false}));
        Heard heard(setup());
        if (by_setting) heard.setup.config.gpu_done_event = "end";
        b = startEngine(setup());
        restart(heard.setup);
        Memory target = registered(*a, "gpu0", kBytes);
        Memory source = registered(*b, "host", kBytes);
        const device::DeviceEvent done = must(gpu(0).makeEvent());
        auto request = reading(segment, target, source, done);
        expectCompleted(runBatch(*a, {request}), kBytes);
        EXPECT_TRUE(comes(done));
        EXPECT_EQ(control.count("cuStreamWaitValue32"), 0u);
        EXPECT_EQ(heard.count(kRecordedAtEnd), by_setting ? 0u : 1u) << heard.text.str();
        a.reset();
    }
}

}  // namespace
}  // namespace troupe::gpu
