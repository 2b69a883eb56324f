// What submit accepts and refuses, and what batches and their status do.

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class Submit : public testing::Test {
  protected:
    EnginePair pair_;

    /// Nothing of `requests` may be submitted.
    void expectRefused(const std::vector<TransferRequest>& requests, Code code) {
        BatchHolder batch(*pair_.a, 8);
        pair_.remote.fill(std::byte{0});
        pair_.local.fill(std::byte{1});
        expectCode(batch.submit(requests), code);
        expectCode(pair_.a->getTransferStatus(batch.id(), 0), Code::InvalidArgument);
        expectCompleted(*pair_.a->getBatchTransferStatus(batch.id()), 0);
        EXPECT_TRUE(pair_.remote.holdsOnly(std::byte{0}, 0, pair_.remote.size()));
    }
};

TEST_F(Submit, UnknownSegmentIsStale) {
    auto bad = pair_.request(Opcode::Write, 0, 0, 16);
    for (const SegmentID id :
         {SegmentID{0}, SegmentID{2}, SegmentID{12345}, UINT64_MAX, pair_.segment + (SegmentID{1} << 32)}) {
        bad.target_id = id;
        expectRefused({pair_.request(Opcode::Write, 0, 0, 16), bad}, Code::StaleHandle);
    }
}

TEST_F(Submit, UnregisteredSourceIsRefused) {
    const auto good = pair_.request(Opcode::Write, 0, 0, 16);
    const auto with = [&](void* source, std::size_t length) {
        auto request = good;
        request.source = source;
        request.length = length;
        return request;
    };
    expectRefused({good, with(pair_.local.data() - 1, 16)}, Code::AddressNotRegistered);
    expectRefused({good, with(pair_.local.data() + pair_.local.size() - 15, 16)}, Code::AddressNotRegistered);
    expectRefused({good, with(pair_.remote.data(), 16)}, Code::AddressNotRegistered);
    expectRefused({good, with(pair_.local.data(), pair_.local.size() + 1)}, Code::AddressNotRegistered);
    expectRefused({good, with(nullptr, 16)}, Code::InvalidArgument);
    expectRefused({good, with(pair_.local.data(), SIZE_MAX)}, Code::InvalidArgument);
}

TEST_F(Submit, TheRefusalNamesTheRequest) {
    BatchHolder batch(*pair_.a, 3);
    auto bad = pair_.request(Opcode::Write, 0, 0, 16);
    bad.source = nullptr;
    EXPECT_THAT(batch.submit({pair_.request(Opcode::Write, 0, 0, 16), bad}).message(), HasSubstr("request 1"));
}

TEST_F(Submit, AnUnknownOpcodeIsInvalid) {
    auto bad = pair_.request(Opcode::Write, 0, 0, 16);
    bad.opcode = static_cast<Opcode>(7);
    expectRefused({bad}, Code::InvalidArgument);
}

TEST_F(Submit, MissingTransportIsNamed) {
    EngineSetup setup;
    setup.tcp = false;
    const auto engine = startEngine(setup);
    ASSERT_TRUE(engine->registerLocalMemory(pair_.local.data(), pair_.local.size()));
    const auto segment = engine->openSegment(pair_.b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    BatchHolder batch(*engine, 1);
    const auto request = makeRequest(Opcode::Write, *segment, pair_.local.data(), pair_.remote.address(), 16);
    const Status missing = batch.submit({request});
    expectCode(missing, Code::TransportMissing);
    EXPECT_THAT(missing.message(), HasSubstr("request 0: "));
    EXPECT_THAT(missing.message(), HasSubstr("segment '" + pair_.b->localSegmentName() + "'"));
    EXPECT_THAT(missing.message(), HasSubstr("not host: "));
    EXPECT_THAT(missing.message(), HasSubstr("host.peers is off here"));
    EXPECT_THAT(missing.message(), HasSubstr("its owner offers tcp, which is not installed here"));
    // Installed later, it serves segments that are open already.
    ASSERT_TRUE(engine->installTransport("tcp"));
    ASSERT_TRUE(batch.submit({request}));
    expectCompleted(batch.wait(), 16);
}

TEST_F(Submit, OverCapacityIsRefusedAsAWhole) {
    BatchHolder batch(*pair_.a, 2);
    const auto one = pair_.request(Opcode::Write, 0, 0, 16);
    expectCode(batch.submit({one, one, one}), Code::CapacityExceeded);
    ASSERT_TRUE(batch.submit({one}));
    expectCode(batch.submit({one, one}), Code::CapacityExceeded);
    expectCode(pair_.a->getTransferStatus(batch.id(), 1), Code::InvalidArgument);
    ASSERT_TRUE(batch.submit({one}));
    expectCompleted(batch.wait(), 32);
    expectCode(batch.submit({one}), Code::CapacityExceeded);
}

TEST_F(Submit, StaleAndFreedBatchesAreErrorsEverywhere) {
    const auto request = pair_.request(Opcode::Write, 0, 0, 16);
    const auto freed = *pair_.a->allocateBatchID(4);
    ASSERT_TRUE(pair_.a->freeBatchID(freed));
    // The slot lives on under another id.
    const auto successor = *pair_.a->allocateBatchID(4);
    EXPECT_NE(successor, freed);
    for (const BatchID id :
         {freed, kInvalidBatchID, BatchID{1}, UINT64_MAX, successor + (BatchID{1} << 32), freed + 1}) {
        SCOPED_TRACE(id);
        expectCode(pair_.a->submitTransfer(id, {request}), Code::StaleHandle);
        expectCode(pair_.a->getTransferStatus(id, 0), Code::StaleHandle);
        expectCode(pair_.a->getBatchTransferStatus(id), Code::StaleHandle);
        expectCode(pair_.a->waitTransfer(id, std::chrono::seconds(1)), Code::StaleHandle);
        expectCode(pair_.a->freeBatchID(id), Code::StaleHandle);
    }
    EXPECT_TRUE(pair_.a->freeBatchID(successor));
}

TEST_F(Submit, AForeignEnginesSegmentIdIsNotMistaken) {
    // b has opened nothing: a's id for b means nothing to b.
    ASSERT_TRUE(pair_.b->registerLocalMemory(pair_.local.data(), pair_.local.size()));
    BatchHolder batch(*pair_.b, 1);
    expectCode(batch.submit({pair_.request(Opcode::Write, 0, 0, 16)}), Code::StaleHandle);
}

TEST_F(Submit, ZeroLengthCompletesWithZeroBytes) {
    BatchHolder batch(*pair_.a, 3);
    auto anywhere = pair_.request(Opcode::Write, 0, 0, 0);
    anywhere.source = nullptr;
    anywhere.target_offset = 1;
    ASSERT_TRUE(batch.submit({anywhere, pair_.request(Opcode::Read, 0, 0, 16), pair_.request(Opcode::Read, 0, 0, 0)}));
    expectCompleted(batch.wait(), 16);
    expectCompleted(batch.task(0), 0);
    expectCompleted(batch.task(1), 16);
    expectCompleted(batch.task(2), 0);
}

TEST_F(Submit, AnEmptyListIsOk) {
    BatchHolder batch(*pair_.a, 1);
    EXPECT_TRUE(batch.submit({}));
    expectCompleted(batch.wait(), 0);
    EXPECT_TRUE(batch.submit({pair_.request(Opcode::Write, 0, 0, 16)}));
    expectCompleted(batch.wait(), 16);
    EXPECT_TRUE(batch.submit({}));
}

TEST_F(Submit, SeveralSubmitsContinueTheIds) {
    BatchHolder batch(*pair_.a, 6);
    for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(batch.submit(
            {pair_.request(Opcode::Write, 0, 0, 2 * i + 1), pair_.request(Opcode::Read, 0, 0, 2 * i + 2)}));
        if (i == 1) batch.wait();
    }
    expectCompleted(batch.wait(), 1 + 2 + 3 + 4 + 5 + 6);
    for (std::size_t i = 0; i < 6; ++i) expectCompleted(batch.task(i), i + 1);
    expectCode(pair_.a->getTransferStatus(batch.id(), 6), Code::InvalidArgument);
}

TEST_F(Submit, TwoThreadsMaySubmitIntoOneBatch) {
    constexpr std::size_t kEach = 500;
    BatchHolder batch(*pair_.a, 2 * kEach);
    std::atomic<std::size_t> refused{0};
    const auto submitAll = [&] {
        for (std::size_t i = 0; i < kEach; ++i)
            if (!batch.submit({pair_.request(Opcode::Write, i * 16, i * 16, 16)})) ++refused;
    };
    std::thread other(submitAll);
    submitAll();
    other.join();
    EXPECT_EQ(refused, 0u);
    expectCompleted(batch.wait(), 2 * kEach * 16);
    expectCode(batch.submit({pair_.request(Opcode::Write, 0, 0, 1)}), Code::CapacityExceeded);
}

TEST_F(Submit, ABatchOfBadCapacityIsRefused) {
    expectCode(pair_.a->allocateBatchID(0), Code::InvalidArgument);
    expectCode(pair_.a->allocateBatchID(SIZE_MAX), Code::InvalidArgument);
}

TEST(Batches, AreBoundedAndFreedOnesComeBack) {
    EngineSetup setup;
    setup.config.max_batches = 3;
    const auto engine = startEngine(setup);
    std::vector<BatchID> live;
    for (int i = 0; i < 3; ++i) live.push_back(*engine->allocateBatchID(1));
    expectCode(engine->allocateBatchID(1), Code::CapacityExceeded);
    ASSERT_TRUE(engine->freeBatchID(live.back()));
    EXPECT_TRUE(engine->allocateBatchID(1));
}

TEST(Batches, FreeWhileRunningIsBusyAndFreesOnceTerminalPolledOrNot) {
    // More than the sockets between them hold.
    EnginePair pair(breakableSetup(), 64u << 20);
    const auto batch = *pair.a->allocateBatchID(1);
    HeldUp held(*pair.b);
    ASSERT_TRUE(pair.a->submitTransfer(batch, {pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    const Status early = pair.a->freeBatchID(batch);
    expectCode(early, Code::BatchBusy);
    held.goOn();
    // Never polled: the batch ends all the same and then frees.
    const auto limit = Clock::now() + kPatience;
    Status freed = early;
    while (!freed && Clock::now() < limit) {
        expectCode(freed, Code::BatchBusy);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        freed = pair.a->freeBatchID(batch);
    }
    EXPECT_TRUE(freed) << freed.toString();
    expectCode(pair.a->freeBatchID(batch), Code::StaleHandle);
}

TEST(Batches, StatusIsPendingUntilAllAreTerminalThenTheWorst) {
    // More than the sockets between them hold.
    EnginePair pair(breakableSetup(), 64u << 20);
    BatchHolder batch(*pair.a, 3);
    auto bad = pair.request(Opcode::Write, 0, 0, 16);
    bad.target_offset = 4096;
    auto worse = bad;
    worse.target_offset = UINT64_MAX - 3;
    HeldUp held(*pair.b);
    ASSERT_TRUE(batch.submit({bad, pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    EXPECT_EQ(pair.a->getBatchTransferStatus(batch.id())->s, TransferStatusEnum::PENDING);
    held.goOn();
    const auto limit = Clock::now() + kPatience;
    for (bool all = false; !all && Clock::now() < limit;) {
        // Looked at in this order: a terminal batch never has a task that is not.
        const auto whole = pair.a->getBatchTransferStatus(batch.id());
        all = isTerminal(batch.task(0).s) && isTerminal(batch.task(1).s);
        EXPECT_TRUE(all || whole->s == TransferStatusEnum::PENDING);
    }
    const auto status = batch.wait();
    expectFailed(status, Code::AddressNotRegistered);
    EXPECT_EQ(status.transferred_bytes, pair.local.size());
    expectCompleted(batch.task(1), pair.local.size());
    const Status cause = batch.task(0).error;
    EXPECT_EQ(status.error.toString(), cause.toString());
    // The first failure stays the cause.
    ASSERT_TRUE(batch.submit({worse}));
    EXPECT_EQ(batch.wait().error.toString(), cause.toString());
}

TEST(Batches, WaitWithoutATimeoutWaitsForTheEnd) {
    EnginePair pair;
    const auto batch = pair.a->allocateBatchID(1);
    ASSERT_TRUE(batch);
    ASSERT_TRUE(pair.a->submitTransfer(*batch, {pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    const auto ended = pair.a->waitTransfer(*batch);
    ASSERT_TRUE(ended);
    expectCompleted(*ended, pair.local.size());
    EXPECT_TRUE(pair.a->freeBatchID(*batch));
}

TEST(Batches, WaitWithoutATimeoutIsNeverPendingWhileAnotherThreadSubmits) {
    constexpr std::size_t kTasks = 20'000;
    for (const bool waiter_drives : {true, false}) {
        EngineSetup setup;
        setup.config.waiter_drives = waiter_drives;
        EnginePair pair(setup);
        ASSERT_TRUE(pair.a->installTransport("null"));
        BatchHolder batch(*pair.a, kTasks);
        std::atomic<bool> all{false};
        std::thread submitter([&] {
            for (std::size_t i = 0; i < kTasks; ++i) EXPECT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, 16)}));
            all = true;
        });
        int pending = 0;
        for (bool last = false; !last;) {
            last = all;
            const auto status = pair.a->waitTransfer(batch.id());
            ASSERT_TRUE(status) << status.status().toString();
            if (status->s != TransferStatusEnum::COMPLETED) ++pending;
        }
        submitter.join();
        EXPECT_EQ(pending, 0);
    }
}

TEST(Batches, OneIsUsedEndedAndFreedByManyThreadsAtOnce) {
    EngineSetup setup;
    setup.config.data_loops = 2;
    EnginePair pair(setup);
    ASSERT_TRUE(pair.a->installTransport("null"));
    std::atomic<BatchID> current{kInvalidBatchID};
    std::atomic<bool> stop{false};
    std::atomic<int> freed{0};
    const auto isOfItsTime = [](const Status& status) {
        // Each of them may find that another has freed it.
        EXPECT_TRUE(status || status.code() == Code::StaleHandle || status.code() == Code::BatchBusy ||
                    status.code() == Code::CapacityExceeded || status.code() == Code::InvalidArgument)
            << status.toString();
    };
    const std::vector<std::function<Status(BatchID)>> calls = {
        [&](BatchID id) { return pair.a->submitTransfer(id, {pair.request(Opcode::Write, 0, 0, 16)}); },
        [&](BatchID id) { return pair.a->cancelTransfer(id); },
        [&](BatchID id) { return pair.a->waitTransfer(id).status(); },
        [&](BatchID id) { return pair.a->getBatchTransferStatus(id).status(); },
        [&](BatchID id) { return pair.a->explain(id, 0).status(); },
        [&](BatchID id) { return pair.a->cancelTransfer(id, 0); },
    };
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = t; !stop; ++i)
                if (const BatchID id = current; id != kInvalidBatchID) isOfItsTime(calls[i % calls.size()](id));
        });
    const auto limit = Clock::now() + kPatience;
    for (int round = 0; round < 30'000 && Clock::now() < limit; ++round) {
        const auto id = pair.a->allocateBatchID(4);
        ASSERT_TRUE(id) << id.status().toString();
        isOfItsTime(pair.a->submitTransfer(*id, {pair.request(Opcode::Write, 0, 0, 16)}));
        current = *id;
        Status done(Code::BatchBusy, "");
        while (!done && Clock::now() < limit) done = pair.a->freeBatchID(*id);
        EXPECT_TRUE(done) << done.toString();
        ++freed;
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(freed, 30'000);
}

TEST(Batches, WaitGivesPendingWhenTheTimePassesFirst) {
    // More than the sockets between them hold.
    EnginePair pair(breakableSetup(), 64u << 20);
    BatchHolder batch(*pair.a, 1);
    HeldUp held(*pair.b);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    for (const int wait_us : {0, 1000}) {
        const auto early = pair.a->waitTransfer(batch.id(), std::chrono::microseconds(wait_us));
        ASSERT_TRUE(early);
        EXPECT_EQ(early->s, TransferStatusEnum::PENDING);
    }
    held.goOn();
    expectCompleted(*pair.a->waitTransfer(batch.id(), std::chrono::microseconds::max()), pair.local.size());
}

TEST(Batches, ADeadlineInThePastIsATimeoutByEveryTransportAndMovesNoByte) {
    EnginePair pair;
    Buffer near(4096);
    ASSERT_TRUE(pair.a->registerLocalMemory(near.data(), near.size()));
    pair.local.fill(std::byte{1});
    for (const bool same_process : {true, false}) {
        const Buffer& there = same_process ? near : pair.remote;
        auto late = makeRequest(Opcode::Write, same_process ? kLocalSegmentID : pair.segment, pair.local.data(),
                                there.address(), 4096);
        for (const auto ago : {std::chrono::nanoseconds(1), std::chrono::nanoseconds(1'000'000'000)}) {
            late.deadline = Clock::now() - ago;
            const auto status = runBatch(*pair.a, {late});
            EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT) << toString(status.s);
            EXPECT_EQ(status.error.code(), Code::Timeout);
            EXPECT_EQ(status.transferred_bytes, 0u);
            EXPECT_TRUE(status.quiesced);
        }
        EXPECT_TRUE(there.holdsOnly(std::byte{0}, 0, 4096));
        late.deadline = Clock::now() + kPatience;
        expectCompleted(runBatch(*pair.a, {late}), 4096);
    }
}

}  // namespace
}  // namespace troupe::test
