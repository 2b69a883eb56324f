#include "bench/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::bench {

Result<Memory> Memory::map(std::size_t bytes, int flags) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) {
        return {Code::ResourceExhausted, fmt::format("mmap of {} bytes: {}", bytes, std::strerror(errno))};
    }
    Memory memory;
    memory.data_ = static_cast<char*>(at);
    memory.size_ = bytes;
    return memory;
}

Result<Memory> Memory::populated(std::size_t bytes) {
    auto memory = map(bytes, MAP_POPULATE);
    // Written, so that a read of it can never be served from one shared page of zeros.
    if (memory) std::memset(memory->data(), 7, bytes);
    return memory;
}

Result<Memory> Memory::reserved(std::size_t bytes) { return map(bytes, MAP_NORESERVE); }

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Memory::~Memory() {
    if (data_) ::munmap(data_, size_);
}

}  // namespace troupe::bench
