#include "transports/memory_file.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "base/endpoint.h"
#include "transports/memory_left.h"

namespace troupe {

namespace {

constexpr std::uint64_t kHugePage = 2u << 20;
constexpr unsigned kHugeFlags = MFD_HUGETLB | MFD_HUGE_2MB;

Status refused(int error, const std::string& what, std::uint64_t bytes, bool huge_pages) {
    Status status = errnoStatus(Code::ResourceExhausted, what + " of " + std::to_string(bytes) + " bytes", error);
    const std::string remedy =
        error == EMFILE || error == ENFILE ? "raise the limit on open files (ulimit -n)"
        : huge_pages
            ? "reserve huge pages (sysctl vm.nr_hugepages=" + std::to_string(bytes / kHugePage) + ") or do without them"
            : "ask for less memory";
    return {status.code(), status.message() + "; " + remedy};
}

/// A memory file is a file to this limit, too, and to pass it ends the process (SIGXFSZ).
Status checkFileLimit(std::uint64_t bytes) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
        return Status::ok();
    return {Code::ResourceExhausted,
            "memory of " + std::to_string(bytes) + " bytes passes the limit on files, " +
                std::to_string(limit.rlim_cur) +
                " bytes (RLIMIT_FSIZE); raise it (ulimit -f unlimited) or ask for less memory"};
}

/// Best effort: where the node has no room, or there is no such node, the pages come from elsewhere.
void preferNode(std::byte* data, std::uint64_t bytes, int numa_node) {
    constexpr unsigned kMaskBits = 1024;
    if (numa_node < 0 || numa_node >= static_cast<int>(kMaskBits)) return;
    constexpr unsigned kWordBits = sizeof(unsigned long) * CHAR_BIT;
    unsigned long mask[kMaskBits / kWordBits] = {};
    const auto node = static_cast<unsigned>(numa_node);
    mask[node / kWordBits] = 1ul << (node % kWordBits);
    [[maybe_unused]] const long bound =
        ::syscall(SYS_mbind, data, static_cast<unsigned long>(bytes), MPOL_PREFERRED, mask, kMaskBits, 0u);
}

/// A page that two parts share goes to the first of them.
void preferNodes(std::byte* data, std::uint64_t bytes, std::uint64_t page, const Location& where) {
    if (where.kind != Location::Kind::Cpu && where.kind != Location::Kind::Segments) return;
    for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t end = where.endOfPart(at, bytes);
        const std::uint64_t whole = std::min(bytes, (end + page - 1) / page * page);
        preferNode(data + at, whole - at, where.nodeAt(at, bytes));
        at = whole;
    }
}

/// Makes every page exist. False with errno when there is no memory for one.
bool populate(std::byte* data, std::uint64_t bytes, int file) {
#ifdef MADV_POPULATE_WRITE
    if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;
#endif
    // Older kernels: the file itself can be filled, and says so when it cannot.
    return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0;
}

}  // namespace

// --- FileMapping -------------------------------------------------------------------------------------------------

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

FileMapping::~FileMapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<FileMapping> FileMapping::map(int file, std::uint64_t bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        return errnoStatus(Code::ResourceExhausted, "mmap of " + std::to_string(bytes) + " bytes of shared memory",
                           errno);
    FileMapping mapping;
    mapping.data_ = static_cast<std::byte*>(at);
    mapping.bytes_ = bytes;
    [[maybe_unused]] const int kept_out_of_children = ::madvise(at, bytes, MADV_DONTFORK);
    return mapping;
}

Result<FileMapping> FileMapping::ofForeign(const UniqueFd& file, std::uint64_t bytes) {
    const auto bad = [](const std::string& why) {
        return Status(Code::ProtocolError, "the descriptor for shared memory " + why);
    };
    const int seals = ::fcntl(file.get(), F_GET_SEALS);
    if (seals < 0) return bad("is no memory file");
    if ((seals & F_SEAL_SHRINK) == 0) return bad("is not sealed against shrinking");
    struct stat info {};
    if (::fstat(file.get(), &info) != 0 || info.st_size < 0 || info.st_blksize <= 0) return bad("tells no size");
    const auto page = static_cast<std::uint64_t>(info.st_blksize);
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (bytes == 0 || bytes > size) return bad("has " + std::to_string(size) + " bytes, not " + std::to_string(bytes));
    const std::uint64_t whole = (bytes + page - 1) / page * page;
    if (whole > size) return bad("ends within a page");
    return map(file.get(), whole);
}

// --- MemoryFile --------------------------------------------------------------------------------------------------

Result<std::unique_ptr<MemoryFile>> MemoryFile::create(std::uint64_t bytes, bool huge_pages, const Location& where) {
    const std::uint64_t page = huge_pages ? kHugePage : static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (bytes == 0 || bytes > INT64_MAX - page)
        return {Code::InvalidArgument, "memory of " + std::to_string(bytes) + " bytes cannot be allocated"};
    const std::uint64_t whole = (bytes + page - 1) / page * page;
    // Pages of the file system of a memfd are never refused: the machine would run out of memory instead. Those of the
    // huge pool are.
    if (!huge_pages)
        if (Status there = checkMemoryLeft(whole, memoryLeft()); !there) return there;
    if (Status allowed = checkFileLimit(whole); !allowed) return allowed;
    std::unique_ptr<MemoryFile> made(new MemoryFile());
    made->file_ = UniqueFd(::memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge_pages ? kHugeFlags : 0u)));
    if (!made->file_) {
        if (errno == ENOSYS) return errnoStatus(Code::Unsupported, "memfd_create", errno);
        return refused(errno, "memfd_create", whole, huge_pages);
    }
    if (::ftruncate(made->fd(), static_cast<off_t>(whole)) != 0) return refused(errno, "memory", whole, huge_pages);
    if (::fcntl(made->fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return errnoStatus(Code::Unsupported, "sealing a memory file", errno);
    auto mapping = FileMapping::map(made->fd(), whole);
    if (!mapping) return refused(ENOMEM, "memory", whole, huge_pages);
    made->mapping_ = std::move(*mapping);
    preferNodes(made->data(), whole, page, where);
    if (!populate(made->data(), whole, made->fd())) return refused(errno, "memory", whole, huge_pages);
    return made;
}

void MemoryFile::vacate() {
    // Where it fails, the pages go with the mapping.
    [[maybe_unused]] const void* const reserved =
        ::mmap(data(), size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    file_.reset();
}

}  // namespace troupe
