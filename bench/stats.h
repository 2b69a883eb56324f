#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace troupe::bench {

/// The value below which `fraction` (0 to 1) of `samples` lie, by the nearest rank; 0 of none. Reorders `samples`.
inline double percentile(std::vector<double>& samples, double fraction) {
    if (samples.empty()) return 0;
    const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
    const auto at = samples.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, samples.size()) - 1);
    std::nth_element(samples.begin(), at, samples.end());
    return *at;
}

/// The middle value; of an even number the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> samples) {
    if (samples.empty()) return 0;
    std::sort(samples.begin(), samples.end());
    const std::size_t half = samples.size() / 2;
    return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

}  // namespace troupe::bench
