#include "transports/registration_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "transports/device.h"

namespace troupe {

namespace {

bool startsAfter(std::uint64_t addr, const Region& region) { return addr < region.range.addr; }

/// Whether one copy of a GPU may go from the end of the one to the beginning of the other, which follows.
bool isOneAllocation(const Region& before, const Region& after) {
    return before.place != nullptr && after.place != nullptr && before.place->device == after.place->device &&
           !before.place->memory.pieces.empty() && !after.place->memory.pieces.empty() &&
           before.place->memory.pieces.back().allocation_id == after.place->memory.pieces.front().allocation_id;
}

std::string kindOf(const Region* region) {
    if (region == nullptr) return "memory that is not registered";
    return "memory of " + (region->place != nullptr ? region->location : std::string("the host"));
}

}  // namespace

const Region* RegionMap::find(std::uint64_t addr) const {
    const Region* const region = findTaken(addr);
    return region != nullptr && !region->closing ? region : nullptr;
}

const Region* RegionMap::findTaken(std::uint64_t addr) const {
    const auto above = std::upper_bound(first_.begin(), first_.end(), addr);
    if (above == first_.begin()) return nullptr;
    const Chunk& chunk = *chunks_[static_cast<std::size_t>(above - first_.begin()) - 1];
    const auto next = std::upper_bound(chunk.begin(), chunk.end(), addr, startsAfter);
    const Region& region = *(next - 1);  // The chunk's first region starts at or below addr.
    return addr < region.range.end() ? &region : nullptr;
}

RangeFault RegionMap::faultOf(ByteRange range, bool remote, bool write) const {
    if (range.wraps()) return {Code::InvalidArgument, range.addr};
    std::uint64_t addr = range.addr;
    while (addr != range.end()) {
        const Region* region = find(addr);
        if (!region) return {Code::AddressNotRegistered, addr};
        if (remote && !region->remote_accessible) return {Code::AccessDenied, addr, Denial::LocalOnly};
        if (write && !region->writable) return {Code::AccessDenied, addr, Denial::ReadOnly};
        addr = std::min(region->range.end(), range.end());
    }
    return {};
}

Status RegionMap::covers(ByteRange range, bool remote, bool write) const {
    const RangeFault fault = faultOf(range, remote, write);
    return fault ? Status(fault.code, range.toString() + ": " + fault.toString()) : Status();
}

Result<const Region*> RegionMap::deviceOf(const ByteRange& range) const {
    const Region* const first = findTaken(range.addr);
    if (first != nullptr && first->range.contains(range)) return first->place != nullptr ? first : nullptr;
    if (range.wraps()) return nullptr;
    const Region* before = first;
    while (before != nullptr && before->range.end() < range.end()) {
        const Region* const next = findTaken(before->range.end());
        const bool on_device = before->place != nullptr || (next != nullptr && next->place != nullptr);
        if (on_device && (next == nullptr || !isOneAllocation(*before, *next)))
            return Status(Code::InvalidArgument, range.toString() + " begins in " + kindOf(before) + ", but " +
                                                     hexAddress(before->range.end()) + " is " + kindOf(next) +
                                                     ": ask for what is in one allocation at a time");
        before = next;
    }
    return first != nullptr && first->place != nullptr ? first : nullptr;
}

std::vector<Region> RegionMap::all() const {
    std::vector<Region> regions;
    regions.reserve(size_);
    for (const auto& chunk : chunks_)
        std::copy_if(chunk->begin(), chunk->end(), std::back_inserter(regions),
                     [](const Region& region) { return !region.closing; });
    return regions;
}

RegistrationTable::RegistrationTable() : visible_(std::make_shared<const RegionMap>()) {}

Result<Region> RegistrationTable::reserve(Region region) {
    const ByteRange& range = region.range;
    if (range.addr == 0) return {Code::InvalidArgument, "a null address cannot be registered"};
    if (range.length == 0) return {Code::InvalidArgument, "a region of no bytes cannot be registered"};
    if (range.wraps()) return {Code::InvalidArgument, range.toString() + " passes the end of the address space"};
    const std::lock_guard lock(writers_);
    const auto next = by_addr_.lower_bound(range.addr);
    const auto overlapped = [&](const Entry& entry) -> Status {
        return {Code::AddressOverlapped,
                range.toString() + " overlaps " + entry.region.range.toString() +
                    (entry.state == State::Visible   ? ", which is registered"
                     : entry.state == State::Pending ? ", which is being registered"
                     : entry.state == State::Held    ? ", which a device keeps: call unregisterLocalMemory of it again"
                                                     : ", which is being unregistered")};
    };
    if (next != by_addr_.end() && next->second.region.range.overlaps(range)) return overlapped(next->second);
    if (next != by_addr_.begin() && std::prev(next)->second.region.range.overlaps(range))
        return overlapped(std::prev(next)->second);
    region.id = next_id_++;
    by_addr_.emplace_hint(next, range.addr, Entry{region});
    addr_of_id_.emplace(region.id, range.addr);
    return region;
}

void RegistrationTable::commit(std::uint64_t id) { commit(std::vector<std::uint64_t>{id}); }

void RegistrationTable::commit(const std::vector<std::uint64_t>& ids) {
    const std::lock_guard lock(writers_);
    std::vector<Entry*> added;
    added.reserve(ids.size());
    for (const auto id : ids) {
        const auto addr = addr_of_id_.find(id);
        if (addr == addr_of_id_.end()) continue;
        Entry& entry = by_addr_.at(addr->second);
        if (entry.state != State::Pending) continue;
        entry.state = State::Visible;
        added.push_back(&entry);
    }
    if (added.empty()) return;
    auto next = std::make_shared<RegionMap>();
    if (added.size() <= RegionMap::kChunk) {
        *next = *visible_.load();
        for (Entry* const entry : added) show(*entry, *next);
    } else {
        // Many at once: one pass over everything is cheaper than a copied chunk for each.
        RegionMap::Chunk chunk;
        const auto flush = [&] {
            if (chunk.empty()) return;
            next->first_.push_back(chunk.front().range.addr);
            next->chunks_.push_back(std::make_shared<const RegionMap::Chunk>(std::move(chunk)));
            chunk = {};
        };
        for (Entry* const entry : added) entry->in_map = true;
        for (const auto& [addr, entry] : by_addr_) {
            if (!entry.in_map) continue;
            chunk.push_back(entry.region);
            chunk.back().closing = entry.state != State::Visible;
            if (entry.state == State::Visible) next->size_ += 1;
            if (entry.region.place) next->devices_ += 1;
            if (chunk.size() == RegionMap::kChunk / 2) flush();  // Half full: room for later neighbours.
        }
        flush();
    }
    visible_.publish(std::move(next));
}

void RegistrationTable::remove(std::uint64_t id, const std::function<void()>& last) {
    const std::lock_guard lock(writers_);
    const auto addr = addr_of_id_.find(id);
    if (addr == addr_of_id_.end()) return;
    const auto entry = by_addr_.find(addr->second);
    if (entry->second.state == State::Visible) return;
    if (entry->second.in_map) {
        auto next = std::make_shared<RegionMap>(*visible_.load());
        hide(entry->second, *next);
        visible_.publish(std::move(next));
    }
    if (last) last();
    by_addr_.erase(entry);
    addr_of_id_.erase(addr);
}

Result<Region> RegistrationTable::beginRemoval(std::uint64_t addr) {
    std::vector<Region> begun;
    if (Status refused = beginRemoval({&addr, 1}, begun); !refused) return refused;
    return std::move(begun.front());
}

Status RegistrationTable::beginRemoval(std::span<const std::uint64_t> addrs, std::vector<Region>& begun) {
    const std::lock_guard lock(writers_);
    std::shared_ptr<RegionMap> next;
    Status refused;
    for (const std::uint64_t addr : addrs) {
        const auto found = by_addr_.find(addr);
        refused = found == by_addr_.end() ? notRegistered(addr) : mayBeRemoved(found->second);
        if (!refused) break;
        Entry& entry = found->second;
        begun.push_back(entry.region);
        if (std::exchange(entry.state, State::Closing) != State::Visible) continue;
        if (!next) next = std::make_shared<RegionMap>(*visible_.load());
        conceal(entry, *next);
    }
    if (next) visible_.publish(std::move(next));
    return refused;
}

Status RegistrationTable::mayBeRemoved(const Entry& entry) const {
    if (entry.state == State::Pending) return notRegistered(entry.region.range.addr);
    if (entry.state == State::Closing)
        return {Code::BatchBusy, entry.region.range.toString() + " is being unregistered already"};
    return {};
}

Status RegistrationTable::notRegistered(std::uint64_t addr) const {
    const Region* around = visible_.load()->find(addr);
    return {Code::AddressNotRegistered,
            "no registered region starts at " + hexAddress(addr) +
                (around == nullptr ? "" : "; it lies in " + around->range.toString() + ", give the first address")};
}

void RegistrationTable::cancelRemoval(std::uint64_t id) {
    const std::lock_guard lock(writers_);
    const auto addr = addr_of_id_.find(id);
    if (addr == addr_of_id_.end()) return;
    Entry& entry = by_addr_.at(addr->second);
    if (entry.state != State::Closing) return;
    entry.state = entry.was_held ? State::Held : State::Visible;
    if (entry.was_held) return;
    auto next = std::make_shared<RegionMap>(*visible_.load());
    if (entry.in_map)
        setClosing(entry, *next, false);
    else
        show(entry, *next);
    visible_.publish(std::move(next));
}

void RegistrationTable::hold(std::uint64_t id) {
    const std::lock_guard lock(writers_);
    const auto addr = addr_of_id_.find(id);
    if (addr == addr_of_id_.end()) return;
    Entry& entry = by_addr_.at(addr->second);
    if (entry.state == State::Visible) return;
    entry.state = State::Held;
    entry.was_held = true;
}

void RegistrationTable::show(Entry& entry, RegionMap& map) {
    const Region& region = entry.region;
    entry.in_map = true;
    map.size_ += 1;
    if (region.place) map.devices_ += 1;
    if (map.chunks_.empty()) {
        map.first_.push_back(region.range.addr);
        map.chunks_.push_back(std::make_shared<const RegionMap::Chunk>(1, region));
        return;
    }
    const auto above = std::upper_bound(map.first_.begin(), map.first_.end(), region.range.addr);
    const std::size_t index =
        above == map.first_.begin() ? 0 : static_cast<std::size_t>(above - map.first_.begin()) - 1;
    RegionMap::Chunk chunk = *map.chunks_[index];
    chunk.insert(std::upper_bound(chunk.begin(), chunk.end(), region.range.addr, startsAfter), region);
    const auto at = static_cast<std::ptrdiff_t>(index);
    if (chunk.size() > RegionMap::kChunk) {
        const auto middle = chunk.begin() + static_cast<std::ptrdiff_t>(chunk.size() / 2);
        RegionMap::Chunk upper(middle, chunk.end());
        chunk.erase(middle, chunk.end());
        map.first_.insert(map.first_.begin() + at + 1, upper.front().range.addr);
        map.chunks_.insert(map.chunks_.begin() + at + 1, std::make_shared<const RegionMap::Chunk>(std::move(upper)));
    }
    map.first_[index] = chunk.front().range.addr;
    map.chunks_[index] = std::make_shared<const RegionMap::Chunk>(std::move(chunk));
}

/// From new work. What a CPU may touch needs not be known to work that was taken before.
void RegistrationTable::conceal(Entry& entry, RegionMap& map) {
    if (entry.region.place)
        setClosing(entry, map, true);
    else
        hide(entry, map);
}

void RegistrationTable::setClosing(const Entry& entry, RegionMap& map, bool closing) {
    const auto above = std::upper_bound(map.first_.begin(), map.first_.end(), entry.region.range.addr);
    const auto index = static_cast<std::size_t>(above - map.first_.begin()) - 1;  // It is in the map.
    RegionMap::Chunk chunk = *map.chunks_[index];
    for (Region& region : chunk)
        if (region.id == entry.region.id) region.closing = closing;
    map.chunks_[index] = std::make_shared<const RegionMap::Chunk>(std::move(chunk));
    map.size_ = closing ? map.size_ - 1 : map.size_ + 1;
}

void RegistrationTable::hide(Entry& entry, RegionMap& map) {
    const Region& region = entry.region;
    entry.in_map = false;
    const auto above = std::upper_bound(map.first_.begin(), map.first_.end(), region.range.addr);
    const auto index = static_cast<std::size_t>(above - map.first_.begin()) - 1;  // It is in the map.
    RegionMap::Chunk chunk = *map.chunks_[index];
    std::erase_if(chunk, [&](const Region& other) {
        if (other.id != region.id) return false;
        if (!other.closing) map.size_ -= 1;
        return true;
    });
    if (region.place) map.devices_ -= 1;
    const auto at = static_cast<std::ptrdiff_t>(index);
    const auto drop = [&](std::ptrdiff_t which) {
        map.first_.erase(map.first_.begin() + which);
        map.chunks_.erase(map.chunks_.begin() + which);
    };
    if (chunk.empty()) return drop(at);
    if (index + 1 < map.chunks_.size() && chunk.size() + map.chunks_[index + 1]->size() <= RegionMap::kChunk / 2) {
        // Merge thin neighbours, so that removals do not leave a chunk per region.
        const RegionMap::Chunk& next = *map.chunks_[index + 1];
        chunk.insert(chunk.end(), next.begin(), next.end());
        drop(at + 1);
    }
    map.first_[index] = chunk.front().range.addr;
    map.chunks_[index] = std::make_shared<const RegionMap::Chunk>(std::move(chunk));
}

}  // namespace troupe
