#include "base/byte_range.h"

#include <cinttypes>
#include <cstdio>

namespace troupe {

std::string hexAddress(std::uint64_t addr) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%" PRIx64, addr);
    return text;
}

std::string ByteRange::toString() const {
    return "[" + hexAddress(addr) + ", " + (wraps() ? "+" + hexAddress(length) : hexAddress(end())) + ")";
}

}  // namespace troupe
