// Two processes over RDMA beside perftest on the same devices. Meant for the VM of tests/rdma_vm, whose devices these
// are; absolute figures of an emulated machine say nothing.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "bench/engine_loop.h"
#include "bench/external_peers.h"
#include "bench/row.h"
#include "bench/wire_rig.h"

namespace troupe::bench {

namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::uint32_t kBatch = 16;
constexpr std::uint32_t kSmallBatch = 128;
constexpr std::size_t kSharedRequest = 256 * kMiB;
/// More than rdma.window_bytes, so that the second device gets some of it and connects, too.
constexpr std::size_t kWarmingRequest = 32 * kMiB;
/// perftest's two ends spin for each other: on a busy machine an exchange takes milliseconds.
constexpr std::size_t kMostSamples = 5000;
/// The least that a serving peer serves.
constexpr std::size_t kLeastServed = kMiB;
/// 4.096 us x 2^17: emulated processors may keep a packet waiting for half a second.
constexpr int kAckTimeout = 17;

/// The two ends of rail 0 (tests/rdma_vm/devices.sh); GID 1 is the one of RoCE v2 with the address.
RdmaEnds rail() { return {"rxe_0a", "rxe_0b", "10.1.0.2", 1, kAckTimeout}; }

/// `settings` with what differs between the two ends, and what holds for all of them here. What the command line sets
/// comes last and wins.
Settings settingsOf(const Settings& settings, const std::string& devices, std::uint32_t lanes, std::size_t bytes) {
    Settings own = settings;
    own.footprint = std::max(bytes, kLeastServed);
    own.config = {{"rdma.devices", devices},
                  {"rdma.ack_timeout", std::to_string(kAckTimeout)},
                  {"rdma.lanes", std::to_string(lanes)}};
    own.config.insert(own.config.end(), settings.config.begin(), settings.config.end());
    return own;
}

/// Between the devices `own` and `others`, comma-separated, with `bytes` of memory at each end.
Result<WireRig> makeRig(const Settings& settings, const std::string& own, const std::string& others,
                        std::uint32_t lanes, std::size_t bytes) {
    return makeWireRig(settingsOf(settings, own, lanes, bytes), settingsOf(settings, others, lanes, bytes), "rdma");
}

/// What one throughput row moves.
struct Load {
    bool write = true;
    std::size_t block = kMiB;
    std::uint32_t batch = kBatch;
    std::uint32_t queue_pairs = 1;

    /// One block for each queue pair, as perftest has it; so the bytes are hot, and no two requests touch that could
    /// be merged.
    std::size_t footprint() const { return block * queue_pairs; }
};

Contender troupe(const Load& load) {
    return {"troupe", [load](const Settings& settings) -> Result<Figures> {
                auto rig = makeRig(settings, rail().client, rail().server, load.queue_pairs, load.footprint());
                if (!rig) return rig.status();
                LoopOptions options = loopOptions(settings, load.write, load.block, load.batch);
                options.footprint = load.footprint();
                auto figures = runEngineLoop(rig->ends(), options, Waiting::Wait);
                if (!figures) return figures.status();
                return Figures{{"MB/s", figures->gigabytes_per_second * 1e3}};
            }};
}

Contender perftest(const Load& load) {
    return {"perftest", [load](const Settings& settings) -> Result<Figures> {
                // As many bytes are out as Troupe has out.
                const std::uint32_t depth = std::max(1u, load.batch * settings.inflight / load.queue_pairs);
                auto rate =
                    runPerftestThroughput(rail(), load.write, load.block, depth, load.queue_pairs, settings.seconds);
                if (!rate) return rate.status();
                return Figures{{"MB/s", *rate * 1e3}};
            }};
}

const char* operation(bool write) { return write ? "write" : "read"; }

Row throughputRow(const Load& load) {
    const std::string size =
        load.block >= kMiB ? fmt::format("{}MiB", load.block / kMiB) : fmt::format("{}KiB", load.block / kKiB);
    Row row;
    row.name = fmt::format("rdma.{}.{}", operation(load.write), size);
    if (load.queue_pairs > 1) row.name += fmt::format(".qp{}", load.queue_pairs);
    row.about = fmt::format("{} of {} blocks, batch {}, {} queue pair(s)", operation(load.write), size, load.batch,
                            load.queue_pairs);
    row.contenders = {perftest(load), troupe(load)};
    row.comparisons = {{"", "MB/s", "troupe", "MB/s", "perftest", "", Target::ratioAtLeast(0.95)}};
    return row;
}

std::size_t samplesOf(const Settings& settings) { return std::min(settings.latency_samples, kMostSamples); }

/// Its own spin, of 50 us, is for real devices: emulated, a round trip takes longer, and the wait for it would not be
/// hot.
Settings hot(const Settings& settings) {
    Settings own = settings;
    own.config.insert(own.config.begin(), {"spin", "2ms"});
    return own;
}

Contender troupeLatency(const std::string& name, std::size_t bytes, Waiting waiting) {
    return {name, [=](const Settings& settings) -> Result<Figures> {
                auto rig = makeRig(hot(settings), rail().client, rail().server, 1, kLeastServed);
                if (!rig) return rig.status();
                auto latency = runEngineLatency(rig->ends(), true, bytes, samplesOf(settings), waiting);
                if (!latency) return latency.status();
                return Figures{{"p50", latency->p50}, {"p99", latency->p99}, {"mean", latency->mean}};
            }};
}

Row latencyRow(std::size_t bytes) {
    Row row;
    row.name = fmt::format("rdma.latency.write.{}B", bytes);
    row.about = fmt::format("one write of {} bytes at a time, hot", bytes);
    row.contenders = {{"perftest",
                       [=](const Settings& settings) -> Result<Figures> {
                           auto latency = runPerftestWriteLatency(rail(), bytes, samplesOf(settings));
                           if (!latency) return latency.status();
                           return Figures{{"p50", latency->p50}, {"p99", latency->p99}};
                       }},
                      {"perftest1",
                       [=](const Settings& settings) -> Result<Figures> {
                           auto mean = runPerftestOneWrite(rail(), bytes, samplesOf(settings));
                           if (!mean) return mean.status();
                           return Figures{{"mean", *mean}};
                       }},
                      troupeLatency("spinning", bytes, Waiting::Spin),
                      troupeLatency("troupe", bytes, Waiting::Wait)};
    row.comparisons = {{".p50", "us", "troupe", "p50", "perftest", "", Target::ratioAtMost(1.25)},
                       {".p99", "us", "troupe", "p99", "perftest", "", {}},
                       {".mean", "us", "troupe", "mean", "perftest1", "", Target::ratioAtMost(1.25)},
                       {".spin.p50", "us", "spinning", "p50", "perftest", "", {}}};
    return row;
}

/// Bytes that the interface under a Soft-RoCE device has sent so far.
Result<double> sentBy(const std::string& device) {
    std::string interface;
    std::getline(std::ifstream("/sys/class/infiniband/" + device + "/parent"), interface);
    double bytes = 0;
    if (interface.empty() || !(std::ifstream("/sys/class/net/" + interface + "/statistics/tx_bytes") >> bytes))
        return {Code::NotFound, "what " + device + " has sent cannot be read"};
    return bytes;
}

/// One large request over both rails: the share of the bytes that the NIC with less of them carried.
Result<Figures> sharedRequest(const Settings& settings, bool write) {
    auto rig = makeRig(settings, "rxe_0a,rxe_1a", "rxe_0b,rxe_1b", 1, kSharedRequest);
    if (!rig) return rig.status();
    // Both connections are up before it begins.
    if (Status status = transferOnce(rig->ends(), write, kWarmingRequest); !status) return status;
    // A write's bytes leave through our devices, a read's through the peer's.
    const std::array<std::string, 2> devices =
        write ? std::array<std::string, 2>{"rxe_0a", "rxe_1a"} : std::array<std::string, 2>{"rxe_0b", "rxe_1b"};
    std::array<double, 2> carried{};
    for (std::size_t i = 0; i < 2; ++i) {
        const auto before = sentBy(devices[i]);
        if (!before) return before.status();
        carried[i] = -*before;
    }
    const auto start = std::chrono::steady_clock::now();
    if (Status status = transferOnce(rig->ends(), write, kSharedRequest); !status) return status;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    for (std::size_t i = 0; i < 2; ++i) {
        const auto after = sentBy(devices[i]);
        if (!after) return after.status();
        carried[i] += *after;
    }
    const double whole = carried[0] + carried[1];
    return Figures{{"least", 100 * std::min(carried[0], carried[1]) / whole},
                   {"first", 100 * carried[0] / whole},
                   {"second", 100 * carried[1] / whole},
                   {"MB/s", static_cast<double>(kSharedRequest) / 1e6 / took.count()}};
}

Row sharedRow(bool write) {
    Row row;
    row.name = fmt::format("rdma.two_nics.{}.256MiB", operation(write));
    row.about = fmt::format("one {} of 256 MiB over two NICs: what the one with less of it carries", operation(write));
    row.contenders = {{"troupe", [write](const Settings& settings) { return sharedRequest(settings, write); }}};
    row.comparisons = {{"", "%", "troupe", "least", "", "", Target::valueAtLeast(30)},
                       {":rxe_0a", "%", "troupe", "first", "", "", {}},
                       {":rxe_1a", "%", "troupe", "second", "", "", {}},
                       {":rate", "MB/s", "troupe", "MB/s", "", "", {}}};
    return row;
}

}  // namespace

std::vector<Row> rdmaRows() {
    std::vector<Row> rows;
    for (const bool write : {true, false}) {
        for (const std::size_t block : {64 * kKiB, kMiB}) {
            for (const std::uint32_t queue_pairs : {1u, 4u}) {
                rows.push_back(throughputRow({write, block, kBatch, queue_pairs}));
            }
        }
    }
    rows.push_back(throughputRow({true, 4 * kKiB, kSmallBatch, 1}));
    rows.push_back(latencyRow(8));
    for (const bool write : {true, false}) rows.push_back(sharedRow(write));
    return rows;
}

}  // namespace troupe::bench
