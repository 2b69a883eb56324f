#include "actors/retry_budget.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr RetryBudget::Limits kNoFloor{20, 0};
constexpr std::uint64_t kUnit = RetryBudget::kLeastCost;

TEST(RetryBudgetBucket, BeginsFullAndRefusesWhenItIsEmpty) {
    RetryBudget budget;
    budget.setCapacity(10 * kUnit);
    const TimePoint now = Clock::now();
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.take(kNoFloor, 1, now)) << i;
    EXPECT_FALSE(budget.take(kNoFloor, 1, now));
    EXPECT_FALSE(budget.take(kNoFloor, 1, now + std::chrono::hours(1)));
}

TEST(RetryBudgetBucket, WhatArrivesFillsItByItsShare) {
    RetryBudget budget;
    budget.setCapacity(10 * kUnit);
    const TimePoint now = Clock::now();
    ASSERT_TRUE(budget.take(kNoFloor, 10 * kUnit, now));
    for (int i = 0; i < 6; ++i) budget.arrived(kNoFloor, kUnit);  // A fifth of 6 units.
    EXPECT_TRUE(budget.take(kNoFloor, 1, now));
    EXPECT_FALSE(budget.take(kNoFloor, 1, now));
    for (int i = 0; i < 1000; ++i) budget.arrived(kNoFloor, 100 * kUnit);
    EXPECT_EQ(budget.left(), 10 * kUnit) << "it holds no more than its capacity";
}

TEST(RetryBudgetBucket, TheFloorFillsItWithTime) {
    const RetryBudget::Limits limits{0, 100 * kUnit};
    RetryBudget budget;
    budget.setCapacity(10 * kUnit);
    TimePoint now = Clock::now();
    ASSERT_TRUE(budget.take(limits, 10 * kUnit, now));
    EXPECT_FALSE(budget.take(limits, 1, now + std::chrono::milliseconds(9)));
    now += std::chrono::milliseconds(31);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.take(limits, 1, now)) << i;
    EXPECT_FALSE(budget.take(limits, 1, now));
}

TEST(RetryBudgetBucket, APartLargerThanTheBucketPassesWhenThatIsFull) {
    RetryBudget budget;
    budget.setCapacity(2 * kUnit);
    EXPECT_TRUE(budget.take(kNoFloor, 1ull << 40, Clock::now()));
    EXPECT_FALSE(budget.take(kNoFloor, 1, Clock::now()));
}

TEST(RetryBudgetBucket, AnotherSetOfPathsAddsOrTakesItsPart) {
    RetryBudget budget;
    budget.setCapacity(4 * kUnit);
    ASSERT_TRUE(budget.take(kNoFloor, 4 * kUnit, Clock::now()));
    budget.setCapacity(6 * kUnit);
    EXPECT_EQ(budget.left(), 2 * kUnit);
    budget.setCapacity(kUnit);
    EXPECT_EQ(budget.left(), kUnit);
}

/// A tracker whose peer always fails: the path takes `kWindow` requests.
class RetryStorm : public testing::Test {
  protected:
    static constexpr std::uint32_t kPeer = 5;
    static constexpr std::uint32_t kWindow = 3;
    static constexpr std::uint16_t kRetries = 1000;

    RetryStorm() {
        region_.range = {reinterpret_cast<std::uint64_t>(memory_.data()), memory_.size()};
        const auto reserved = regions_.reserve(region_);
        EXPECT_TRUE(reserved.status().isOk());
        regions_.commit(reserved->id);
        WorkerJoined joined;
        joined.nic = nicInfo(1000, 0, 1000, kWindow);
        tracker_.onWorkerJoined(joined);
        tracker_.onUsePeer(UsePeer{makePeer(kPeer), segmentOf(kPeer), {0}});
    }
    BatchID submit() {
        TaskSpec spec;
        spec.local = memory_.data();
        spec.remote = 0x1000;
        spec.length = 64;
        spec.segment = segmentOf(kPeer);
        spec.opcode = Opcode::Read;
        spec.retries = kRetries;
        const BatchID id = *table_.allocate(1, 0);
        tracker_.onSubmit(addTasks(table_, id, {spec}, regions_.regions().version()), now_);
        tracker_.flush();
        return id;
    }
    void end(const Flight& flight, const Status& cause) {
        SliceReport report;
        if (!cause) report.failed.push_back({flight, kPeer, cause, true, true});
        report.settled.push_back({flight.batch, flight.first_task, 1, kPeer, flight.length, cause ? flight.length : 0});
        tracker_.onReport(report, now_);
        tracker_.flush();
    }
    /// Fails what goes out until nothing does any more; returns how often.
    std::size_t failAll(const Status& cause) {
        std::size_t sent = 0;
        for (auto flights = output_.takeFlights(); !flights.empty(); flights = output_.takeFlights())
            for (const Flight& flight : flights) {
                ++sent;
                end(flight, cause);
            }
        return sent;
    }
    TransferStatus status(BatchID id) { return table_.find(id)->taskStatus(0); }

    std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
    RegistrationTable regions_;
    Region region_;
    BatchTable table_{256};
    RecordedTracker output_;
    TrackerLogic tracker_{0, 0, regions_, output_, kNoFloor};
    TimePoint now_ = Clock::now();
};

TEST_F(RetryStorm, EndsWithTheCauseAndTheBudget) {
    const BatchID id = submit();
    const std::size_t sent = failAll(Status(Code::ConnectionLost, "the cable is out"));
    EXPECT_EQ(sent, 1u + 8 * kWindow) << "eight windows may be sent again";
    EXPECT_EQ(status(id).s, TransferStatusEnum::FAILED);
    EXPECT_EQ(status(id).error.code(), Code::ConnectionLost);
    for (const char* word : {"the cable is out", "retry budget of segment 'peer5' is used up"})
        EXPECT_NE(status(id).error.message().find(word), std::string::npos) << status(id).error.message();
    // It is in the task's history, and so in explain.
    const auto batch = table_.find(id);
    ASSERT_TRUE(batch->task(0).history);
    EXPECT_NE(batch->task(0).history->attempts.back().cause.message().find("used up"), std::string::npos);
    // The next one is tried, once.
    const BatchID next = submit();
    EXPECT_EQ(failAll(Status(Code::ConnectionLost, "the cable is out")), 1u);
    EXPECT_EQ(status(next).s, TransferStatusEnum::FAILED);
}

TEST_F(RetryStorm, WhatArrivesPaysForOneInFive) {
    submit();
    failAll(Status(Code::ConnectionLost, "lost"));
    for (int i = 0; i < 6; ++i) {
        const BatchID good = submit();
        for (const Flight& flight : output_.takeFlights()) end(flight, {});
        EXPECT_EQ(status(good).s, TransferStatusEnum::COMPLETED);
    }
    submit();
    EXPECT_EQ(failAll(Status(Code::ConnectionLost, "lost")), 2u);
}

TEST_F(RetryStorm, ResetsForAnothersSakeCostNothing) {
    submit();
    failAll(Status(Code::ConnectionLost, "lost"));
    const BatchID bystander = submit();
    for (int i = 0; i < 20; ++i)
        for (const Flight& flight : output_.takeFlights()) end(flight, Status(Code::PathReset, "path reset"));
    for (const Flight& flight : output_.takeFlights()) end(flight, {});
    EXPECT_EQ(status(bystander).s, TransferStatusEnum::COMPLETED);
}

}  // namespace
}  // namespace troupe::test
