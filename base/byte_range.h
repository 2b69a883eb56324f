#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace troupe {

/// "0x7f00".
std::string hexAddress(std::uint64_t addr);

/// A half-open range of addresses [addr, addr + length). Ranges are built from hostile numbers: check
/// `wraps()` before `end()` is used.
struct ByteRange {
    std::uint64_t addr = 0;
    std::uint64_t length = 0;

    /// True when addr + length passes 2^64, so that the range has no end.
    bool wraps() const { return length > UINT64_MAX - addr; }
    /// First address after the range; only meaningful when it does not wrap.
    std::uint64_t end() const { return addr + length; }
    bool contains(const ByteRange& other) const { return !other.wraps() && other.addr >= addr && other.end() <= end(); }
    bool overlaps(const ByteRange& other) const {
        return length != 0 && other.length != 0 && addr < other.end() && other.addr < end();
    }
    bool operator==(const ByteRange&) const = default;

    /// "[0x7f00, 0x8000)".
    std::string toString() const;
};

/// Ranges that are asked about together. Immutable, and cheap to copy. None of them may wrap.
class RangeSet {
  public:
    RangeSet() = default;
    // Implicit, so that who has one range gives it as it is. NOLINTNEXTLINE(google-explicit-constructor)
    RangeSet(const ByteRange& range) : RangeSet(std::vector<ByteRange>{range}) {}
    /// In any order; those that touch or overlap become one, and empty ones are left out.
    explicit RangeSet(std::vector<ByteRange> ranges);

    /// In order of address.
    std::span<const ByteRange> ranges() const {
        return ranges_ ? std::span<const ByteRange>(*ranges_) : std::span<const ByteRange>();
    }
    /// True when a byte of `range`, which must not wrap, is in one of them. Takes a time that grows with the logarithm
    /// of their number.
    bool overlaps(const ByteRange& range) const;
    /// From the first byte to the last; empty when there is none.
    ByteRange hull() const;

  private:
    std::shared_ptr<const std::vector<ByteRange>> ranges_;
};

}  // namespace troupe
