// TrackerLogic: deadlines, cancels, and peers that go.

#include <gmock/gmock.h>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

TEST_F(Tracker, ADeadlineResetsThePathAndEndsTheTaskOnceItsFlightsAreBack) {
    auto late = spec(0, 64);
    late.deadline = now_ + std::chrono::seconds(1);
    const BatchID id = submit({late, spec(500, 64)});
    ASSERT_NE(output_.wake, kForever);
    EXPECT_GE(output_.wake, late.deadline);
    const auto flights = output_.takeFlights();
    tracker_.onTimer(late.deadline + std::chrono::milliseconds(1));
    tracker_.flush();
    ASSERT_EQ(output_.resets.size(), 1u);
    EXPECT_EQ(output_.resets[0].reset.peer, kPeer);
    EXPECT_EQ(output_.resets[0].reset.cause.code(), Code::PathReset);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING) << "its flight is still out";
    fail(flights[0], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::TIMEOUT);
    EXPECT_EQ(task(id, 0).error.code(), Code::Timeout);
    // Its neighbour on the same path is innocent: sent again although it has no retries.
    fail(flights[1], Status(Code::PathReset, "path reset"), true);
    const auto again = output_.takeFlights();
    ASSERT_EQ(again.size(), 1u);
    succeed(again[0]);
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, ADeadlineReachesWhatIsOutOfATaskThatHasFailedInPart) {
    auto large = spec(0, 200);
    large.deadline = now_ + std::chrono::seconds(1);
    const BatchID id = submit({large});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 2u);
    fail(flights[0], Status(Code::AddressNotRegistered, "refused"), false);
    EXPECT_TRUE(output_.resets.empty()) << "the other one may come by itself";
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
    tracker_.onTimer(large.deadline + std::chrono::milliseconds(1));
    tracker_.flush();
    ASSERT_EQ(output_.resets.size(), 1u);
    fail(flights[1], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::AddressNotRegistered) << "the first cause";
}

TEST_F(Tracker, ADeadlineThatHasPassedEndsTheTaskBeforeAnyByteGoesOut) {
    auto late = spec(0, 64);
    late.deadline = now_ - std::chrono::nanoseconds(1);
    auto just = spec(100, 64);
    just.deadline = now_;
    auto empty = spec(200, 0);
    empty.deadline = late.deadline;
    const BatchID id = submit({late, just, empty, spec(300, 64)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    EXPECT_EQ(flights[0].first_task, 3u);
    for (const std::uint32_t i : {0u, 1u}) {
        EXPECT_EQ(task(id, i).s, TransferStatusEnum::TIMEOUT);
        EXPECT_EQ(task(id, i).error.code(), Code::Timeout);
        EXPECT_TRUE(task(id, i).quiesced);
    }
    EXPECT_EQ(task(id, 2).s, TransferStatusEnum::COMPLETED) << "nothing was to be moved";
    EXPECT_TRUE(output_.resets.empty());
}

TEST_F(Tracker, ADeadlineOfATaskThatWaitsEndsItWithoutAReset) {
    std::vector<TaskSpec> specs;
    for (std::uint64_t i = 0; i < 11; ++i) specs.push_back(spec(i * 200, 100));
    specs[10].deadline = now_ + std::chrono::seconds(1);
    const BatchID id = submit(specs);
    EXPECT_EQ(output_.takeFlights().size(), 10u);
    tracker_.onTimer(now_ + std::chrono::seconds(1));
    tracker_.flush();
    EXPECT_TRUE(output_.resets.empty());
    EXPECT_EQ(task(id, 10).s, TransferStatusEnum::TIMEOUT);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
}

TEST_F(Tracker, TheTimerIsSetForTheNextDeadline) {
    auto first = spec(0, 64);
    first.deadline = now_ + std::chrono::seconds(1);
    auto second = spec(500, 64);
    second.deadline = now_ + std::chrono::seconds(9);
    const BatchID id = submit({first});
    submit({second});
    const auto flights = output_.takeFlights();
    output_.wake = kForever;
    tracker_.onTimer(now_ + std::chrono::seconds(1));
    EXPECT_GE(output_.wake, second.deadline);
    EXPECT_LT(output_.wake, second.deadline + std::chrono::seconds(1));
    fail(flights[0], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::TIMEOUT);
}

TEST_F(Tracker, EndTasksCancelsOneOrAll) {
    const BatchID id = submit({spec(0, 64), spec(500, 64), spec(1000, 64)});
    const auto flights = output_.takeFlights();
    tracker_.onEndTasks(EndTasks{id, 1, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    tracker_.flush();
    EXPECT_EQ(output_.resets.size(), 1u);
    fail(flights[1], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::CANCELED);
    succeed(flights[0]);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::COMPLETED);
    tracker_.onEndTasks(EndTasks{id, EndTasks::kAllTasks, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    fail(flights[2], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(task(id, 2).s, TransferStatusEnum::CANCELED);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::CANCELED);
}

TEST_F(Tracker, CancelsOfOneRoundResetAPathOnce) {
    const BatchID id = submit({spec(0, 64), spec(500, 64), spec(1000, 64)});
    const auto flights = output_.takeFlights();
    for (std::uint32_t i = 0; i < 2; ++i)
        tracker_.onEndTasks(EndTasks{id, i, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    tracker_.flush();
    EXPECT_EQ(output_.resets.size(), 1u);
    for (const Flight& flight : flights) fail(flight, Status(Code::PathReset, "path reset"), true);
    const auto again = output_.takeFlights();
    ASSERT_EQ(again.size(), 1u);
    succeed(again[0]);
    for (std::uint32_t i = 0; i < 2; ++i) EXPECT_EQ(task(id, i).s, TransferStatusEnum::CANCELED);
    EXPECT_EQ(task(id, 2).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AFlightThatCameBackBeforeTheRoundEndsNeedsNoReset) {
    const BatchID id = submit({spec(0, 64)});
    const auto flights = output_.takeFlights();
    tracker_.onEndTasks(EndTasks{id, 0, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    succeed(flights[0]);
    EXPECT_TRUE(output_.resets.empty());
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::CANCELED);
}

TEST_F(Tracker, ABatchThatEndsTakesItsPlacesInTheQueueAlong) {
    // The first keeps the window full, so that the others wait.
    const BatchID first = submit({spec(0, 1000)});
    const auto flights = output_.takeFlights();
    const BatchID second = submit({spec(2000, 64), spec(3000, 64), spec(4000, 64)});
    const BatchID third = submit({spec(5000, 64)});
    const auto cancel = [&](BatchID id, std::uint32_t task) {
        tracker_.onEndTasks(EndTasks{id, task, Status(Code::Canceled, "by the caller")}, *table_.find(id));
        tracker_.flush();
    };
    for (const std::uint32_t i : {1u, 0u, 2u}) {
        EXPECT_EQ(table_.free(second).code(), Code::BatchBusy);
        cancel(second, i);
        EXPECT_EQ(task(second, i).s, TransferStatusEnum::CANCELED) << "nothing of it is out";
    }
    // Its slot, with larger memory, is another batch's at once.
    ASSERT_TRUE(table_.free(second));
    const BatchID fourth = submit({spec(6000, 64)}, 1000);
    EXPECT_EQ(static_cast<std::uint32_t>(fourth), static_cast<std::uint32_t>(second));
    EXPECT_TRUE(output_.trains.empty());
    for (const Flight& flight : flights) succeed(flight);
    const auto rest = output_.takeFlights();
    ASSERT_EQ(rest.size(), 2u);
    EXPECT_EQ(rest[0].local, memory_.data() + 5000);
    EXPECT_EQ(rest[1].local, memory_.data() + 6000);
    for (const Flight& flight : rest) succeed(flight);
    for (const BatchID id : {first, third, fourth}) {
        EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
        EXPECT_TRUE(table_.free(id));
    }
}

TEST_F(Tracker, EndAllEndsEveryBatch) {
    std::vector<BatchID> batches;
    for (int i = 0; i < 5; ++i) batches.push_back(submit({spec(0, 300), spec(1000, 300)}));
    const auto flights = output_.takeFlights();
    tracker_.onEndAll(EndAll{Status(Code::Canceled, "the engine ends")});
    tracker_.flush();
    EXPECT_EQ(output_.resets.size(), 1u) << "one reset per path, however many tasks are on it";
    for (const Flight& flight : flights) fail(flight, Status(Code::PathReset, "path reset"), true);
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_TRUE(tracker_.idle());
    for (const BatchID id : batches) {
        EXPECT_EQ(batch(id).s, TransferStatusEnum::CANCELED);
        EXPECT_TRUE(table_.free(id));
    }
}

TEST_F(Tracker, ATaskThatItGivesUpSaysHowItStoodAndOneThatTheCallerEndsDoesNot) {
    joinWorker(1, 0, nicInfo(100, 400, 1000));
    usePeer({0, 1});
    report(SliceReport{1, {}, {}, {{kPeer, false}}});
    TaskSpec late = spec(0, 300);
    late.deadline = now_ + std::chrono::milliseconds(10);
    const BatchID id = submit({late, spec(1000, 100)});
    const auto flights = output_.takeFlights();
    ASSERT_GE(flights.size(), 2u);
    succeed(flights[0]);
    const auto history = [&](std::uint32_t index) { return table_.find(id)->task(index).history.get(); };
    EXPECT_EQ(history(0), nullptr);
    now_ += std::chrono::milliseconds(20);
    tracker_.onTimer(now_);
    tracker_.onEndTasks(EndTasks{id, 1, Status(Code::Canceled, "by the caller")}, *table_.find(id));
    EXPECT_EQ(history(1), nullptr);
    ASSERT_NE(history(0), nullptr);
    ASSERT_TRUE(history(0)->ending);
    EXPECT_EQ(history(0)->ending->cause.code(), Code::Timeout);
    EXPECT_EQ(history(0)->ending->arrived, flights[0].length);
    EXPECT_GT(history(0)->ending->flights, 0u);
    EXPECT_EQ(history(0)->ending->lost, 0b10u);
    // What was out comes back, and is told.
    const std::size_t before = history(0)->attempts.size();
    for (std::size_t i = 1; i < flights.size(); ++i)
        fail(flights[i], Status(Code::PathReset, "its path was ended"), true);
    EXPECT_GT(history(0)->attempts.size(), before);
    EXPECT_EQ(history(1), nullptr);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::TIMEOUT);
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::CANCELED);
}

TEST_F(Tracker, ADroppedPeerFailsWhatWaitsAtOnceAndTheRestWhenItIsBack) {
    const BatchID id = submit({spec(0, 1000), spec(2000, 1000)});
    const auto flights = output_.takeFlights();
    tracker_.onDropPeer(DropPeer{kPeer, Status(Code::PeerDown, "dead"), false});
    tracker_.flush();
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::PENDING);
    for (const Flight& flight : flights) fail(flight, Status(Code::PeerDown, "dead"), false);
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::PeerDown);
    // It may be used again.
    usePeer({0});
    const BatchID next = submit({spec(0, 64)});
    succeed(output_.takeFlights()[0]);
    EXPECT_EQ(batch(next).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, APathIsResetWhenItsPeerGoesDownForTheTrainsThatComeAfterThatWord) {
    const BatchID id = submit({spec(0, 300), spec(1000, 300)});
    const auto flights = output_.takeFlights();
    tracker_.onDropPeer(DropPeer{kPeer, Status(Code::PeerDown, "dead"), false});
    tracker_.flush();
    // The worker may have closed its path before the train came, and opened another for it, which waits for ever.
    ASSERT_EQ(output_.resets.size(), 1u);
    EXPECT_EQ(output_.resets[0].reset.peer, kPeer);
    for (const Flight& flight : flights) fail(flight, Status(Code::PathReset, "path reset"), true);
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 0).error.code(), Code::PeerDown);
    EXPECT_TRUE(tracker_.idle());
}

TEST_F(Tracker, APeerThatIsForgottenTakesItsPathsAlong) {
    submit({spec(0, 300)});
    tracker_.onDropPeer(DropPeer{kPeer, Status(Code::Canceled, "closed"), true});
    tracker_.flush();
    EXPECT_TRUE(output_.resets.empty());
    for (const Flight& flight : output_.takeFlights()) fail(flight, Status(Code::Canceled, "closed"), false);
    EXPECT_TRUE(tracker_.idle());
}

TEST_F(Tracker, AForgottenPeersSegmentIsStale) {
    tracker_.onDropPeer(DropPeer{kPeer, Status(Code::Canceled, "closed"), true});
    const BatchID id = submit({spec(0, 64)});
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::StaleHandle);
}

TEST_F(Tracker, WorkForAPeerWithoutWorkersFailsUntilThereIsOne) {
    usePeer({});
    const BatchID early = submit({spec(0, 64)});
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(early, 0).error.code(), Code::TransportMissing);
    usePeer({0});
    const BatchID id = submit({spec(0, 64)});
    succeed(output_.takeFlights()[0]);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

}  // namespace
}  // namespace troupe::test
