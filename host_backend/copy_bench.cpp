// Measures the ways to copy against each other: troupe_copy_bench [footprint in MiB, default 256].
//
// For each block size the blocks walk through the footprint, so that a large one is cold, and one of 0 copies the same
// block over and over. The ways take turns within each round; medians of seven rounds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "host_backend/copy.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Way {
    const char* name;
    std::function<void(std::byte*, const std::byte*, std::size_t)> copy;
};

double measure(const Way& way, std::byte* to, const std::byte* from, std::size_t block, std::size_t footprint) {
    constexpr std::size_t kTotal = 256u << 20;
    const auto start = Clock::now();
    std::size_t at = 0;
    for (std::size_t done = 0; done < kTotal; done += block) {
        way.copy(to + at, from + at, block);
        at = at + 2 * block <= footprint ? at + block : 0;
    }
    return static_cast<double>(kTotal) / std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
    const std::size_t footprint = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256) << 20;
    const std::size_t bytes = std::max<std::size_t>(footprint, 64u << 20);
    const auto from = std::make_unique<std::byte[]>(bytes);
    const auto to = std::make_unique<std::byte[]>(bytes);
    std::memset(from.get(), 1, bytes);
    std::memset(to.get(), 2, bytes);
    troupe::Copier copier;
    const Way ways[] = {
        {"memcpy", [](auto* t, const auto* f, std::size_t n) { std::memcpy(t, f, n); }},
        {"streaming", [](auto* t, const auto* f, std::size_t n) { troupe::streamingCopy(t, f, n); }},
        {"copier", [&](auto* t, const auto* f, std::size_t n) { copier.copy(t, f, n); }},
    };
    std::printf("footprint %zu MiB, GB/s\n%10s", footprint >> 20, "block KiB");
    for (const auto& way : ways) std::printf("%12s", way.name);
    std::printf("\n");
    for (std::size_t block = 16u << 10; block <= 64u << 20; block *= 4) {
        std::vector<std::vector<double>> rounds(std::size(ways));
        for (int round = 0; round < 7; ++round)
            for (std::size_t i = 0; i < std::size(ways); ++i)
                rounds[i].push_back(measure(ways[i], to.get(), from.get(), block, std::max(footprint, block)));
        std::printf("%10zu", block >> 10);
        for (auto& figures : rounds) {
            std::sort(figures.begin(), figures.end());
            std::printf("%12.1f", figures[figures.size() / 2]);
        }
        std::printf("\n");
    }
    return 0;
}
