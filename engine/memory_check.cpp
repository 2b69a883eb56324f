#include "engine/memory_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace troupe {

namespace {

constexpr std::size_t kQuoted = 64;

/// msync(2) with MS_ASYNC alone writes nothing (since Linux 2.6.19); it walks the mappings of the range and is ENOMEM
/// at the first gap. `addr` is a page's.
bool isMapped(std::uint64_t addr, std::uint64_t length) {
    return ::msync(reinterpret_cast<void*>(addr), length, MS_ASYNC) == 0 || errno != ENOMEM;
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

Result<Location> readLocation(const std::string& text, const std::vector<int>& nodes) {
    auto location = parseLocation(text);
    if (!location || location->kind == Location::Kind::Any || location->kind == Location::Kind::Cuda) return location;
    for (const int node : location->numbers) {
        if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) continue;
        std::string known;
        for (const int each : nodes) known += (known.empty() ? "cpu:" : ", cpu:") + std::to_string(each);
        return Status(Code::InvalidArgument, "location '" + text.substr(0, kQuoted) + "': cpu:" + std::to_string(node) +
                                                 " is no NUMA node of this machine, which has " + known);
    }
    return location;
}

}  // namespace troupe
