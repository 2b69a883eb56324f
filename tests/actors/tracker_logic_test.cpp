#include "actors/tracker_logic.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/byte_range.h"
#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::uint32_t kPeer = 2;
constexpr std::uint64_t kRemote = 0x100000;

/// One tracker, and a test that plays its workers.
class Tracker : public testing::Test {
  protected:
    Tracker() {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(memory_.data()), memory_.size()};
        region_ = *regions_.reserve(region);
        regions_.commit(region_.id);
        joinWorker(0, 0, nicInfo(100, 400, 1000));
        usePeer({0});
    }

    void joinWorker(std::uint32_t index, std::uint32_t loop, const NicInfo& nic,
                    std::vector<std::string> far_from = {}) {
        WorkerJoined joined;
        joined.far_from = std::move(far_from);
        joined.index = index;
        joined.nic = nic;
        joined.loop = loop;
        tracker_.onWorkerJoined(joined);
    }
    /// Each time another incarnation.
    void usePeer(std::vector<std::uint32_t> workers, std::uint32_t peer = kPeer) {
        peer_ = makePeer(peer);
        tracker_.onUsePeer(UsePeer{peer_, segmentOf(peer), std::move(workers)});
        tracker_.flush();
    }
    /// A task of `length` bytes at `offset` of both sides.
    TaskSpec spec(std::uint64_t offset, std::uint64_t length) {
        TaskSpec result;
        result.local = memory_.data() + offset;
        result.remote = kRemote + offset;
        result.length = length;
        result.segment = segmentOf(kPeer);
        return result;
    }
    BatchID submit(const std::vector<TaskSpec>& specs, std::uint32_t capacity = 64) {
        const BatchID batch = *table_.allocate(capacity, 0);
        submitInto(batch, specs);
        return batch;
    }
    void submitInto(BatchID batch, const std::vector<TaskSpec>& specs) {
        tracker_.onSubmit(addTasks(table_, batch, specs, regions_.regions().version()), now_);
        tracker_.flush();
    }
    static SliceReport::Settled settledOf(const Flight& flight, std::uint64_t bytes, std::uint32_t peer = kPeer) {
        return {flight.batch, flight.first_task, flight.task_count, peer, flight.length, bytes};
    }
    void report(const SliceReport& report) {
        tracker_.onReport(report, now_);
        tracker_.flush();
    }
    void succeed(const Flight& flight, std::uint32_t worker = 0) {
        report(SliceReport{worker, {}, {settledOf(flight, flight.length)}, {}});
    }
    void fail(const Flight& flight, Status cause, bool retryable, bool quiesced = true) {
        report(SliceReport{0, {{flight, kPeer, std::move(cause), retryable, quiesced}}, {settledOf(flight, 0)}, {}});
    }
    TransferStatus task(BatchID batch, std::uint32_t index) { return table_.find(batch)->taskStatus(index); }
    TransferStatus batch(BatchID id) { return table_.find(id)->summary(); }

    std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
    std::shared_ptr<const Peer> peer_;
    RegistrationTable regions_;
    Region region_;
    BatchTable table_{16};
    RecordedTracker output_;
    TrackerLogic tracker_{0, 0, regions_, output_};
    TimePoint now_ = Clock::now();
};

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

// --- failures ----------------------------------------------------------------------------------------------------

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
    fail(flights[0], Status(Code::ConnectionLost, "segment 'peer' has new data ports"), false);
    EXPECT_TRUE(output_.takeFlights().empty());
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(task(id, i).s, TransferStatusEnum::FAILED);
        EXPECT_EQ(task(id, i).error.code(), Code::ConnectionLost);
    }
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

// --- deadlines and cancels ---------------------------------------------------------------------------------------

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

// --- peers -------------------------------------------------------------------------------------------------------

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

// --- regions -----------------------------------------------------------------------------------------------------

TEST_F(Tracker, ASourceUnregisteredDuringSubmitIsRefused) {
    const std::uint64_t seen = regions_.regions().version();
    const BatchID id = *table_.allocate(1, 0);
    const auto message = addTasks(table_, id, {spec(0, 64)}, seen);
    ASSERT_TRUE(regions_.beginRemoval(region_.range.addr));
    // The tracker has said that nothing uses it: a submit that comes after is too late.
    bool idle = false;
    tracker_.onAwaitSourceIdle(
        {region_.range, regions_.regions().version(), kForever, [&](const auto& users) { idle = users.empty(); }},
        now_);
    ASSERT_TRUE(idle);
    tracker_.onSubmit(message, now_);
    tracker_.flush();
    EXPECT_TRUE(output_.trains.empty());
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::AddressNotRegistered);
}

TEST_F(Tracker, ASubmitAcceptedBeforeItsSourceIsUnregisteredIsWaitedFor) {
    const std::uint64_t seen = regions_.regions().version();
    const BatchID id = *table_.allocate(1, 0);
    const auto message = addTasks(table_, id, {spec(0, 64)}, seen);
    ASSERT_TRUE(regions_.beginRemoval(region_.range.addr));
    tracker_.onSubmit(message, now_);
    tracker_.flush();
    bool idle = false;
    tracker_.onAwaitSourceIdle(
        {region_.range, regions_.regions().version(), kForever, [&](const auto& users) { idle = users.empty(); }},
        now_);
    EXPECT_FALSE(idle);
    succeed(output_.takeFlights().at(0));
    EXPECT_TRUE(idle);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AReadIntoMemoryRegisteredAgainReadOnlyIsRefusedHoweverManyUnregistrationsLater) {
    const std::uint64_t seen = regions_.regions().version();
    const BatchID id = *table_.allocate(2, 0);
    auto read = spec(0, 64);
    read.opcode = Opcode::Read;
    const auto message = addTasks(table_, id, {read, spec(5000, 64)}, seen);
    const auto removed = regions_.beginRemoval(region_.range.addr);
    ASSERT_TRUE(removed);
    std::uint64_t version = regions_.regions().version();
    tracker_.onAwaitSourceIdle({region_.range, version, kForever, [](const auto&) {}}, now_);
    regions_.remove(region_.id);
    Region again;
    again.range = region_.range;
    again.writable = false;
    again = *regions_.reserve(again);
    regions_.commit(again.id);
    // More than the tracker remembers, all of other memory.
    for (std::uint64_t i = 0; i < 1000; ++i)
        tracker_.onAwaitSourceIdle({ByteRange{64 + i, 1}, ++version, kForever, [](const auto&) {}}, now_);
    tracker_.onSubmit(message, now_);
    tracker_.flush();
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(task(id, 0).error.code(), Code::AddressNotRegistered);
    succeed(output_.takeFlights().at(0));
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::COMPLETED) << "a WRITE only reads it";
}

TEST_F(Tracker, OnlyTheUnregisteredRangeIsRefused) {
    const std::uint64_t seen = regions_.regions().version();
    const BatchID id = *table_.allocate(2, 0);
    const auto message = addTasks(table_, id, {spec(0, 64), spec(5000, 64)}, seen);
    const ByteRange gone{reinterpret_cast<std::uint64_t>(memory_.data()), 1000};
    tracker_.onAwaitSourceIdle({gone, seen + 1, kForever, [](const auto&) {}}, now_);
    tracker_.onSubmit(message, now_);
    tracker_.flush();
    EXPECT_EQ(task(id, 0).s, TransferStatusEnum::FAILED);
    succeed(output_.takeFlights().at(0));
    EXPECT_EQ(task(id, 1).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AwaitSourceIdleIsAnsweredWhenTheLastUserEnds) {
    const BatchID id = submit({spec(0, 64)});
    submit({spec(5000, 64)});
    const auto flights = output_.takeFlights();
    std::optional<std::vector<BatchID>> answer;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()), 1000};
    tracker_.onAwaitSourceIdle({range, 0, now_ + std::chrono::seconds(5), [&](const auto& users) { answer = users; }},
                               now_);
    EXPECT_FALSE(answer);
    succeed(flights[0]);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->empty());
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AwaitSourceIdleWaitsForWhatIsSubmittedMeanwhileToo) {
    const BatchID early = submit({spec(0, 64), spec(500, 64), spec(0, 0), spec(5000, 64)});
    const auto before = output_.takeFlights();
    int answers = 0;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()), 1000};
    for (int i = 0; i < 2; ++i)
        tracker_.onAwaitSourceIdle({range, 0, kForever, [&](const auto& users) { answers += users.empty(); }}, now_);
    submit({spec(900, 64), spec(0, 0)});
    const auto after = output_.takeFlights();
    ASSERT_EQ(before.size() + after.size(), 4u);
    succeed(before[2]);
    succeed(before[1]);
    tracker_.onEndTasks(EndTasks{early, 0, Status(Code::Canceled, "by the caller")}, *table_.find(early));
    fail(before[0], Status(Code::PathReset, "path reset"), true);
    EXPECT_EQ(answers, 0);
    succeed(after[0]);
    EXPECT_EQ(answers, 2);
}

TEST_F(Tracker, AwaitSourceIdleNamesTheUsersAtItsDeadline) {
    const BatchID id = submit({spec(0, 64)});
    std::optional<std::vector<BatchID>> answer;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()), 1};
    const TimePoint deadline = now_ + std::chrono::seconds(5);
    tracker_.onAwaitSourceIdle({range, 0, deadline, [&](const auto& users) { answer = users; }}, now_);
    EXPECT_GE(output_.wake, deadline);
    tracker_.onTimer(output_.wake);
    ASSERT_TRUE(answer);
    EXPECT_THAT(*answer, testing::ElementsAre(id));
}

TEST_F(Tracker, AwaitSourceIdleOfSeveralRangesWaitsForTheUsersOfEach) {
    const BatchID id = submit({spec(0, 64), spec(500, 64), spec(1000, 64)});
    const auto flights = output_.takeFlights();
    ASSERT_EQ(flights.size(), 3u);
    const auto base = reinterpret_cast<std::uint64_t>(memory_.data());
    const RangeSet ranges({ByteRange{base + 1000, 100}, ByteRange{base, 100}});
    std::optional<std::vector<BatchID>> answer;
    tracker_.onAwaitSourceIdle({ranges, 0, kForever, [&](const auto& users) { answer = users; }}, now_);
    succeed(flights[0]);
    EXPECT_FALSE(answer);
    succeed(flights[2]);
    ASSERT_TRUE(answer) << "the one between them is in neither";
    EXPECT_TRUE(answer->empty());
    succeed(flights[1]);
    EXPECT_EQ(batch(id).s, TransferStatusEnum::COMPLETED);
}

TEST_F(Tracker, AwaitSourceIdleOfAnUnusedRangeIsAnsweredAtOnce) {
    submit({spec(0, 64)});
    bool answered = false;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()) + 64, 1000};
    tracker_.onAwaitSourceIdle({range, 0, kForever, [&](const auto& users) { answered = users.empty(); }}, now_);
    EXPECT_TRUE(answered);
}

// --- near and far ------------------------------------------------------------------------------------------------

/// Two Nics near cpu:0 and one near cpu:1; memory on both nodes and some that does not say.
class NearAndFar : public Tracker {
  protected:
    NearAndFar() {
        const Region whole = *regions_.beginRemoval(region_.range.addr);
        regions_.remove(whole.id);
        const std::uint64_t third = memory_.size() / 4;
        int part = 0;
        for (const char* location : {"cpu:0", "cpu:1", "*", "cpu:7"}) {
            Region region;
            region.range = {region_.range.addr + third * static_cast<std::uint64_t>(part++), third};
            region.location = location;
            regions_.commit(regions_.reserve(region)->id);
        }
        joinWorker(0, 0, nicInfo(100, 0, 1000), {"cpu:1"});
        joinWorker(1, 0, nicInfo(100, 0, 1000), {"cpu:1"});
        joinWorker(2, 0, nicInfo(100, 0, 1000), {"cpu:0"});
        usePeer({0, 1, 2});
        quarter_ = third;
    }
    /// Who was sent what since the last call: worker -> bytes.
    std::map<std::uint32_t, std::uint64_t> carried() {
        std::map<std::uint32_t, std::uint64_t> bytes;
        for (const auto& sent : output_.trains)
            for (const Flight& flight : sent.train.flights) bytes[sent.worker] += flight.length;
        return bytes;
    }
    std::uint64_t quarter_ = 0;
};

TEST_F(NearAndFar, WorkIsPulledByEveryNearNicAndByNoOther) {
    submit({spec(0, 16000)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}}));
    // The rest waits for them, with the far one idle.
    for (const auto& sent : std::exchange(output_.trains, {}))
        for (const Flight& flight : sent.train.flights) succeed(flight, sent.worker);
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}}));
}

TEST_F(NearAndFar, EachNodesMemoryHasItsOwn) {
    submit({spec(quarter_, 500)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{2, 500}}));
}

TEST_F(NearAndFar, WorkWhoseNicsAreBusyHoldsUpNobodyWhoseNicIsNot) {
    submit({spec(0, 16000), spec(quarter_, 500)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}, {2, 500}}));
    // Also of later submits, and when the locations take turns.
    const auto sent = std::exchange(output_.trains, {});
    submit({spec(100, 50), spec(quarter_ + 500, 100), spec(200, 50), spec(quarter_ + 700, 100)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{2, 200}}));
    for (const auto& train : sent)
        for (const Flight& flight : train.train.flights) succeed(flight, train.worker);
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}, {2, 200}}));
}

TEST_F(NearAndFar, WhatEndsWhileItIsPassedIsTakenOutOfTheQueue) {
    auto ends = spec(100, 50);
    ends.deadline = now_ + std::chrono::seconds(1);
    submit({spec(0, 4000)});
    submit({ends});
    tracker_.onTimer(now_ + std::chrono::seconds(2));
    tracker_.flush();
    submit({spec(quarter_, 500)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}, {2, 500}}));
}

TEST_F(NearAndFar, EachPartOfARegionIsCarriedByTheNicsNearToIt) {
    const Region first = *regions_.beginRemoval(region_.range.addr);
    regions_.remove(first.id);
    Region region;
    region.range = {region_.range.addr, quarter_};
    region.location = "segments:512:0,1";
    region.parts = std::make_shared<const Location>(*parseLocation(region.location));
    regions_.commit(regions_.reserve(region)->id);
    // The border is in the middle of it, and of a slice.
    const std::uint64_t border = quarter_ / 2;
    submit({spec(border - 150, 300)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 150}, {2, 150}}));
}

TEST_F(NearAndFar, MemoryThatDoesNotSayOrThatTheMatrixLacksIsNearToAll) {
    for (const std::uint64_t part : {2, 3}) {
        submit({spec(part * quarter_, 3000)});
        EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{0, 1000}, {1, 1000}, {2, 1000}})) << part;
        for (const auto& sent : std::exchange(output_.trains, {}))
            for (const Flight& flight : sent.train.flights) succeed(flight, sent.worker);
    }
}

TEST_F(NearAndFar, WhereNoNearNicReachesThePeerTheFarOneCarriesAll) {
    usePeer({2});
    submit({spec(0, 500)});
    EXPECT_EQ(carried(), (std::map<std::uint32_t, std::uint64_t>{{2, 500}}));
}

TEST_F(NearAndFar, WhatFailedOnceMayGoByAFarNic) {
    auto request = spec(0, 2000);
    request.opcode = Opcode::Read;
    request.retries = 100;
    submit({request});
    const auto sent = std::exchange(output_.trains, {});
    std::vector<std::pair<std::uint32_t, Flight>> out;
    for (const auto& train : sent)
        for (const Flight& flight : train.train.flights) out.emplace_back(train.worker, flight);
    for (const auto& [worker, flight] : out) {
        SliceReport lost{worker, {}, {settledOf(flight, 0)}, {}};
        lost.failed.push_back({flight, kPeer, Status(Code::ConnectionLost, "the link is down"), true, true});
        report(lost);
    }
    // What one near Nic failed goes by the other as that has room, and by the far one.
    auto later = carried();
    EXPECT_GT(later[2], 0u) << "nothing went by the far Nic";
    EXPECT_EQ(later[0] + later[1] + later[2], 2000u);
}

}  // namespace
}  // namespace troupe::test
