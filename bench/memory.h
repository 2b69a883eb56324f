#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace troupe::bench {

/// Page-aligned anonymous memory. Owned by one object, movable.
class Memory {
  public:
    /// `bytes` of memory whose pages all exist (written once), so that no page fault is measured. ResourceExhausted.
    static Result<Memory> populated(std::size_t bytes);
    /// Address space only, for transports that never touch the bytes.
    static Result<Memory> reserved(std::size_t bytes);

    Memory() = default;
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();

    char* data() const { return data_; }
    std::size_t size() const { return size_; }

  private:
    static Result<Memory> map(std::size_t bytes, int flags);

    char* data_ = nullptr;
    std::size_t size_ = 0;
};

/// The order in which a footprint is walked: every block once before any comes again, neighbours far apart, so that
/// the bytes are cold and no two requests of a batch touch. The same for Troupe and for the bare loop.
class BlockWalk {
  public:
    /// `scattered` false: one block after the other. `block` must not exceed `footprint`. `start`: number of the first.
    BlockWalk(std::size_t footprint, std::size_t block, bool scattered, std::uint64_t start = 0)
        : block_(block), count_(footprint / block), step_(scattered ? kStride : 1), index_(start % count_) {}

    /// The offset of the next block.
    std::uint64_t next() {
        const std::uint64_t offset = index_ * block_;
        index_ = (index_ + step_) % count_;
        return offset;
    }

  private:
    static constexpr std::uint64_t kStride = 7919;  ///< Prime: with a count of 2^n it meets every block.

    std::uint64_t block_;
    std::uint64_t count_;
    std::uint64_t step_;
    std::uint64_t index_;
};

}  // namespace troupe::bench
