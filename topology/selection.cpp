#include "topology/selection.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>

namespace troupe {

namespace {

/// By name, without those excluded.
std::vector<std::string> allowed(std::vector<std::string> names, const std::vector<std::string>& exclude) {
    std::erase_if(names, [&](const std::string& name) {
        return std::find(exclude.begin(), exclude.end(), name) != exclude.end();
    });
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> everyDevice(const PriorityMatrix& matrix) {
    std::set<std::string> names;
    for (const auto& [location, lists] : matrix) {
        names.insert(lists.first.begin(), lists.first.end());
        names.insert(lists.second.begin(), lists.second.end());
    }
    return {names.begin(), names.end()};
}

std::string gigabytes(double bytes_per_second) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GB/s", bytes_per_second / 1e9);
    return text;
}

}  // namespace

std::vector<std::string> locationsFarFrom(const PriorityMatrix& matrix, const std::string& device) {
    const auto has = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), device) != names.end();
    };
    std::vector<std::string> far;
    bool known = false;
    for (const auto& [location, lists] : matrix) {
        known = known || has(lists.first) || has(lists.second);
        if (!lists.first.empty() && !has(lists.first)) far.push_back(location);
    }
    return known ? far : std::vector<std::string>();
}

std::optional<Selection> selectDevice(const PriorityMatrix& matrix, const std::string& location, std::string_view hint,
                                      const std::vector<std::string>& exclude,
                                      const std::map<std::string, double>& service) {
    std::vector<std::string> candidates;
    std::string why;
    if (const auto row = matrix.find(location); row != matrix.end()) {
        candidates = allowed(row->second.first, exclude);
        why = "preferred for " + location;
        if (candidates.empty()) {
            candidates = allowed(row->second.second, exclude);
            why = "available to " + location + ", whose preferred devices are excluded";
        }
    } else {
        candidates = allowed(everyDevice(matrix), exclude);
        why = "no device is nearer to '" + location + "' than another";
    }
    if (candidates.empty()) return std::nullopt;
    if (std::find(candidates.begin(), candidates.end(), hint) != candidates.end())
        return Selection{std::string(hint), why + "; asked for by name"};
    const auto measured = [&](const std::string& name) {
        const auto found = service.find(name);
        return found == service.end() ? std::numeric_limits<double>::infinity() : found->second;
    };
    const auto best = std::max_element(candidates.begin(), candidates.end(),
                                       [&](const auto& a, const auto& b) { return measured(a) < measured(b); });
    if (candidates.size() == 1) return Selection{*best, why + "; the only one"};
    if (service.empty()) return Selection{*best, why + "; the first by name"};
    if (service.count(*best) == 0) return Selection{*best, why + "; not measured yet"};
    return Selection{*best, why + "; the fastest lately, " + gigabytes(measured(*best))};
}

}  // namespace troupe
