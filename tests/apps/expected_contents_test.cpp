#include "apps/support/expected_contents.h"

#include <gtest/gtest.h>

#include <vector>

#include "apps/support/payload.h"
#include "apps/support/random.h"

namespace troupe::apps {
namespace {

TEST(ExpectedContents, FollowsRandomWritesByteByByte) {
    constexpr std::size_t kSize = 300;
    std::vector<std::byte> memory(kSize);
    std::vector<bool> written(kSize);
    ExpectedContents contents;
    Random random(11);
    for (std::uint64_t round = 1; round <= 2000; ++round) {
        const std::uint64_t length = random.logUniform(1, kSize);
        const std::uint64_t offset = random.below(kSize - length + 1);
        fillPayload(std::span(memory).subspan(offset, length), round, offset);
        contents.write(offset, length, round);
        ASSERT_FALSE(contents.check(memory, 0)) << "round " << round;
        ASSERT_LE(contents.extentCount(), kSize);

        const std::uint64_t bad = offset + random.below(length);
        memory[bad] ^= std::byte{1};
        const auto mismatch = contents.check(std::span<const std::byte>(memory).subspan(bad), bad);
        ASSERT_TRUE(mismatch);
        EXPECT_EQ(mismatch->offset, bad);
        EXPECT_EQ(mismatch->seed, round);
        memory[bad] ^= std::byte{1};
    }
}

TEST(ExpectedContents, AWriteInsideAnotherLeavesBothSidesOfIt) {
    ExpectedContents contents;
    contents.write(0, 100, 1);
    contents.write(40, 20, 2);
    const auto extents = contents.extents(10, 80);
    ASSERT_EQ(extents.size(), 3u);
    EXPECT_EQ(extents[0].offset, 10u);
    EXPECT_EQ(extents[0].length, 30u);
    EXPECT_EQ(extents[0].seed, 1u);
    EXPECT_EQ(extents[1].seed, 2u);
    EXPECT_EQ(extents[1].length, 20u);
    EXPECT_EQ(extents[2].offset, 60u);
    EXPECT_EQ(extents[2].length, 30u);
    EXPECT_EQ(extents[2].seed, 1u);
}

TEST(ExpectedContents, BytesNeverWrittenAreNotCompared) {
    ExpectedContents contents;
    const std::vector<std::byte> anything(50, std::byte{3});
    EXPECT_FALSE(contents.check(anything, 0));
    contents.write(10, 0, 1);
    EXPECT_FALSE(contents.check(anything, 0));
    contents.write(100, 10, 1);
    EXPECT_FALSE(contents.check(anything, 50));
    EXPECT_FALSE(contents.check(anything, 110));
    EXPECT_TRUE(contents.check(anything, 60));
}

}  // namespace
}  // namespace troupe::apps
