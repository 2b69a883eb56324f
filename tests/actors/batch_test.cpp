#include "actors/batch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {

/// Arrays of more bytes than this cannot be had by this thread: what a limit of the system (RLIMIT_AS) does, which a
/// process under a sanitizer cannot be given.
thread_local std::size_t memory_limit = SIZE_MAX;

class MemoryLimit {
  public:
    explicit MemoryLimit(std::size_t bytes) { memory_limit = bytes; }
    ~MemoryLimit() { memory_limit = SIZE_MAX; }
    MemoryLimit(const MemoryLimit&) = delete;
    MemoryLimit& operator=(const MemoryLimit&) = delete;
};

}  // namespace

void* operator new[](std::size_t bytes) {
    if (bytes <= memory_limit)
        if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return bytes <= memory_limit ? std::malloc(bytes != 0 ? bytes : 1) : nullptr;
}
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace troupe::test {
namespace {

void finishOne(Batch& batch, std::uint32_t index, TransferStatusEnum state, Status error = {}) {
    batch.task(index).error = std::move(error);
    batch.publishTerminal(index, state);
    batch.finished(1);
}

/// Claims and starts `count` tasks that are pending.
std::uint32_t startTasks(Batch& batch, std::uint32_t count) {
    const auto first = batch.claim(count);
    EXPECT_GE(first, 0);
    for (std::uint32_t i = 0; i < count; ++i)
        batch.task(static_cast<std::uint32_t>(first) + i)
            .state.store(static_cast<std::uint8_t>(TransferStatusEnum::PENDING));
    return static_cast<std::uint32_t>(first);
}

TEST(BatchTable, GivesDifferentIdsAndNeverZero) {
    BatchTable table(1000);
    std::set<BatchID> seen;
    for (int round = 0; round < 3; ++round) {
        std::vector<BatchID> live;
        for (int i = 0; i < 1000; ++i) live.push_back(*table.allocate(1, 0));
        EXPECT_EQ(table.allocate(1, 0).status().code(), Code::CapacityExceeded);
        EXPECT_EQ(table.live(), 1000u);
        for (const BatchID id : live) {
            EXPECT_NE(id, kInvalidBatchID);
            EXPECT_TRUE(seen.insert(id).second) << "an id came twice";
            EXPECT_TRUE(table.free(id));
        }
        EXPECT_EQ(table.live(), 0u);
    }
}

TEST(BatchTable, AStaleIdIsNeverFound) {
    BatchTable table(4);
    const BatchID first = *table.allocate(1, 0);
    EXPECT_TRUE(table.find(first));
    ASSERT_TRUE(table.free(first));
    EXPECT_FALSE(table.find(first));
    const BatchID second = *table.allocate(1, 0);
    EXPECT_EQ(static_cast<std::uint32_t>(second), static_cast<std::uint32_t>(first)) << "the slot is reused";
    EXPECT_FALSE(table.find(first));
    EXPECT_EQ(table.free(first).code(), Code::StaleHandle);
    EXPECT_TRUE(table.find(second));
    for (const BatchID id :
         {BatchID{0}, BatchID{3}, BatchID{UINT64_MAX}, second + (BatchID{1} << 32), second + 1, second + 100})
        EXPECT_FALSE(table.find(id)) << id;
}

TEST(BatchTable, ADoubleFreeIsStale) {
    BatchTable table(4);
    const BatchID id = *table.allocate(1, 0);
    ASSERT_TRUE(table.free(id));
    EXPECT_EQ(table.free(id).code(), Code::StaleHandle);
    EXPECT_EQ(table.live(), 0u);
}

TEST(BatchTable, FreeIsBusyWhileATaskRuns) {
    BatchTable table(4);
    const BatchID id = *table.allocate(2, 0);
    {
        const auto batch = table.find(id);
        startTasks(*batch, 2);
        EXPECT_TRUE(table.anyRunning());
        finishOne(*batch, 0, TransferStatusEnum::COMPLETED);
    }
    EXPECT_EQ(table.free(id).code(), Code::BatchBusy);
    // A refused free changes nothing.
    ASSERT_TRUE(table.find(id));
    finishOne(*table.find(id), 1, TransferStatusEnum::COMPLETED);
    EXPECT_FALSE(table.anyRunning());
    EXPECT_TRUE(table.free(id));
}

TEST(BatchTable, AFreeAfterEveryTaskWasSeenAsTerminalIsNotBusy) {
    for (int round = 0; round < 5; ++round) {
        BatchTable table(4);
        const BatchID id = *table.allocate(2, 0);
        startTasks(*table.find(id), 2);
        // As the tracker: a handler shows its tasks first and counts them at its end.
        std::thread tracker([batch = &*table.find(id)] {
            batch->publishTerminal(0, TransferStatusEnum::COMPLETED);
            batch->publishTerminal(1, TransferStatusEnum::COMPLETED);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            batch->finished(2);
        });
        for (std::uint32_t i = 0; i < 2; ++i)
            while (!isTerminal(table.find(id)->taskStatus(i).s)) std::this_thread::yield();
        EXPECT_TRUE(table.free(id));
        tracker.join();
    }
}

TEST(BatchTable, ItsTrackerWaitsForNoFree) {
    BatchTable table(1);
    const BatchID id = *table.allocate(1, 0);
    EXPECT_TRUE(table.findForTracker(id));
    auto pinned = std::make_optional(table.find(id));
    std::thread freer([&] { EXPECT_TRUE(table.free(id)); });
    // The free waits for the pin, and the tracker, which would wait for the free, is told that there is nothing to do.
    while (table.findForTracker(id)) std::this_thread::yield();
    EXPECT_FALSE(table.findForTracker(id));
    pinned.reset();
    freer.join();
    EXPECT_FALSE(table.findForTracker(id));
}

TEST(BatchTable, ItsTrackerFindsABatchWithWorkWhileAFreeDecides) {
    BatchTable table(1);
    const BatchID id = *table.allocate(2, 0);
    auto pinned = std::make_optional(table.find(id));
    startTasks(**pinned, 1);
    finishOne(**pinned, 0, TransferStatusEnum::COMPLETED);
    Status freed;
    std::thread freer([&] { freed = table.free(id); });
    while (table.findForTracker(id)) std::this_thread::yield();
    // A task that is shown as terminal and not counted: the free stands and decides for as long as that may last.
    (*pinned)->publishTerminal(1, TransferStatusEnum::COMPLETED);
    EXPECT_EQ((*pinned)->claim(1), 1);
    EXPECT_TRUE(table.findForTracker(id)) << "what was to be ended would be lost";
    (*pinned)->finished(1);
    pinned.reset();
    freer.join();
    EXPECT_TRUE(freed || freed.code() == Code::BatchBusy) << freed.toString();
}

TEST(BatchTable, WithoutMemoryNothingThrowsAndNoSlotIsLost) {
    constexpr std::uint32_t kBatches = 300;  // More than one chunk of slots.
    constexpr std::uint32_t kLarge = 1000;
    BatchTable table(kBatches);
    const auto refused = [&](std::uint32_t capacity) {
        const MemoryLimit none(0);
        const auto id = table.allocate(capacity, 0);
        return !id && id.status().code() == Code::ResourceExhausted;
    };
    EXPECT_TRUE(refused(1)) << "not even slots";
    EXPECT_EQ(table.live(), 0u);
    std::vector<BatchID> live;
    for (std::uint32_t i = 0; i < kBatches; ++i) {
        EXPECT_TRUE(refused(1)) << i;
        const auto id = table.allocate(1, 0);
        ASSERT_TRUE(id) << i;
        live.push_back(*id);
    }
    EXPECT_EQ(table.allocate(1, 0).status().code(), Code::CapacityExceeded);
    for (const BatchID id : live) EXPECT_TRUE(table.free(id));
    // A slot that is used again for a larger batch.
    EXPECT_TRUE(refused(kLarge));
    live.clear();
    for (std::uint32_t i = 0; i < kBatches; ++i) {
        const auto id = table.allocate(i == 0 ? kLarge : 1, 0);
        ASSERT_TRUE(id) << i;
        live.push_back(*id);
    }
    startTasks(*table.find(live[0]), kLarge);
    for (std::uint32_t i = 0; i < kLarge; ++i) finishOne(*table.find(live[0]), i, TransferStatusEnum::COMPLETED);
    for (const BatchID id : live) EXPECT_TRUE(table.free(id));
}

TEST(BatchTable, AReusedSlotStartsAfresh) {
    BatchTable table(1);
    const BatchID first = *table.allocate(4, 0);
    {
        const auto batch = table.find(first);
        startTasks(*batch, 4);
        for (std::uint32_t i = 0; i < 4; ++i)
            finishOne(*batch, i, TransferStatusEnum::FAILED, Status(Code::Internal, "first user"));
        EXPECT_EQ(batch->summary().s, TransferStatusEnum::FAILED);
    }
    ASSERT_TRUE(table.free(first));
    const BatchID second = *table.allocate(8, 3);
    const auto batch = table.find(second);
    EXPECT_EQ(batch->capacity(), 8u);
    EXPECT_EQ(batch->claimed(), 0u);
    EXPECT_EQ(batch->tracker(), 3u);
    EXPECT_EQ(batch->id(), second);
    EXPECT_EQ(batch->summary().s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(startTasks(*batch, 8), 0u);
    EXPECT_TRUE(batch->taskStatus(0).error.isOk());
    for (std::uint32_t i = 0; i < 8; ++i) finishOne(*batch, i, TransferStatusEnum::COMPLETED);
    EXPECT_TRUE(batch->summary().error.isOk());
}

TEST(Batch, ClaimsUpToItsCapacityAndNoMore) {
    BatchTable table(1);
    const auto batch = table.find(*table.allocate(5, 0));
    EXPECT_EQ(batch->claim(3), 0);
    EXPECT_EQ(batch->claim(3), -1);
    EXPECT_EQ(batch->claim(0), 3);
    EXPECT_EQ(batch->claim(2), 3);
    EXPECT_EQ(batch->claim(1), -1);
    EXPECT_EQ(batch->claim(UINT32_MAX), -1);
}

TEST(Batch, WhatIsClaimedRuns) {
    BatchTable table(1);
    const auto batch = table.find(*table.allocate(2, 0));
    EXPECT_EQ(batch->claim(1), 0);
    EXPECT_FALSE(batch->done());
    EXPECT_FALSE(batch->sleepUntilDone(Clock::now()));
    EXPECT_EQ(batch->summary().s, TransferStatusEnum::PENDING);
    EXPECT_EQ(batch->claim(2), -1);
    finishOne(*batch, 0, TransferStatusEnum::COMPLETED);
    EXPECT_TRUE(batch->done()) << "what did not fit does not run";
}

TEST(Batch, SummaryIsPendingThenTheWorstWithTheFirstCause) {
    BatchTable table(1);
    const auto batch = table.find(*table.allocate(4, 0));
    startTasks(*batch, 4);
    finishOne(*batch, 2, TransferStatusEnum::CANCELED, Status(Code::Canceled, "first"));
    EXPECT_EQ(batch->summary().s, TransferStatusEnum::PENDING);
    finishOne(*batch, 0, TransferStatusEnum::COMPLETED);
    finishOne(*batch, 1, TransferStatusEnum::FAILED, Status(Code::PeerDown, "second"));
    finishOne(*batch, 3, TransferStatusEnum::TIMEOUT, Status(Code::Timeout, "third"));
    EXPECT_EQ(batch->summary().s, TransferStatusEnum::FAILED);
    EXPECT_EQ(batch->summary().error.message(), "first");
}

TEST(Batch, SleepersAreWokenAndDeadlinesKept) {
    BatchTable table(1);
    const auto batch = table.find(*table.allocate(1, 0));
    EXPECT_TRUE(batch->sleepUntilDone(kForever)) << "nothing runs";
    startTasks(*batch, 1);
    EXPECT_FALSE(batch->sleepUntilDone(Clock::now() + std::chrono::milliseconds(5)));
    EXPECT_FALSE(batch->sleepUntilDone(Clock::now() - std::chrono::seconds(5)));
    std::vector<std::thread> sleepers;
    std::atomic<int> woken{0};
    for (int i = 0; i < 4; ++i)
        sleepers.emplace_back([&] {
            if (batch->sleepUntilDone(kForever)) ++woken;
        });
    finishOne(*batch, 0, TransferStatusEnum::COMPLETED);
    for (auto& sleeper : sleepers) sleeper.join();
    EXPECT_EQ(woken, 4);
}

TEST(Batch, CallsBackOnceWhenTheLastTaskEnds) {
    BatchTable table(1);
    const BatchID id = *table.allocate(2, 0);
    int calls = 0;
    {
        const auto batch = table.find(id);
        batch->onDone([&](BatchID done) {
            EXPECT_EQ(done, id);
            ++calls;
        });
        startTasks(*batch, 2);
        finishOne(*batch, 0, TransferStatusEnum::COMPLETED);
        EXPECT_EQ(calls, 0);
        finishOne(*batch, 1, TransferStatusEnum::COMPLETED);
    }
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(table.free(id));
}

TEST(BatchTable, EndAllCancelsWhatRunsOnly) {
    BatchTable table(8);
    const BatchID running = *table.allocate(2, 0);
    const BatchID ended = *table.allocate(1, 0);
    const BatchID empty = *table.allocate(1, 0);
    startTasks(*table.find(running), 2);
    finishOne(*table.find(running), 0, TransferStatusEnum::COMPLETED);
    startTasks(*table.find(ended), 1);
    finishOne(*table.find(ended), 0, TransferStatusEnum::COMPLETED);
    table.endAll(Status(Code::Canceled, "the engine ended"));
    EXPECT_EQ(table.find(running)->taskStatus(0).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(table.find(running)->taskStatus(1).s, TransferStatusEnum::CANCELED);
    EXPECT_EQ(table.find(running)->summary().s, TransferStatusEnum::CANCELED);
    EXPECT_EQ(table.find(ended)->summary().s, TransferStatusEnum::COMPLETED);
    EXPECT_FALSE(table.anyRunning());
    for (const BatchID id : {running, ended, empty}) EXPECT_TRUE(table.free(id));
}

TEST(BatchTable, EndAllLeavesTheTasksOfASubmitThatIsUnderWayToItsThread) {
    BatchTable table(4);
    const BatchID id = *table.allocate(3, 0);
    startTasks(*table.find(id), 1);
    {
        const BatchTable::Submit one(table);
        const BatchTable::Submit other(table);
        table.endAll(Status(Code::Internal, "an actor ended by a defect"));
        startTasks(*table.find(id), 2);
    }
    for (std::uint32_t i = 0; i < 3; ++i) {
        const TransferStatus status = table.find(id)->taskStatus(i);
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
        EXPECT_EQ(status.error.code(), Code::Internal);
    }
    EXPECT_TRUE(table.free(id));
}

TEST(BatchTable, EndAllCountsWhatATrackerShowedAsTerminalAndDidNotCount) {
    BatchTable table(4);
    const BatchID id = *table.allocate(2, 0);
    startTasks(*table.find(id), 2);
    // A tracker that an exception ended in between.
    table.find(id)->publishTerminal(0, TransferStatusEnum::COMPLETED);
    table.endAll(Status(Code::Internal, "an actor ended by a defect"));
    EXPECT_TRUE(table.find(id)->sleepUntilDone(Clock::now()));
    EXPECT_EQ(table.find(id)->taskStatus(0).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(table.find(id)->taskStatus(1).s, TransferStatusEnum::FAILED);
}

/// They hold what a GPU waits for.
TEST(BatchTable, EndAllLetsGoOfTheEventsOfWhatItEnds) {
    BatchTable table(4);
    const BatchID id = *table.allocate(1, 0);
    startTasks(*table.find(id), 1);
    table.find(id)->task(0).events = std::make_unique<device::TaskEvents>(nullptr, nullptr, nullptr);
    table.endAll(Status(Code::Internal, "an actor ended by a defect"));
    EXPECT_EQ(table.find(id)->task(0).events, nullptr);
}

TEST(BatchTable, EndAllSaysOfWhichBuffersNobodyKnowsThatTheyAreFree) {
    BatchTable table(4);
    const BatchID id = *table.allocate(2, 0);
    std::byte memory[2] = {};
    for (std::size_t i = 0; i < 2; ++i) {
        table.find(id)->task(static_cast<std::uint32_t>(i)).local = &memory[i];
        table.find(id)->task(static_cast<std::uint32_t>(i)).length = 1;
    }
    startTasks(*table.find(id), 2);
    table.endAll(Status(Code::Internal, "an actor ended by a defect"),
                 [&](const ByteRange& source) { return source.addr != reinterpret_cast<std::uint64_t>(&memory[1]); });
    EXPECT_TRUE(table.find(id)->taskStatus(0).quiesced);
    EXPECT_FALSE(table.find(id)->taskStatus(1).quiesced);
    EXPECT_FALSE(table.find(id)->summary().quiesced);
}

TEST(BatchTable, OneWhoThrowsAtTheEndOfHisBatchKeepsNobodyElseWaiting) {
    BatchTable table(4);
    const BatchID his = *table.allocate(1, 0);
    const BatchID other = *table.allocate(1, 0);
    table.find(his)->onDone([](BatchID) { throw 1; });
    startTasks(*table.find(his), 1);
    startTasks(*table.find(other), 1);
    table.endAll(Status(Code::Canceled, "the engine ended"));
    EXPECT_FALSE(table.anyRunning());
}

TEST(BatchTable, ThreadsAllocatePinAndFreeWithoutMistakingOneBatchForAnother) {
    // Few slots, so that every id is soon stale; the other threads try each other's ids all the time.
    constexpr unsigned kThreads = 4;
    BatchTable table(8);
    std::atomic<BatchID> shared[16] = {};
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::atomic<std::uint64_t> frees{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            while (!stop) {
                auto& place = shared[random() % 16];
                switch (random() % 4) {
                    case 0: {
                        const auto id = table.allocate(1 + random() % 4, t);
                        if (!id) break;
                        // An own batch is found, runs, ends and is freed by whoever comes first.
                        {
                            const auto own = table.find(*id);
                            if (!own || own->id() != *id || own->claimed() != 0 || !own->done()) {
                                ++wrong;
                                break;
                            }
                            startTasks(*own, 1);
                            if (table.free(*id).code() != Code::BatchBusy) ++wrong;
                            finishOne(*own, 0, TransferStatusEnum::COMPLETED);
                        }
                        const BatchID old = place.exchange(*id);
                        if (old != 0 && table.free(old)) ++frees;
                        break;
                    }
                    case 1: {
                        const BatchID id = place.load();
                        const auto pinned = table.find(id);
                        // While it is pinned nobody can free it and give the slot to another.
                        if (pinned && (pinned->id() != id || pinned->claimed() > 1)) ++wrong;
                        break;
                    }
                    case 2: {
                        const BatchID id = place.exchange(0);
                        const Status done = table.free(id);
                        if (done) ++frees;
                        if (!done && done.code() != Code::StaleHandle) ++wrong;
                        break;
                    }
                    default: {
                        const BatchID id = place.load();
                        const auto pinned = table.find(id);
                        if (pinned && pinned->summary().s != TransferStatusEnum::COMPLETED) ++wrong;
                    }
                }
            }
        });
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (frees < 50'000 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    for (auto& place : shared)
        if (place.load() != 0) static_cast<void>(table.free(place.load()));
    EXPECT_EQ(table.live(), 0u);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(table.allocate(1, 0)) << "a slot was lost";
}

}  // namespace
}  // namespace troupe::test
