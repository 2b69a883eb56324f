#include "base/byte_range.h"

#include <cinttypes>
#include <cstdio>

namespace troupe {

std::string ByteRange::toString() const {
    char text[64];
    if (wraps())
        std::snprintf(text, sizeof text, "[0x%" PRIx64 ", +0x%" PRIx64 ")", addr, length);
    else
        std::snprintf(text, sizeof text, "[0x%" PRIx64 ", 0x%" PRIx64 ")", addr, end());
    return text;
}

}  // namespace troupe
