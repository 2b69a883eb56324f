// TrackerLogic: lost paths, and work that goes on over others.

#include <gmock/gmock.h>

#include <map>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

TEST_F(Tracker, ALostPathsWorkGoesOnOverAnotherAndCostsNoRetry) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    const BatchID id = submit({spec(0, 64), spec(500, 64)});
    auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 2u);
    SliceReport lost{0, {}, {}, {{kPeer, false}}};
    for (const Flight& flight : flights) {
        lost.failed.push_back({flight, kPeer, Status(Code::ConnectionLost, "lost"), true, true, /*fenced=*/true});
        lost.settled.push_back(settledOf(flight, 0));
    }
    report(lost);
    ASSERT_FALSE(output_.trains.empty());
    for (const auto& sent : output_.trains) EXPECT_EQ(sent.worker, 1u);
    flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 2u);
    for (const Flight& flight : flights) succeed(flight, 1);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
    // New work keeps away from it until it is back.
    submit({spec(1000, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 1u);
    succeed(output_.takeFlights()[0], 1);
    report(SliceReport{0, {}, {}, {{kPeer, true}}});
    submit({spec(2000, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 0u);
    succeed(output_.takeFlights()[0]);
}

TEST_F(Tracker, APathThatCameBackIsTriedWithOneFlight) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    report(SliceReport{0, {}, {}, {{kPeer, false}}});
    report(SliceReport{0, {}, {}, {{kPeer, true}}});
    submit({spec(0, 64), spec(500, 64), spec(1000, 64)});
    std::map<std::uint32_t, std::vector<Flight>> sent;
    for (const auto& each : std::exchange(output_.trains, {}))
        sent[each.worker].insert(sent[each.worker].end(), each.train.flights.begin(), each.train.flights.end());
    ASSERT_EQ(sent[0].size(), 1u);
    ASSERT_EQ(sent[1].size(), 2u);
    // It fails: the part goes on over the other path at no cost.
    report(SliceReport{0,
                       {{sent[0][0], kPeer, Status(Code::ConnectionLost, "lost"), true, true, /*fenced=*/true}},
                       {settledOf(sent[0][0], 0)},
                       {{kPeer, false}, {kPeer, true}}});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 1u);
    for (const Flight& flight : sent[1]) succeed(flight, 1);
    succeed(output_.takeFlights()[0], 1);
    // It succeeds: the trial is over.
    submit({spec(0, 64)});
    succeed(output_.takeFlights()[0], 0);
    submit({spec(0, 64), spec(500, 64), spec(1000, 64)});
    for (const auto& each : output_.trains) EXPECT_EQ(each.worker, 0u);
    for (const Flight& flight : output_.takeFlights()) succeed(flight, 0);
}

TEST_F(Tracker, TheNextTransportIsUsedOnlyWhileThePreferredOneIsLost) {
    NicInfo other = nicInfo(100, 0, 1000);
    other.transport = "other";
    joinWorker(1, 0, other);
    usePeer({0, 1});
    // A full window is no reason to take it.
    const BatchID id = submit({spec(0, 2000)});
    for (const auto& each : output_.trains) EXPECT_EQ(each.worker, 0u);
    const auto flights = output_.takeFlights();
    SliceReport lost{0, {}, {}, {{kPeer, false}}};
    for (const Flight& flight : flights) {
        lost.failed.push_back({flight, kPeer, Status(Code::ConnectionLost, "lost"), true, true, /*fenced=*/true});
        lost.settled.push_back(settledOf(flight, 0));
    }
    report(lost);
    while (task(id, 0).s == TransferStatusEnum::PENDING) {
        ASSERT_FALSE(output_.trains.empty());
        for (const auto& each : output_.trains) EXPECT_EQ(each.worker, 1u);
        for (const Flight& flight : output_.takeFlights()) succeed(flight, 1);
    }
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::COMPLETED);
    report(SliceReport{0, {}, {}, {{kPeer, true}}});
    submit({spec(0, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 0u);
    succeed(output_.takeFlights()[0], 0);
}

/// A Nic that will never carry a task, for what its memory is: the next transport does, at no cost, and explain tells.
TEST_F(Tracker, WhatATransportDeclinesGoesOverTheNextAtNoCostOfRetries) {
    NicInfo other = nicInfo(100, 0, 1000);
    other.transport = "other";
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    joinWorker(2, 0, other);
    usePeer({0, 1, 2});
    auto few = spec(0, 250);
    few.retries = 0;
    const BatchID id = submit({few, spec(1000, 64)});
    const Status why(Code::Unsupported, "memory of a GPU");
    while (!output_.trains.empty() && output_.trains[0].worker == 0) {
        SliceReport declined{0, {}, {}, {}};
        for (const Flight& flight : output_.takeFlights()) {
            declined.failed.push_back({flight, kPeer, why, false, true, true, 0, true});
            declined.settled.push_back(settledOf(flight, 0));
        }
        report(declined);
    }
    ASSERT_FALSE(output_.trains.empty());
    while (!output_.trains.empty()) {
        // Not the other worker of the same transport.
        for (const auto& each : output_.trains) EXPECT_EQ(each.worker, 2u);
        for (const Flight& flight : output_.takeFlights()) succeed(flight, 2);
    }
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::COMPLETED);
    // The next one begins at the top again.
    submit({spec(0, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 0u);
    succeed(output_.takeFlights()[0], 0);
}

TEST_F(Tracker, WhatEveryTransportDeclinesFailsWithTheReason) {
    NicInfo other = nicInfo(100, 0, 1000);
    other.transport = "other";
    joinWorker(1, 0, other);
    usePeer({0, 1});
    const BatchID id = submit({spec(0, 64)});
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
        ASSERT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
        const auto flights = output_.takeFlights();
        ASSERT_EQ(flights.size(), 1u);
        const Status why(Code::Unsupported, "not by " + std::to_string(worker));
        report(SliceReport{
            worker, {{flights[0], kPeer, why, false, true, true, 0, true}}, {settledOf(flights[0], 0)}, {}});
    }
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::Unsupported);
    EXPECT_NE(task(id, 0).error.message().find("not by 1"), std::string::npos);
}

TEST_F(Tracker, TwoPathsThatAreLostInTurnDoNotCarryATaskForEver) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    const BatchID id = submit({spec(0, 64)});
    int moves = 0;
    for (std::uint32_t worker = 0; task(id, 0).s == TransferStatusEnum::PENDING; worker = 1 - worker, ++moves) {
        ASSERT_LT(moves, 100);
        const auto flights = output_.takeFlights();
        ASSERT_EQ(flights.size(), 1u);
        report(SliceReport{1 - worker, {}, {}, {{kPeer, true}}});
        report(SliceReport{worker,
                           {{flights[0], kPeer, Status(Code::ConnectionLost, "lost"), true, true, /*fenced=*/true}},
                           {settledOf(flights[0], 0)},
                           {{kPeer, false}}});
    }
    EXPECT_GT(moves, 10);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
}

TEST_F(Tracker, AnAttemptThatWasNeverSentDoesNotFenceTheOneBeforeIt) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    auto one = spec(0, 64);
    one.retries = 3;
    submit({one});
    for (const bool fenced : {false, true, true}) {
        ASSERT_EQ(output_.trains.size(), 1u);
        EXPECT_EQ(output_.trains[0].worker, 0u);
        const auto flights = output_.takeFlights();
        report(SliceReport{0,
                           {{flights[0], kPeer, Status(Code::ConnectionLost, "lost"), true, true, fenced}},
                           {settledOf(flights[0], 0)},
                           {{kPeer, false}}});
    }
    EXPECT_EQ(output_.trains[0].worker, 0u);
    succeed(output_.takeFlights()[0], 0);
}

TEST_F(Tracker, ALostWriteThatIsNotFencedOffStaysWithItsWorkerAndALostReadDoesNot) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        auto one = spec(0, 64);
        one.opcode = opcode;
        one.retries = 1;
        submit({one});
        const auto flights = output_.takeFlights();
        report(SliceReport{0,
                           {{flights[0], kPeer, Status(Code::ConnectionLost, "lost"), true, true}},
                           {settledOf(flights[0], 0)},
                           {{kPeer, false}}});
        ASSERT_EQ(output_.trains.size(), 1u);
        const std::uint32_t worker = output_.trains[0].worker;
        EXPECT_EQ(worker, opcode == Opcode::Write ? 0u : 1u);
        succeed(output_.takeFlights()[0], worker);
        report(SliceReport{0, {}, {}, {{kPeer, true}}});
    }
}

TEST_F(Tracker, WithEveryPathLostWorkGoesOutAndComesBackWithItsCause) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    report(SliceReport{0, {}, {}, {{kPeer, false}}});
    report(SliceReport{1, {}, {}, {{kPeer, false}}});
    const BatchID id = submit({spec(0, 64)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    fail(flights[0], Status(Code::ConnectionLost, "the port is down"), true);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.message(), "the port is down");
}

TEST_F(Tracker, ANewIncarnationsPathsAreNotLost) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    usePeer({0, 1});
    report(SliceReport{0, {}, {}, {{kPeer, false}}});
    usePeer({0, 1});
    submit({spec(0, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 0u);
    succeed(output_.takeFlights()[0]);
}

TEST_F(Tracker, WhatIsLostInOneIncidentCostsOneRetry) {
    auto large = spec(0, 1000);
    large.retries = 1;
    const BatchID id = submit({large});
    const auto lose = [&](const Flight& flight, std::uint64_t incident) {
        report(
            SliceReport{0,
                        {{flight, kPeer, Status(Code::ConnectionLost, "lost"), true, true, /*fenced=*/false, incident}},
                        {settledOf(flight, 0)},
                        {}});
    };
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 8u);
    for (const Flight& flight : flights) lose(flight, 5);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
    const auto again = output_.takeFlights();
    std::uint64_t bytes = 0;
    for (const Flight& flight : again) bytes += flight.length;
    EXPECT_EQ(bytes, 1000u);
    lose(again[0], 6);
    for (std::size_t i = 1; i < again.size(); ++i) succeed(again[i]);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
}

TEST_F(Tracker, NothingMeantForOneIncarnationGoesToItsSuccessor) {
    // More than the window holds: some is out, the rest waits.
    const BatchID id = submit({spec(0, 600), spec(1000, 600), spec(2000, 600), spec(3000, 64)});
    const auto flights = output_.takeFlights();
    usePeer({0});
    EXPECT_TRUE(output_.takeFlights().empty());
    EXPECT_EQ(task(id, 3).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 3).error.code(), Code::StaleIncarnation);
    for (const Flight& flight : flights) fail(flight, Status(Code::StaleIncarnation, "restarted"), false);
    EXPECT_TRUE(tracker_.idle());
    EXPECT_EQ(batch(id).s, TransferStatusEnum::FAILED);
    // What is submitted from now on is meant for the successor.
    const BatchID next = submit({spec(0, 64)});
    const auto more = output_.takeFlights();
    ASSERT_EQ(more.size(), 1u);
    succeed(more[0]);
    EXPECT_EQ(batch(next).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, ADeadlineReachesWhatIsOutOnAnEarlierRoute) {
    joinWorker(1, 0, nicInfo(100, 0, 1000));
    const BatchID id = submit({spec(0, 64)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    const auto same = peer_;
    tracker_.onUsePeer(UsePeer{same, segmentOf(kPeer), {1}});
    tracker_.flush();
    tracker_.onEndTasks(EndTasks{id, EndTasks::kAllTasks, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    tracker_.flush();
    ASSERT_EQ(output_.resets.size(), 1u);
    EXPECT_EQ(output_.resets[0].worker, 0u);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
    fail(flights[0], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::CANCELED);
    // New work goes the new way only.
    const BatchID next = submit({spec(0, 64)});
    ASSERT_EQ(output_.trains.size(), 1u);
    EXPECT_EQ(output_.trains[0].worker, 1u);
    succeed(output_.takeFlights()[0], 1);
    EXPECT_EQ(batch(next).s, TransferStatusEnum::COMPLETED);
}

}  // namespace
}  // namespace troupe::test
