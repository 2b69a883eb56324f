#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/snapshot.h"
#include "base/status.h"
#include "metadata/segment_desc.h"
#include "transports/device.h"
#include "transports/memory_exporter.h"
#include "transports/opcode.h"
#include "transports/region.h"
#include "verbs_backend/device.h"

namespace troupe::verbs {

/// The keys of one registered region: a memory registration for each chunk and device, deregistered with this. A device
/// that was out of use has none: its keys are 0, and nobody asks for them.
///
/// A region is cut into chunks of the table's `chunkBytes`, counted from its start; the last one may be shorter. Chunks
/// are what a device's max_mr_size and the settings allow, the same for all devices.
class RegionKeys {
  public:
    ~RegionKeys() { static_cast<void>(end()); }
    RegionKeys(const RegionKeys&) = delete;
    RegionKeys& operator=(const RegionKeys&) = delete;

    const Region& region() const { return region_; }
    /// It is another device's, and was registered as a dma-buf of that.
    bool isDmabuf() const { return is_dmabuf_; }
    std::size_t chunks() const { return entries_.size() / devices_.size(); }
    std::uint32_t localKey(std::uint64_t chunk, std::size_t device) const { return at(chunk, device).local; }
    std::uint32_t remoteKey(std::uint64_t chunk, std::size_t device) const { return at(chunk, device).remote; }

  private:
    friend class MemoryTable;
    RegionKeys(std::vector<std::shared_ptr<Device>> devices, const Region& region, std::uint64_t chunks)
        : devices_(std::move(devices)), region_(region), entries_(chunks * devices_.size()) {}
    struct Entry {
        std::uint32_t local = 0;
        std::uint32_t remote = 0;
        ibv_mr* registration = nullptr;  ///< For the writers only.
    };
    const Entry& at(std::uint64_t chunk, std::size_t device) const {
        return entries_[chunk * devices_.size() + device];
    }
    /// Several threads may, each for another device.
    void set(std::uint64_t chunk, std::size_t device, ibv_mr* registration) {
        entries_[chunk * devices_.size() + device] = {registration->lkey, registration->rkey, registration};
    }
    /// Deregisters. The numbers stay: a reader may hold an old snapshot, though it finds no use for them. BatchBusy
    /// names the first device that does not take a registration back; those stay, for another try.
    Status end();

    const std::vector<std::shared_ptr<Device>> devices_;
    const Region region_;
    std::vector<Entry> entries_;  ///< Chunk by chunk, in each by device.
    bool is_dmabuf_ = false;
};

/// An immutable set of registered regions, ordered by address.
class KeyMap {
  public:
    /// The region with keys that contains `addr`, or null.
    const RegionKeys* find(std::uint64_t addr) const;
    /// Why one of the regions that `range` touches is not for such a request: it has no keys, or, of a READ, no NIC may
    /// write there. Ok: each is, or is not known here.
    Status declined(const ByteRange& range, Opcode opcode) const;
    /// The GPUs whose memory `range` touches and that have to flush what a NIC wrote there, added to `gpus` if they are
    /// not in it.
    void findFlushed(const ByteRange& range, std::vector<std::shared_ptr<device::Device>>& gpus) const;
    /// There are such regions.
    bool hasFlushed() const { return flushed_ != 0; }

  private:
    friend class MemoryTable;
    struct Entry {
        ByteRange range;
        std::shared_ptr<const RegionKeys> keys;  ///< Null: declined.
        std::uint64_t region = 0;                ///< Its number.
        Status why = {};                         ///< Of one that was declined, or that no NIC may write to.
        std::shared_ptr<device::Device> flushed_by = nullptr;  ///< Null: what NICs write there need not be flushed.
    };
    void insert(Entry entry);
    /// Forgets the region of that number.
    void erase(std::uint64_t region);
    std::vector<Entry> entries_;
    std::size_t declined_ = 0;  ///< How many have a `why`.
    std::size_t flushed_ = 0;   ///< How many have a `flushed_by`.
};

/// Registers local memory with every device. Writers are the threads that register; data loops read snapshots.
///
/// A mutex guards the writers' map: registering is slow and rare, and it is not held while a device registers.
class MemoryTable {
  public:
    /// `device_memory` gives descriptors for memory that only another device has; it may be null.
    MemoryTable(std::vector<std::shared_ptr<Device>> devices, const Config& config, Logger log = makeSilentLogger(),
                std::shared_ptr<MemoryExporter> device_memory = nullptr);

    std::uint64_t chunkBytes() const { return chunk_bytes_; }
    const std::vector<std::shared_ptr<Device>>& devices() const { return devices_; }

    /// All chunks with all devices, or nothing: what was registered is undone when one fails. ResourceExhausted and
    /// others name the device, the range, and where the error is that of a limit, the limit, the need and the remedy.
    /// Memory of a device is exported once and imported by every Nic; where that fails, its address is registered as
    /// any other, which works with a driver that lends it (peer memory). Where neither works it is *declined*: that is
    /// Ok, so that other transports may have it, peers get no key for it, and KeyMap::declined says why. The first time
    /// the log does, too. Memory of a GPU that would not see what NICs write there is registered to be read alone:
    /// KeyMap::declined has READs into it, and the descriptor has peers' WRITEs, go by other transports.
    Status add(const Region& region);
    /// The keys are dead when this is Ok: the devices refuse them from then on. Nothing may be in flight there.
    /// BatchBusy: a device did not take a registration back, so the memory is still pinned, and within reach of whoever
    /// has its key. Nobody is given the region any more, and this may be called again. Also for what is left of a
    /// region that was refused.
    Status remove(const Region& region);

    /// Fills in `rkeys` of the buffers of `desc` that peers may use.
    void describe(SegmentDesc& desc) const;

    const Snapshot<KeyMap>& keys() const { return visible_; }

  private:
    /// `exported`: null when the address itself is registered.
    Result<std::shared_ptr<RegionKeys>> registerAll(const Region& region, const ExportedMemory* exported);
    Status registerWith(std::size_t device, const Region& region, const ExportedMemory* exported, RegionKeys& keys,
                        const std::atomic<bool>& given_up) const;
    Result<std::shared_ptr<RegionKeys>> registerDeviceMemory(const Region& region);
    static Region asNicsMayUse(const Region& region);
    void decline(const Region& region, const Status& why);
    std::string chunkBound() const;
    Status registerChunk(const Device& device, const ByteRange& chunk, const Region& region,
                         const ExportedMemory* exported, ibv_mr*& made) const;
    Status refusal(const Device& device, const ByteRange& chunk, const Region& region, int error) const;

    const std::vector<std::shared_ptr<Device>> devices_;
    const Logger log_;
    const std::shared_ptr<MemoryExporter> device_memory_;
    std::uint64_t chunk_bytes_ = 0;
    mutable std::mutex writers_;
    std::map<std::uint64_t, std::shared_ptr<RegionKeys>> by_addr_;
    std::vector<std::shared_ptr<RegionKeys>> stuck_;  ///< Of which a device kept something; nobody finds them any more.
    bool said_declined_ = false;                      ///< In the log.
    bool said_unseen_ = false;                        ///< In the log: that no NIC may write to a GPU.
    Snapshot<KeyMap> visible_;
};

}  // namespace troupe::verbs
