#include "base/byte_range.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace troupe {
namespace {

constexpr std::uint64_t kTop = UINT64_MAX;

TEST(ByteRange, EndsOneAfterItsLastByte) {
    const ByteRange range{0x1000, 0x200};
    EXPECT_FALSE(range.wraps());
    EXPECT_EQ(range.end(), 0x1200u);
}

TEST(ByteRange, WrapsWhenItsEndHasNoAddress) {
    EXPECT_FALSE((ByteRange{0, kTop}.wraps()));
    EXPECT_FALSE((ByteRange{kTop, 0}.wraps()));
    EXPECT_FALSE((ByteRange{kTop - 8, 8}.wraps()));
    EXPECT_TRUE((ByteRange{kTop - 8, 9}.wraps()));
    EXPECT_TRUE((ByteRange{kTop, 1}.wraps()));
    EXPECT_TRUE((ByteRange{kTop, kTop}.wraps()));
}

TEST(ByteRange, ContainsItselfAndWhatLiesInside) {
    const ByteRange range{0x1000, 0x1000};
    EXPECT_TRUE(range.contains(range));
    EXPECT_TRUE(range.contains({0x1000, 1}));
    EXPECT_TRUE(range.contains({0x1fff, 1}));
    EXPECT_TRUE(range.contains({0x2000, 0}));
    EXPECT_FALSE(range.contains({0xfff, 1}));
    EXPECT_FALSE(range.contains({0x2000, 1}));
    EXPECT_FALSE(range.contains({0x1fff, 2}));
    EXPECT_FALSE(range.contains({0xfff, 0x1002}));
}

TEST(ByteRange, NeverContainsARangeThatWraps) {
    const ByteRange range{0x1000, 0x1000};
    // Its wrapped end would lie inside.
    EXPECT_FALSE(range.contains({0x1800, kTop - 0x100}));
    EXPECT_FALSE(range.contains({0x1000, kTop}));
}

TEST(ByteRange, OverlapsWhenAByteIsShared) {
    const ByteRange range{0x1000, 0x1000};
    EXPECT_TRUE(range.overlaps(range));
    EXPECT_TRUE(range.overlaps({0x1fff, 1}));
    EXPECT_TRUE(range.overlaps({0, 0x1001}));
    EXPECT_TRUE((ByteRange{0x1400, 1}.overlaps(range)));
}

TEST(ByteRange, DoesNotOverlapWhatItOnlyTouches) {
    const ByteRange range{0x1000, 0x1000};
    EXPECT_FALSE(range.overlaps({0x2000, 0x1000}));
    EXPECT_FALSE(range.overlaps({0, 0x1000}));
    EXPECT_FALSE(range.overlaps({0x1800, 0}));
    EXPECT_FALSE((ByteRange{0x1800, 0}.overlaps(range)));
}

TEST(ByteRange, ReadsAsAHalfOpenInterval) {
    EXPECT_EQ((ByteRange{0x7f00, 0x100}.toString()), "[0x7f00, 0x8000)");
    EXPECT_EQ((ByteRange{kTop, 2}.toString()), "[0xffffffffffffffff, +0x2)");
}

TEST(RangeSet, IsInOrderAndWhatTouchesOrOverlapsIsOne) {
    const RangeSet set({{0x5000, 0x1000}, {0x1000, 0x1000}, {0x9000, 0}, {0x2000, 0x800}, {0x5800, 0x100}});
    ASSERT_EQ(set.ranges().size(), 2u);
    EXPECT_EQ(set.ranges()[0], (ByteRange{0x1000, 0x1800}));
    EXPECT_EQ(set.ranges()[1], (ByteRange{0x5000, 0x1000}));
    EXPECT_EQ(set.hull(), (ByteRange{0x1000, 0x5000}));
}

TEST(RangeSet, OverlapsWhatSharesAByteWithAnyOfThem) {
    const RangeSet set({{0x1000, 0x1000}, {0x3000, 0x1000}, {0x5000, 1}});
    for (const ByteRange& inside : {ByteRange{0x1000, 1}, ByteRange{0x1fff, 1}, ByteRange{0, 0x1001},
                                    ByteRange{0x2000, 0x1001}, ByteRange{0x5000, 0x100}, ByteRange{0, kTop}})
        EXPECT_TRUE(set.overlaps(inside)) << inside.toString();
    for (const ByteRange& outside : {ByteRange{0x2000, 0x1000}, ByteRange{0, 0x1000}, ByteRange{0x5001, 0x100},
                                     ByteRange{0x1800, 0}, ByteRange{kTop - 1, 1}})
        EXPECT_FALSE(set.overlaps(outside)) << outside.toString();
    EXPECT_TRUE(RangeSet(ByteRange{0, kTop}).overlaps({kTop - 1, 1}));
}

TEST(RangeSet, OfNothingOverlapsNothing) {
    for (const RangeSet& set : {RangeSet(), RangeSet(ByteRange{}), RangeSet(std::vector<ByteRange>{{0x1000, 0}})}) {
        EXPECT_TRUE(set.ranges().empty());
        EXPECT_EQ(set.hull(), ByteRange{});
        EXPECT_FALSE(set.overlaps({0, kTop}));
    }
}

}  // namespace
}  // namespace troupe
