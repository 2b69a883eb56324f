#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe {

/// Copies at least this long are worth a look at where the destination is. Below, everything fits the caches and the
/// overheads weigh more than what streaming saves.
inline constexpr std::size_t kStreamingBytes = 64u << 10;

/// Copies memory, each time in the way that is likely the fastest.
///
/// A plain copy to memory that is not in the cache first reads each line that it then overwrites: three transfers for
/// each byte where two would do. So a long copy to a destination that this copier has not written lately goes around
/// the cache with streaming stores (AVX2, where the processor has it); measured with `troupe_copy_bench`: 1.4 to 2
/// times std::memcpy from 64 KiB to 64 MiB cold, and equal with AVX-512, which is left out therefore. A destination
/// that was written lately is still in the cache, and a plain copy is faster there, up to five times.
///
/// Not thread-safe: one per loop.
class Copier {
  public:
    /// The ranges must not overlap. When it returns, other cores see the bytes as after a plain copy.
    void copy(std::byte* to, const std::byte* from, std::size_t length);

  private:
    struct Range {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
    };

    /// True when `to` was written within the last kWarmBytes; remembers it in any case.
    bool touch(std::uintptr_t begin, std::uintptr_t end);

    /// What likely stays in the caches, source and destination together: from 8 MiB on streaming is the faster one
    /// again.
    static constexpr std::size_t kWarmBytes = 4u << 20;
    static constexpr std::size_t kRecent = kWarmBytes / kStreamingBytes;
    std::array<Range, kRecent> recent_{};  ///< Ring of the last destinations; together at most kWarmBytes count.
    std::size_t next_ = 0;
};

/// The streaming copy itself, and whether this processor can do it. For Copier and for measurements.
bool canStream();
void streamingCopy(std::byte* to, const std::byte* from, std::size_t length);

}  // namespace troupe
