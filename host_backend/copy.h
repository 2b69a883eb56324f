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

    /// True when most of these bytes were among the last that this copier wrote in long copies.
    bool isWarm(const std::byte* to, std::size_t length) const;

  private:
    /// A stretch of kLineBytes of the address space, and when something in it was written last.
    struct Line {
        std::uintptr_t number = 0;
        std::uint64_t at = 0;  ///< As written_ stood afterwards.
    };

    void touch(const std::byte* to, std::size_t length);

    /// What likely stays in the caches, source and destination together: from 8 MiB on streaming is the faster one
    /// again.
    static constexpr std::size_t kWarmBytes = 4u << 20;
    /// By the stretch and not by the copy: the same block is cut otherwise each time that it comes, as its cuts depend
    /// on what else there is to do.
    static constexpr std::size_t kLineBytes = kStreamingBytes;
    /// Each stretch has one place, so that there are more of them than warm stretches keeps them apart.
    static constexpr std::size_t kLines = 4 * kWarmBytes / kLineBytes;
    std::array<Line, kLines> lines_{};
    std::uint64_t written_ = 2 * kWarmBytes;  ///< Bytes; from where no stretch is warm.
};

/// The streaming copy itself, and whether this processor can do it. For Copier and for measurements.
bool canStream();
void streamingCopy(std::byte* to, const std::byte* from, std::size_t length);

}  // namespace troupe
