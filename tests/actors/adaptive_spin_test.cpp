#include "actors/adaptive_spin.h"

#include <gtest/gtest.h>

namespace troupe::test {
namespace {

using std::chrono::microseconds;

/// Polls, each of which takes a microsecond by a clock of the test's, until the loop would sleep.
class Spin : public testing::Test {
  protected:
    int pollsUntilSleep() {
        spin_.restart();
        int polls = 1;
        while (spin_.goesOn(now_)) {
            now_ += microseconds(1);
            ++polls;
        }
        return polls;
    }

    AdaptiveSpin spin_{microseconds(50)};
    TimePoint now_{std::chrono::hours(1)};
};

TEST_F(Spin, PollsForItsTimeAfterWorkAndThenSleeps) {
    // The first begins it, and 50 more fit.
    EXPECT_EQ(pollsUntilSleep(), 51);
    EXPECT_EQ(pollsUntilSleep(), 51) << "each time anew";
}

TEST_F(Spin, WorkInBetweenBeginsItAnew) {
    ASSERT_TRUE(spin_.goesOn(now_));
    now_ += microseconds(49);
    ASSERT_TRUE(spin_.goesOn(now_));
    now_ += microseconds(49);
    spin_.restart();
    ASSERT_TRUE(spin_.goesOn(now_)) << "nothing is quiet for longer than since the work";
    now_ += microseconds(50);
    EXPECT_FALSE(spin_.goesOn(now_));
}

TEST_F(Spin, LongSleepsHalveItDownToNothing) {
    std::vector<int> polls;
    do {
        spin_.slept(true, microseconds(5000));
        polls.push_back(pollsUntilSleep());
    } while (polls.back() > 1 && polls.size() < 20);
    // 25, 12.5, 6.25, 3.125, 1.5625 microseconds, and none.
    EXPECT_EQ(polls, (std::vector{26, 14, 8, 5, 3, 1}));
    spin_.slept(true, microseconds(5000));
    EXPECT_EQ(pollsUntilSleep(), 1) << "an idle loop polls once for each time it wakes";
}

TEST_F(Spin, AShortSleepRestoresAllOfIt) {
    for (int i = 0; i < 20; ++i) spin_.slept(true, microseconds(5000));
    spin_.slept(true, microseconds(49));
    EXPECT_EQ(pollsUntilSleep(), 51);
    // One as long as the longest spin was no shorter than it.
    spin_.slept(true, microseconds(50));
    EXPECT_EQ(pollsUntilSleep(), 26);
}

TEST_F(Spin, ATimeOutIsNoWorkHoweverShortTheSleep) {
    spin_.slept(false, microseconds(1));
    EXPECT_EQ(pollsUntilSleep(), 26);
}

TEST(SpinOfNothing, SleepsAtOnceWhateverHappens) {
    AdaptiveSpin spin(Duration::zero());
    const TimePoint now{std::chrono::hours(1)};
    EXPECT_FALSE(spin.goesOn(now));
    spin.slept(true, Duration::zero());
    spin.restart();
    EXPECT_FALSE(spin.goesOn(now));
}

}  // namespace
}  // namespace troupe::test
