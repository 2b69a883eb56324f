#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace troupe::apps {

/// Test contents: byte i of the stream of `seed` is a function of (seed, i) alone, so that any piece of it can be
/// made, and checked, anywhere without keeping a copy. Pieces of other seeds or offsets differ.

/// What a buffer is filled with before something is read into it, so that a read that moved nothing is seen.
inline constexpr std::byte kPoison{0xa5};

/// Writes bytes [offset, offset + out.size()) of the stream of `seed` to `out`.
void fillPayload(std::span<std::byte> out, std::uint64_t seed, std::uint64_t offset);

/// The first byte that differs.
struct PayloadMismatch {
    std::size_t index = 0;  ///< In the checked span.
    std::byte expected{};
    std::byte got{};
};

/// Nothing when `data` is bytes [offset, offset + data.size()) of the stream of `seed`.
std::optional<PayloadMismatch> checkPayload(std::span<const std::byte> data, std::uint64_t seed, std::uint64_t offset);

}  // namespace troupe::apps
