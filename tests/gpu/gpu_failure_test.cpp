// What goes wrong while bytes are on their way from or to a GPU: nothing is told before it is true, nothing hangs, and
// nothing touches memory afterwards. The fake tells of copies from or to memory that is gone.

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/fault_injector.h"
#include "tests/gpu/fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace troupe::gpu {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace gpu::testing;
using std::chrono::milliseconds;

constexpr std::uint64_t kBytes = 4u << 20;

class GpuFailure : public GpuTest {
  protected:
    void TearDown() override {
        a.reset();
        b.reset();
        GpuTest::TearDown();
    }
    /// Two engines that have only TCP between them.
    void start(const EngineSetup& with = setup()) {
        a = startEngine(with);
        b = startEngine(with);
        segment = open(*a, b->localSegmentName());
    }
    static bool waitFor(const std::function<bool()>& what) {
        const auto limit = Clock::now() + test::kPatience;
        while (Clock::now() < limit) {
            if (what()) return true;
            std::this_thread::sleep_for(milliseconds(1));
        }
        return false;
    }
    /// Over: the memory may go. What the engines still do with it the fake reports.
    void forget(std::unique_ptr<Memory>& memory, TransferEngine& engine) {
        const Status done = engine.unregisterLocalMemory(memory->pointer());
        EXPECT_TRUE(done) << done.toString();
        memory.reset();
    }
    std::unique_ptr<Memory> some(const std::string& kind, TransferEngine& engine, std::uint64_t bytes = kBytes) {
        auto memory = std::make_unique<Memory>(make(kind, bytes));
        registerAll(engine, *memory);
        return memory;
    }

    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

TEST_F(GpuFailure, ACanceledTaskEndsWhenNoCopyTouchesItsMemory) {
    start();
    control.latency(30000);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        for (const char* there : {"gpu1", "host"}) {
            for (const bool local_segment : {false, true}) {
                SCOPED_TRACE(std::string(there) + (opcode == Opcode::Write ? " written" : " read") +
                             (local_segment ? " in this process" : " by tcp"));
                auto local = some("gpu0", *a);
                auto remote = some(there, local_segment ? *a : *b);
                {
                    BatchHolder batch(*a, 1);
                    ASSERT_TRUE(batch.submit({makeRequest(opcode, local_segment ? kLocalSegmentID : segment,
                                                          local->pointer(), remote->addr(), kBytes)}));
                    std::this_thread::sleep_for(milliseconds(10));
                    ASSERT_TRUE(a->cancelTransfer(batch.id()));
                    const auto status = batch.wait();
                    EXPECT_TRUE(status.s == TransferStatusEnum::CANCELED || status.s == TransferStatusEnum::COMPLETED)
                        << toString(status.s);
                    EXPECT_TRUE(status.quiesced);
                }
                forget(local, *a);
                forget(remote, local_segment ? *a : *b);
            }
        }
    }
    control.latency(0);
}

TEST_F(GpuFailure, ADeadlineEndsATaskWithinABoundAlthoughTheGpuStandsStill) {
    EngineSetup impatient = setup();
    impatient.config.unregister_timeout = milliseconds(300);
    start(impatient);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        for (const auto& [to, there, bytes] : std::vector<std::tuple<SegmentID, std::string, std::uint64_t>>{
                 {segment, "gpu1", kBytes}, {segment, "host", 1000}, {kLocalSegmentID, "gpu1", kBytes}}) {
            SCOPED_TRACE(std::string(opcode == Opcode::Write ? "write " : "read ") + there + " " +
                         std::to_string(bytes));
            auto local = some("gpu0", *a);
            auto remote = some(there, to == segment ? *b : *a);
            control.hold(true);
            BatchHolder batch(*a, 1);
            auto request = makeRequest(opcode, to, local->pointer(), remote->addr(), bytes);
            request.deadline = Clock::now() + milliseconds(50);
            ASSERT_TRUE(batch.submit({request}));
            const auto status = batch.wait();
            EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT);
            if (!status.quiesced) {
                // Nobody knows when the copy will be made, so the memory is kept from everybody until it was.
                EXPECT_FALSE(a->quarantine().entries.empty());
                expectCode(a->unregisterLocalMemory(local->pointer()), Code::BatchBusy);
            }
            control.hold(false);
            EXPECT_TRUE(waitFor([&] { return a->quarantine().entries.empty(); }));
            EXPECT_TRUE(waitFor([&] { return a->unregisterLocalMemory(local->pointer()).isOk(); }));
            local.reset();
            TransferEngine& owner = to == segment ? *b : *a;
            EXPECT_TRUE(waitFor([&] { return owner.unregisterLocalMemory(remote->pointer()).isOk(); }));
            remote.reset();
        }
    }
}

/// What is written there next must not be overtaken by a copy of what was given up.
TEST_F(GpuFailure, ACanceledWriteIsNotOverWhileACopyTouchesTheOtherEnd) {
    start();
    auto local = some("host", *a);
    auto remote = some("gpu0", *a);
    control.hold(true);
    const TimePoint began = Clock::now();
    BatchHolder batch(*a, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, kLocalSegmentID, local->pointer(), remote->addr(), 1000)}));
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_TRUE(a->cancelTransfer(batch.id()));
    std::this_thread::sleep_for(milliseconds(30));
    const bool is_over = isTerminal(batch.task(0).s);
    // After a second it may be: nobody knows when the GPU goes on.
    if (Clock::now() - began < milliseconds(500)) {
        EXPECT_FALSE(is_over);
    }
    control.hold(false);
    const auto status = batch.wait();
    EXPECT_TRUE(isTerminal(status.s));
    EXPECT_TRUE(status.quiesced);
}

/// The bytes that came first are on their way to the GPU when it shows that they are damaged. They must be there before
/// the initiator is told, or they could land over those of its second try.
TEST_F(GpuFailure, ADamagedWriteIsRefusedWhenNoCopyOfItIsUnderWay) {
    EngineSetup checked = setup();
    checked.config.tcp_crc = true;
    checked.config.faults_enabled = true;
    start(checked);
    auto local = some("host", *a);
    auto remote = some("gpu1", *b);
    constexpr std::uint64_t kLess = 200000;
    local->write(0, noise(kLess, 8));
    FaultInjector* const faults = *b->faults();
    const auto rule = faults->add({FaultPoint::Payload, FaultAction::Corrupt, 1, 0, 1, ""});
    ASSERT_TRUE(rule) << rule.status().toString();
    control.latency(3000, 0, 3000);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, local->pointer(), remote->addr(), kLess)}),
                    kLess);
    control.latency(0);
    EXPECT_EQ(faults->count(*rule)->fired, 1u);
    EXPECT_TRUE(remote->read(0, kLess) == noise(kLess, 8));
}

TEST_F(GpuFailure, ALostGpuFailsItsOwnTasksAndSaysSo) {
    start();
    // Each loses a GPU of its own process for good.
    auto other = some("host", *a);
    auto there = some("host", *b);
    auto local = some("gpu0", *a);
    control.lose(0, cuda::api::Result::IllegalAddress, 6);
    const auto written = runBatch(*a, {makeRequest(Opcode::Write, segment, local->pointer(), there->addr(), kBytes)});
    test::expectFailed(written, Code::DeviceLost);
    EXPECT_THAT(written.error.message(), HasSubstr("cuda:0"));
    const auto read = runBatch(*a, {makeRequest(Opcode::Read, segment, local->pointer(), there->addr(), kBytes)});
    test::expectFailed(read, Code::DeviceLost);
    const auto within =
        runBatch(*a, {makeRequest(Opcode::Write, kLocalSegmentID, local->pointer(), other->addr(), 1000)});
    test::expectFailed(within, Code::DeviceLost);
    // The same lane goes on with what is not on that GPU.
    other->write(0, noise(kBytes, 4));
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, other->pointer(), there->addr(), kBytes)}),
                    kBytes);
    EXPECT_TRUE(there->read(0, kBytes) == noise(kBytes, 4));
    auto good = some("gpu1", *a);
    good->write(0, noise(kBytes, 5));
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, good->pointer(), there->addr(), kBytes)}),
                    kBytes);
    EXPECT_TRUE(there->read(0, kBytes) == noise(kBytes, 5));
}

TEST_F(GpuFailure, AnOwnersLostGpuIsARefusalAndTheConnectionLives) {
    start();
    auto local = some("host", *a);
    auto there = some("gpu1", *b);
    auto host = some("host", *b);
    control.lose(1, cuda::api::Result::IllegalAddress, 3);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        const auto status = runBatch(*a, {makeRequest(opcode, segment, local->pointer(), there->addr(), kBytes)});
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
        EXPECT_TRUE(status.quiesced);
    }
    const auto refused = runBatch(*a, {makeRequest(Opcode::Read, segment, local->pointer(), there->addr(), 100)});
    test::expectFailed(refused, Code::DeviceLost);
    EXPECT_THAT(refused.error.message(), HasSubstr("a GPU that its owner has lost"));
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, local->pointer(), host->addr(), kBytes)}),
                    kBytes);
}

TEST_F(GpuFailure, ACallThatFailsOnceFailsWhatItWasForAndNothingElse) {
    start();
    auto local = some("gpu0", *a);
    auto there = some("host", *b);
    for (const char* call : {"cuMemcpyAsync", "cuEventRecord"}) {
        control.fail(call, cuda::api::Result::OutOfMemory);
        const auto status = runBatch(*a, {makeRequest(Opcode::Write, segment, local->pointer(), there->addr(), 1000)});
        test::expectFailed(status, Code::ResourceExhausted);
        EXPECT_THAT(status.error.message(), HasSubstr(call));
        local->write(0, noise(1000, 7));
        expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, segment, local->pointer(), there->addr(), 1000)}),
                        1000);
        EXPECT_TRUE(there->read(0, 1000) == noise(1000, 7));
    }
}

/// Whatever the driver answers for ever: the tasks end, and their memory is free.
TEST_F(GpuFailure, ADriverThatOnlyAnswersWithAnErrorHasLostTheGpu) {
    start();
    for (const SegmentID to : {segment, kLocalSegmentID}) {
        const int device = to == segment ? 0 : 1;
        auto local = some("gpu" + std::to_string(device), *a);
        auto there = some("host", to == segment ? *b : *a);
        control.fail("cuEventQuery", cuda::api::Result::Unknown, 1 << 30);
        const auto status = runBatch(*a, {makeRequest(Opcode::Write, to, local->pointer(), there->addr(), kBytes)});
        test::expectFailed(status, Code::DeviceLost);
        EXPECT_THAT(status.error.message(), HasSubstr("CUDA_ERROR_UNKNOWN"));
        EXPECT_TRUE(status.quiesced);
        control.fail("cuEventQuery", cuda::api::Result::Unknown, 0);
        forget(local, *a);
        forget(there, to == segment ? *b : *a);
    }
}

TEST_F(GpuFailure, AnEngineThatEndsInTheMiddleTouchesNothingAfterwards) {
    for (const bool owner_ends : {true, false}) {
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            start();
            auto local = some("gpu0", *a);
            auto remote = some("gpu1", *b);
            control.latency(5000);
            {
                BatchHolder batch(*a, 1);
                ASSERT_TRUE(batch.submit({makeRequest(opcode, segment, local->pointer(), remote->addr(), kBytes)}));
                std::this_thread::sleep_for(milliseconds(20));
                const Status ended = (owner_ends ? b : a)->freeEngine();
                EXPECT_TRUE(ended) << ended.toString();
                (owner_ends ? remote : local).reset();
                if (owner_ends) {
                    const auto status = batch.wait();
                    EXPECT_TRUE(isTerminal(status.s));
                    EXPECT_TRUE(status.quiesced);
                }
            }
            control.latency(0);
            if (owner_ends)
                forget(local, *a);
            else
                forget(remote, *b);
            a.reset();
            b.reset();
            local.reset();
            remote.reset();
        }
    }
}

/// It is the application's mistake; the error says which memory it made it with.
TEST_F(GpuFailure, MemoryThatWasFreedWhileItWasRegisteredIsNamed) {
    start();
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        for (const auto& [to, is_local_gone] : std::vector<std::pair<SegmentID, bool>>{
                 {segment, true}, {segment, false}, {kLocalSegmentID, true}, {kLocalSegmentID, false}}) {
            SCOPED_TRACE(std::string(opcode == Opcode::Write ? "write" : "read") +
                         (to == segment ? " by tcp, " : " in this process, ") +
                         (is_local_gone ? "the local end" : "the other end"));
            TransferEngine& owner = to == segment ? *b : *a;
            auto local = some("gpu0", *a);
            auto remote = some("gpu1", owner);
            const std::uint64_t here = local->addr();
            const std::uint64_t there = remote->addr();
            (is_local_gone ? local : remote).reset();
            const auto status = runBatch(*a, {makeRequest(opcode, to, reinterpret_cast<void*>(here), there, 1000)});
            EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
            EXPECT_THAT(status.error.message(), HasSubstr("freed"));
            const std::string gone = hexAddress(is_local_gone ? here : there);
            const bool is_source = is_local_gone == (opcode == Opcode::Write);
            EXPECT_THAT(status.error.message(),
                        AnyOf(HasSubstr(gone + ", of its " + (is_source ? "source" : "destination")),
                              HasSubstr(gone + " is registered")));
            EXPECT_THAT(status.error.message(), ::testing::Not(HasSubstr("address space")));
            EXPECT_TRUE(a->unregisterLocalMemory(reinterpret_cast<void*>(here)));
            EXPECT_TRUE(owner.unregisterLocalMemory(reinterpret_cast<void*>(there)));
        }
    }
}

TEST_F(GpuFailure, AnEngineThatEndsBesideACopyNamesItsMemoryUntilItHasEnded) {
    for (const SegmentID to : {kInvalidSegmentID, kLocalSegmentID}) {
        start();
        auto local = some("gpu0", *a);
        auto remote = some("gpu1", to == kLocalSegmentID ? *a : *b);
        control.hold(true);
        Status ended;
        {
            BatchHolder batch(*a, 1);
            ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, to == kLocalSegmentID ? to : segment, local->pointer(),
                                                  remote->addr(), 1000)}));
            // Begun, and held.
            std::this_thread::sleep_for(milliseconds(50));
            ended = a->freeEngine();
        }
        expectCode(ended, Code::BatchBusy);
        // In this process the copy has both ends here.
        EXPECT_THAT(ended.message(),
                    AnyOf(HasSubstr(hexAddress(local->addr())), HasSubstr(hexAddress(remote->addr()))));
        const Status again = a->freeEngine();
        expectCode(again, Code::BatchBusy);
        EXPECT_THAT(again.message(), HasSubstr("was begun and has not ended"));
        EXPECT_FALSE(a->quarantine().entries.empty());
        control.hold(false);
        EXPECT_TRUE(waitFor([&] { return a->freeEngine().isOk(); }));
        EXPECT_TRUE(a->quarantine().entries.empty());
        EXPECT_TRUE(a->freeEngine());
        if (to != kLocalSegmentID) forget(remote, *b);
        a.reset();
        b.reset();
        local.reset();
        remote.reset();
    }
}

/// Most of it has not been given to any Nic yet when its memory closes to new work, and what of it is posted then is of
/// a GPU all the same: no processor may touch it.
TEST_F(GpuFailure, UnregisteringWaitsForTheTransfersThatUseTheMemory) {
    start();
    constexpr std::uint64_t kMuch = 32u << 20;
    for (const bool waits_for_event : {false, true}) {
        for (const SegmentID to : {segment, kLocalSegmentID}) {
            for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
                SCOPED_TRACE(std::string(opcode == Opcode::Write ? "write" : "read") +
                             (to == segment ? " by tcp" : " within") + (waits_for_event ? ", later" : ""));
                auto local = some("gpu0", *a, kMuch);
                auto remote = some("host", to == segment ? *b : *a, kMuch);
                Memory& from = opcode == Opcode::Write ? *local : *remote;
                from.write(0, noise(kMuch, 6));
                const device::DeviceStream stream = must(gpu(0).makeStream());
                const device::DeviceEvent event = must(gpu(0).makeEvent());
                auto request = makeRequest(opcode, to, local->pointer(), remote->addr(), kMuch);
                if (waits_for_event) {
                    control.delay(stream.get(), 30000);
                    must(gpu(0).record(event, stream));
                    request.wait_event = reinterpret_cast<void*>(event.get());
                }
                BatchHolder batch(*a, 1);
                ASSERT_TRUE(batch.submit({request}));
                const Status gone = a->unregisterLocalMemory(local->pointer());
                EXPECT_TRUE(gone) << gone.toString();
                const auto status = a->getBatchTransferStatus(batch.id());
                ASSERT_TRUE(status);
                expectCompleted(*status, kMuch);
                EXPECT_TRUE((opcode == Opcode::Write ? *remote : *local).read(0, kMuch) == noise(kMuch, 6));
                local.reset();
                forget(remote, to == segment ? *b : *a);
            }
        }
    }
}

TEST_F(GpuFailure, UnregisteringWaitsForThePeersCopies) {
    EngineSetup impatient = setup();
    impatient.config.unregister_timeout = milliseconds(100);
    start(impatient);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        auto local = some("gpu0", *a);
        auto remote = some("gpu1", *b);
        control.latency(3000);
        {
            BatchHolder batch(*a, 1);
            ASSERT_TRUE(batch.submit({makeRequest(opcode, segment, local->pointer(), remote->addr(), kBytes)}));
            std::this_thread::sleep_for(milliseconds(10));
            // Cut after its bound, or done before; a copy that had begun then is waited for by trying again.
            EXPECT_TRUE(waitFor([&] { return b->unregisterLocalMemory(remote->pointer()).isOk(); }));
            remote.reset();
            const auto status = batch.wait();
            EXPECT_TRUE(isTerminal(status.s));
            EXPECT_TRUE(status.quiesced);
        }
        control.latency(0);
        forget(local, *a);
    }
}

/// The wire to a process that stands still takes nothing. With four chunks for each direction it must not have all of
/// them, nor keep anybody from what they are for.
TEST_F(GpuFailure, AStoppedReaderKeepsTheRingFromNobody) {
    a = startEngine(setup());
    auto served = some("gpu0", *a, 64u << 20);
    served->write(0, noise(1u << 20, 3));
    GpuPeerProcess slow;
    GpuPeerProcess quick;
    slow.start(false, true);
    quick.start(false, true);
    const std::uint64_t into = slow.number("make host " + std::to_string(64u << 20));
    const std::uint64_t quick_into = quick.number("make host " + std::to_string(1u << 20));
    slow.must("begin " + a->localSegmentName() + " " + std::to_string(into) + " " + std::to_string(served->addr()) +
              " " + std::to_string(64u << 20));
    slow.stop();
    for (int round = 0; round < 3; ++round) {
        quick.must("read " + a->localSegmentName() + " " + std::to_string(quick_into) + " " +
                   std::to_string(served->addr()) + " " + std::to_string(1u << 20));
        quick.must("check " + std::to_string(quick_into) + " " + std::to_string(1u << 20) + " 3");
        quick.must("fill " + std::to_string(quick_into) + " 1000 9");
    }
    slow.goOn();
    // Whether it goes on or takes its peer for dead depends on how long it stood still.
    slow.ask("wait");
}

TEST_F(GpuFailure, AStoppedWriterKeepsTheRingFromNobody) {
    a = startEngine(setup());
    auto served = some("gpu0", *a, 8u << 20);
    std::vector<std::unique_ptr<GpuPeerProcess>> writers;
    const auto name = a->localSegmentName();
    constexpr std::uint64_t kEach = 1u << 20;
    // More than there are chunks, so that each could hold one for ever.
    for (unsigned i = 0; i < 6; ++i) {
        auto writer = std::make_unique<GpuPeerProcess>();
        writer->start(false, true);
        const std::uint64_t from = writer->number("make host " + std::to_string(kEach));
        writer->must("fill " + std::to_string(from) + " " + std::to_string(kEach) + " " + std::to_string(i));
        for (int round = 0; round < 8; ++round)
            writer->must("begin_write " + name + " " + std::to_string(from) + " " +
                         std::to_string(served->addr(i * kEach)) + " " + std::to_string(kEach));
        if (i < 5) writer->stop();
        writers.push_back(std::move(writer));
    }
    writers.back()->must("wait");
    EXPECT_TRUE(served->read(5 * kEach, kEach) == noise(kEach, 5));
    for (unsigned i = 0; i < 5; ++i) {
        writers[i]->goOn();
        // Whether they go on or take their peer for dead depends on how long they stood still.
        writers[i]->ask("wait");
    }
}

}  // namespace
}  // namespace troupe::gpu
