// TransferEngine: registering memory.

#include <algorithm>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/engine_core.h"
#include "engine/memory_check.h"
#include "engine/memory_rights.h"

namespace troupe {

namespace {

/// The first transport that does not let go of a region, and why; the others have.
Status unregisterEverywhere(const EngineCore& core, const Region& region) {
    Status left;
    for (const auto& installed : core.transports) {
        const Status gone = installed.transport->unregisterMemory(region);
        if (!gone && left.isOk()) left = gone.withContext("transport '" + installed.transport->name() + "'");
    }
    return left;
}

/// Gives a region's range free when every transport has let go of it, and else keeps it claimed, with the reason.
Status forget(EngineCore& core, const Region& region) {
    const Status left = unregisterEverywhere(core, region);
    if (left)
        core.regions.remove(region.id);
    else
        core.regions.hold(region.id);
    return left;
}

/// Asks every transport to take a region; on a refusal none of them has it, or what is left of it is said, too.
Status registerEverywhere(EngineCore& core, const Region& region) {
    for (auto it = core.transports.begin(); it != core.transports.end(); ++it) {
        const Status taken = it->transport->registerMemory(region);
        if (taken) continue;
        const Status left = forget(core, region);
        const std::string who = "transport '" + it->transport->name() + "'";
        const std::string range = region.range.toString();
        const bool named = taken.message().find(range) != std::string::npos;
        const Status refused = taken.withContext(named ? who : who + ", region " + range);
        return left ? refused : Status(refused.code(), refused.message() + "; " + left.message());
    }
    return Status::ok();
}

Region regionOf(void* addr, std::size_t length, const std::string& location, bool remote_accessible) {
    Region region;
    region.range = ByteRange{reinterpret_cast<std::uint64_t>(addr), length};
    region.location = location;
    region.remote_accessible = remote_accessible;
    return region;
}

/// What is no memory to a processor may be a GPU's, of which nobody could be asked.
Status orOfGpu(EngineCore& core, const Status& refused) {
    const Status why = core.device_memory.whyUnknown();
    if (why) return refused;
    return {refused.code(), refused.message() + "; whether it is memory of a GPU cannot be told: " + why.message()};
}

/// What can be said of a region before anybody is asked to take it. Finds out whether it may be written.
Status checkRegion(EngineCore& core, Region& region, MemoryRights& rights) {
    auto location = readLocation(region.location, core.numa_nodes);
    if (!location) return location.status();
    if (location->kind == Location::Kind::Segments)
        region.parts = std::make_shared<const Location>(std::move(*location));
    if (const Status located = core.device_memory.locate(region); !located) return located;
    if (region.isOnDevice()) return Status::ok();
    if (const Status mapped = checkMapped(region.range); !mapped) return orOfGpu(core, mapped);
    const auto writable = rights.areAllWritable(region.range);
    if (!writable) return orOfGpu(core, writable.status());
    region.writable = *writable;
    return Status::ok();
}

Status registerOne(EngineCore& core, Region wanted, bool update_metadata) {
    if (const Status usable = core.usable(); !usable) return usable;
    if (const Status may = core.mayWait(); !may) return may;
    MemoryRights rights;
    if (const Status sound = checkRegion(core, wanted, rights); !sound) return sound;
    const std::shared_lock lock(core.transports_mutex);
    auto region = core.regions.reserve(wanted);
    if (!region) return region.status();
    if (const Status taken = registerEverywhere(core, *region); !taken) return taken;
    core.regions.commit(region->id);
    if (update_metadata) caf::anon_send(core.directory, PublishLocal{});
    return Status::ok();
}

// Regions that are unregistered in one round of questions to the data loops. It is what makes many regions cheap, and
// is bounded because trackers remember the ranges for a while.
constexpr std::size_t kUnregisteredAtOnce = 1024;

/// Waits until nobody uses closing regions; makes them visible again where that cannot be.
Status quiesce(EngineCore& core, const std::vector<Region>& regions) {
    std::vector<ByteRange> ranges;
    ranges.reserve(regions.size());
    for (const Region& region : regions) ranges.push_back(region.range);
    const auto users = core.ask<Result<std::vector<BatchID>>>(core.supervisor, [&](auto reply) {
        return QuiesceRanges{RangeSet(std::move(ranges)), core.regions.regions().version(),
                             Clock::now() + core.settings().unregister_timeout, std::move(reply)};
    });
    if (users && users->empty()) return Status::ok();
    for (const Region& region : regions) core.regions.cancelRemoval(region.id);
    if (!users) return users.status();
    std::string names;
    for (const BatchID batch : *users) names += (names.empty() ? "" : ", ") + std::to_string(batch);
    return {Code::BatchBusy, "region " + regions.front().range.toString() + " is still used by batch " + names +
                                 " after unregister_timeout"};
}

struct Unregistered {
    Status status;
    bool changed = false;  ///< The region is gone for users and peers, even where the status is not Ok.
};

Unregistered unregisterOne(EngineCore& core, std::uint64_t first) {
    if (const Status may = core.mayWait(); !may) return {may};
    // From here on: a transport that is installed while the region is hidden would not know it when it is seen again.
    const std::shared_lock lock(core.transports_mutex);
    const auto region = core.regions.beginRemoval(first);
    if (!region) return {region.status()};
    if (const Status idle = quiesce(core, {*region}); !idle) return {idle};
    return {forget(core, *region), true};
}

/// Unregisters the first of these regions, and returns how many: all of them, or fewer (none at all where one of them
/// is in use) when something is wrong with one. The others are as they were.
std::size_t unregisterTogether(EngineCore& core, std::span<const std::uint64_t> firsts) {
    if (!core.mayWait()) return 0;
    std::vector<Region> regions;
    const std::shared_lock lock(core.transports_mutex);
    const Status refused = core.regions.beginRemoval(firsts, regions);
    if (!refused && regions.empty()) return 0;
    if (!quiesce(core, regions)) return 0;
    std::size_t gone = 0;
    while (gone < regions.size() && forget(core, regions[gone])) ++gone;
    for (std::size_t i = gone; i < regions.size(); ++i) core.regions.cancelRemoval(regions[i].id);
    return gone;
}

}  // namespace

Status TransferEngine::registerLocalMemory(void* addr, std::size_t length, const std::string& location,
                                           bool remote_accessible, bool update_metadata) {
    return registerOne(*core_, regionOf(addr, length, location, remote_accessible), update_metadata);
}

Status TransferEngine::registerLocalMemoryBatch(const std::vector<BufferEntry>& buffers, const std::string& location,
                                                bool remote_accessible) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    if (const Status may = core.mayWait(); !may) return may;
    const std::shared_lock lock(core.transports_mutex);
    std::vector<Region> taken;
    MemoryRights rights;
    Status failed;
    for (const BufferEntry& buffer : buffers) {
        Region wanted = regionOf(buffer.addr, buffer.length, location, remote_accessible);
        const Status sound = checkRegion(core, wanted, rights);
        auto region = sound ? core.regions.reserve(wanted) : Result<Region>(sound);
        failed = region ? registerEverywhere(core, *region) : region.status();
        if (!failed) break;
        taken.push_back(*region);
    }
    if (!failed) {
        for (const Region& region : taken)
            if (const Status left = forget(core, region); !left)
                failed = Status(failed.code(), failed.message() + "; " + left.message());
        return failed;
    }
    std::vector<std::uint64_t> ids;
    ids.reserve(taken.size());
    for (const Region& region : taken) ids.push_back(region.id);
    core.regions.commit(ids);
    caf::anon_send(core.directory, PublishLocal{});
    return Status::ok();
}

Status TransferEngine::unregisterLocalMemory(void* addr, bool update_metadata) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    const std::uint64_t first = reinterpret_cast<std::uint64_t>(addr);
    const Unregistered done = unregisterOne(core, first);
    // Peers are not to look for what a transport does not let go of any more either.
    if (update_metadata && done.changed) caf::anon_send(core.directory, PublishLocal{});
    return done.status;
}

Status TransferEngine::unregisterLocalMemoryBatch(const std::vector<void*>& addrs) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    std::vector<std::uint64_t> firsts;
    firsts.reserve(addrs.size());
    for (const void* addr : addrs) firsts.push_back(reinterpret_cast<std::uint64_t>(addr));
    std::span<const std::uint64_t> left(firsts);
    bool changed = false;
    Status status;
    while (status && !left.empty()) {
        const auto together = left.first(std::min(left.size(), kUnregisteredAtOnce));
        const std::size_t gone = unregisterTogether(core, together);
        changed = changed || gone != 0;
        left = left.subspan(gone);
        if (gone == together.size()) continue;
        // One of these is in use, or not there. By itself it says so, and what comes before it goes.
        for (const std::uint64_t first : together.subspan(gone)) {
            const Unregistered done = unregisterOne(core, first);
            changed = changed || done.changed;
            status = done.status;
            if (!status) break;
            left = left.subspan(1);
        }
    }
    if (changed) caf::anon_send(core.directory, PublishLocal{});
    return status;
}

Result<void*> TransferEngine::allocateLocalMemory(std::size_t size, const std::string& location, bool remote_accessible,
                                                  bool huge_pages) {
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    const auto where = readLocation(location, core.numa_nodes);
    if (!where) return where.status();
    auto memory = MemoryFile::create(size, huge_pages, *where);
    if (!memory) return memory.status();
    void* const addr = (*memory)->data();
    Region region = regionOf(addr, size, location, remote_accessible);
    region.file = (*memory)->fd();
    if (const Status registered = registerOne(core, std::move(region), true); !registered) return registered;
    const std::lock_guard lock(core.allocations_mutex);
    core.allocations.emplace(reinterpret_cast<std::uint64_t>(addr), std::move(*memory));
    return addr;
}

Status TransferEngine::freeLocalMemory(void* addr) {
    EngineCore& core = *core_;
    const auto key = reinterpret_cast<std::uint64_t>(addr);
    {
        const std::lock_guard lock(core.allocations_mutex);
        if (core.allocations.count(key) == 0)
            return Status(Code::AddressNotRegistered, "no memory of allocateLocalMemory begins there, or it was freed");
    }
    // The application may have unregistered it by itself.
    const Status unregistered = unregisterLocalMemory(addr);
    if (!unregistered && unregistered.code() != Code::AddressNotRegistered) return unregistered;
    const std::lock_guard lock(core.allocations_mutex);
    const auto found = core.allocations.find(key);
    if (found == core.allocations.end())
        return Status(Code::AddressNotRegistered, "another thread freed that memory meanwhile");
    // While it is unmapped nobody may register a part of it, and nobody may have done so.
    const auto claimed = core.regions.reserve(regionOf(found->second->data(), found->second->size(), "*", false));
    if (!claimed) return claimed.status().withContext("a part of that memory is registered; unregister it first");
    auto memory = std::move(found->second);
    core.allocations.erase(found);
    memory->vacate();
    // As soon as the addresses are free, the system may give them to a thread that registers what it gets.
    core.regions.remove(claimed->id, [&memory] { memory.reset(); });
    return Status::ok();
}

}  // namespace troupe
