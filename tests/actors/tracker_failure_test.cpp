// TrackerLogic: what failed, and what becomes of its task.

#include <gmock/gmock.h>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

TEST_F(Tracker, ARetryableFailureIsRetriedAsOftenAsAllowed) {
    auto twice = spec(0, 64);
    twice.retries = 2;
    const BatchID id = submit({twice});
    const Status lost(Code::ConnectionLost, "lost");
    for (int attempt = 0; attempt < 3; ++attempt) {
        const auto flights = output_.takeFlights();
        ASSERT_EQ(flights.size(), 1u) << attempt;
        EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
        fail(flights[0], lost, true);
    }
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::ConnectionLost);
    EXPECT_THAT(output_.suspects, testing::Each(kPeer));
    EXPECT_EQ(output_.suspects.size(), 3u);
}

TEST_F(Tracker, OnlyTheFailedPieceIsSentAgain) {
    auto large = spec(0, 1000);
    large.retries = 1;
    const BatchID id = submit({large});
    auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 8u);
    fail(flights[3], Status(Code::ConnectionLost, "lost"), true);
    const auto again = output_.takeFlights();
    std::uint64_t bytes = 0;
    for (const Flight& flight : again) {
        EXPECT_GE(flight.local, flights[3].local);
        EXPECT_LE(flight.local + flight.length, flights[3].local + flights[3].length);
        bytes += flight.length;
    }
    EXPECT_EQ(bytes, flights[3].length);
    for (const Flight& flight : again) succeed(flight);
    for (std::size_t i = 0; i < flights.size(); ++i)
        if (i != 3) succeed(flights[i]);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(task(id, 0).transferred_bytes, 1000u);
}

TEST_F(Tracker, ARefusalIsFinalAndWaitsForTheOtherFlights) {
    auto large = spec(0, 1000);
    large.retries = 5;
    const BatchID id = submit({large});
    const auto flights = output_.takeFlights();
    fail(flights[0], Status(Code::AccessDenied, "no"), false);
    EXPECT_TRUE(output_.trains.empty());
    for (std::size_t i = 1; i < flights.size(); ++i) {
        EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING) << "a flight is still out";
        succeed(flights[i]);
    }
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::AccessDenied);
    EXPECT_EQ(task(id, 0).transferred_bytes, 1000u - flights[0].length);
}

TEST_F(Tracker, ARefusalNamesTheRangeOfTheTaskAndSaysWhatItsLowestRefusedPartSaid) {
    // Over several paths the parts come back in any order.
    for (const bool backwards : {false, true}) {
        const BatchID id = submit({spec(0, 400)});
        auto flights = output_.takeFlights();
        ASSERT_GE(flights.size(), 3u);
        const Flight good = flights.front();
        succeed(good);
        flights.erase(flights.begin());
        const std::string lowest = hexAddress(flights.front().remote);
        if (backwards) std::reverse(flights.begin(), flights.end());
        for (const Flight& flight : flights)
            fail(flight, Status(Code::AddressNotRegistered, hexAddress(flight.remote) + " is missing"), false);
        EXPECT_EQ(task(id, 0).error.toString(),
                  "AddressNotRegistered: write to [0x100000, 0x100190): " + lowest + " is missing");
        EXPECT_EQ(task(id, 0).transferred_bytes, good.length);
    }
}

TEST_F(Tracker, ARefusalAfterALostAttemptNamesTheRangeAndNotWhatWasLost) {
    auto read = spec(16, 100);
    read.opcode = Opcode::Read;
    read.retries = 1;
    const BatchID id = submit({read});
    fail(output_.takeFlights().front(), Status(Code::ConnectionLost, "it hung up"), true);
    fail(output_.takeFlights().front(), Status(Code::AccessDenied, "no"), false);
    EXPECT_EQ(task(id, 0).error.toString(), "AccessDenied: read of [0x100010, 0x100074): no");
}

TEST_F(Tracker, ARefusedMergedFlightIsTakenApartAndOnlyTheBadTaskFails) {
    const BatchID id = submit({spec(0, 100), spec(100, 100), spec(200, 100)});
    auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    ASSERT_EQ(flights[0].task_count, 3u);
    fail(flights[0], Status(Code::AddressNotRegistered, "out of range"), false);
    flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 3u);
    succeed(flights[0]);
    fail(flights[1], Status(Code::AddressNotRegistered, "out of range"), false);
    succeed(flights[2]);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 2).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(batch(id).transferred_bytes, 200u);
}

TEST_F(Tracker, AMergedWriteWhosePathWasClosedIsNotSentAnewForItsBytesMayStillArrive) {
    joinWorker(1, 0, nicInfo(1000, 1000, 1000));
    usePeer({0, 1});
    const BatchID id = submit({spec(0, 100), spec(100, 100), spec(200, 100)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    ASSERT_EQ(flights[0].task_count, 3u);
    fail(flights[0], Status(Code::ConnectionLost, "segment peer serves tcp at another place now"), false);
    EXPECT_TRUE(output_.takeFlights().empty());
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(task(id, i).s, TransferStatusEnum::FAILED);
        EXPECT_EQ(task(id, i).error.code(), Code::ConnectionLost);
    }
}

TEST_F(Tracker, AMergedWriteThatItsOwnerCannotTakeAsOneIsTakenApart) {
    const BatchID id = submit({spec(0, 100), spec(100, 100)});
    const auto merged = output_.takeFlights();
    ASSERT_EQ(merged.size(), 1u);
    fail(merged[0], Status(Code::Unsupported, "memory of several allocations, of which one is on a GPU"), false);
    const auto apart = output_.takeFlights();
    ASSERT_EQ(apart.size(), 2u);
    for (const Flight& flight : apart) succeed(flight);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, ARefusedRangeHasThePeersDescriptorFetchedAnew) {
    submit({spec(0, 100)});
    fail(output_.takeFlights()[0], Status(Code::AddressNotRegistered, "not in the descriptor"), false);
    EXPECT_THAT(output_.suspects, testing::ElementsAre(kPeer));
}

TEST_F(Tracker, ALostWriteWhoseWorkerLeftEndsAndHoldsNobodyUp) {
    joinWorker(1, 0, nicInfo(100, 0, 100));
    auto lost = spec(0, 64);
    lost.retries = 3;
    const BatchID id = submit({lost, spec(500, 100), spec(700, 100)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 3u);
    // The report of the loss and the news that the worker left come before the next flush.
    tracker_.onReport(
        SliceReport{
            0, {{flights[0], kPeer, Status(Code::ConnectionLost, "lost"), true, true}}, {settledOf(flights[0], 0)}, {}},
        now_);
    tracker_.onUsePeer(UsePeer{peer_, segmentOf(kPeer), {1}});
    tracker_.flush();
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::TransportMissing);
    // Not that nothing reaches the peer: the others go on.
    EXPECT_THAT(task(id, 0).error.message(), testing::HasSubstr("the Nic that lost it, which alone may send it again"));
    for (std::size_t i = 1; i < flights.size(); ++i) succeed(flights[i]);
    submitInto(id, {spec(900, 10)});
    const auto more = output_.takeFlights();
    ASSERT_EQ(more.size(), 1u);
    succeed(more[0], 1);
    EXPECT_EQ(task(id, 3).s, TransferStatusEnum::COMPLETED);
    EXPECT_TRUE(tracker_.idle());
}

TEST_F(Tracker, WhatOneNicAloneMaySendHoldsUpNobodyWhomAnotherCarries) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    auto first = spec(0, 1000);
    first.retries = 1;
    submit({first});
    const auto by_first = output_.takeFlights();
    submit({spec(1000, 1000)});
    const auto by_second = output_.takeFlights();
    submit({spec(2000, 2 * by_first[0].length)});
    EXPECT_TRUE(output_.trains.empty()) << "both are busy";
    // The lost part of a WRITE waits for its own Nic, whose room goes to what came before.
    fail(by_first[0], Status(Code::ConnectionLost, "lost"), true);
    for (const auto& train : output_.trains) EXPECT_EQ(train.worker, 0u);
    succeed(by_second[0], 1);
    output_.takeFlights();
    // So it is the first that waits now, and its Nic has no room.
    submit({spec(4000, 100)});
    EXPECT_TRUE(output_.trains.empty()) << "both are busy";
    succeed(by_second[1], 1);
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    EXPECT_EQ(flights[0].remote, kRemote + 4000);
}

TEST_F(Tracker, WithoutAPathNothingWaits) {
    auto lost = spec(5000, 64);
    lost.retries = 5;
    const BatchID id = submit({spec(0, 600), spec(1000, 600), spec(2000, 600), lost});
    const auto flights = output_.takeFlights();
    const auto same = peer_;
    tracker_.onUsePeer(UsePeer{same, segmentOf(kPeer), {}});
    tracker_.flush();
    EXPECT_EQ(task(id, 3).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 3).error.code(), Code::TransportMissing);
    for (const Flight& flight : flights) fail(flight, Status(Code::ConnectionLost, "lost"), true);
    EXPECT_TRUE(tracker_.idle());
    const BatchID late = submit({spec(0, 64)});
    EXPECT_EQ(task(late, 0).error.code(), Code::TransportMissing) << "a submit that raced with the uninstall";
    EXPECT_TRUE(output_.trains.empty());
}

TEST_F(Tracker, OneCauseEndsManyTasksThatWaitBetweenThoseOfAnotherPeer) {
    constexpr std::uint32_t kOther = kPeer + 1;
    constexpr std::uint32_t kMany = 1000;
    usePeer({0}, kOther);
    std::vector<TaskSpec> specs;
    for (std::uint32_t i = 0; i < kMany; ++i) {
        specs.push_back(spec(std::uint64_t{i} * 30, 20));
        if (i % 2 != 0) specs.back().segment = segmentOf(kOther);
    }
    const BatchID id = submit(specs, kMany);
    auto flights = output_.takeFlights();
    ASSERT_LT(flights.size(), kMany) << "most of them wait for room";
    tracker_.onDropPeer(DropPeer{kOther, Status(Code::PeerDown, "gone"), false});
    // The survivors of the first peer complete, in as many rounds as the window asks for.
    while (!flights.empty()) {
        const auto out = std::exchange(flights, {});
        for (const Flight& flight : out) {
            const std::uint32_t peer =
                flight.batch->task(flight.first_task).segment == segmentOf(kPeer) ? kPeer : kOther;
            const bool dropped = peer == kOther;
            SliceReport report{0, {}, {settledOf(flight, dropped ? 0 : flight.length, peer)}, {}};
            if (dropped) report.failed.push_back({flight, peer, Status(Code::PeerDown, "gone"), false, true});
            this->report(report);
        }
        flights = output_.takeFlights();
    }
    EXPECT_TRUE(tracker_.idle());
    for (std::uint32_t i = 0; i < kMany; ++i)
        EXPECT_EQ(task(id, i).s, i % 2 == 0 ? TransferStatusEnum::COMPLETED : TransferStatusEnum::FAILED) << i;
}

TEST_F(Tracker, APeersWordCanceledIsARefusalLikeAnyOther) {
    const BatchID id = submit({spec(0, 64)});
    fail(output_.takeFlights()[0], Status(Code::Canceled, "says the peer"), true);
    EXPECT_TRUE(output_.trains.empty()) << "no retries were asked for";
    EXPECT_NE(task(id, 0).s, TransferStatusEnum::PENDING);
}

TEST_F(Tracker, AnUnquiescedFailureIsNeverSentAgainAndSaysSo) {
    auto one = spec(0, 64);
    one.retries = 9;
    const BatchID id = submit({one});
    fail(output_.takeFlights()[0], Status(Code::ConnectionLost, "lost"), true, false);
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_FALSE(task(id, 0).quiesced);
    EXPECT_FALSE(batch(id).quiesced);
}

TEST_F(Tracker, TheWorstStateAndTheFirstCauseAreTheBatchs) {
    auto late = spec(0, 64);
    late.deadline = now_ + std::chrono::seconds(1);
    const BatchID id = submit({late, spec(1000, 64)});
    const auto flights = output_.takeFlights();
    tracker_.onTimer(now_ + std::chrono::seconds(2));
    fail(flights[0], Status(Code::PathReset, "path reset"), true);
    fail(flights[1], Status(Code::AccessDenied, "no"), false);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::TIMEOUT);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(batch(id).error.code(), Code::Timeout);
}

}  // namespace
}  // namespace troupe::test
