#pragma once

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

/// Reading of sysfs files; for this folder, and `numaNode` for backends, too.
namespace troupe::sysfs {

namespace fs = std::filesystem;

/// The first line of a sysfs file without blanks around it; nothing when it cannot be read (a DOWN interface answers
/// a read of its speed with EINVAL).
inline std::optional<std::string> readLine(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) return std::nullopt;
    const auto first = line.find_first_not_of(" \t");
    if (first == std::string::npos) return std::string();
    return line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1);
}

inline std::optional<int> toInt(std::string_view text, int base = 10) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// The NUMA node that a device is near, of its folder in sysfs; -1: that does not say.
inline int numaNode(const fs::path& device) {
    return std::max(-1, toInt(readLine(device / "numa_node").value_or("")).value_or(-1));
}

inline std::vector<fs::path> entriesOf(const fs::path& folder) {
    std::vector<fs::path> entries;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        entries.push_back(it->path());
    std::sort(entries.begin(), entries.end());
    return entries;
}

}  // namespace troupe::sysfs
