#include "base/fault_injector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace troupe {
namespace {

using std::chrono::milliseconds;

FaultRule rule(FaultPoint point, FaultAction action) {
    FaultRule made;
    made.point = point;
    made.action = action;
    made.nth = 1;
    made.delay = milliseconds(1);
    return made;
}

std::string pattern(FaultInjector& faults, int calls) {
    std::string fired;
    for (int i = 0; i < calls; ++i) fired += faults.judge(FaultPoint::Post, "tcp0 a") ? '1' : '0';
    return fired;
}

TEST(FaultInjector, BreaksTheCallThatWasNamedAndNoOther) {
    FaultInjector faults(1);
    FaultRule third = rule(FaultPoint::Post, FaultAction::Fail);
    third.nth = 3;
    third.code = Code::PeerDown;
    const auto id = faults.add(third);
    ASSERT_TRUE(id) << id.status().toString();
    EXPECT_EQ(pattern(faults, 2), "00");
    EXPECT_FALSE(faults.judge(FaultPoint::Completion, "tcp0 a"));
    const auto verdict = faults.judge(FaultPoint::Post, "tcp0 a");
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->cause.code(), Code::PeerDown);
    EXPECT_NE(verdict->cause.message().find("fault rule 1"), std::string::npos) << verdict->cause.message();
    EXPECT_EQ(pattern(faults, 3), "000");
    const auto count = faults.count(*id);
    ASSERT_TRUE(count);
    EXPECT_EQ(count->seen, 6u);
    EXPECT_EQ(count->fired, 1u);
}

TEST(FaultInjector, OnlyWhatMatchesIsCountedAndBroken) {
    FaultInjector faults(1);
    FaultRule second = rule(FaultPoint::StoreCall, FaultAction::Fail);
    second.nth = 2;
    second.where = "publish";
    ASSERT_TRUE(faults.add(second));
    EXPECT_FALSE(faults.judge(FaultPoint::StoreCall, "publish a"));
    EXPECT_FALSE(faults.judge(FaultPoint::StoreCall, "resolve a"));
    EXPECT_TRUE(faults.judge(FaultPoint::StoreCall, "publish a"));
}

TEST(FaultInjector, TheSameSeedDrawsTheSameFaults) {
    FaultRule some = rule(FaultPoint::Post, FaultAction::Lose);
    some.nth = 0;
    some.fraction = 0.25;
    FaultInjector one(7);
    FaultInjector same(7);
    FaultInjector other(8);
    for (FaultInjector* faults : {&one, &same, &other}) ASSERT_TRUE(faults->add(some));
    const std::string drawn = pattern(one, 4000);
    EXPECT_EQ(drawn, pattern(same, 4000));
    EXPECT_NE(drawn, pattern(other, 4000));
    const auto fired = std::count(drawn.begin(), drawn.end(), '1');
    EXPECT_GT(fired, 850);
    EXPECT_LT(fired, 1150);
}

TEST(FaultInjector, ARuleFiresAtMostAsOftenAsItSays) {
    FaultInjector faults(1);
    FaultRule all = rule(FaultPoint::Post, FaultAction::Fail);
    all.nth = 0;
    all.fraction = 1;
    all.times = 2;
    const auto id = faults.add(all);
    ASSERT_TRUE(id);
    EXPECT_EQ(pattern(faults, 4), "1100");
    ASSERT_TRUE(faults.remove(*id));
    EXPECT_EQ(faults.remove(*id).code(), Code::NotFound);
    EXPECT_EQ(faults.count(*id).status().code(), Code::NotFound);
}

TEST(FaultInjector, WhatMakesNoSenseIsRefused) {
    FaultInjector faults(1);
    const auto refused = [&](FaultRule what) { return faults.add(what).status().code() == Code::InvalidArgument; };
    EXPECT_TRUE(refused(rule(FaultPoint::Payload, FaultAction::Fail)));
    EXPECT_TRUE(refused(rule(FaultPoint::StoreCall, FaultAction::Lose)));
    EXPECT_TRUE(refused(rule(FaultPoint::Post, FaultAction::Corrupt)));
    FaultRule neither = rule(FaultPoint::Post, FaultAction::Fail);
    neither.nth = 0;
    EXPECT_TRUE(refused(neither));
    FaultRule both = rule(FaultPoint::Post, FaultAction::Fail);
    both.fraction = 0.5;
    EXPECT_TRUE(refused(both));
    FaultRule too_much = rule(FaultPoint::Post, FaultAction::Fail);
    too_much.nth = 0;
    too_much.fraction = 1.5;
    EXPECT_TRUE(refused(too_much));
    FaultRule well = rule(FaultPoint::Post, FaultAction::Fail);
    well.code = Code::Ok;
    EXPECT_TRUE(refused(well));
    FaultRule at_once = rule(FaultPoint::Post, FaultAction::Delay);
    at_once.delay = {};
    EXPECT_TRUE(refused(at_once));
    EXPECT_EQ(faults.dropPath("", std::chrono::minutes(2)).code(), Code::InvalidArgument);
    EXPECT_EQ(faults.freezeLoop(0, milliseconds(1)).code(), Code::NotInitialised);
}

TEST(FaultInjector, AsManyRulesAsTheBoundHold) {
    FaultInjector faults(1);
    for (std::size_t i = 0; i < FaultInjector::kMostRules; ++i)
        ASSERT_TRUE(faults.add(rule(FaultPoint::Post, FaultAction::Fail)));
    EXPECT_EQ(faults.add(rule(FaultPoint::Post, FaultAction::Fail)).status().code(), Code::CapacityExceeded);
    faults.clear();
    EXPECT_TRUE(faults.add(rule(FaultPoint::Post, FaultAction::Fail)));
}

TEST(FaultInjector, OneByteOfWhatIsCorruptedIsAnother) {
    FaultInjector faults(1);
    ASSERT_TRUE(faults.add(rule(FaultPoint::Payload, FaultAction::Corrupt)));
    std::vector<std::byte> bytes(100);
    faults.corrupt("tcp0", {});
    faults.corrupt("tcp0", bytes);
    faults.corrupt("tcp0", bytes);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{}), 99);
}

TEST(FaultInjector, APathIsDroppedForATime) {
    FaultInjector faults(1);
    const TimePoint now = Clock::now();
    ASSERT_TRUE(faults.dropPath("tcp0", std::chrono::seconds(30)));
    EXPECT_FALSE(faults.droppedUntil("tcp1 a", now));
    const auto until = faults.droppedUntil("tcp0 a", now);
    ASSERT_TRUE(until);
    EXPECT_FALSE(faults.droppedUntil("tcp0 a", *until));
    faults.clear();
    EXPECT_FALSE(faults.droppedUntil("tcp0 a", now));
}

TEST(FaultInjector, ARuleThatLastsEndsByItself) {
    FaultInjector faults(1);
    FaultRule all = rule(FaultPoint::Post, FaultAction::Fail);
    all.nth = 0;
    all.fraction = 1;
    all.lasts = milliseconds(20);
    const auto id = faults.add(all);
    ASSERT_TRUE(id);
    const TimePoint limit = Clock::now() + std::chrono::seconds(60);
    while (faults.judge(FaultPoint::Post, "tcp0 a") && Clock::now() < limit) std::this_thread::yield();
    EXPECT_FALSE(faults.judge(FaultPoint::Post, "tcp0 a"));
    EXPECT_EQ(faults.remove(*id).code(), Code::NotFound);
    all.lasts = std::chrono::minutes(2);
    EXPECT_EQ(faults.add(all).status().code(), Code::InvalidArgument);
    all.lasts = -milliseconds(1);
    EXPECT_EQ(faults.add(all).status().code(), Code::InvalidArgument);
}

TEST(FaultInjector, WhatOneOwnerBrokeIsMendedWithoutTheOthers) {
    FaultInjector faults(1);
    const FaultInjector::Owner other = 7;
    FaultRule all = rule(FaultPoint::Post, FaultAction::Fail);
    all.nth = 0;
    all.fraction = 1;
    ASSERT_TRUE(faults.add(all));
    ASSERT_TRUE(faults.add(all, other));
    all.point = FaultPoint::Completion;
    ASSERT_TRUE(faults.add(all, other));
    ASSERT_TRUE(faults.dropPath("tcp0", std::chrono::seconds(30)));
    ASSERT_TRUE(faults.dropPath("tcp1", std::chrono::seconds(30), other));
    const TimePoint now = Clock::now();
    faults.clear(other);
    EXPECT_TRUE(faults.judge(FaultPoint::Post, "tcp0 a"));
    EXPECT_FALSE(faults.judge(FaultPoint::Completion, "tcp0 a"));
    EXPECT_TRUE(faults.droppedUntil("tcp0 a", now));
    EXPECT_FALSE(faults.droppedUntil("tcp1 a", now));
    faults.clear(FaultInjector::kProgram);
    EXPECT_FALSE(faults.judge(FaultPoint::Post, "tcp0 a"));
    EXPECT_FALSE(faults.droppedUntil("tcp0 a", now));
}

TEST(FaultInjector, EachCallIsCountedOnceWhateverTheThreads) {
    FaultInjector faults(1);
    FaultRule some = rule(FaultPoint::Post, FaultAction::Fail);
    some.nth = 0;
    some.fraction = 0.5;
    const auto id = faults.add(some);
    ASSERT_TRUE(id);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            pattern(faults, 2000);
            const auto passing = faults.add(rule(FaultPoint::Completion, FaultAction::Fail));
            if (passing) static_cast<void>(faults.remove(*passing));
        });
    for (std::thread& thread : threads) thread.join();
    const auto count = faults.count(*id);
    ASSERT_TRUE(count);
    EXPECT_EQ(count->seen, 8000u);
    FaultInjector alone(1);
    ASSERT_TRUE(alone.add(some));
    const std::string drawn = pattern(alone, 8000);
    EXPECT_EQ(count->fired, static_cast<std::uint64_t>(std::count(drawn.begin(), drawn.end(), '1')));
}

}  // namespace
}  // namespace troupe
