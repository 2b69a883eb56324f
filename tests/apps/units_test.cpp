#include "apps/support/units.h"

#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

TEST(Units, AFigureHasThreeDigitsThatCount) {
    EXPECT_EQ(formatFigure(2561.084), "2561");
    EXPECT_EQ(formatFigure(123.4), "123");
    EXPECT_EQ(formatFigure(12.34), "12.3");
    EXPECT_EQ(formatFigure(1.234), "1.23");
    EXPECT_EQ(formatFigure(0.0004171), "0.000417");
    EXPECT_EQ(formatFigure(0), "0");
    EXPECT_EQ(formatFigure(1e-12), "0.000000000") << "no exponent, whatever it is";
}

TEST(Units, ATimeNeverHasAnExponent) {
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(999)), "999 ns");
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(999'400)), "999 us");
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(999'600)), "1 ms");
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(999'600'000)), "1.00 s");
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(201'327'000)), "201 ms");
}

TEST(Units, OneIsNotMany) {
    EXPECT_EQ(counted(1, "record"), "1 record");
    EXPECT_EQ(counted(2, "record"), "2 records");
    EXPECT_EQ(counted(0, "batch", "batches"), "0 batches");
}

}  // namespace
}  // namespace troupe::apps
