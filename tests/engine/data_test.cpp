// Bytes arrive, over every path and in every mode of the loops.

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

constexpr std::size_t kPage = 4096;

struct Mode {
    const char* name;
    bool waiter_drives;
    unsigned data_loops;
    bool crc;
    const char* host;
    bool local;  ///< To the own segment instead of another engine.
    friend void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }
};

class Data : public testing::TestWithParam<Mode> {
  protected:
    static constexpr std::size_t kBytes = 16u << 20;

    static EngineSetup setup() {
        EngineSetup result;
        result.config.waiter_drives = GetParam().waiter_drives;
        result.config.data_loops = GetParam().data_loops;
        result.config.tcp_crc = GetParam().crc;
        result.host = GetParam().host;
        return result;
    }

    Data() : pair_(setup(), kBytes) {
        if (!GetParam().local) return;
        const Status done = pair_.a->registerLocalMemory(pair_.remote.data(), kBytes);
        EXPECT_TRUE(done) << done.toString();
        pair_.segment = kLocalSegmentID;
    }

    EnginePair pair_;
};

TEST_P(Data, WhatIsWrittenIsReadBack) {
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{8}, std::size_t{63}, kPage, kPage + 1, std::size_t{65536}, std::size_t{1} << 20,
          (std::size_t{1} << 20) + 3, kBytes - 5}) {
        SCOPED_TRACE(length);
        pair_.local.fillPattern(length);
        pair_.remote.fill(std::byte{0xee});
        expectCompleted(pair_.write(2, 3, length), length);
        EXPECT_EQ(std::memcmp(pair_.local.data() + 2, pair_.remote.data() + 3, length), 0);
        EXPECT_TRUE(pair_.remote.holdsOnly(std::byte{0xee}, 0, 3));
        EXPECT_TRUE(pair_.remote.holdsOnly(std::byte{0xee}, 3 + length, kBytes - 3 - length));
        pair_.local.fill(std::byte{0xdd});
        expectCompleted(pair_.read(1, 3, length), length);
        EXPECT_EQ(std::memcmp(pair_.local.data() + 1, pair_.remote.data() + 3, length), 0);
        EXPECT_TRUE(pair_.local.holdsOnly(std::byte{0xdd}, 1 + length, kBytes - 1 - length));
    }
}

TEST_P(Data, ScatteredBlocksOfABatchAllArrive) {
    constexpr std::size_t kBlocks = 1024;
    pair_.local.fillPattern(1);
    pair_.remote.fill(std::byte{0});
    std::vector<std::size_t> order(kBlocks);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(42));
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i < kBlocks; ++i)
        requests.push_back(pair_.request(Opcode::Write, i * kPage, order[i] * kPage, kPage));
    expectCompleted(runBatch(*pair_.a, requests), kBlocks * kPage);
    for (std::size_t i = 0; i < kBlocks; ++i)
        ASSERT_EQ(std::memcmp(pair_.local.data() + i * kPage, pair_.remote.data() + order[i] * kPage, kPage), 0) << i;

    pair_.local.fill(std::byte{0});
    for (auto& request : requests) request.opcode = Opcode::Read;
    expectCompleted(runBatch(*pair_.a, requests), kBlocks * kPage);
    for (std::size_t i = 0; i < kBlocks; ++i)
        ASSERT_EQ(std::memcmp(pair_.local.data() + i * kPage, pair_.remote.data() + order[i] * kPage, kPage), 0) << i;
}

TEST_P(Data, ContiguousBlocksOfABatchAllArrive) {
    constexpr std::size_t kBlocks = 2048;
    pair_.local.fillPattern(5);
    pair_.remote.fill(std::byte{0});
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i < kBlocks; ++i)
        requests.push_back(pair_.request(Opcode::Write, i * kPage, i * kPage, kPage));
    BatchHolder batch(*pair_.a, kBlocks);
    ASSERT_TRUE(batch.submit(requests));
    expectCompleted(batch.wait(), kBlocks * kPage);
    for (std::size_t i = 0; i < kBlocks; ++i) expectCompleted(batch.task(i), kPage);
    EXPECT_EQ(std::memcmp(pair_.local.data(), pair_.remote.data(), kBlocks * kPage), 0);
}

TEST_P(Data, ReadsAndWritesOfMixedSizesInOneBatchArrive) {
    // Writes from the lower half, reads into the upper half; no two requests share a byte.
    std::mt19937 random(7);
    pair_.local.fillPattern(11);
    pair_.remote.fillPattern(12);
    constexpr std::size_t kHalf = kBytes / 2;
    std::vector<TransferRequest> requests;
    std::size_t total = 0;
    for (std::size_t at = 0; at < kHalf;) {
        const std::size_t length =
            std::min<std::size_t>(1 + random() % (random() % 8 == 0 ? 2000000 : 5000), kHalf - at);
        requests.push_back(pair_.request(Opcode::Write, at, at, length));
        requests.push_back(pair_.request(Opcode::Read, kHalf + at, kHalf + at, length));
        total += 2 * length;
        at += length;
    }
    std::shuffle(requests.begin(), requests.end(), random);
    expectCompleted(runBatch(*pair_.a, requests), total);
    EXPECT_EQ(std::memcmp(pair_.local.data(), pair_.remote.data(), kBytes), 0);
}

TEST_P(Data, PollingInsteadOfWaitingSeesTheEnd) {
    pair_.local.fillPattern(21);
    BatchHolder batch(*pair_.a, 2);
    ASSERT_TRUE(batch.submit(
        {pair_.request(Opcode::Write, 0, 0, 1u << 20), pair_.request(Opcode::Write, 1u << 20, 1u << 20, 64)}));
    const auto limit = Clock::now() + kPatience;
    auto status = pair_.a->getBatchTransferStatus(batch.id());
    while (status && !isTerminal(status->s) && Clock::now() < limit)
        status = pair_.a->getBatchTransferStatus(batch.id());
    expectCompleted(*status, (1u << 20) + 64);
    EXPECT_EQ(std::memcmp(pair_.local.data(), pair_.remote.data(), (1u << 20) + 64), 0);
}

TEST_P(Data, ABatchThatNobodyLooksAtEndsByItself) {
    pair_.local.fillPattern(22);
    pair_.remote.fill(std::byte{0});
    BatchHolder batch(*pair_.a, 1);
    ASSERT_TRUE(batch.submit({pair_.request(Opcode::Write, 0, 0, 1u << 20)}));
    const auto limit = Clock::now() + kPatience;
    // The engines are left alone: no call is made into either.
    volatile const std::byte* last = pair_.remote.data() + (1u << 20) - 1;
    while (*last != pair_.local.data()[(1u << 20) - 1] && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_LT(Clock::now(), limit);
    expectCompleted(batch.wait(), 1u << 20);
}

/// Those that need two engines.
class DataBetweenEngines : public Data {};

TEST_P(DataBetweenEngines, BothTransferAtOnce) {
    const auto back = pair_.b->openSegment(pair_.a->localSegmentName());
    ASSERT_TRUE(back) << back.status().toString();
    constexpr std::size_t kHalf = kBytes / 2;
    pair_.local.fillPattern(31);
    pair_.remote.fillPattern(32);
    std::thread opposite([&] {
        for (int i = 0; i < 20; ++i)
            expectCompleted(runBatch(*pair_.b, {makeRequest(Opcode::Write, *back, pair_.remote.data() + kHalf,
                                                            pair_.local.address(kHalf), kHalf)}),
                            kHalf);
    });
    for (int i = 0; i < 20; ++i) expectCompleted(pair_.write(0, 0, kHalf), kHalf);
    opposite.join();
    EXPECT_EQ(std::memcmp(pair_.local.data(), pair_.remote.data(), kBytes), 0);
}

TEST_P(Data, ManyThreadsSubmitAndWaitAtOnce) {
    constexpr unsigned kThreads = 8;
    constexpr std::size_t kShare = kBytes / kThreads;
    const int rounds = kSanitized ? 150 : 1500;
    pair_.local.fillPattern(41);
    pair_.remote.fill(std::byte{0});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            const std::size_t base = t * kShare;
            for (int i = 0; i < rounds; ++i) {
                // Writes a block and reads it back into another place, in this thread's share of both buffers.
                const std::size_t length = 1 + random() % (i % 64 == 0 ? 300000 : 6000);
                const std::size_t from = base + random() % (kShare / 2 - length);
                const std::size_t to = base + kShare / 2 + random() % (kShare / 2 - length);
                std::memset(pair_.local.data() + from, i + 1, length);
                if (pair_.write(from, from, length).s != TransferStatusEnum::COMPLETED) ++wrong;
                if (pair_.read(to, from, length).s != TransferStatusEnum::COMPLETED) ++wrong;
                if (std::memcmp(pair_.local.data() + from, pair_.local.data() + to, length) != 0) ++wrong;
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

const auto kTcpModes = testing::Values(Mode{"TcpDriven", true, 1, false, "127.0.0.1", false},
                                       Mode{"TcpByTheLoopAlone", false, 1, false, "127.0.0.1", false},
                                       Mode{"TcpThreeLoops", true, 3, false, "127.0.0.1", false},
                                       Mode{"TcpThreeLoopsAlone", false, 3, false, "127.0.0.1", false},
                                       Mode{"TcpIPv6", true, 1, false, "::1", false},
                                       Mode{"TcpChecked", true, 1, true, "127.0.0.1", false});
const auto kHostModes = testing::Values(Mode{"HostDriven", true, 1, false, "127.0.0.1", true},
                                        Mode{"HostByTheLoopAlone", false, 1, false, "127.0.0.1", true},
                                        Mode{"HostThreeLoops", true, 3, false, "127.0.0.1", true});

constexpr auto kNameOfMode = [](const auto& param) { return param.param.name; };

INSTANTIATE_TEST_SUITE_P(Modes, Data, kTcpModes, kNameOfMode);
INSTANTIATE_TEST_SUITE_P(Host, Data, kHostModes, kNameOfMode);
INSTANTIATE_TEST_SUITE_P(Modes, DataBetweenEngines, kTcpModes, kNameOfMode);

TEST(OwnSegment, OverlappingSourceAndDestinationAreMovedAsByMemmove) {
    EngineSetup setup;
    setup.tcp = false;
    // Small slices, so that a move is cut wherever that is allowed.
    setup.config.slice_bytes = 64u << 10;
    const auto engine = startEngine(setup);
    Buffer memory(8u << 20);
    ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    std::vector<std::byte> expected(memory.size());
    for (const std::size_t length : {std::size_t{100}, std::size_t{200000}, std::size_t{5} << 20})
        for (const std::ptrdiff_t shift :
             {std::ptrdiff_t{1}, std::ptrdiff_t{-1}, std::ptrdiff_t{4096}, std::ptrdiff_t{-4096},
              std::ptrdiff_t{100000}, std::ptrdiff_t{-100000}, std::ptrdiff_t{0}})
            for (const Opcode opcode : {Opcode::Read, Opcode::Write}) {
                SCOPED_TRACE(testing::Message() << length << " shifted by " << shift);
                memory.fillPattern(length);
                std::memcpy(expected.data(), memory.data(), memory.size());
                std::byte* source = memory.data() + (1u << 20);
                std::byte* other = source + shift;
                std::byte* in_copy = expected.data() + (1u << 20);
                if (opcode == Opcode::Write)
                    std::memmove(in_copy + shift, in_copy, length);
                else
                    std::memmove(in_copy, in_copy + shift, length);
                const auto offset = reinterpret_cast<std::uint64_t>(other);
                expectCompleted(runBatch(*engine, {makeRequest(opcode, kLocalSegmentID, source, offset, length)}),
                                length);
                EXPECT_EQ(std::memcmp(memory.data(), expected.data(), memory.size()), 0);
            }
}

TEST(Visibility, ACompletedWriteIsSeenByALaterReadFromAnotherConnection) {
    // A third engine reads what the first wrote: other sockets, other loops. A torn read would show the last round.
    constexpr std::size_t kBytes = 2'400'000;
    const int rounds = kSanitized ? 100 : 1000;
    EnginePair pair({}, kBytes);
    const auto reader = startEngine();
    Buffer seen(kBytes);
    ASSERT_TRUE(reader->registerLocalMemory(seen.data(), kBytes));
    const auto segment = reader->openSegment(pair.b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    for (int round = 0; round < rounds; ++round) {
        const auto value = static_cast<std::byte>(round % 251 + 1);
        pair.local.fill(value);
        ASSERT_EQ(pair.write(0, 0, kBytes).s, TransferStatusEnum::COMPLETED);
        ASSERT_EQ(
            runBatch(*reader, {makeRequest(Opcode::Read, *segment, seen.data(), pair.remote.address(), kBytes)}).s,
            TransferStatusEnum::COMPLETED);
        ASSERT_TRUE(seen.holdsOnly(value, 0, kBytes)) << "torn read in round " << round;
    }
}

TEST(Checked, EnginesOfDifferentCrcSettingsUnderstandEachOther) {
    EngineSetup checked;
    checked.config.tcp_crc = true;
    EnginePair pair(checked);
    const auto plain = startEngine();
    const auto to_plain = pair.a->openSegment(plain->localSegmentName());
    ASSERT_TRUE(to_plain);
    Buffer memory(1u << 20);
    ASSERT_TRUE(plain->registerLocalMemory(memory.data(), memory.size()));
    pair.local.fillPattern(1);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read})
        expectCompleted(
            runBatch(*pair.a, {makeRequest(opcode, *to_plain, pair.local.data(), memory.address(), memory.size())}),
            memory.size());
    EXPECT_TRUE(memory.holdsPattern(1));
}

TEST(SmallSlices, ManySlicesPerRequestAddUp) {
    EngineSetup setup;
    setup.config.slice_bytes = 4096;
    EnginePair pair(setup, 8u << 20);
    pair.local.fillPattern(77);
    expectCompleted(pair.write(0, 0, pair.local.size()), pair.local.size());
    EXPECT_TRUE(pair.remote.holdsPattern(77));
    pair.local.fill(std::byte{0});
    expectCompleted(pair.read(0, 0, pair.local.size()), pair.local.size());
    EXPECT_TRUE(pair.local.holdsPattern(77));
}

TEST(ManyEngines, OfOneProcessReachEachOther) {
    constexpr std::size_t kEngines = 5;
    std::vector<std::unique_ptr<TransferEngine>> engines;
    std::vector<Buffer> memory;
    for (std::size_t i = 0; i < kEngines; ++i) {
        engines.push_back(startEngine());
        memory.emplace_back(64 * kPage);
        ASSERT_TRUE(engines[i]->registerLocalMemory(memory[i].data(), memory[i].size()));
    }
    for (std::size_t from = 0; from < kEngines; ++from)
        for (std::size_t to = 0; to < kEngines; ++to) {
            const auto segment = engines[from]->openSegment(engines[to]->localSegmentName());
            ASSERT_TRUE(segment) << segment.status().toString();
            EXPECT_EQ(*segment == kLocalSegmentID, from == to);
            memory[from].fillPattern(from * 10 + to);
            const auto request =
                makeRequest(Opcode::Write, *segment, memory[from].data(), memory[to].address(), 64 * kPage);
            expectCompleted(runBatch(*engines[from], {request}), 64 * kPage);
            EXPECT_TRUE(memory[to].holdsPattern(from * 10 + to));
        }
}

TEST(Canceled, AWriteNeverLandsOnOneThatWasSubmittedAfterItsEnd) {
    EngineSetup setup;
    // The second write goes by another loop's connection than the first.
    setup.config.data_loops = 2;
    EnginePair pair(setup, 16u << 20);
    const std::size_t half = pair.local.size() / 2;
    std::memset(pair.local.data(), 0xaa, half);
    std::memset(pair.local.data() + half, 0xbb, half);
    int canceled = 0;
    for (int round = 0; round < 40; ++round) {
        BatchHolder first(*pair.a, 1);
        ASSERT_TRUE(first.submit({pair.request(Opcode::Write, 0, 0, half)}));
        std::this_thread::sleep_for(std::chrono::microseconds(50 * (round % 20)));
        ASSERT_TRUE(pair.a->cancelTransfer(first.id()));
        if (first.wait().s == TransferStatusEnum::CANCELED) ++canceled;
        expectCompleted(pair.write(half, 0, half), half);
        ASSERT_TRUE(pair.remote.holdsOnly(std::byte{0xbb}, 0, half)) << "round " << round;
    }
    EXPECT_GT(canceled, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(pair.remote.holdsOnly(std::byte{0xbb}, 0, half));
}

TEST(LargeCopy, WithinTheProcessIsCarriedByTheNicsOfEveryLoop) {
    EngineSetup setup;
    setup.config.data_loops = 3;
    const auto engine = startEngine(setup);
    Buffer from(128u << 20);
    Buffer to(from.size());
    from.fillPattern(1);
    ASSERT_TRUE(engine->registerLocalMemory(from.data(), from.size()));
    ASSERT_TRUE(engine->registerLocalMemory(to.data(), to.size()));
    BatchHolder batch(*engine, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, kLocalSegmentID, from.data(), to.address(), from.size())}));
    expectCompleted(batch.wait(), from.size());
    EXPECT_TRUE(to.holdsPattern(1));
    const auto how = engine->explain(batch.id(), 0);
    ASSERT_TRUE(how) << how.status().toString();
    EXPECT_EQ(how->transport, "host");
    EXPECT_EQ(how->nics.size(), 3u) << how->toString();
}

}  // namespace
}  // namespace troupe::test
