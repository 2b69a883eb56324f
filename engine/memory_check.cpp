#include "engine/memory_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe {

namespace {

constexpr std::string_view kNode = "cpu:";
constexpr std::string_view kGpu = "cuda:";

// Linux counts at most 1024 NUMA nodes (NODES_SHIFT); no machine has as many GPUs.
constexpr std::size_t kMaxDigits = 4;

/// msync(2) with MS_ASYNC alone writes nothing (since Linux 2.6.19); it walks the mappings of the range and is ENOMEM
/// at the first gap. `addr` is a page's.
bool isMapped(std::uint64_t addr, std::uint64_t length) {
    return ::msync(reinterpret_cast<void*>(addr), length, MS_ASYNC) == 0 || errno != ENOMEM;
}

bool isNumbered(const std::string& location, std::string_view prefix) {
    if (location.rfind(prefix, 0) != 0) return false;
    const std::string_view number = std::string_view(location).substr(prefix.size());
    return !number.empty() && number.size() <= kMaxDigits &&
           std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Status checkMapped(const ByteRange& range) {
    if (range.length == 0 || range.wraps()) return Status::ok();
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = range.addr / page * page;
    if (isMapped(first, range.end() - first)) return Status::ok();
    // Pages of which all before are mapped; and of which one is not.
    std::uint64_t good = 0;
    std::uint64_t bad = (range.end() - 1 - first) / page + 1;
    while (bad - good > 1) {
        const std::uint64_t middle = good + (bad - good) / 2;
        (isMapped(first, middle * page) ? good : bad) = middle;
    }
    const std::uint64_t hole = std::max(range.addr, first + good * page);
    return {Code::InvalidArgument, range.toString() + " is not mapped throughout: there is no memory at " +
                                       hexAddress(hole) +
                                       "; register memory after it is mapped, and unregister it before it is unmapped"};
}

Status checkLocation(const std::string& location, const std::vector<int>& nodes) {
    if (location == "*" || isNumbered(location, kGpu)) return Status::ok();
    constexpr std::size_t kQuoted = 64;
    const std::string quoted = "location '" + location.substr(0, kQuoted) + "'";
    if (!isNumbered(location, kNode))
        return {Code::InvalidArgument, quoted + " is none of \"*\", \"cpu:N\" (a NUMA node) and \"cuda:N\" (a GPU)"};
    std::string known;
    for (const int node : nodes) {
        const std::string name = std::string(kNode) + std::to_string(node);
        if (location == name) return Status::ok();
        known += (known.empty() ? "" : ", ") + name;
    }
    return {Code::InvalidArgument, quoted + " is no NUMA node of this machine, which has " + known};
}

}  // namespace troupe
