#include "apps/support/mapped_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "apps/support/units.h"
#include "transports/memory_left.h"

namespace troupe::apps {

namespace {

constexpr std::uint64_t kHugePage = 2u << 20;

}  // namespace

Result<MappedMemory> MappedMemory::map(std::uint64_t bytes, bool huge) {
    const std::uint64_t page = huge ? kHugePage : static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return {Code::InvalidArgument,
                fmt::format("cannot map {} bytes of memory: give a size between 1 B and 8 EiB", bytes)};
    const std::uint64_t length = (bytes + page - 1) / page * page;
    // The pages of the huge pool are counted by the kernel; of others it promises more than there are.
    if (!huge)
        if (auto there = checkMemoryLeft(length, memoryLeft()); !there) return there;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (huge ? MAP_HUGETLB : 0);
    void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (address == MAP_FAILED) {
        const int error = errno;
        return {Code::ResourceExhausted,
                fmt::format("mmap of {}: {} (errno {}); {}", formatBytes(length), std::strerror(error), error,
                            huge ? fmt::format("reserve huge pages (sysctl vm.nr_hugepages={}) or leave --huge out",
                                               length / kHugePage)
                                 : "ask for less memory")};
    }
    MappedMemory memory;
    memory.bytes_ = {static_cast<std::byte*>(address), length};
    return memory;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedMemory::~MappedMemory() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace troupe::apps
