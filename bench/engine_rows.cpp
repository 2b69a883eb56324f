// The engine alone: everything but the moving of bytes. The "null" transport completes each slice at once.

#include <algorithm>

#include "bench/engine_loop.h"
#include "bench/memory.h"
#include "bench/row.h"

namespace troupe::bench {

namespace {

constexpr std::uint32_t kDepth = 16;  ///< Batches of one request each that are out.
constexpr std::uint64_t kSlicesPerRequest = 128;
constexpr std::size_t kSmallRequest = 4096;

/// An engine whose only transport is "null", with memory that nobody ever touches.
struct NullRig {
    Memory memory;
    std::unique_ptr<TransferEngine> engine;  ///< Ends before the memory does.

    LoopEnds ends() const {
        return {engine.get(), kLocalSegmentID, reinterpret_cast<std::uintptr_t>(memory.data()), memory.data(), {}};
    }
};

Result<NullRig> makeRig(const Settings& settings, std::size_t bytes) {
    auto memory = Memory::reserved(bytes);
    if (!memory) return memory.status();
    auto engine = makeEngine(settings, "null");
    if (!engine) return engine.status();
    if (Status status = (*engine)->registerLocalMemory(memory->data(), memory->size()); !status) return status;
    return NullRig{std::move(*memory), std::move(*engine)};
}

/// Bytes of the largest piece the engine makes under these settings.
Result<std::uint64_t> sliceBytes(const Settings& settings) {
    const auto config = configOf(settings);
    if (!config) return config.status();
    return config->slice_bytes;
}

/// Requests and slices a second with requests of `slices` slices; 0: small requests of one.
Result<Figures> throughput(const Settings& settings, std::uint64_t slices, Waiting waiting) {
    auto slice = sliceBytes(settings);
    if (!slice) return slice.status();
    const std::size_t block = slices == 0 ? kSmallRequest : slices * *slice;
    LoopOptions options = loopOptions(settings, true, block, 1);
    options.inflight = kDepth;
    options.footprint = std::max(settings.footprint, 2 * block);
    auto rig = makeRig(settings, options.footprint);
    if (!rig) return rig.status();
    auto figures = runEngineLoop(rig->ends(), options, waiting);
    if (!figures) return figures.status();
    const double rate = figures->requests_per_second;
    return Figures{{"requests/s", rate}, {"slices/s", rate * static_cast<double>(std::max<std::uint64_t>(slices, 1))}};
}

Result<Figures> latency(const Settings& settings, Waiting waiting) {
    auto rig = makeRig(settings, settings.footprint);
    if (!rig) return rig.status();
    // One request takes less than a microsecond: many more samples than over a network cost nothing.
    auto figures = runEngineLatency(rig->ends(), true, kSmallRequest, settings.latency_samples * 10, waiting);
    if (!figures) return figures.status();
    return Figures{{"p50", figures->p50}, {"p99", figures->p99}};
}

Row requestsRow(const std::string& name, const std::string& about, std::uint64_t slices, const std::string& quantity,
                double bound) {
    Row row;
    row.name = name;
    row.about = about;
    row.contenders = {
        {"spinning", [slices](const Settings& s) { return throughput(s, slices, Waiting::Spin); }},
        {"troupe", [slices](const Settings& s) { return throughput(s, slices, Waiting::Wait); }},
    };
    row.comparisons = {{"", quantity, "troupe", quantity, "", "", Target::valueAtLeast(bound)},
                       {".spin", quantity, "spinning", quantity, "", "", {}}};
    return row;
}

}  // namespace

std::vector<Row> engineRows() {
    std::vector<Row> rows;
    rows.push_back(requestsRow("engine.requests", "null transport, 16 batches of one 4 KiB request out, one thread", 0,
                               "requests/s", 3e6));
    rows.push_back(requestsRow("engine.slices", "null transport, 16 batches of one request of 128 slices out",
                               kSlicesPerRequest, "slices/s", 100e6));
    Row row;
    row.name = "engine.latency";
    row.about = "null transport, one request at a time, from submit to observed done";
    row.contenders = {{"spinning", [](const Settings& s) { return latency(s, Waiting::Spin); }},
                      {"troupe", [](const Settings& s) { return latency(s, Waiting::Wait); }}};
    row.comparisons = {{".wait.p50", "us", "troupe", "p50", "", "", Target::valueAtMost(1)},
                       {".wait.p99", "us", "troupe", "p99", "", "", {}},
                       {".spin.p50", "us", "spinning", "p50", "", "", Target::valueAtMost(1)},
                       {".spin.p99", "us", "spinning", "p99", "", "", {}}};
    rows.push_back(std::move(row));
    return rows;
}

}  // namespace troupe::bench
