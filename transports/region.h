#pragma once

#include <cstdint>
#include <string>

#include "base/byte_range.h"

namespace troupe {

/// A range of local memory that the application registered.
struct Region {
    std::uint64_t id = 0;  ///< Unique in the engine's life, never reused: the generation of the descriptor.
    ByteRange range;
    std::string location = "*";     ///< "cpu:0", "cuda:1", or "*" for unknown.
    bool remote_accessible = true;  ///< Peers may read it, and write it if it is writable.
    bool writable = true;           ///< False: mapped read-only; nothing is ever written to it.
    int file = -1;                  ///< Memory file behind it (see MemoryFile), open while it is registered; -1: none.
    std::uint64_t file_offset = 0;  ///< Of its first byte in the file.

    /// Only a device has it mapped ("cuda:N"): the CPU cannot touch it.
    bool isOnDevice() const { return location.rfind("cuda:", 0) == 0; }
};

}  // namespace troupe
