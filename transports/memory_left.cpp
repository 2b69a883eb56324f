#include "transports/memory_left.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>

namespace troupe {

namespace {

// What stays for everybody else: a sixteenth of what there is, so that a small control group is of use too, and no more
// than what a kernel needs to go on without swapping.
constexpr std::uint64_t kReserveShare = 16;
constexpr std::uint64_t kMaxReserve = std::uint64_t{512} << 20;

constexpr std::uint64_t kKibi = 1024;

/// "20.6 GiB": for people, and rounded down, so that what can be had can be had.
std::string inUnits(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    std::uint64_t size = 1;
    for (; unit + 1 < kUnits.size() && bytes / size >= 1024; ++unit) size *= 1024;
    const std::uint64_t tenth = bytes % size * 10 / size;
    return std::to_string(bytes / size) + (tenth != 0 ? "." + std::to_string(tenth) : "") + " " + kUnits[unit];
}

std::optional<std::uint64_t> numberIn(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return std::nullopt;
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
    if (error != std::errc()) return std::nullopt;
    return number;
}

/// The number behind `key` in a file of lines "key number".
std::optional<std::uint64_t> field(const std::string& path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (line.rfind(key, 0) == 0) return numberIn(std::string_view(line).substr(key.size()));
    return std::nullopt;
}

/// Of a file of one line, which may also say "max".
std::optional<std::uint64_t> onlyNumber(const std::string& path) { return field(path, ""); }

/// "/a/b" of the line "0::/a/b"; none without version 2.
std::optional<std::string> ownGroup(const std::string& root) {
    constexpr std::string_view kVersion2 = "0::";
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);)
        if (line.rfind(kVersion2, 0) == 0) return line.substr(kVersion2.size());
    return std::nullopt;
}

std::optional<std::uint64_t> leftInGroup(const std::string& directory) {
    const auto limit = onlyNumber(directory + "/memory.max");
    const auto used = onlyNumber(directory + "/memory.current");
    if (!limit || !used) return std::nullopt;
    // The cache of files counts as used, but goes when somebody needs the memory.
    const std::uint64_t cache = field(directory + "/memory.stat", "active_file ").value_or(0) +
                                field(directory + "/memory.stat", "inactive_file ").value_or(0);
    const std::uint64_t kept = *used - std::min(cache, *used);
    return *limit - std::min(kept, *limit);
}

}  // namespace

std::optional<MemoryLeft> memoryLeft(const std::string& root) {
    std::optional<MemoryLeft> least;
    const auto consider = [&](std::uint64_t bytes, const std::string& bound) {
        if (!least || bytes < least->bytes) least = MemoryLeft{bytes, bound};
    };
    if (const auto available = field(root + "/proc/meminfo", "MemAvailable:"))
        consider(*available > UINT64_MAX / kKibi ? UINT64_MAX : *available * kKibi, "MemAvailable");
    // The group and all above it; the root itself has no limit, but what a container sees as the root may have one.
    auto group = ownGroup(root);
    while (group) {
        if (!group->empty() && group->back() == '/') group->pop_back();
        const std::string directory = "/sys/fs/cgroup" + *group;
        if (const auto left = leftInGroup(root + directory)) consider(*left, directory + "/memory.max");
        if (group->empty()) break;
        group->erase(group->find_last_of('/') == std::string::npos ? 0 : group->find_last_of('/'));
    }
    return least;
}

Status checkMemoryLeft(std::uint64_t bytes, const std::optional<MemoryLeft>& left) {
    if (!left) return Status::ok();
    const std::uint64_t reserve = std::min(left->bytes / kReserveShare, kMaxReserve);
    if (bytes <= left->bytes - reserve) return Status::ok();
    // Whole MiB, rounded down, so that what is named can be had.
    constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
    const std::uint64_t most = (left->bytes - reserve) / kMebi * kMebi;
    return {Code::ResourceExhausted, "there is no memory for " + inUnits(bytes) + ": " + inUnits(most) +
                                         " can be had (" + left->bound + " leaves " + inUnits(left->bytes) +
                                         ", of which " + inUnits(reserve) + " stay for others); ask for less"};
}

}  // namespace troupe
