// Two processes over loopback TCP, beside a bare socket loop that moves the same bytes, iperf3 and ucx_perftest.

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "bench/bare_socket.h"
#include "bench/engine_loop.h"
#include "bench/external_peers.h"
#include "bench/memory.h"
#include "bench/processes.h"
#include "bench/row.h"
#include "bench/serving_peer.h"
#include "bench/wire_rig.h"

namespace troupe::bench {

namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::uint32_t kBatch = 16;
constexpr std::uint32_t kSmallBatch = 128;
constexpr std::size_t kManyRegions = 10'000;

/// What one throughput row moves.
struct Load {
    bool write = true;
    std::size_t block = kMiB;
    std::uint32_t batch = kBatch;
    bool scattered = true;
};

LoopOptions optionsFor(const Settings& settings, const Load& load) {
    LoopOptions options = loopOptions(settings, load.write, load.block, load.batch);
    options.scattered = load.scattered;
    return options;
}

Result<Figures> asFigures(const Result<LoopFigures>& loop) {
    if (!loop) return loop.status();
    return Figures{{"GB/s", loop->gigabytes_per_second},
                   {"requests/s", loop->requests_per_second},
                   {"CPU s/GB", loop->cpu_seconds_per_gigabyte}};
}

Result<Figures> asFigures(const Result<LatencyFigures>& latency) {
    if (!latency) return latency.status();
    return Figures{{"p50", latency->p50}, {"p99", latency->p99}};
}

Contender troupe(const std::string& name, const Load& load, Waiting waiting = Waiting::Wait) {
    return {name, [load, waiting](const Settings& settings) -> Result<Figures> {
                auto rig = makeWireRig(settings, settings, "tcp");
                if (!rig) return rig.status();
                return asFigures(runEngineLoop(rig->ends(), optionsFor(settings, load), waiting));
            }};
}

Contender bareSocket(const Load& load) {
    return {"bare socket", [load](const Settings& s) { return asFigures(runBareSocket(optionsFor(s, load))); }};
}

Contender ucx(const Load& load) {
    return {"ucx_perftest",
            [load](const Settings& s) { return asFigures(runUcxThroughput(load.write, load.block, s.seconds)); }};
}

Contender iperf3(std::size_t block) {
    return {"iperf3", [block](const Settings& s) -> Result<Figures> {
                auto rate = runIperf3(block, s.seconds);
                if (!rate) return rate.status();
                return Figures{{"GB/s", *rate}};
            }};
}

const char* operation(bool write) { return write ? "write" : "read"; }

std::string sizeName(std::size_t bytes) {
    if (bytes >= kMiB) return fmt::format("{}MiB", bytes / kMiB);
    return bytes >= kKiB ? fmt::format("{}KiB", bytes / kKiB) : fmt::format("{}B", bytes);
}

Row throughputRow(bool write, std::size_t block) {
    const Load load{write, block, kBatch, true};
    Row row;
    row.name = fmt::format("tcp.{}.{}", operation(write), sizeName(block));
    row.about = fmt::format("{} of {} blocks, batch {}", operation(write), sizeName(block), kBatch);
    row.contenders = {bareSocket(load), iperf3(block), ucx(load), troupe("troupe", load)};
    row.comparisons = {{"", "GB/s", "troupe", "GB/s", "bare socket", "", Target::ratioAtLeast(0.95)},
                       {":ucx", "GB/s", "troupe", "GB/s", "ucx_perftest", "", Target::ratioAtLeast(1)},
                       {":iperf3", "GB/s", "troupe", "GB/s", "iperf3", "", {}}};
    return row;
}

Row scatteredRow(bool write) {
    const Load load{write, 4 * kKiB, kSmallBatch, true};
    Row row;
    row.name = fmt::format("tcp.scattered.{}", operation(write));
    row.about = fmt::format("{} of 4 KiB blocks that touch nowhere, batch {}", operation(write), kSmallBatch);
    row.contenders = {bareSocket(load), ucx(load), troupe("troupe", load)};
    row.comparisons = {{"", "requests/s", "troupe", "requests/s", "bare socket", "", Target::valueAtLeast(1e6)},
                       {":ucx", "requests/s", "troupe", "requests/s", "ucx_perftest", "", Target::ratioAtLeast(5)}};
    return row;
}

Row contiguousRow(bool write) {
    Row row;
    row.name = fmt::format("tcp.contiguous.{}", operation(write));
    row.about = fmt::format("{} of 4 KiB blocks side by side, batch {}, beside Troupe's own 512 KiB blocks",
                            operation(write), kSmallBatch);
    row.contenders = {troupe("512 KiB x 1", {write, 512 * kKiB, 1, true}),
                      troupe("512 KiB x 16", {write, 512 * kKiB, kBatch, true}),
                      troupe("troupe", {write, 4 * kKiB, kSmallBatch, false})};
    row.comparisons = {{"", "GB/s", "troupe", "GB/s", "512 KiB x 1", "", Target::ratioAtLeast(0.9)},
                       {":batch16", "GB/s", "troupe", "GB/s", "512 KiB x 16", "", {}}};
    return row;
}

Row cpuRow(bool write) {
    const Load load{write, kMiB, kBatch, true};
    Row row;
    row.name = fmt::format("tcp.cpu.{}", operation(write));
    row.about = fmt::format("CPU time of both ends per GB, {} of 1 MiB blocks, batch {}", operation(write), kBatch);
    row.contenders = {bareSocket(load), ucx(load), troupe("troupe", load)};
    row.comparisons = {{"", "CPU s/GB", "troupe", "CPU s/GB", "bare socket", "", Target::ratioAtMost(1.3)},
                       {":ucx", "CPU s/GB", "troupe", "CPU s/GB", "ucx_perftest", "", {}}};
    return row;
}

Row waitingRow(bool write) {
    const Load load{write, kMiB, kBatch, true};
    Row row;
    row.name = fmt::format("tcp.wait.{}", operation(write));
    row.about = fmt::format("waitTransfer beside spinning on the status, {} of 1 MiB blocks", operation(write));
    row.contenders = {troupe("spinning", load, Waiting::Spin), troupe("troupe", load)};
    row.comparisons = {{"", "GB/s", "troupe", "GB/s", "spinning", "", Target::ratioAtLeast(1)}};
    return row;
}

Contender troupeLatency(const std::string& name, bool write, std::size_t bytes, Waiting waiting) {
    return {name, [=](const Settings& settings) -> Result<Figures> {
                auto rig = makeWireRig(settings, settings, "tcp");
                if (!rig) return rig.status();
                auto latency = runEngineLatency(rig->ends(), write, bytes, settings.latency_samples, waiting);
                if (!latency) return latency.status();
                return Figures{{"p50", latency->p50}, {"p99", latency->p99}};
            }};
}

Row latencyRow(bool write, std::size_t bytes) {
    Row row;
    row.name = fmt::format("tcp.latency.{}.{}", operation(write), sizeName(bytes));
    row.about = fmt::format("one {} of {} at a time", operation(write), sizeName(bytes));
    row.contenders = {
        {"ucx_perftest", [=](const Settings& s) { return asFigures(runUcxLatency(write, bytes, s.latency_samples)); }},
        {"bare socket", [=](const Settings& s) { return asFigures(runBareLatency(write, bytes, s.latency_samples)); }},
        troupeLatency("spinning", write, bytes, Waiting::Spin),
        troupeLatency("troupe", write, bytes, Waiting::Wait)};
    // The second line's peer is Troupe's own median.
    row.comparisons = {{".p50", "us", "troupe", "p50", "ucx_perftest", "", Target::ratioAtMost(1.2)},
                       {".p99", "us", "troupe", "p99", "troupe", "p50", Target::ratioAtMost(3)},
                       {".p50:bare", "us", "troupe", "p50", "bare socket", "", {}},
                       {".p99:ucx", "us", "troupe", "p99", "ucx_perftest", "", {}},
                       {".spin.p50", "us", "spinning", "p50", "ucx_perftest", "", {}}};
    return row;
}

/// CPU time of each end while an engine is idle, in percent of one core.
Result<Figures> idle(const Settings& given) {
    // Longer than the other rows: idle engines do something only now and then, and all of it is to be seen.
    constexpr double kTimesLonger = 5;
    Settings settings = given;
    settings.footprint = kMiB;
    auto rig = makeWireRig(settings, settings, "tcp");
    if (!rig) return rig.status();
    for (const bool write : {true, false})
        if (Status status = transferOnce(rig->ends(), write, 4 * kKiB); !status) return status;
    std::this_thread::sleep_for(std::chrono::duration<double>(settings.warmup_seconds));
    const double here = ownCpuSeconds();
    const double there = rig->peer.cpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(kTimesLonger * settings.seconds));
    const double percent = 100 / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return Figures{{"here", (ownCpuSeconds() - here) * percent}, {"there", (rig->peer.cpuSeconds() - there) * percent}};
}

Row idleRow() {
    Row row;
    row.name = "tcp.idle";
    row.about = "CPU time of a process whose engine is idle, with an open segment";
    row.contenders = {{"troupe", idle}};
    row.comparisons = {{"", "% of core", "troupe", "here", "", "", Target::valueAtMost(1)},
                       {".serving", "% of core", "troupe", "there", "", "", Target::valueAtMost(1)}};
    return row;
}

Result<Figures> firstTransfer(const Settings& settings) {
    auto memory = Memory::populated(kMiB);
    if (!memory) return memory.status();
    auto peer = ServingPeer::start(settings, kManyRegions);
    if (!peer) return peer.status();
    auto engine = makeEngine(settings, "tcp");
    if (!engine) return engine.status();
    if (Status status = (*engine)->registerLocalMemory(memory->data(), memory->size()); !status) return status;
    const auto start = std::chrono::steady_clock::now();
    auto segment = (*engine)->openSegment(peer->segment());
    if (!segment) return segment.status();
    const LoopEnds ends{engine->get(), *segment, peer->address(), memory->data(), {}};
    if (Status status = transferOnce(ends, false, 4 * kKiB); !status) return status;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    return Figures{{"ms", took.count()}};
}

Row firstTransferRow() {
    Row row;
    row.name = "tcp.first";
    row.about = fmt::format("from openSegment to a completed 4 KiB read, new peer with {} regions", kManyRegions);
    row.contenders = {{"troupe", firstTransfer}};
    row.comparisons = {{"", "ms", "troupe", "ms", "", "", Target::valueAtMost(50)}};
    return row;
}

}  // namespace

std::vector<Row> tcpRows() {
    std::vector<Row> rows;
    for (const bool write : {true, false}) {
        for (const std::size_t block : {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB}) {
            rows.push_back(throughputRow(write, block));
        }
    }
    for (const bool write : {true, false}) rows.push_back(scatteredRow(write));
    for (const bool write : {true, false}) rows.push_back(contiguousRow(write));
    for (const bool write : {true, false}) rows.push_back(cpuRow(write));
    for (const bool write : {true, false}) rows.push_back(waitingRow(write));
    for (const std::size_t bytes : {std::size_t{8}, 4 * kKiB}) {
        for (const bool write : {true, false}) rows.push_back(latencyRow(write, bytes));
    }
    rows.push_back(firstTransferRow());
    rows.push_back(idleRow());
    return rows;
}

}  // namespace troupe::bench
