#include "verbs_backend/memory_table.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"

namespace troupe::verbs {

namespace {

/// Chunks end on page borders, so that no page is pinned twice for the sake of two chunks.
constexpr std::uint64_t kPage = 4096;

/// From here on a region is registered with several devices at the same time: below, threads cost more than they save.
constexpr std::uint64_t kParallelBytes = 64u << 20;
/// At most, whatever the number of devices.
constexpr std::size_t kMostThreads = 8;

constexpr std::uint64_t kKiB = 1024;

/// Says the limit on locked memory, and how it is raised so that `need` bytes fit. In bytes and in KiB: who reads it
/// has the one in setrlimit and systemd's LimitMEMLOCK, the other in the shell.
std::string memlockAdvice(std::uint64_t need) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "the limit on locked memory (`ulimit -l`) is unknown";
    if (limit.rlim_cur == RLIM_INFINITY) return "the limit on locked memory (`ulimit -l`) is unlimited";
    const std::uint64_t kib = need / kKiB + (need % kKiB == 0 ? 0 : 1);
    return "the limit on locked memory is " + std::to_string(limit.rlim_cur) + " bytes, " +
           std::to_string(limit.rlim_cur / kKiB) + " KiB; raise it by `ulimit -l`, which takes KiB, or LimitMEMLOCK, " +
           "which takes bytes: " + std::to_string(kib) + " KiB or " + std::to_string(kib * kKiB) +
           " bytes are the least for this region alone, or unlimited";
}

device::NicWrites nicWritesTo(const Region& region) {
    return region.isOnDevice() ? region.place->device->info().nic_writes : device::NicWrites::Ordered;
}

}  // namespace

Status RegionKeys::end() {
    Status left;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].registration == nullptr) continue;
        const Device& device = *devices_[i % devices_.size()];
        const int error = device.api().deregMr(entries_[i].registration);
        if (error == 0) {
            entries_[i].registration = nullptr;
        } else if (left.isOk()) {
            left = errnoStatus(Code::BatchBusy,
                               "rdma: " + device.describe() + " does not take back its registration of " +
                                   region_.range.toString() +
                                   ": it stays pinned, and who has its key may still reach it; do not unmap or reuse "
                                   "it, and unregister it again",
                               error);
        }
    }
    return left;
}

void KeyMap::insert(Entry entry) {
    if (!entry.why) ++declined_;
    if (entry.flushed_by) ++flushed_;
    const auto place = std::upper_bound(entries_.begin(), entries_.end(), entry.range.addr,
                                        [](std::uint64_t addr, const Entry& other) { return addr < other.range.addr; });
    entries_.insert(place, std::move(entry));
}

void KeyMap::erase(std::uint64_t region) {
    std::erase_if(entries_, [&](const Entry& entry) {
        if (entry.region != region) return false;
        declined_ -= entry.why ? 0 : 1;
        flushed_ -= entry.flushed_by ? 1 : 0;
        return true;
    });
}

Status KeyMap::declined(const ByteRange& range, Opcode opcode) const {
    if (declined_ == 0) return {};
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return !entry.why && (!entry.keys || opcode == Opcode::Read) && entry.range.overlaps(range);
    });
    return found == entries_.end() ? Status() : found->why;
}

void KeyMap::findFlushed(const ByteRange& range, std::vector<std::shared_ptr<device::Device>>& gpus) const {
    if (flushed_ == 0) return;
    auto at = std::upper_bound(entries_.begin(), entries_.end(), range.addr,
                               [](std::uint64_t wanted, const Entry& entry) { return wanted < entry.range.addr; });
    if (at != entries_.begin()) --at;
    for (; at != entries_.end() && at->range.addr < range.end(); ++at)
        if (at->flushed_by && at->range.overlaps(range) &&
            std::find(gpus.begin(), gpus.end(), at->flushed_by) == gpus.end())
            gpus.push_back(at->flushed_by);
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

/// What the size of a chunk comes from.
std::string MemoryTable::chunkBound() const {
    const auto smallest = std::min_element(devices_.begin(), devices_.end(), [](const auto& a, const auto& b) {
        return a->attributes.max_mr_size < b->attributes.max_mr_size;
    });
    // The setting may be less than a page more.
    return (*smallest)->attributes.max_mr_size < chunk_bytes_ + kPage
               ? "max_mr_size of " + (*smallest)->describe() + " is " +
                     std::to_string((*smallest)->attributes.max_mr_size) + " bytes: register it in parts"
               : "register it in parts, or raise rdma.max_chunk_bytes";
}

Status MemoryTable::add(const Region& region) {
    const std::uint64_t chunks = (region.range.length - 1) / chunk_bytes_ + 1;
    if (chunks > kMaxBufferKeys / devices_.size())
        return {Code::CapacityExceeded, "rdma: " + region.range.toString() + " makes " + std::to_string(chunks) +
                                            " chunks of " + std::to_string(chunk_bytes_) + " bytes with " +
                                            std::to_string(devices_.size()) + " devices; at most " +
                                            std::to_string(kMaxBufferKeys) + " keys per region: " + chunkBound()};
    const bool on_device = device_memory_ && device_memory_->holds(region.location);
    auto registered = on_device ? registerDeviceMemory(asNicsMayUse(region)) : registerAll(region, nullptr);
    if (!registered && on_device) {
        decline(region, registered.status());
        return {};
    }
    if (!registered) return registered.status();
    std::shared_ptr<RegionKeys> keys = std::move(*registered);
    KeyMap::Entry entry{region.range, keys, region.id};
    if (const device::NicWrites writes = nicWritesTo(region); writes == device::NicWrites::Flushed)
        entry.flushed_by = region.place->device;
    else if (writes == device::NicWrites::Unseen)
        entry.why = Status(Code::Unsupported, "memory at " + region.location +
                                                  " may not be written by RDMA: its driver neither orders what NICs "
                                                  "write nor flushes it (GPU_DIRECT_RDMA_WRITES_ORDERING is NONE)");
    const std::lock_guard lock(writers_);
    if (!entry.why)
        log_->log(std::exchange(said_unseen_, true) ? spdlog::level::debug : spdlog::level::warn,
                  "rdma: {}: what is written to it goes by other transports: {}", region.range.toString(),
                  entry.why.message());
    by_addr_[region.range.addr] = keys;
    auto next = std::make_shared<KeyMap>(*visible_.load());
    next->insert(std::move(entry));
    visible_.publish(std::move(next));
    return {};
}

/// Without the right to write where the GPU would not see it.
Region MemoryTable::asNicsMayUse(const Region& region) {
    Region limited = region;
    if (nicWritesTo(region) == device::NicWrites::Unseen) limited.writable = false;
    return limited;
}

/// No device reaches it.
void MemoryTable::decline(const Region& region, const Status& why) {
    const std::lock_guard lock(writers_);
    log_->log(std::exchange(said_declined_, true) ? spdlog::level::debug : spdlog::level::warn,
              "rdma: {} goes by other transports: {}", region.range.toString(), why.message());
    auto next = std::make_shared<KeyMap>(*visible_.load());
    next->insert({region.range, nullptr, region.id, why});
    visible_.publish(std::move(next));
}

/// A large region with several devices at the same time: each pins all of it. Undone when one of them refuses.
Result<std::shared_ptr<RegionKeys>> MemoryTable::registerAll(const Region& region, const ExportedMemory* exported) {
    const std::uint64_t chunks = (region.range.length - 1) / chunk_bytes_ + 1;
    const std::shared_ptr<RegionKeys> keys(new RegionKeys(devices_, region, chunks));
    std::vector<Status> outcomes(devices_.size());
    std::atomic<std::size_t> next{0};
    std::atomic<bool> given_up{false};
    const auto work = [&] {
        for (std::size_t device = next++; device < devices_.size(); device = next++) {
            outcomes[device] = registerWith(device, region, exported, *keys, given_up);
            if (!outcomes[device]) given_up = true;
        }
    };
    std::vector<std::thread> helpers;
    if (region.range.length >= kParallelBytes) {
        const std::size_t most =
            std::min({devices_.size(), kMostThreads,
                      static_cast<std::size_t>(std::max(std::thread::hardware_concurrency(), 1u))});
        while (helpers.size() + 1 < most) {
            auto helper = startQuietThread("troupe.pin", work);
            // Those that there are do the work of all.
            if (!helper) break;
            helpers.push_back(std::move(*helper));
        }
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& each) { return !each; });
    if (failed == outcomes.end()) return keys;
    if (const Status left = keys->end(); !left) {
        log_->error("{}", left.toString());
        const std::lock_guard lock(writers_);
        stuck_.push_back(keys);
    }
    return *failed;
}

/// All chunks with one device, unless another one has refused meanwhile.
Status MemoryTable::registerWith(std::size_t device, const Region& region, const ExportedMemory* exported,
                                 RegionKeys& keys, const std::atomic<bool>& given_up) const {
    // It would refuse everything from now on, and the others would have nothing either.
    if (devices_[device]->isOut()) return {};
    for (std::uint64_t chunk = 0; chunk < keys.chunks() && !given_up; ++chunk) {
        const std::uint64_t offset = chunk * chunk_bytes_;
        const ByteRange range{region.range.addr + offset, std::min(chunk_bytes_, region.range.length - offset)};
        ibv_mr* made = nullptr;
        if (Status status = registerChunk(*devices_[device], range, region, exported, made); !status) return status;
        keys.set(chunk, device, made);
    }
    return {};
}

/// The descriptor is closed when this returns: each registration keeps the memory by itself.
Result<std::shared_ptr<RegionKeys>> MemoryTable::registerDeviceMemory(const Region& region) {
    const auto exported = device_memory_->exportRange(region.range, region.location);
    Status why = exported.status();
    if (exported) {
        auto keys = registerAll(region, &*exported);
        if (keys) {
            (*keys)->is_dmabuf_ = true;
            return keys;
        }
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

Status MemoryTable::remove(const Region& region) {
    std::vector<std::shared_ptr<RegionKeys>> ending;
    {
        const std::lock_guard lock(writers_);
        const auto isOfRegion = [&](const std::shared_ptr<RegionKeys>& each) { return each->region().id == region.id; };
        std::copy_if(stuck_.begin(), stuck_.end(), std::back_inserter(ending), isOfRegion);
        std::erase_if(stuck_, isOfRegion);
        const auto found = by_addr_.find(region.range.addr);
        const bool has_keys = found != by_addr_.end() && isOfRegion(found->second);
        if (has_keys) {
            ending.push_back(std::move(found->second));
            by_addr_.erase(found);
        }
        if (has_keys || visible_.load()->declined_ != 0) {
            auto next = std::make_shared<KeyMap>(*visible_.load());
            next->erase(region.id);
            visible_.publish(std::move(next));
        }
    }
    // A data loop may hold the old snapshot for as long as it is idle; the keys must end now.
    Status left;
    for (const auto& keys : ending) {
        const Status ended = keys->end();
        if (ended) continue;
        if (left.isOk()) left = ended;
        const std::lock_guard lock(writers_);
        stuck_.push_back(keys);
    }
    return left;
}

Status MemoryTable::registerChunk(const Device& device, const ByteRange& chunk, const Region& region,
                                  const ExportedMemory* exported, ibv_mr*& made) const {
    // Relaxed ordering is safe: a READ's bytes are only looked at after its completion, and what reads back what was
    // written, by the device, overtakes no write. It is optional, so that libibverbs drops it where the device has
    // none.
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
    const std::string takes = "the device takes " + std::to_string(device.attributes.max_mr) +
                              " registrations (max_mr) of " + std::to_string(device.attributes.max_mr_size) +
                              " bytes (max_mr_size)";
    if (error == ENOMEM || error == EAGAIN)
        return errnoStatus(Code::ResourceExhausted,
                           what + ": the whole region of " + std::to_string(region.range.length) +
                               " bytes is pinned on " + std::to_string(devices_.size()) + " device(s), " +
                               std::to_string(region.range.length * devices_.size()) + " bytes in all; " +
                               memlockAdvice(region.range.length * devices_.size()) + "; " + takes,
                           error);
    if (error == EFAULT)
        return errnoStatus(Code::InvalidArgument,
                           what +
                               ": not all of it is mapped and writable, or it is memory that cannot be pinned "
                               "(device memory needs its driver's peer memory support)",
                           error);
    return errnoStatus(Code::ResourceExhausted, what + ": " + takes, error);
}

void MemoryTable::describe(SegmentDesc& desc) const {
    const auto current = visible_.load();
    for (BufferDesc& buffer : desc.buffers) {
        const RegionKeys* keys = current->find(buffer.addr);
        if (!buffer.remote_accessible || keys == nullptr || keys->region().range.addr != buffer.addr ||
            keys->region().range.length != buffer.length)
            continue;
        const device::NicWrites writes = nicWritesTo(keys->region());
        buffer.rdma_writes = writes == device::NicWrites::Ordered   ? RdmaWrites::Plain
                             : writes == device::NicWrites::Flushed ? RdmaWrites::ReadBack
                                                                    : RdmaWrites::None;
        buffer.rkeys.clear();
        buffer.rkeys.reserve(keys->chunks() * devices_.size());
        for (std::uint64_t chunk = 0; chunk < keys->chunks(); ++chunk)
            for (std::size_t device = 0; device < devices_.size(); ++device)
                buffer.rkeys.push_back(keys->remoteKey(chunk, device));
    }
}

}  // namespace troupe::verbs
