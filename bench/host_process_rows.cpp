// Two processes of this host: memory of the engine's own, which is mapped, and ordinary memory, beside bare loops that
// move the same bytes and UCX over shared memory.

#include <fmt/format.h>

#include <algorithm>

#include "bench/bare_vm.h"
#include "bench/engine_loop.h"
#include "bench/external_peers.h"
#include "bench/memory.h"
#include "bench/row.h"
#include "bench/serving_peer.h"

namespace troupe::bench {

namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::uint32_t kBatch = 16;
constexpr std::uint32_t kSmallBatch = 128;

/// An engine here, a serving peer there, and the peer's segment open by way of "host".
struct HostRig {
    Memory memory;  ///< Empty with engine memory.
    ServingPeer peer;
    std::unique_ptr<TransferEngine> engine;  ///< Ends before the memory and the peer do.
    SegmentID segment = kInvalidSegmentID;
    char* local = nullptr;

    LoopEnds ends() const {
        return {engine.get(), segment, peer.address(), local, [this] { return peer.cpuSeconds(); }};
    }
};

Result<HostRig> makeRig(const Settings& settings, bool engine_memory) {
    HostRig rig;
    auto peer = ServingPeer::start(settings, 1, engine_memory);
    if (!peer) return peer.status();
    rig.peer = std::move(*peer);
    auto engine = makeEngine(settings, "");
    if (!engine) return engine.status();
    rig.engine = std::move(*engine);
    if (engine_memory) {
        auto memory = rig.engine->allocateLocalMemory(settings.footprint);
        if (!memory) return memory.status();
        rig.local = static_cast<char*>(*memory);
    } else {
        auto memory = Memory::populated(settings.footprint);
        if (!memory) return memory.status();
        rig.memory = std::move(*memory);
        rig.local = rig.memory.data();
        if (Status status = rig.engine->registerLocalMemory(rig.local, settings.footprint); !status) return status;
    }
    auto segment = rig.engine->openSegment(rig.peer.segment());
    if (!segment) return segment.status();
    rig.segment = *segment;
    const auto route = rig.engine->explainSegment(rig.segment);
    if (!route) return route.status();
    if (route->transport != "host") return {Code::TransportMissing, "it does not go by host: " + route->toString()};
    return rig;
}

struct Load {
    bool write = true;
    std::size_t block = kMiB;
    std::uint32_t batch = kBatch;
};

/// `hot`: the same block again and again, as ucx_perftest does it; else over the whole footprint.
Contender troupe(const Load& load, bool engine_memory, bool hot = false) {
    return {
        hot ? "troupe hot" : "troupe", [=](Settings settings) -> Result<Figures> {
            // A peer serves no less than a MiB.
            if (hot) settings.footprint = std::max(load.block, kMiB);
            auto rig = makeRig(settings, engine_memory);
            if (!rig) return rig.status();
            if (hot) settings.footprint = load.block;
            auto figures =
                runEngineLoop(rig->ends(), loopOptions(settings, load.write, load.block, load.batch), Waiting::Wait);
            if (!figures) return figures.status();
            return Figures{{"GB/s", figures->gigabytes_per_second}, {"CPU s/GB", figures->cpu_seconds_per_gigabyte}};
        }};
}

Contender bareVm(const Load& load) {
    return {"process_vm", [load](const Settings& settings) -> Result<Figures> {
                auto memory = Memory::populated(settings.footprint);
                if (!memory) return memory.status();
                auto peer = ServingPeer::start(settings);
                if (!peer) return peer.status();
                const auto rate = runBareVm(loopOptions(settings, load.write, load.block, load.batch), *memory,
                                            peer->pid(), peer->address());
                if (!rate) return rate.status();
                return Figures{{"GB/s", *rate}};
            }};
}

Contender ucx(const Load& load) {
    return {"ucx_perftest", [load](const Settings& settings) -> Result<Figures> {
                const auto figures = runUcxThroughput(load.write, load.block, settings.seconds, true);
                if (!figures) return figures.status();
                return Figures{{"GB/s", figures->gigabytes_per_second}};
            }};
}

const char* operation(bool write) { return write ? "write" : "read"; }

std::string sizeName(std::size_t bytes) {
    return bytes >= kMiB ? fmt::format("{}MiB", bytes / kMiB) : fmt::format("{}KiB", bytes / kKiB);
}

Row mappedRow(bool write, std::size_t block) {
    const Load load{write, block, kBatch};
    Row row;
    row.name = fmt::format("hostproc.mapped.{}.{}", operation(write), sizeName(block));
    row.about = fmt::format("another process, engine memory, cold, {} of {} blocks", operation(write), sizeName(block));
    row.contenders = {{"memcpy", [block](const Settings& s) { return plainCopies(s, block); }},
                      ucx(load),
                      troupe(load, true, true),
                      troupe(load, true)};
    row.comparisons = {
        {"", "GB/s", "troupe", "GB/s", "memcpy", "", block >= kMiB ? Target::ratioAtLeast(0.9) : Target{}},
        {":ucx", "GB/s", "troupe hot", "GB/s", "ucx_perftest", "", Target::ratioAtLeast(1)}};
    return row;
}

Row ordinaryRow(bool write, std::size_t block) {
    const Load load{write, block, kBatch};
    Row row;
    row.name = fmt::format("hostproc.vm.{}.{}", operation(write), sizeName(block));
    row.about = fmt::format("another process, ordinary memory, {} of {} blocks", operation(write), sizeName(block));
    row.contenders = {bareVm({write, block, 1}), troupe(load, false)};
    row.comparisons = {
        {"", "GB/s", "troupe", "GB/s", "process_vm", "", block >= kMiB ? Target::ratioAtLeast(0.9) : Target{}}};
    return row;
}

Row scatteredRow(bool write) {
    const Load load{write, 4 * kKiB, kSmallBatch};
    Row row;
    row.name = fmt::format("hostproc.scattered.{}", operation(write));
    row.about = fmt::format("another process, ordinary memory, {} of 4 KiB blocks that touch nowhere, batch {}",
                            operation(write), kSmallBatch);
    row.contenders = {bareVm(load), troupe(load, false)};
    row.comparisons = {{"", "GB/s", "troupe", "GB/s", "process_vm", "", Target::ratioAtLeast(0.9)}};
    return row;
}

Row latencyRow(std::size_t bytes) {
    Row row;
    row.name = fmt::format("hostproc.latency.read.{}", sizeName(bytes));
    row.about = fmt::format("another process, engine memory, one read of {} at a time, hot", sizeName(bytes));
    row.contenders = {{"ucx_perftest",
                       [bytes](const Settings& s) -> Result<Figures> {
                           const auto figures = runUcxSharedGet(bytes, s.latency_samples);
                           if (!figures) return figures.status();
                           return Figures{{"p50", figures->p50}, {"p99", figures->p99}};
                       }},
                      {"troupe", [bytes](const Settings& s) -> Result<Figures> {
                           auto rig = makeRig(s, true);
                           if (!rig) return rig.status();
                           const auto figures =
                               runEngineLatency(rig->ends(), false, bytes, s.latency_samples, Waiting::Wait);
                           if (!figures) return figures.status();
                           return Figures{{"p50", figures->p50}, {"p99", figures->p99}};
                       }}};
    row.comparisons = {{".p50", "us", "troupe", "p50", "ucx_perftest", "", Target::valueAtMost(0.9)},
                       {".p99", "us", "troupe", "p99", "ucx_perftest", "", {}}};
    return row;
}

}  // namespace

std::vector<Row> hostProcessRows() {
    std::vector<Row> rows;
    for (const bool write : {true, false})
        for (const std::size_t block : {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB})
            rows.push_back(mappedRow(write, block));
    for (const bool write : {true, false})
        for (const std::size_t block : {64 * kKiB, kMiB, 16 * kMiB}) rows.push_back(ordinaryRow(write, block));
    for (const bool write : {true, false}) rows.push_back(scatteredRow(write));
    rows.push_back(latencyRow(4 * kKiB));
    return rows;
}

}  // namespace troupe::bench
