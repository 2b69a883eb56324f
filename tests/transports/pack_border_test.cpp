#include "transports/pack_border.h"

#include <gtest/gtest.h>

namespace troupe::device {
namespace {

using std::chrono::microseconds;

PackBorder::Sample sample(std::size_t pages, std::uint64_t bytes, int kernel, int copies) {
    return {pages, bytes, microseconds(kernel), microseconds(copies)};
}

PackBorder borderOf(const std::vector<PackBorder::Sample>& samples) { return PackBorder::of(samples); }

TEST(PackBorder, WhatWasNotMeasuredIsNeverTheKernels) {
    for (const PackBorder& border : {PackBorder(), borderOf({})}) {
        EXPECT_FALSE(border.takes(1000, 1000));
        EXPECT_EQ(border.toString(), "never");
    }
}

TEST(PackBorder, PagesUpToTheLastSizeThatItWonWithAreTheKernels) {
    const PackBorder border =
        borderOf({sample(8, 4096, 10, 30), sample(8, 512, 10, 30), sample(8, 16384, 20, 31), sample(8, 65536, 60, 40)});
    EXPECT_TRUE(border.takes(8, 8 * 512));
    EXPECT_TRUE(border.takes(8, 8 * 16384));
    EXPECT_FALSE(border.takes(8, 8 * 16385));
    EXPECT_EQ(border.toString(), "8 or more up to 16384 bytes");
}

/// A win behind a defeat is chance.
TEST(PackBorder, BehindTheFirstSizeThatItDidNotWinWithNothingIsTheKernels) {
    const PackBorder border = borderOf({sample(8, 512, 10, 30), sample(8, 4096, 31, 30), sample(8, 16384, 10, 30)});
    EXPECT_TRUE(border.takes(8, 8 * 512));
    EXPECT_FALSE(border.takes(8, 8 * 4096));
}

TEST(PackBorder, WhatItWinsWithFewPagesItWinsWithMore) {
    const PackBorder border = borderOf({sample(2, 512, 10, 9), sample(8, 512, 10, 30), sample(8, 4096, 10, 30),
                                        sample(32, 512, 10, 99), sample(32, 4096, 99, 50)});
    EXPECT_FALSE(border.takes(2, 2 * 512));
    EXPECT_FALSE(border.takes(7, 7 * 512));
    EXPECT_TRUE(border.takes(8, 8 * 4096));
    EXPECT_TRUE(border.takes(64, 64 * 4096)) << "whatever was seen of more of them";
    EXPECT_FALSE(border.takes(64, 64 * 8192));
}

TEST(PackBorder, ADrawGoesToTheCopies) {
    EXPECT_FALSE(borderOf({sample(8, 512, 100, 100)}).takes(8, 8));
    EXPECT_FALSE(borderOf({sample(8, 512, 100, 110)}).takes(8, 8));
    EXPECT_TRUE(borderOf({sample(8, 512, 100, 111)}).takes(8, 8));
    // Of two of the same both have to say so.
    EXPECT_FALSE(borderOf({sample(8, 512, 100, 200), sample(8, 512, 100, 90)}).takes(8, 8));
}

TEST(PackBorder, PagesOfManySizesGoByTheirAverage) {
    const PackBorder border = borderOf({sample(2, 1000, 1, 2)});
    EXPECT_TRUE(border.takes(3, 3 * 1000));
    EXPECT_FALSE(border.takes(3, 3 * 1001));
}

TEST(PackBorder, OnePageIsACopyWhateverIsAsked) {
    EXPECT_FALSE(PackBorder::always().takes(0, 0));
    EXPECT_FALSE(PackBorder::always().takes(1, 1));
    EXPECT_TRUE(PackBorder::always().takes(2, std::uint64_t{1} << 40));
    EXPECT_EQ(PackBorder::always().toString(), "2 or more");
    EXPECT_FALSE(borderOf({sample(1, 512, 1, 100)}).takes(1, 1));
}

}  // namespace
}  // namespace troupe::device
