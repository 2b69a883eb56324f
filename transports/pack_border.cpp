#include "transports/pack_border.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>

namespace troupe::device {

PackBorder PackBorder::always() {
    PackBorder border;
    border.steps_.push_back({2, UINT64_MAX});
    return border;
}

PackBorder PackBorder::of(std::span<const Sample> samples) {
    std::map<std::size_t, std::map<std::uint64_t, bool>> wins;
    for (const Sample& sample : samples) {
        const auto [known, is_new] =
            wins[sample.pages].emplace(sample.bytes, sample.kernel + sample.kernel / 10 < sample.copies);
        if (!is_new) known->second = false;
    }
    PackBorder border;
    std::uint64_t best = 0;
    for (const auto& [pages, sizes] : wins) {
        std::uint64_t up_to = 0;
        for (const auto& [bytes, won] : sizes) {
            if (!won) break;
            up_to = bytes;
        }
        if (pages < 2 || up_to <= best) continue;
        best = up_to;
        border.steps_.push_back({pages, up_to});
    }
    return border;
}

bool PackBorder::takes(std::size_t pages, std::uint64_t bytes) const {
    return pages > 1 && std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
               return pages >= step.pages && bytes / pages <= step.bytes;
           });
}

std::string PackBorder::toString() const {
    std::string text;
    for (const Step& step : steps_) {
        char words[96];
        if (step.bytes == UINT64_MAX)
            std::snprintf(words, sizeof words, "%zu or more", step.pages);
        else
            std::snprintf(words, sizeof words, "%zu or more up to %" PRIu64 " bytes", step.pages, step.bytes);
        text += (text.empty() ? "" : ", ") + std::string(words);
    }
    return text.empty() ? "never" : text;
}

}  // namespace troupe::device
