#include "verbs_backend/memory_table.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace troupe::verbs {

namespace {

/// Chunks end on page borders, so that no page is pinned twice for the sake of two chunks.
constexpr std::uint64_t kPage = 4096;

std::string memlockLimit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
    return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace

void RegionKeys::end() {
    for (std::size_t i = 0; i < registrations_.size(); ++i)
        static_cast<void>(devices_[i % devices_.size()]->api().deregMr(registrations_[i]));
    registrations_.clear();
}

const RegionKeys* KeyMap::find(std::uint64_t addr) const {
    auto after = std::upper_bound(entries_.begin(), entries_.end(), addr,
                                  [](std::uint64_t wanted, const Entry& entry) { return wanted < entry.range.addr; });
    if (after == entries_.begin()) return nullptr;
    --after;
    return addr < after->range.end() ? after->keys.get() : nullptr;
}

MemoryTable::MemoryTable(std::vector<std::shared_ptr<Device>> devices, const Config& config, Logger log,
                         std::shared_ptr<MemoryExporter> device_memory)
    : devices_(std::move(devices)),
      log_(std::move(log)),
      device_memory_(std::move(device_memory)),
      chunk_bytes_(config.rdma_max_chunk_bytes),
      visible_(std::make_shared<const KeyMap>()) {
    for (const auto& device : devices_) chunk_bytes_ = std::min(chunk_bytes_, device->attributes.max_mr_size);
    chunk_bytes_ = std::max(chunk_bytes_ / kPage, std::uint64_t{1}) * kPage;
}

Status MemoryTable::add(const Region& region) {
    const std::uint64_t chunks = (region.range.length - 1) / chunk_bytes_ + 1;
    if (chunks > kMaxBufferKeys / devices_.size())
        return {Code::CapacityExceeded, "rdma: " + region.range.toString() + " makes " + std::to_string(chunks) +
                                            " chunks of " + std::to_string(chunk_bytes_) + " bytes with " +
                                            std::to_string(devices_.size()) + " devices; at most " +
                                            std::to_string(kMaxBufferKeys) +
                                            " keys per region: register it in parts, or raise rdma.max_chunk_bytes"};
    const bool on_device = device_memory_ && device_memory_->holds(region.location);
    auto registered = on_device ? registerDeviceMemory(region) : registerAll(region, nullptr);
    if (!registered) return registered.status();
    std::shared_ptr<RegionKeys> keys = std::move(*registered);
    const std::lock_guard lock(writers_);
    by_addr_[region.range.addr] = keys;
    auto next = std::make_shared<KeyMap>(*visible_.load());
    const auto place =
        std::upper_bound(next->entries_.begin(), next->entries_.end(), region.range.addr,
                         [](std::uint64_t addr, const KeyMap::Entry& entry) { return addr < entry.range.addr; });
    next->entries_.insert(place, {region.range, std::move(keys)});
    visible_.publish(std::move(next));
    return {};
}

Result<std::shared_ptr<RegionKeys>> MemoryTable::registerAll(const Region& region,
                                                             const ExportedMemory* exported) const {
    // Its destructor undoes what was done when one fails.
    std::shared_ptr<RegionKeys> keys(new RegionKeys(devices_, region));
    for (std::uint64_t offset = 0; offset < region.range.length; offset += chunk_bytes_) {
        const ByteRange range{region.range.addr + offset, std::min(chunk_bytes_, region.range.length - offset)};
        for (const auto& device : devices_) {
            ibv_mr* made = nullptr;
            if (Status status = registerChunk(*device, range, region, exported, made); !status) return status;
            keys->add(made);
        }
    }
    return keys;
}

/// The descriptor is closed when this returns: each registration keeps the memory by itself.
Result<std::shared_ptr<RegionKeys>> MemoryTable::registerDeviceMemory(const Region& region) const {
    const auto exported = device_memory_->exportRange(region.range, region.location);
    Status why = exported.status();
    if (exported) {
        auto keys = registerAll(region, &*exported);
        if (keys) return keys;
        why = keys.status();
    }
    auto keys = registerAll(region, nullptr);
    if (keys) {
        log_->info("rdma: {} at {} is registered by its address, not as a dma-buf: {}", region.range.toString(),
                   region.location, why.message());
        return keys;
    }
    return Status(Code::Unsupported, "memory at " + region.location + " cannot be used by RDMA: as a dma-buf: " +
                                         why.message() + "; by its address: " + keys.status().message());
}

void MemoryTable::remove(const Region& region) {
    std::shared_ptr<RegionKeys> keys;
    {
        const std::lock_guard lock(writers_);
        const auto found = by_addr_.find(region.range.addr);
        if (found == by_addr_.end() || found->second->region().id != region.id) return;
        keys = std::move(found->second);
        by_addr_.erase(found);
        auto next = std::make_shared<KeyMap>(*visible_.load());
        std::erase_if(next->entries_, [&](const KeyMap::Entry& entry) { return entry.keys == keys; });
        visible_.publish(std::move(next));
    }
    // A data loop may hold the old snapshot for as long as it is idle; the keys must end now.
    keys->end();
}

Status MemoryTable::registerChunk(const Device& device, const ByteRange& chunk, const Region& region,
                                  const ExportedMemory* exported, ibv_mr*& made) const {
    // Relaxed ordering is safe: a READ's bytes are only looked at after its completion, and it is optional, so that
    // libibverbs drops it where the device has none.
    int access = IBV_ACCESS_RELAXED_ORDERING;
    if (region.remote_accessible) access |= IBV_ACCESS_REMOTE_READ;
    // The kernel pins what is asked to be writable for writing, and refuses memory that is mapped read-only (EFAULT).
    if (region.writable) access |= IBV_ACCESS_LOCAL_WRITE;
    if (region.writable && region.remote_accessible) access |= IBV_ACCESS_REMOTE_WRITE;
    errno = 0;
    if (exported != nullptr) {
        const std::uint64_t offset = exported->offset + (chunk.addr - region.range.addr);
        made = device.api().regDmabufMr(device.pd(), offset, chunk.length, chunk.addr, exported->fd.get(), access);
        if (made != nullptr) return {};
        const int error = errno;
        const char* advice = error == EOPNOTSUPP ? " (its driver cannot, or the kernel is older than 5.12)" : "";
        return errnoStatus(Code::Unsupported,
                           "rdma: import " + chunk.toString() + " as a dma-buf with " + device.describe() + advice,
                           error);
    }
    made = device.api().regMr(device.pd(), reinterpret_cast<void*>(chunk.addr), chunk.length, access);
    return made != nullptr ? Status() : refusal(device, chunk, region, errno);
}

Status MemoryTable::refusal(const Device& device, const ByteRange& chunk, const Region& region, int error) const {
    const std::string what = "rdma: register " + chunk.toString() + " with " + device.describe();
    if (error == ENOMEM || error == EAGAIN)
        return errnoStatus(Code::ResourceExhausted,
                           what + ": the whole region of " + std::to_string(region.range.length) +
                               " bytes is pinned on " + std::to_string(devices_.size()) +
                               " device(s), the limit on locked memory is " + memlockLimit() +
                               " (raise it with ulimit -l or LimitMEMLOCK), the device takes " +
                               std::to_string(device.attributes.max_mr) + " registrations",
                           error);
    if (error == EFAULT)
        return errnoStatus(Code::InvalidArgument,
                           what +
                               ": not all of it is mapped and writable, or it is memory that cannot be pinned "
                               "(device memory needs its driver's peer memory support)",
                           error);
    return errnoStatus(Code::ResourceExhausted, what, error);
}

void MemoryTable::describe(SegmentDesc& desc) const {
    const auto current = visible_.load();
    for (BufferDesc& buffer : desc.buffers) {
        const RegionKeys* keys = current->find(buffer.addr);
        if (!buffer.remote_accessible || keys == nullptr || keys->region().range.addr != buffer.addr ||
            keys->region().range.length != buffer.length)
            continue;
        buffer.rkeys.clear();
        buffer.rkeys.reserve(keys->chunks() * devices_.size());
        for (std::uint64_t chunk = 0; chunk < keys->chunks(); ++chunk)
            for (std::size_t device = 0; device < devices_.size(); ++device)
                buffer.rkeys.push_back(keys->remoteKey(chunk, device));
    }
}

}  // namespace troupe::verbs
