// Copies inside one process, beside a loop of std::memcpy over the same memory in the same order.

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "bench/engine_loop.h"
#include "bench/memory.h"
#include "bench/row.h"

namespace troupe::bench {

namespace {

constexpr std::size_t kMiB = 1u << 20;
constexpr std::uint32_t kBatch = 16;

struct HostRig {
    Memory source;
    Memory target;
    std::unique_ptr<TransferEngine> engine;  ///< Ends before the memory does.

    LoopEnds ends() const {
        return {engine.get(), kLocalSegmentID, reinterpret_cast<std::uintptr_t>(target.data()), source.data(), {}};
    }
};

Result<HostRig> makeRig(const Settings& settings) {
    auto source = Memory::populated(settings.footprint);
    if (!source) return source.status();
    auto target = Memory::populated(settings.footprint);
    if (!target) return target.status();
    auto engine = makeEngine(settings, "");
    if (!engine) return engine.status();
    for (const Memory* memory : {&*source, &*target}) {
        if (Status status = (*engine)->registerLocalMemory(memory->data(), memory->size()); !status) return status;
    }
    return HostRig{std::move(*source), std::move(*target), std::move(*engine)};
}

/// `batch` 1: one copy at a time, as a program that calls memcpy would make it.
Result<Figures> engineCopies(const Settings& settings, std::size_t block, std::uint32_t batch) {
    auto rig = makeRig(settings);
    if (!rig) return rig.status();
    LoopOptions options = loopOptions(settings, true, block, batch);
    if (batch == 1) options.inflight = 1;
    auto figures = runEngineLoop(rig->ends(), options, Waiting::Wait);
    if (!figures) return figures.status();
    return Figures{{"GB/s", figures->gigabytes_per_second}};
}

}  // namespace

Result<Figures> plainCopies(const Settings& settings, std::size_t block) {
    if (block > settings.footprint) return {Code::InvalidArgument, "the footprint is smaller than a block"};
    auto source = Memory::populated(settings.footprint);
    if (!source) return source.status();
    auto target = Memory::populated(settings.footprint);
    if (!target) return target.status();
    BlockWalk walk(settings.footprint, block, true);
    const auto copyFor = [&](double seconds) {
        std::uint64_t copies = 0;
        const auto start = std::chrono::steady_clock::now();
        std::chrono::duration<double> took{};
        while (took.count() < seconds) {
            const std::uint64_t offset = walk.next();
            std::memcpy(target->data() + offset, source->data() + offset, block);
            ++copies;
            took = std::chrono::steady_clock::now() - start;
        }
        return static_cast<double>(copies) * static_cast<double>(block) / took.count() / 1e9;
    };
    copyFor(settings.warmup_seconds);
    return Figures{{"GB/s", copyFor(settings.seconds)}};
}

std::vector<Row> hostRows() {
    std::vector<Row> rows;
    for (const std::size_t mib : {1, 4, 16, 64}) {
        const std::size_t block = mib * kMiB;
        Row row;
        row.name = fmt::format("host.{}MiB", mib);
        row.about = fmt::format("same process, {} MiB at a time over cold memory, beside std::memcpy", mib);
        row.contenders = {
            {"memcpy", [block](const Settings& s) { return plainCopies(s, block); }},
            {"troupe", [block](const Settings& s) { return engineCopies(s, block, 1); }},
            {"troupe batch 16", [block](const Settings& s) { return engineCopies(s, block, kBatch); }},
        };
        row.comparisons = {{"", "GB/s", "troupe", "GB/s", "memcpy", "", Target::ratioAtLeast(0.95)},
                           {".batch16", "GB/s", "troupe batch 16", "GB/s", "memcpy", "", {}}};
        rows.push_back(std::move(row));
    }
    return rows;
}

}  // namespace troupe::bench
