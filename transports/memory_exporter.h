#pragma once

#include <cstdint>
#include <string>

#include "base/byte_range.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe {

/// Memory of a device as a file (a dma-buf), which other devices of the machine can be given.
struct ExportedMemory {
    UniqueFd fd;
    std::uint64_t offset = 0;  ///< Of the range's first byte in it, bytes.
};

/// Knows how memory that no CPU page backs is handed to other devices: what a GPU's driver does for its memory.
/// Thread-safe.
class MemoryExporter {
  public:
    virtual ~MemoryExporter() = default;
    /// True where memory at `location` ("cuda:0") is for this one to export.
    virtual bool holds(const std::string& location) const = 0;
    /// A descriptor of the whole range. May take long; never on a data loop. The error names the driver's call and why.
    virtual Result<ExportedMemory> exportRange(const ByteRange& range, const std::string& location) = 0;
};

}  // namespace troupe
