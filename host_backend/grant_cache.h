#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "host_backend/device_import.h"
#include "host_backend/wire.h"
#include "transports/memory_file.h"

namespace troupe::host {

/// The grants that one path to one owner holds, and the mappings that come with them. One thread at a time.
class GrantCache {
  public:
    struct Entry {
        ByteRange range;  ///< In the owner's address space.
        std::uint64_t region = 0;
        bool writable = true;
        std::byte* data = nullptr;  ///< Where `range` begins here; null: by process_vm, or of a GPU.
        FileMapping mapping;
        std::unique_ptr<DeviceImport> device = nullptr;  ///< Of a GPU: no processor touches it.
    };

    /// The grant that `addr` lies in, or null. The pointer is good until the next change.
    const Entry* find(std::uint64_t addr) {
        // Most requests lie where the one before did.
        if (last_ != nullptr && addr - last_->range.addr < last_->range.length) return last_;
        return search(addr);
    }
    /// True when every byte of `range`, which does not wrap, is granted, for writing with `write`; else `missing` is
    /// the first that is not.
    bool covers(const ByteRange& range, bool write, std::uint64_t& missing);

    /// Whether the owner, of the grants that come from here on, is another engine of this process.
    void setSameProcess(bool is_same_process) { is_same_process_ = is_same_process; }
    /// Takes a grant, with the descriptor that came with it. True: it is new. False: it was known already.
    /// ProtocolError: it overlaps another, or its memory file is not what it must be.
    Result<bool> add(const Grant& grant, UniqueFd descriptor);
    /// The same of a GPU's memory, which is mapped when somebody needs it.
    Result<bool> add(const DeviceGrant& grant, UniqueFd descriptor);
    /// Forgets a region and unmaps it, but for what there is of a GPU, which is returned.
    std::unique_ptr<DeviceImport> remove(std::uint64_t region);
    std::vector<std::unique_ptr<DeviceImport>> clear();
    std::size_t size() const { return by_addr_.size(); }

  private:
    const Entry* search(std::uint64_t addr);
    Result<bool> isKnown(std::uint64_t region, const ByteRange& range, bool has_descriptor) const;
    void insert(Entry entry);

    std::map<std::uint64_t, Entry> by_addr_;
    std::unordered_map<std::uint64_t, std::uint64_t> addr_of_region_;
    const Entry* last_ = nullptr;
    bool is_same_process_ = false;
};

}  // namespace troupe::host
