#pragma once

#include <cstdint>
#include <string>

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

}  // namespace troupe
