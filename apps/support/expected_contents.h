#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace troupe::apps {

/// What a stretch of remote memory must hold: which piece of it was last written from which payload stream. Exact for
/// every byte, without a copy of the bytes. Byte i of the stretch, written with seed s, holds byte i of the stream s.
class ExpectedContents {
  public:
    struct Extent {
        std::uint64_t offset = 0;
        std::uint64_t length = 0;
        std::uint64_t seed = 0;
    };
    struct Mismatch {
        std::uint64_t offset = 0;  ///< In the stretch, of the first differing byte.
        std::byte expected{};
        std::byte got{};
        std::uint64_t seed = 0;  ///< Of the write that should be seen there.
    };

    /// [offset, offset + length) now holds the stream of `seed`.
    void write(std::uint64_t offset, std::uint64_t length, std::uint64_t seed);
    /// The pieces of [offset, offset + length), in order; bytes never written are left out.
    std::vector<Extent> extents(std::uint64_t offset, std::uint64_t length) const;
    /// Compares what was read from `offset` on; bytes never written are not compared.
    std::optional<Mismatch> check(std::span<const std::byte> data, std::uint64_t offset) const;
    std::size_t extentCount() const { return extents_.size(); }

  private:
    struct Tail {
        std::uint64_t end;
        std::uint64_t seed;
    };
    /// Makes `at` a border between extents where it lies inside one.
    void split(std::uint64_t at);

    std::map<std::uint64_t, Tail> extents_;  ///< By first offset; disjoint.
};

}  // namespace troupe::apps
