#include "base/rare_word.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using namespace std::chrono_literals;

TEST(RareWord, IsSaidAtOnceAndThenEveryTenSecondsWithTheCount) {
    RareWord word;
    TimePoint now = Clock::now();
    EXPECT_EQ(word.turn(now), "");
    for (int i = 0; i < 99; ++i) EXPECT_FALSE(word.turn(now += 100ms));
    EXPECT_EQ(word.turn(now += 100ms), "; 99 others since the last such word");
    EXPECT_FALSE(word.turn(now += 9999ms));
    EXPECT_EQ(word.turn(now += 1ms), "; 1 others since the last such word");
    EXPECT_EQ(word.turn(now + 1h), "") << "nothing was left out";
}

}  // namespace
}  // namespace troupe
