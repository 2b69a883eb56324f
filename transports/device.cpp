#include "transports/device.h"

#include <charconv>

namespace troupe::device {

const char* kindName(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::Host: return "host";
        case MemoryKind::Pinned: return "pinned";
        case MemoryKind::Managed: return "managed";
        case MemoryKind::Device: return "device";
    }
    return "unknown";
}

Result<std::shared_ptr<const PageMover>> Device::makeMover() {
    return Status(Code::Unsupported, "GPUs of its vendor have no kernel for it");
}

Status Device::waitForValue(StreamRef, const std::uint32_t*, std::uint32_t) {
    return {Code::Unsupported, "streams of its vendor wait for events alone"};
}

int ordinalOf(const std::string& location, const std::string& vendor) {
    if (location.size() <= vendor.size() + 1 || location.compare(0, vendor.size(), vendor) != 0 ||
        location[vendor.size()] != ':')
        return -1;
    int ordinal = -1;
    const char* end = location.data() + location.size();
    const auto parsed = std::from_chars(location.data() + vendor.size() + 1, end, ordinal);
    return parsed.ec == std::errc{} && parsed.ptr == end && ordinal >= 0 ? ordinal : -1;
}

}  // namespace troupe::device
