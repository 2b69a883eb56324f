#include "apps/support/payload.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "apps/support/random.h"

namespace troupe::apps {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// Word `index` of a stream; `mixed_seed` is mixBits(seed), so that streams of near seeds are not shifted copies.
std::uint64_t wordAt(std::uint64_t mixed_seed, std::uint64_t index) {
    return mixBits(mixed_seed + (index + 1) * kGoldenGamma);
}

std::array<std::byte, kWord> bytesOf(std::uint64_t word) {
    std::array<std::byte, kWord> bytes{};
    std::memcpy(bytes.data(), &word, kWord);
    return bytes;
}

/// Calls `piece(position in the span, first byte in the word, count, word index)` for each word the span touches.
template <class Piece>
void forEachPiece(std::size_t size, std::uint64_t offset, Piece piece) {
    std::size_t done = 0;
    while (done < size) {
        const std::uint64_t at = offset + done;
        const std::size_t skip = at % kWord;
        const std::size_t count = std::min(kWord - skip, size - done);
        if (!piece(done, skip, count, at / kWord)) return;
        done += count;
    }
}

}  // namespace

void fillPayload(std::span<std::byte> out, std::uint64_t seed, std::uint64_t offset) {
    const std::uint64_t mixed = mixBits(seed);
    forEachPiece(out.size(), offset, [&](std::size_t at, std::size_t skip, std::size_t count, std::uint64_t index) {
        const std::uint64_t word = wordAt(mixed, index);
        if (count == kWord)
            std::memcpy(out.data() + at, &word, kWord);
        else
            std::memcpy(out.data() + at, bytesOf(word).data() + skip, count);
        return true;
    });
}

std::optional<PayloadMismatch> checkPayload(std::span<const std::byte> data, std::uint64_t seed, std::uint64_t offset) {
    const std::uint64_t mixed = mixBits(seed);
    std::optional<PayloadMismatch> found;
    forEachPiece(data.size(), offset, [&](std::size_t at, std::size_t skip, std::size_t count, std::uint64_t index) {
        const std::uint64_t word = wordAt(mixed, index);
        if (count == kWord) {
            std::uint64_t got;
            std::memcpy(&got, data.data() + at, kWord);
            if (got == word) return true;
        }
        const auto expected = bytesOf(word);
        for (std::size_t i = 0; i < count; ++i) {
            if (data[at + i] == expected[skip + i]) continue;
            found = PayloadMismatch{at + i, expected[skip + i], data[at + i]};
            return false;
        }
        return true;
    });
    return found;
}

}  // namespace troupe::apps
