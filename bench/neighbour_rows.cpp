// What a large copy on the host costs a neighbour: small transfers to another segment through the same loops.

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bench/engine_loop.h"
#include "bench/memory.h"
#include "bench/row.h"
#include "bench/serving_peer.h"

namespace troupe::bench {

namespace {

constexpr std::size_t kSmall = 4096;
constexpr std::size_t kLarge = std::size_t{1} << 30;

/// An engine that copies within its process and has a segment of another process open.
struct NeighbourRig {
    Memory from;
    Memory to;
    ServingPeer peer;
    std::unique_ptr<TransferEngine> engine;  ///< Ends before the memory and the peer do.
    SegmentID segment = kInvalidSegmentID;
    char* small = nullptr;  ///< Memory of the engine's.

    LoopEnds neighbour() const { return {engine.get(), segment, peer.address(), small, {}}; }
    LoopEnds large() const {
        return {engine.get(), kLocalSegmentID, reinterpret_cast<std::uintptr_t>(to.data()), from.data(), {}};
    }
};

/// `transport`: by which the neighbour's transfers go, "host" or "tcp".
Result<NeighbourRig> makeRig(Settings settings, const std::string& transport) {
    settings.footprint = std::size_t{1} << 20;
    const bool by_host = transport == "host";
    NeighbourRig rig;
    auto peer = ServingPeer::start(settings, 1, by_host);
    if (!peer) return peer.status();
    rig.peer = std::move(*peer);
    auto engine = makeEngine(settings, by_host ? "" : transport);
    if (!engine) return engine.status();
    rig.engine = std::move(*engine);
    for (Memory* memory : {&rig.from, &rig.to}) {
        auto made = Memory::populated(kLarge);
        if (!made) return made.status();
        *memory = std::move(*made);
        if (Status status = rig.engine->registerLocalMemory(memory->data(), kLarge); !status) return status;
    }
    auto small = rig.engine->allocateLocalMemory(kSmall);
    if (!small) return small.status();
    rig.small = static_cast<char*>(*small);
    const auto segment = rig.engine->openSegment(rig.peer.segment());
    if (!segment) return segment.status();
    rig.segment = *segment;
    for (const auto& [of, due] : {std::pair(rig.segment, transport), std::pair(kLocalSegmentID, std::string("host"))}) {
        const auto route = rig.engine->explainSegment(of);
        if (!route) return route.status();
        if (route->transport != due)
            return {Code::TransportMissing, fmt::format("it does not go by {}: {}", due, route->toString())};
    }
    return rig;
}

Result<Figures> latency(const Settings& settings, const std::string& transport, bool beside) {
    auto rig = makeRig(settings, transport);
    if (!rig) return rig.status();
    std::atomic<bool> enough{false};
    std::atomic<bool> begun{false};
    Status copied;
    std::thread copier;
    const LoopEnds large = rig->large();
    if (beside)
        copier = std::thread([&] {
            for (bool first = true; copied && !enough; first = false) {
                copied = transferOnce(large, true, kLarge);
                if (first) begun = true;
            }
        });
    // The first copy is the warm-up.
    while (beside && !begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto figures = runEngineLatency(rig->neighbour(), true, kSmall, settings.latency_samples, Waiting::Wait);
    enough = true;
    if (copier.joinable()) copier.join();
    if (!copied) return copied;
    if (!figures) return figures.status();
    return Figures{{"p50", figures->p50}, {"p99", figures->p99}};
}

Row neighbourRow(const std::string& transport) {
    Row row;
    row.name = "neighbour." + transport;
    row.about = fmt::format(
        "one 4 KiB write at a time to another process by {}, while copies of 1 GiB within this process go through the "
        "same loops, beside the same without them",
        transport);
    row.contenders = {{"alone", [transport](const Settings& settings) { return latency(settings, transport, false); }},
                      {"troupe", [transport](const Settings& settings) { return latency(settings, transport, true); }}};
    row.comparisons = {
        {".p50", "us", "troupe", "p50", "alone", "", {}},
        {".p99", "us", "troupe", "p99", "alone", "", transport == "host" ? Target::valueAtMost(1000) : Target{}}};
    return row;
}

}  // namespace

std::vector<Row> neighbourRows() {
    std::vector<Row> rows;
    rows.push_back(neighbourRow("host"));
    rows.push_back(neighbourRow("tcp"));
    return rows;
}

}  // namespace troupe::bench
