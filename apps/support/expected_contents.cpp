#include "apps/support/expected_contents.h"

#include <algorithm>

#include "apps/support/payload.h"

namespace troupe::apps {

void ExpectedContents::split(std::uint64_t at) {
    auto after = extents_.lower_bound(at);
    if (after == extents_.begin()) return;
    auto inside = std::prev(after);
    if (inside->second.end <= at) return;
    extents_.emplace_hint(after, at, inside->second);
    inside->second.end = at;
}

void ExpectedContents::write(std::uint64_t offset, std::uint64_t length, std::uint64_t seed) {
    if (length == 0) return;
    split(offset);
    split(offset + length);
    extents_.erase(extents_.lower_bound(offset), extents_.lower_bound(offset + length));
    extents_.emplace(offset, Tail{offset + length, seed});
}

std::vector<ExpectedContents::Extent> ExpectedContents::extents(std::uint64_t offset, std::uint64_t length) const {
    std::vector<Extent> result;
    const std::uint64_t end = offset + length;
    auto at = extents_.upper_bound(offset);
    if (at != extents_.begin()) --at;
    for (; at != extents_.end() && at->first < end; ++at) {
        const std::uint64_t from = std::max(at->first, offset);
        const std::uint64_t to = std::min(at->second.end, end);
        if (from < to) result.push_back({from, to - from, at->second.seed});
    }
    return result;
}

std::optional<ExpectedContents::Mismatch> ExpectedContents::check(std::span<const std::byte> data,
                                                                  std::uint64_t offset) const {
    for (const auto& extent : extents(offset, data.size())) {
        const auto piece = data.subspan(extent.offset - offset, extent.length);
        if (const auto bad = checkPayload(piece, extent.seed, extent.offset))
            return Mismatch{extent.offset + bad->index, bad->expected, bad->got, extent.seed};
    }
    return std::nullopt;
}

}  // namespace troupe::apps
