#include "tcp_backend/readable.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::tcp {

namespace {

/// The kernel copies a signal set in before it looks at what is to be done with it, and there is no such thing as -1:
/// nothing but the copy ever happens. `addr` is in a page with 8 bytes from it on.
bool isReadable(std::uint64_t addr) {
    constexpr std::size_t kSetBytes = 8;
    constexpr int kNothing = -1;
    return ::syscall(SYS_rt_sigprocmask, kNothing, addr, nullptr, kSetBytes) == 0 || errno != EFAULT;
}

}  // namespace

std::optional<std::uint64_t> firstUnreadable(const ByteRange& range) {
    if (range.length == 0 || range.wraps()) return std::nullopt;
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    for (std::uint64_t at = range.addr; at < range.end(); at = at / page * page + page)
        if (!isReadable(at / 8 * 8)) return at;
    return std::nullopt;
}

}  // namespace troupe::tcp
