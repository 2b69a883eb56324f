#include "transports/read_only.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace troupe {

namespace {

// Linux 5.14; in uapi/asm-generic/mman-common.h, which older C libraries do not include.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

bool pageIsReadOnly(std::uint64_t addr, std::uint64_t page_bytes) {
    auto* const page = reinterpret_cast<void*>(addr / page_bytes * page_bytes);
    // EINVAL says that the mapping does not allow it, or that the advice is unknown; then reading is EINVAL as well.
    return ::madvise(page, page_bytes, kPopulateWrite) != 0 && errno == EINVAL &&
           ::madvise(page, page_bytes, kPopulateRead) == 0;
}

}  // namespace

bool isReadOnly(const ByteRange& range) {
    if (range.length == 0 || range.wraps()) return false;
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return pageIsReadOnly(range.addr, page_bytes) || pageIsReadOnly(range.end() - 1, page_bytes);
}

}  // namespace troupe
