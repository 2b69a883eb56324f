#include "host_backend/grant_cache.h"

#include <algorithm>
#include <iterator>
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

/// True: just so. False: it is not known.
Result<bool> GrantCache::isKnown(std::uint64_t region, const ByteRange& range, bool has_descriptor) const {
    if (const auto known = addr_of_region_.find(region); known != addr_of_region_.end()) {
        if (known->second != range.addr || by_addr_.at(range.addr).range != range || has_descriptor)
            return bad("of region " + std::to_string(region) + " differs from an earlier one");
        return true;
    }
    const auto above = by_addr_.lower_bound(range.addr);
    if ((above != by_addr_.end() && above->second.range.overlaps(range)) ||
        (above != by_addr_.begin() && std::prev(above)->second.range.overlaps(range)))
        return bad("of " + range.toString() + " overlaps another");
    return false;
}

void GrantCache::insert(Entry entry) {
    addr_of_region_.emplace(entry.region, entry.range.addr);
    const std::uint64_t addr = entry.range.addr;
    by_addr_.emplace(addr, std::move(entry));
}

Result<bool> GrantCache::add(const Grant& grant, UniqueFd descriptor) {
    const ByteRange range{grant.base, grant.length};
    const auto known = isKnown(grant.region, range, static_cast<bool>(descriptor));
    if (!known) return known.status();
    if (*known) return false;
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
    insert(std::move(entry));
    return true;
}

Result<bool> GrantCache::add(const DeviceGrant& grant, UniqueFd descriptor) {
    const ByteRange range{grant.base, grant.length};
    const auto known = isKnown(grant.region, range, static_cast<bool>(descriptor));
    if (!known) return known.status();
    if (*known) return false;
    const bool by_file = grant.kind == device::ShareKind::File;
    if (by_file != static_cast<bool>(descriptor))
        return bad(by_file ? "of a GPU's memory came without its descriptor"
                           : "came with a descriptor that it has no use for");
    device::SharedMemory shared;
    shared.kind = grant.kind;
    shared.allocation = {grant.allocation, grant.allocation_bytes};
    shared.handle = grant.handle;
    shared.fd = std::move(descriptor);
    Entry entry;
    entry.range = range;
    entry.region = grant.region;
    entry.device = std::make_unique<DeviceImport>(std::move(shared), range, is_same_process_);
    insert(std::move(entry));
    return true;
}

std::unique_ptr<DeviceImport> GrantCache::remove(std::uint64_t region) {
    const auto found = addr_of_region_.find(region);
    if (found == addr_of_region_.end()) return nullptr;
    last_ = nullptr;
    const auto entry = by_addr_.find(found->second);
    auto device = std::move(entry->second.device);
    by_addr_.erase(entry);
    addr_of_region_.erase(found);
    return device;
}

std::vector<std::unique_ptr<DeviceImport>> GrantCache::clear() {
    std::vector<std::unique_ptr<DeviceImport>> devices;
    for (auto& [addr, entry] : by_addr_)
        if (entry.device) devices.push_back(std::move(entry.device));
    last_ = nullptr;
    by_addr_.clear();
    addr_of_region_.clear();
    return devices;
}

}  // namespace troupe::host
