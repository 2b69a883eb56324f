#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/byte_range.h"
#include "topology/location.h"

namespace troupe {

namespace device {
struct PlacedMemory;
}

/// A range of local memory that the application registered.
struct Region {
    std::uint64_t id = 0;  ///< Unique in the engine's life, never reused: the generation of the descriptor.
    ByteRange range;
    std::string location = "*";  ///< "cpu:0", "cuda:1", "segments:4096:0,1", or "*" for unknown.
    /// What the priority matrix calls that place, where it has another name: a GPU is counted by the process here, and
    /// there by PCI addresses. Empty: the same.
    std::string matrix_location = {};
    bool remote_accessible = true;  ///< Peers may read it, and write it if it is writable.
    bool writable = true;           ///< False: mapped read-only; nothing is ever written to it.
    int file = -1;                  ///< Memory file behind it (see MemoryFile), open while it is registered; -1: none.
    std::uint64_t file_offset = 0;  ///< Of its first byte in the file.
    /// Where memory of a GPU lies. Null: a CPU may touch it.
    std::shared_ptr<const device::PlacedMemory> place = nullptr;
    /// In a RegionMap, of a GPU's memory: it is being unregistered. No new work finds it, and what was taken before
    /// has to know that no CPU may touch it.
    bool closing = false;
    bool pinned = false;  ///< GPUs copy from and to it by themselves: page-locked, or managed.
    /// Of "segments:...": the location, parsed. Null: all of it is at one place.
    std::shared_ptr<const Location> parts = nullptr;

    /// Where the byte at `addr`, which is in its range, lies, as the priority matrix has it: "cpu:1".
    std::string locationOf(std::uint64_t addr) const {
        if (parts) return parts->at(addr - range.addr, range.length);
        return matrix_location.empty() ? location : matrix_location;
    }
    /// The first address after that place.
    std::uint64_t endOfPart(std::uint64_t addr) const {
        return parts ? range.addr + parts->endOfPart(addr - range.addr, range.length) : range.end();
    }

    /// No CPU instruction and no system call may touch it.
    bool isOnDevice() const { return place != nullptr; }
};

}  // namespace troupe
