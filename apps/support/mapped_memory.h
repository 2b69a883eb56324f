#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace troupe::apps {

/// Anonymous memory from mmap(2), touched at once so that page faults are not measured later.
class MappedMemory {
  public:
    MappedMemory() = default;
    /// ResourceExhausted names the size and the remedy. `huge` takes 2 MiB pages from the pool of vm.nr_hugepages.
    static Result<MappedMemory> map(std::uint64_t bytes, bool huge = false);
    MappedMemory(MappedMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    MappedMemory& operator=(MappedMemory&& other) noexcept;
    MappedMemory(const MappedMemory&) = delete;
    MappedMemory& operator=(const MappedMemory&) = delete;
    ~MappedMemory();

    std::byte* data() const { return bytes_.data(); }
    /// Bytes mapped: what was asked for, rounded up to whole pages.
    std::size_t size() const { return bytes_.size(); }
    std::span<std::byte> span() const { return bytes_; }
    std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(bytes_.data()); }

  private:
    std::span<std::byte> bytes_;
};

}  // namespace troupe::apps
