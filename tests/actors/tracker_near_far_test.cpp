// TrackerLogic: memory and Nics of several NUMA nodes.

#include <gmock/gmock.h>

#include <map>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

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
