#include "host_backend/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace troupe {
namespace {

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// Copies and checks the bytes, and those around the target, which must not change.
template <class Copy>
void expectCopies(Copy copy, std::size_t length, std::size_t to_offset, std::size_t from_offset) {
    const auto from = noise(length + 256, 1);
    auto to = noise(length + 256, 2);
    auto expected = to;
    std::memcpy(expected.data() + to_offset, from.data() + from_offset, length);
    copy(to.data() + to_offset, from.data() + from_offset, length);
    ASSERT_TRUE(to == expected) << "length " << length << " offsets " << to_offset << " " << from_offset;
}

TEST(StreamingCopy, IsExactForEveryLengthAndAlignment) {
    if (!canStream()) GTEST_SKIP() << "no streaming stores here";
    for (std::size_t length : {0u, 1u, 31u, 63u, 64u, 65u, 127u, 128u, 129u, 255u, 256u, 1000u, 4096u, 65537u})
        for (std::size_t to_offset : {0u, 1u, 31u, 32u, 63u, 64u, 77u})
            for (std::size_t from_offset : {0u, 1u, 17u, 64u})
                expectCopies(streamingCopy, length, to_offset, from_offset);
}

TEST(Copier, IsExactColdAndWarm) {
    Copier copier;
    const auto copy = [&](auto* to, const auto* from, std::size_t length) { copier.copy(to, from, length); };
    for (int round = 0; round < 3; ++round)
        for (std::size_t length : {std::size_t{0}, std::size_t{1}, kStreamingBytes - 1, kStreamingBytes,
                                   kStreamingBytes + 1, std::size_t{1} << 20, (std::size_t{3} << 20) + 7})
            expectCopies(copy, length, 3, 5);
    const auto from = noise(1u << 20, 3);
    std::vector<std::byte> to(1u << 20);
    for (int round = 0; round < 3; ++round) {
        std::fill(to.begin(), to.end(), std::byte{0});
        copier.copy(to.data(), from.data(), to.size());
        EXPECT_TRUE(to == from);
    }
}

/// Copies all of `to` in pieces of at most `piece` bytes, the first of `first`.
void copyInPieces(Copier& copier, std::vector<std::byte>& to, const std::vector<std::byte>& from, std::size_t first,
                  std::size_t piece) {
    for (std::size_t at = 0, next = first; at < to.size(); at += next, next = piece) {
        next = std::min(next, to.size() - at);
        copier.copy(to.data() + at, from.data() + at, next);
    }
}

TEST(Copier, KnowsABlockThatItWroteLatelyHoweverItWasCut) {
    Copier copier;
    const auto from = noise(4u << 20, 4);
    std::vector<std::byte> to(from.size());
    const std::size_t hot = 1u << 20;
    std::vector<std::byte> block(hot);
    EXPECT_FALSE(copier.isWarm(block.data(), hot));
    // As a Nic does: what is left of its chunk decides where a block is cut.
    for (std::size_t first : {524'032u, 512u, 523'520u, 100'000u}) {
        copyInPieces(copier, block, from, first, 524'032);
        for (const std::size_t at : {std::size_t{0}, std::size_t{500'000}, hot / 2})
            EXPECT_TRUE(copier.isWarm(block.data() + at, hot / 2)) << "cut after " << first << ", at " << at;
        EXPECT_TRUE(copier.isWarm(block.data(), hot));
    }
    // As much of something else has driven it out.
    copyInPieces(copier, to, from, 524'032, 524'032);
    EXPECT_FALSE(copier.isWarm(block.data(), hot));
    EXPECT_TRUE(copier.isWarm(to.data() + to.size() - hot, hot));
}

}  // namespace
}  // namespace troupe
