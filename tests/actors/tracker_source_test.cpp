// TrackerLogic: local memory that is unregistered.

#include <gmock/gmock.h>

#include "tests/actors/tracker_fixture.h"

namespace troupe::test {
namespace {

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

TEST_F(Tracker, WhoAwaitsAnIdleSourceIsAnsweredWhenTheTrackerEnds) {
    const BatchID id = submit({spec(0, 64)});
    std::vector<BatchID> users;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()), 64};
    tracker_.onAwaitSourceIdle({range, 0, kForever, [&](const auto& those) { users = those; }}, now_);
    EXPECT_TRUE(users.empty());
    tracker_.onEnd();
    EXPECT_EQ(users, std::vector<BatchID>{id});
}

TEST_F(Tracker, AwaitSourceIdleOfAnUnusedRangeIsAnsweredAtOnce) {
    submit({spec(0, 64)});
    bool answered = false;
    const ByteRange range{reinterpret_cast<std::uint64_t>(memory_.data()) + 64, 1000};
    tracker_.onAwaitSourceIdle({range, 0, kForever, [&](const auto& users) { answered = users.empty(); }}, now_);
    EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace troupe::test
