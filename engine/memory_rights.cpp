#include "engine/memory_rights.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string>

namespace troupe {

namespace {

// Linux 5.14; in uapi/asm-generic/mman-common.h, which older C libraries do not include.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

/// struct procmap_query of linux/fs.h since Linux 6.11, which older headers lack.
struct MapQuery {
    std::uint64_t size;
    std::uint64_t query_flags;
    std::uint64_t query_addr;
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t flags;
    std::uint64_t page_size;
    std::uint64_t offset;
    std::uint64_t inode;
    std::uint32_t device_major;
    std::uint32_t device_minor;
    std::uint32_t name_size;
    std::uint32_t build_id_size;
    std::uint64_t name_addr;
    std::uint64_t build_id_addr;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr std::uint64_t kReadable = 0x01;
constexpr std::uint64_t kWritable = 0x02;
constexpr std::uint64_t kCoveringOrNext = 0x10;

std::uint64_t pageBytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

/// 0, or why the page of `addr` cannot be made to exist by `advice`.
int populate(std::uint64_t addr, int advice) {
    const std::uint64_t page = pageBytes();
    return ::madvise(reinterpret_cast<void*>(addr / page * page), page, advice) == 0 ? 0 : errno;
}

/// Of a file that is shorter than its mapping every page from its end on is missing, so the last page tells. One that
/// cannot be said anything about (an older kernel, a device) is taken to be there.
bool isMissing(std::uint64_t addr) {
    const int error = populate(addr, kPopulateRead);
    return error == EFAULT || error == EHWPOISON;
}

/// By the page itself, where nobody says what its mapping allows.
bool isReadOnly(std::uint64_t addr) {
    // EINVAL says that the mapping does not allow it, or that the advice is unknown; then reading is EINVAL as well.
    return populate(addr, kPopulateWrite) == EINVAL && populate(addr, kPopulateRead) == 0;
}

Status refused(const ByteRange& range, std::uint64_t addr, const char* why) {
    return {Code::InvalidArgument, range.toString() + " cannot be used throughout: the memory at " + hexAddress(addr) +
                                       " " + why + ", and touching it would end the process"};
}

/// The first of the pages from `begin` to `end` that is missing; the last one is.
std::uint64_t firstMissing(std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t page = pageBytes();
    std::uint64_t there = 0;
    std::uint64_t missing = (end - begin - 1) / page + 1;
    while (missing - there > 1) {
        const std::uint64_t middle = there + (missing - there) / 2;
        (isMissing(begin + (middle - 1) * page) ? missing : there) = middle;
    }
    return begin + there * page;
}

}  // namespace

Result<bool> MemoryRights::areAllWritable(const ByteRange& range) {
    if (range.length == 0 || range.wraps()) return true;
    open();
    if (!maps_) return !isReadOnly(range.addr) && !isReadOnly(range.end() - 1);
    bool writable = true;
    for (std::uint64_t at = range.addr; at < range.end();) {
        const auto mapping = from(at);
        if (!mapping || mapping->begin >= range.end()) break;
        const std::uint64_t begin = std::max(at, mapping->begin);
        const std::uint64_t end = std::min(mapping->end, range.end());
        if (!mapping->readable && !mapping->writable) return refused(range, begin, "may be neither read nor written");
        if (mapping->of_file && isMissing(end - 1)) {
            const std::uint64_t page = begin / pageBytes() * pageBytes();
            return refused(range, std::max(begin, firstMissing(page, end)), "lies behind the end of its file");
        }
        writable = writable && mapping->writable;
        at = end;
    }
    return writable;
}

void MemoryRights::open() {
    if (opened_) return;
    opened_ = true;
    maps_ = UniqueFd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
}

std::optional<MemoryRights::Mapping> MemoryRights::from(std::uint64_t addr) {
    if (how_ == Ask::List && !listed_) readAll();
    if (!listed_) {
        MapQuery query{};
        query.size = sizeof query;
        query.query_flags = kCoveringOrNext;
        query.query_addr = addr;
        if (::ioctl(maps_.get(), kMapQuery, &query) == 0)
            return Mapping{query.begin, query.end, (query.flags & kReadable) != 0, (query.flags & kWritable) != 0,
                           query.inode != 0};
        if (errno == ENOENT) return std::nullopt;
        readAll();
    }
    const auto found = std::upper_bound(mappings_.begin(), mappings_.end(), addr,
                                        [](std::uint64_t value, const Mapping& each) { return value < each.end; });
    if (found == mappings_.end()) return std::nullopt;
    return *found;
}

void MemoryRights::readAll() {
    listed_ = true;
    std::string text;
    constexpr std::size_t kPiece = 64u << 10;
    for (;;) {
        const std::size_t have = text.size();
        text.resize(have + kPiece);
        const ssize_t got = ::read(maps_.get(), text.data() + have, kPiece);
        text.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
        if (got <= 0) break;
    }
    for (std::size_t line = 0; line < text.size();) {
        std::size_t next = text.find('\n', line);
        next = next == std::string::npos ? text.size() : next + 1;
        // sscanf looks for the end of its text before all else.
        text[next - 1] = '\0';
        // proc_pid_maps(5): begin-end rights offset major:minor inode name
        Mapping mapping;
        char rights[5] = {};
        std::uint64_t inode = 0;
        if (std::sscanf(text.c_str() + line, "%" SCNx64 "-%" SCNx64 " %4s %*x %*x:%*x %" SCNu64, &mapping.begin,
                        &mapping.end, rights, &inode) == 4) {
            mapping.readable = rights[0] == 'r';
            mapping.writable = rights[1] == 'w';
            mapping.of_file = inode != 0;
            mappings_.push_back(mapping);
        }
        line = next;
    }
}

}  // namespace troupe
