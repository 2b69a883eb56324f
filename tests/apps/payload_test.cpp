#include "apps/support/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "apps/support/random.h"

namespace troupe::apps {
namespace {

std::vector<std::byte> payload(std::size_t size, std::uint64_t seed, std::uint64_t offset) {
    std::vector<std::byte> bytes(size);
    fillPayload(bytes, seed, offset);
    return bytes;
}

TEST(Payload, APieceIsThatPieceOfTheWholeWhereverItStarts) {
    const auto whole = payload(256, 7, 0);
    for (std::size_t offset = 0; offset < 32; ++offset)
        for (std::size_t size = 0; size < 40; ++size) {
            const auto piece = payload(size, 7, offset);
            EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<std::ptrdiff_t>(offset)));
            EXPECT_FALSE(checkPayload(piece, 7, offset));
        }
}

TEST(Payload, AnySingleChangedByteIsFoundWithItsPlaceAndValues) {
    for (std::size_t at = 0; at < 43; ++at) {
        auto bytes = payload(43, 9, 5);
        const std::byte right = bytes[at];
        bytes[at] ^= std::byte{0x40};
        const auto bad = checkPayload(bytes, 9, 5);
        ASSERT_TRUE(bad);
        EXPECT_EQ(bad->index, at);
        EXPECT_EQ(bad->expected, right);
        EXPECT_EQ(bad->got, bytes[at]);
    }
}

TEST(Payload, OtherSeedsAndOffsetsDiffer) {
    const auto bytes = payload(64, 1, 0);
    EXPECT_TRUE(checkPayload(bytes, 2, 0));
    EXPECT_TRUE(checkPayload(bytes, 1, 1));
    EXPECT_TRUE(checkPayload(bytes, 1, 8));
    // Seeds whose difference is the generator's step must not give shifted copies of one stream.
    EXPECT_TRUE(checkPayload(bytes, 1 + kGoldenGamma, 8));
    EXPECT_TRUE(checkPayload(bytes, 1 - kGoldenGamma, 8));
}

TEST(Payload, OffsetsNearTheTopOfTheAddressSpaceWork) {
    const std::uint64_t offset = UINT64_MAX - 100;
    EXPECT_FALSE(checkPayload(payload(64, 3, offset), 3, offset));
}

TEST(Random, LogUniformStaysInItsBoundsAndReachesBothEnds) {
    Random random(1);
    bool low = false;
    bool high = false;
    for (int i = 0; i < 20000; ++i) {
        const auto value = random.logUniform(3, 70);
        ASSERT_GE(value, 3u);
        ASSERT_LE(value, 70u);
        low |= value == 3;
        high |= value == 70;
    }
    EXPECT_TRUE(low);
    EXPECT_TRUE(high);
    EXPECT_EQ(random.logUniform(5, 5), 5u);
    EXPECT_EQ(random.logUniform(1, 1), 1u);
}

}  // namespace
}  // namespace troupe::apps
