#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/incarnation.h"
#include "transports/device.h"

namespace troupe::host {

/// By which handles memory of other processes' GPUs came to this one, for explain. Thread-safe: loops add, and whoever
/// explains asks; neither holds the mutex for longer than a look at a list of grants.
class DeviceWays {
  public:
    /// `range` of `owner` was given, and is forgotten when `memory` ends. `is_own`: nothing is mapped, as it is used
    /// where it is.
    void add(const Incarnation& owner, const ByteRange& range, std::weak_ptr<const device::SharedMemory> memory,
             bool is_own);
    /// "copied by the GPU", "mapped by an IPC handle", "mapped by its descriptor" and so on; "mapped": it is known no
    /// more.
    std::string find(const Incarnation& owner, std::uint64_t addr) const;

  private:
    struct Given {
        Incarnation owner;
        ByteRange range;
        std::weak_ptr<const device::SharedMemory> memory;
        bool is_own = false;
    };
    mutable std::mutex mutex_;
    std::vector<Given> given_;
};

}  // namespace troupe::host
