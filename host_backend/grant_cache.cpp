#include "host_backend/grant_cache.h"

#include <utility>

namespace troupe::host {

namespace {

Status bad(const std::string& what) { return {Code::ProtocolError, "a grant " + what}; }

}  // namespace

const GrantCache::Entry* GrantCache::search(std::uint64_t addr) {
    const auto above = by_addr_.upper_bound(addr);
    if (above == by_addr_.begin()) return nullptr;
    const Entry& entry = std::prev(above)->second;
    if (addr - entry.range.addr >= entry.range.length) return nullptr;
    last_ = &entry;
    return last_;
}

bool GrantCache::covers(const ByteRange& range, bool write, std::uint64_t& missing) {
    for (std::uint64_t addr = range.addr; addr < range.end();) {
        const Entry* const entry = find(addr);
        if (entry == nullptr || (write && !entry->writable)) {
            missing = addr;
            return false;
        }
        addr = entry->range.end();
    }
    return true;
}

Result<bool> GrantCache::add(const Grant& grant, UniqueFd descriptor) {
    const ByteRange range{grant.base, grant.length};
    if (const auto known = addr_of_region_.find(grant.region); known != addr_of_region_.end()) {
        if (known->second != grant.base || by_addr_.at(grant.base).range != range || descriptor)
            return bad("of region " + std::to_string(grant.region) + " differs from an earlier one");
        return false;
    }
    const auto above = by_addr_.lower_bound(grant.base);
    if ((above != by_addr_.end() && above->second.range.overlaps(range)) ||
        (above != by_addr_.begin() && std::prev(above)->second.range.overlaps(range)))
        return bad("of " + range.toString() + " overlaps another");
    Entry entry;
    entry.range = range;
    entry.region = grant.region;
    entry.writable = grant.writable;
    if (grant.kind == Grant::Kind::Mapped) {
        if (!descriptor) return bad("of mapped memory came without its descriptor");
        auto mapping = FileMapping::ofForeign(descriptor, grant.offset + grant.length);
        if (!mapping) return mapping.status();
        entry.mapping = std::move(*mapping);
        entry.data = entry.mapping.data() + grant.offset;
    } else if (descriptor) {
        return bad("came with a descriptor that it has no use for");
    }
    by_addr_.emplace(grant.base, std::move(entry));
    addr_of_region_.emplace(grant.region, grant.base);
    return true;
}

bool GrantCache::remove(std::uint64_t region) {
    const auto found = addr_of_region_.find(region);
    if (found == addr_of_region_.end()) return false;
    last_ = nullptr;
    by_addr_.erase(found->second);
    addr_of_region_.erase(found);
    return true;
}

void GrantCache::clear() {
    last_ = nullptr;
    by_addr_.clear();
    addr_of_region_.clear();
}

}  // namespace troupe::host
