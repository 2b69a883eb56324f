// Order with the work of a GPU: a kernel that takes its time writes the source, another reads the destination.

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/gpu/fixture.h"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;
using namespace gpu::testing;

constexpr std::uint64_t kBytes = 300000;

class GpuEvents : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        a = startEngine(setup());
        b = startEngine(setup());
        segment = open(*a, b->localSegmentName());
    }
    void TearDown() override {
        a.reset();
        b.reset();
        GpuTest::TearDown();
    }
    static void* handle(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

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
            (by_stream ? request.wait_stream : request.wait_event) = handle(by_stream ? stream.get() : event.get());
            expectCompleted(runBatch(*a, {request}), kBytes);
            EXPECT_TRUE(target.read(0, kBytes) == noise(kBytes, 2));
            EXPECT_TRUE(a->unregisterLocalMemory(source.pointer()));
            EXPECT_TRUE((to == segment ? *b : *a).unregisterLocalMemory(target.pointer()));
        }
    }
}

TEST_F(GpuEvents, TheDoneEventIsRecordedBeforeTheTaskIsCompleted) {
    Memory target = make("gpu0", kBytes);
    Memory source = make("host", kBytes);
    registerAll(*a, target);
    registerAll(*b, source);
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

TEST_F(GpuEvents, ATaskWhoseEventNeverComesEndsByItsDeadlineOrByCancelAndHoldsNobody) {
    Memory local = make("gpu0", kBytes);
    Memory remote = make("host", kBytes);
    registerAll(*a, local);
    registerAll(*b, remote);
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent blocked = must(gpu(0).makeEvent());
    // Long after everything else of this test.
    control.delay(stream.get(), 3000000);
    must(gpu(0).record(blocked, stream));
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
    must(gpu(0).synchronize(stream));
}

TEST_F(GpuEvents, OfManyThatWaitSomeAreCanceledAndTheOthersGoOut) {
    constexpr std::size_t kTasks = 1000;
    constexpr std::uint64_t kEach = 64;
    Memory local = make("gpu0", kTasks * kEach);
    Memory remote = make("host", kTasks * kEach);
    registerAll(*a, local);
    registerAll(*b, remote);
    local.write(0, noise(kTasks * kEach, 4));
    remote.write(0, noise(kTasks * kEach, 5));
    const device::DeviceStream stream = must(gpu(0).makeStream());
    const device::DeviceEvent event = must(gpu(0).makeEvent());
    // Long enough for the cancels; where it is not, what they come too late for is there, which is right as well.
    control.delay(stream.get(), 500000);
    must(gpu(0).record(event, stream));
    std::vector<TransferRequest> requests;
    for (std::uint64_t i = 0; i < kTasks; ++i) {
        requests.push_back(
            makeRequest(Opcode::Write, segment, local.pointer(i * kEach), remote.addr() + i * kEach, kEach));
        requests.back().wait_event = handle(event.get());
    }
    BatchHolder batch(*a, kTasks);
    ASSERT_TRUE(batch.submit(requests));
    for (std::size_t i = 0; i < kTasks; i += 3) ASSERT_TRUE(a->cancelTransfer(batch.id(), i));
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
    must(gpu(0).synchronize(stream));
}

TEST_F(GpuEvents, WhatCannotBeWaitedForIsRefused) {
    Memory host = make("host", kBytes);
    Memory remote = make("host", kBytes);
    registerAll(*a, host);
    registerAll(*b, remote);
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
