#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/region.h"

namespace troupe::host {

/// How a region of a GPU's memory is given to other processes of this host: one handle for each allocation in it.
struct DeviceExport {
    struct Piece {
        /// Stands for the piece where a grant names a region: unique as that is, and never one of those numbers.
        std::uint64_t key = 0;
        ByteRange range;
        device::SharedMemory shared;
    };
    Status why;                 ///< Ok, or why it cannot be given.
    std::vector<Piece> pieces;  ///< In address order, without a gap.

    /// Null: the address is in none.
    const Piece* find(std::uint64_t addr) const;
};

/// The exports of an engine's regions, by region. Thread-safe.
class DeviceExports {
  public:
    /// For a region that is being registered: asks the driver for handles, which takes a while.
    void add(const Region& region);
    void remove(const Region& region);
    /// Null: no such region.
    std::shared_ptr<const DeviceExport> find(std::uint64_t region) const;

  private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<const DeviceExport>> by_region_;
};

}  // namespace troupe::host
