#include "actors/segment_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "actors/segment_ids.h"
#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

using Reach = SegmentBoard::Reach;

TEST(SegmentBoard, KnowsNobodyAtFirst) {
    const SegmentBoard board;
    for (const SegmentID id : {kInvalidSegmentID, kLocalSegmentID, segmentOf(2), SegmentID{UINT64_MAX}}) {
        EXPECT_EQ(board.reach(id), Reach::Closed);
        EXPECT_EQ(board.peer(id), nullptr);
    }
}

TEST(SegmentBoard, ShowsWhatWasSetUntilItIsClosed) {
    SegmentBoard board;
    const auto peer = makePeer(2);
    ASSERT_TRUE(board.set(segmentOf(2), Reach::Open, peer));
    EXPECT_EQ(board.reach(segmentOf(2)), Reach::Open);
    EXPECT_EQ(board.peer(segmentOf(2)), peer);
    EXPECT_TRUE(board.check(segmentOf(2)));
    EXPECT_EQ(board.reach(segmentOf(3)), Reach::Closed);
    ASSERT_TRUE(board.set(segmentOf(2), Reach::NoTransport, peer, "it is far"));
    EXPECT_EQ(board.reach(segmentOf(2)), Reach::NoTransport);
    EXPECT_EQ(board.check(segmentOf(2)).code(), Code::TransportMissing);
    EXPECT_EQ(board.check(segmentOf(2)).message(), "it is far");
    EXPECT_EQ(board.check(segmentOf(3)).code(), Code::StaleHandle);
    ASSERT_TRUE(board.set(segmentOf(2), Reach::Closed, nullptr));
    EXPECT_EQ(board.reach(segmentOf(2)), Reach::Closed);
    EXPECT_EQ(board.peer(segmentOf(2)), nullptr);
    EXPECT_EQ(board.check(segmentOf(2)).code(), Code::StaleHandle);
}

TEST(SegmentBoard, TellsGenerationsOfOneIndexApart) {
    SegmentBoard board;
    const SegmentID other = SegmentID{2} << 32 | 2;
    ASSERT_TRUE(board.set(segmentOf(2), Reach::Open, makePeer(2)));
    EXPECT_EQ(board.reach(other), Reach::Closed);
    EXPECT_EQ(board.peer(other), nullptr);
}

TEST(SegmentBoard, IsBounded) {
    SegmentBoard board;
    EXPECT_FALSE(board.set(segmentOf(SegmentBoard::kMaxSegments), Reach::Open, makePeer(2)));
    EXPECT_TRUE(board.set(segmentOf(SegmentBoard::kMaxSegments - 1), Reach::Open, makePeer(2)));
    EXPECT_EQ(board.reach(segmentOf(SegmentBoard::kMaxSegments - 1)), Reach::Open);
}

TEST(SegmentBoard, ReadersNeverSeeAnothersPeer) {
    SegmentBoard board;
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; ++t)
        readers.emplace_back([&] {
            while (!stop)
                for (std::uint32_t i = 2; i < 10; ++i) {
                    static_cast<void>(board.reach(segmentOf(i)));
                    const auto peer = board.peer(segmentOf(i));
                    if (peer && peer->index != i) ++wrong;
                }
        });
    for (int round = 0; round < 2000; ++round)
        for (std::uint32_t i = 2; i < 10; ++i) {
            const bool open = (round + static_cast<int>(i)) % 2 == 0;
            board.set(segmentOf(i), open ? Reach::Open : Reach::Closed, open ? makePeer(i) : nullptr);
        }
    stop = true;
    for (auto& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
}

TEST(SegmentBoard, WhatIsNotReachedIsSaidToBeSoOnlyWithTheReason) {
    SegmentBoard board;
    const auto peer = makePeer(2);
    board.set(segmentOf(2), Reach::NoTransport, peer, "it is far");
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::thread reader([&] {
        while (!stop) {
            const Status status = board.check(segmentOf(2));
            if (status.code() == Code::TransportMissing && status.message() != "it is far") ++wrong;
        }
    });
    for (int round = 0; round < 20'000; ++round) {
        board.set(segmentOf(2), Reach::NoTransport, peer, "it is far");
        board.set(segmentOf(2), round % 2 == 0 ? Reach::Closed : Reach::Open, peer);
    }
    stop = true;
    reader.join();
    EXPECT_EQ(wrong, 0);
}

TEST(SegmentIds, AnIndexRestsBeforeItIsUsedAgainAndNoIdComesTwice) {
    SegmentIds ids(2, 4);
    const TimePoint begin{};
    const auto first = ids.take(begin);
    const auto second = ids.take(begin);
    ASSERT_TRUE(first && second);
    EXPECT_NE(*first, *second);
    EXPECT_EQ(ids.take(begin), std::nullopt);
    ids.giveBack(*first, begin);
    EXPECT_EQ(ids.take(begin + SegmentIds::kRest - Duration(1)), std::nullopt);
    const auto again = ids.take(begin + SegmentIds::kRest);
    ASSERT_TRUE(again);
    EXPECT_EQ(static_cast<std::uint32_t>(*again), static_cast<std::uint32_t>(*first));
    EXPECT_NE(*again, *first);
    EXPECT_EQ(ids.take(begin + SegmentIds::kRest), std::nullopt);
}

}  // namespace
}  // namespace troupe::test
