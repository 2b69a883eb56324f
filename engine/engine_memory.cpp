// TransferEngine: registering memory.

#include <algorithm>
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

/// What can be said of a region before anybody is asked to take it. Finds out whether it may be written.
Status checkRegion(EngineCore& core, Region& region, MemoryRights& rights) {
    auto location = readLocation(region.location, core.numa_nodes);
    if (!location) return location.status();
    if (location->kind == Location::Kind::Segments)
        region.parts = std::make_shared<const Location>(std::move(*location));
    if (const Status located = core.device_memory.locate(region); !located) return located;
    if (region.isOnDevice()) return Status::ok();
    if (const Status mapped = checkMapped(region.range); !mapped) return mapped;
    const auto writable = rights.areAllWritable(region.range);
    if (!writable) return writable.status();
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
    const auto region = core.regions.beginRemoval(reinterpret_cast<std::uint64_t>(addr));
    if (!region) return region.status();
    const auto users = core.ask<Result<std::vector<BatchID>>>(core.supervisor, [&](auto reply) {
        return QuiesceRange{region->range, core.regions.regions().version(),
                            Clock::now() + core.settings().unregister_timeout, std::move(reply)};
    });
    if (!users || !users->empty()) {
        core.regions.cancelRemoval(region->id);
        if (!users) return users.status();
        std::string names;
        for (const BatchID batch : *users) names += (names.empty() ? "" : ", ") + std::to_string(batch);
        return Status(Code::BatchBusy, "region " + region->range.toString() + " is still used by batch " + names +
                                           " after unregister_timeout");
    }
    const std::shared_lock lock(core.transports_mutex);
    const Status left = forget(core, *region);
    // Peers are not to look for it any more either way.
    if (update_metadata) caf::anon_send(core.directory, PublishLocal{});
    return left;
}

Status TransferEngine::unregisterLocalMemoryBatch(const std::vector<void*>& addrs) {
    for (void* addr : addrs) {
        const Status done = unregisterLocalMemory(addr, addr == addrs.back());
        if (!done) return done;
    }
    return Status::ok();
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
