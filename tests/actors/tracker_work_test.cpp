// TrackerLogic: how tasks become flights.

#include <gmock/gmock.h>

#include <map>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

TEST_F(Tracker, SmallTaskIsOneFlightAndCompletesWithIt) {
    const BatchID id = submit({spec(0, 64)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 1u);
    EXPECT_EQ(flights[0].local, memory_.data());
    EXPECT_EQ(flights[0].remote, kRemote);
    EXPECT_EQ(flights[0].length, 64u);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::PENDING);
    EXPECT_FALSE(tracker_.idle());
    succeed(flights[0]);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
    EXPECT_EQ(batch(id).transferred_bytes, 64u);
    EXPECT_TRUE(tracker_.idle());
    EXPECT_TRUE(table_.free(id));
}

TEST_F(Tracker, ZeroLengthCompletesWithoutAFlight) {
    const BatchID id = submit({spec(0, 0), spec(0, 0)});
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
    EXPECT_TRUE(tracker_.idle());
}

TEST_F(Tracker, AdjacentTasksAreMergedUpToTheBound) {
    std::vector<TaskSpec> specs;
    for (std::uint64_t i = 0; i < 10; ++i) specs.push_back(spec(i * 100, 100));
    const BatchID id = submit(specs);
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 3u);
    EXPECT_EQ(flights[0].task_count, 4u);
    EXPECT_EQ(flights[0].length, 400u);
    EXPECT_EQ(flights[2].task_count, 2u);
    for (const Flight& flight : flights) succeed(flight);
    EXPECT_EQ(batch(id).transferred_bytes, 1000u);
    for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(task(id, i).transferred_bytes, 100u);
}

TEST_F(Tracker, TasksThatAreNotAdjacentOnBothSidesOrOfOneDirectionAreNotMerged) {
    auto far = spec(100, 100);
    far.remote += 1;
    auto read = spec(200, 100);
    read.opcode = Opcode::Read;
    submit({spec(0, 100), far, read});
    for (const Flight& flight : output_.takeFlights()) EXPECT_EQ(flight.task_count, 1u);
}

TEST_F(Tracker, LargeTaskIsCutLazilyAsTheWindowAllows) {
    const BatchID id = submit({spec(0, 10000)});
    std::uint64_t sent = 0;
    std::deque<Flight> out;
    for (const Flight& flight : output_.takeFlights()) out.push_back(flight);
    EXPECT_LE(out.size(), 10u);
    while (!out.empty()) {
        const Flight flight = out.front();
        out.pop_front();
        EXPECT_EQ(flight.local, memory_.data() + sent) << "pieces leave in order";
        sent += flight.length;
        succeed(flight);
        for (const Flight& next : output_.takeFlights()) out.push_back(next);
        std::uint64_t in_flight = 0;
        for (const Flight& one : out) in_flight += one.length;
        EXPECT_LT(in_flight, 1000u + 125u + 1u);
    }
    EXPECT_EQ(sent, 10000u);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AFullWindowHoldsBackOtherTasksUntilRoomComesBack) {
    std::vector<TaskSpec> specs;
    for (std::uint64_t i = 0; i < 20; ++i) specs.push_back(spec(i * 200, 100));
    const BatchID id = submit(specs);
    auto flights = output_.takeFlights();
    EXPECT_EQ(flights.size(), 10u);
    succeed(flights[0]);
    EXPECT_EQ(output_.takeFlights().size(), 1u);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::PENDING);
}

TEST_F(Tracker, RequestsInFlightAreBoundedToo) {
    joinWorker(1, 0, nicInfo(100, 0, 1 << 20, 4));
    usePeer({1});
    std::vector<TaskSpec> specs;
    for (std::uint64_t i = 0; i < 20; ++i) specs.push_back(spec(i * 10, 1));
    submit(specs);
    EXPECT_EQ(output_.takeFlights().size(), 4u);
}

TEST_F(Tracker, TheOwnLoopsWorkerIsPreferredAndOthersTakeWhatIsLeft) {
    joinWorker(1, 1, nicInfo(100, 0, 300));
    joinWorker(2, 0, nicInfo(100, 0, 300));
    usePeer({1, 2});
    std::vector<TaskSpec> specs;
    for (std::uint64_t i = 0; i < 5; ++i) specs.push_back(spec(i * 200, 100));
    submit(specs);
    std::map<std::uint32_t, std::size_t> flights;
    for (const auto& sent : output_.trains) flights[sent.worker] += sent.train.flights.size();
    EXPECT_EQ(flights[2], 3u);
    EXPECT_EQ(flights[1], 2u);
}

TEST_F(Tracker, OverlappingRangesOfTheOwnSegmentGoWhole) {
    auto info = nicInfo(100, 0, 1000);
    info.same_address_space = true;
    joinWorker(1, 0, info);
    constexpr std::uint32_t kSelf = 1;
    tracker_.onUsePeer(UsePeer{makePeer(kSelf), kLocalSegmentID, {1}});
    auto moved = spec(0, 5000);
    moved.segment = kLocalSegmentID;
    moved.remote = reinterpret_cast<std::uint64_t>(moved.local) + 50;
    auto apart = spec(10000, 5000);
    apart.segment = kLocalSegmentID;
    submit({moved, apart});
    const auto flights = output_.takeFlights();
    ASSERT_FALSE(flights.empty());
    EXPECT_TRUE(flights[0].whole);
    EXPECT_EQ(flights[0].length, 5000u);
    report(SliceReport{1, {}, {settledOf(flights[0], 5000, kSelf)}, {}});
    for (const Flight& flight : output_.takeFlights()) EXPECT_FALSE(flight.whole);
}

TEST_F(Tracker, EqualAddressesOfAnotherProcessAreNoOverlap) {
    auto info = nicInfo(100, 0, 1000);
    info.same_address_space = true;
    joinWorker(1, 0, info);
    usePeer({1});
    auto alike = spec(0, 5000);
    alike.remote = reinterpret_cast<std::uint64_t>(alike.local) + 50;
    submit({alike});
    const auto flights = output_.takeFlights();
    ASSERT_FALSE(flights.empty());
    for (const Flight& flight : flights) EXPECT_FALSE(flight.whole);
    EXPECT_LT(flights[0].length, 5000u);
}

}  // namespace
}  // namespace troupe::test
