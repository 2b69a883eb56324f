#include "base/byte_range.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

namespace troupe {

std::string hexAddress(std::uint64_t addr) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%" PRIx64, addr);
    return text;
}

std::string ByteRange::toString() const {
    return "[" + hexAddress(addr) + ", " + (wraps() ? "+" + hexAddress(length) : hexAddress(end())) + ")";
}

RangeSet::RangeSet(std::vector<ByteRange> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.addr < b.addr; });
    std::vector<ByteRange> merged;
    for (const ByteRange& range : ranges) {
        if (range.length == 0) continue;
        if (merged.empty() || merged.back().end() < range.addr)
            merged.push_back(range);
        else
            merged.back().length = std::max(merged.back().end(), range.end()) - merged.back().addr;
    }
    if (!merged.empty()) ranges_ = std::make_shared<const std::vector<ByteRange>>(std::move(merged));
}

bool RangeSet::overlaps(const ByteRange& range) const {
    const auto all = ranges();
    // The first that ends above the range's first byte.
    const auto next =
        std::partition_point(all.begin(), all.end(), [&](const ByteRange& each) { return each.end() <= range.addr; });
    return next != all.end() && next->overlaps(range);
}

ByteRange RangeSet::hull() const {
    const auto all = ranges();
    return all.empty() ? ByteRange{} : ByteRange{all.front().addr, all.back().end() - all.front().addr};
}

}  // namespace troupe
