#include "tcp_backend/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace troupe::tcp {
namespace {

/// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, MatchesThePublishedVectors) {
    std::vector<unsigned char> zeros(32, 0);
    std::vector<unsigned char> ones(32, 0xff);
    std::vector<unsigned char> up(32);
    std::vector<unsigned char> down(32);
    for (unsigned i = 0; i < 32; ++i) {
        up[i] = static_cast<unsigned char>(i);
        down[i] = static_cast<unsigned char>(31 - i);
    }
    for (const auto& sum : {&crc32c, &crc32cPortable}) {
        EXPECT_EQ(sum(0, zeros.data(), 32), 0x8a9136aau);
        EXPECT_EQ(sum(0, ones.data(), 32), 0x62a8ab43u);
        EXPECT_EQ(sum(0, up.data(), 32), 0x46dd794eu);
        EXPECT_EQ(sum(0, down.data(), 32), 0x113fdb5cu);
        EXPECT_EQ(sum(0, "123456789", 9), 0xe3069283u);
        EXPECT_EQ(sum(0, nullptr, 0), 0u);
    }
}

TEST(Crc32c, HardwareAndTableAgreeOnEveryLengthAndInPieces) {
    std::mt19937 random(5);
    std::vector<unsigned char> data(20000);
    for (auto& byte : data) byte = static_cast<unsigned char>(random());
    for (int i = 0; i < 2000; ++i) {
        const std::size_t start = random() % 16;
        const std::size_t length = i < 100 ? static_cast<std::size_t>(i) : random() % (data.size() - 16);
        const std::uint32_t whole = crc32cPortable(0, data.data() + start, length);
        EXPECT_EQ(crc32c(0, data.data() + start, length), whole);
        const std::size_t cut = length ? random() % length : 0;
        EXPECT_EQ(crc32c(crc32c(0, data.data() + start, cut), data.data() + start + cut, length - cut), whole);
    }
}

}  // namespace
}  // namespace troupe::tcp
