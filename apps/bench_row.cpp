#include "apps/bench_row.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <thread>

#include "apps/support/latency_histogram.h"
#include "apps/support/payload.h"
#include "apps/support/random.h"
#include "apps/support/transfer.h"
#include "apps/support/units.h"
#include "base/quiet_thread.h"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kTick{20};    ///< Between looks at the stop signal.
constexpr std::uint64_t kCheckBatch = 256;        ///< Requests in one batch of setting up and verifying.
constexpr std::uint64_t kCheckBytes = 64u << 20;  ///< Bytes in one such batch, at most.

enum class Phase { WarmUp, Measure, Stop };

/// A stride near `fraction` of `blocks` that reaches every block once a turn.
std::uint64_t coprimeStride(std::uint64_t blocks, double fraction) {
    auto stride = std::max<std::uint64_t>(static_cast<std::uint64_t>(static_cast<double>(blocks) * fraction), 1);
    while (std::gcd(stride, blocks) != 1) ++stride;
    return stride;
}

/// Seed of one row's contents. No row before this one, of this program or another, had the same: what it left in the
/// remote memory is never what this one expects there, so that a write that wrote nothing is seen.
std::uint64_t contentsOfRow(std::uint64_t seed) {
    return mixBits(seed) ^ mixBits(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()));
}

double cpuSeconds() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// One submitting thread.
class Lane {
  public:
    Lane(const BenchOptions& options, const RowPlan& plan, TransferEngine& engine, const BenchMemory& memory,
         std::uint64_t contents, unsigned index)
        : options_(options),
          plan_(plan),
          engine_(engine),
          walk_(plan.share / plan.block_size, plan.block_size, options.scatter),
          local_(memory.local.data() + index * plan.share),
          segment_(memory.remote.segment),
          remote_(memory.remote.range.addr + index * plan.share),
          contents_(contents),
          stream_offset_(index * plan.share) {}

    /// Gives every block, on the side that is the source, its contents.
    Status setUp();
    /// Submits until the phase is Stop; on an error sets it for all.
    void run(std::atomic<Phase>& phase);
    /// Compares every block that run moved.
    Status verify();

    const LatencyHistogram& latencies() const { return latencies_; }
    const Status& status() const { return status_; }

  private:
    struct Flight {
        Transfer transfer;
        TimePoint started;
    };
    void fill(std::vector<TransferRequest>& requests, std::uint64_t first, std::uint64_t count, bool write) const;
    Status flightLoop(std::atomic<Phase>& phase);
    Status land(std::deque<Flight>& flights, const std::atomic<Phase>& phase);
    /// Calls `each(first step, count)` for chunks of the first `blocks` steps.
    template <class Each>
    Status inChunks(std::uint64_t blocks, Each each) const;
    std::span<std::byte> localBlock(std::uint64_t step) const {
        return {local_ + walk_.at(step).local, plan_.block_size};
    }
    std::uint64_t streamOffset(std::uint64_t step) const { return stream_offset_ + walk_.at(step).remote; }

    const BenchOptions& options_;
    const RowPlan& plan_;
    TransferEngine& engine_;
    BlockWalk walk_;
    std::byte* local_;
    SegmentID segment_;
    std::uint64_t remote_;
    std::uint64_t contents_;       ///< Seed of the payload.
    std::uint64_t stream_offset_;  ///< Of the payload at remote_; the contents of a block depend on its remote place.
    std::uint64_t steps_ = 0;      ///< Blocks submitted so far.
    LatencyHistogram latencies_;
    Status status_;
};

void Lane::fill(std::vector<TransferRequest>& requests, std::uint64_t first, std::uint64_t count, bool write) const {
    requests.resize(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto pair = walk_.at(first + i);
        auto& request = requests[i];
        request.opcode = write ? TransferRequest::WRITE : TransferRequest::READ;
        request.source = local_ + pair.local;
        request.target_id = segment_;
        request.target_offset = remote_ + pair.remote;
        request.length = plan_.block_size;
    }
}

template <class Each>
Status Lane::inChunks(std::uint64_t blocks, Each each) const {
    const std::uint64_t chunk = std::clamp<std::uint64_t>(kCheckBytes / plan_.block_size, 1, kCheckBatch);
    for (std::uint64_t first = 0; first < blocks; first += chunk)
        if (auto status = each(first, std::min(chunk, blocks - first)); !status) return status;
    return Status::ok();
}

Status Lane::setUp() {
    std::vector<TransferRequest> requests;
    return inChunks(walk_.blocks(), [&](std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t step = first; step < first + count; ++step)
            fillPayload(localBlock(step), contents_, streamOffset(step));
        if (plan_.write) return Status::ok();
        fill(requests, first, count, true);
        if (auto status = transferAll(engine_, requests); !status) return status.withContext("setting up for reads");
        for (std::uint64_t step = first; step < first + count; ++step)
            std::fill_n(localBlock(step).data(), plan_.block_size, kPoison);
        return Status::ok();
    });
}

void Lane::run(std::atomic<Phase>& phase) {
    status_ = flightLoop(phase);
    if (!status_) phase.store(Phase::Stop);
}

Status Lane::flightLoop(std::atomic<Phase>& phase) {
    std::deque<Flight> flights;
    std::vector<TransferRequest> requests;
    for (;;) {
        if (phase.load(std::memory_order_relaxed) == Phase::Stop) break;
        if (flights.size() == options_.inflight)
            if (auto status = land(flights, phase); !status) return status;
        fill(requests, steps_, plan_.batch_size, plan_.write);
        const TimePoint started = Clock::now();
        auto transfer = Transfer::start(engine_, requests);
        if (!transfer) return transfer.status();
        flights.push_back({std::move(transfer).value(), started});
        steps_ += plan_.batch_size;
    }
    while (!flights.empty())
        if (auto status = land(flights, phase); !status) return status;
    return Status::ok();
}

Status Lane::land(std::deque<Flight>& flights, const std::atomic<Phase>& phase) {
    auto& flight = flights.front();
    if (auto status = flight.transfer.finish(); !status) return status;
    // What ends inside the measured time counts, wherever it began: the two ends of the span cancel out.
    if (phase.load(std::memory_order_relaxed) == Phase::Measure) latencies_.record(Clock::now() - flight.started);
    flights.pop_front();
    return Status::ok();
}

Status Lane::verify() {
    std::vector<TransferRequest> requests;
    return inChunks(std::min(steps_, walk_.blocks()), [&](std::uint64_t first, std::uint64_t count) {
        if (plan_.write) {
            for (std::uint64_t step = first; step < first + count; ++step)
                std::fill_n(localBlock(step).data(), plan_.block_size, kPoison);
            fill(requests, first, count, false);
            if (auto status = transferAll(engine_, requests); !status) return status.withContext("reading back");
        }
        for (std::uint64_t step = first; step < first + count; ++step) {
            const auto bad = checkPayload(localBlock(step), contents_, streamOffset(step));
            if (!bad) continue;
            const std::uint64_t block = remote_ + walk_.at(step).remote;
            return Status(
                Code::ChecksumMismatch,
                fmt::format("MISMATCH at {}: expected 0x{:02x}, got 0x{:02x}; the first differing byte of the "
                            "block of {} B at {} (byte {} of it)",
                            formatAddress(block + bad->index), static_cast<unsigned>(bad->expected),
                            static_cast<unsigned>(bad->got), plan_.block_size, formatAddress(block), bad->index));
        }
        return Status::ok();
    });
}

/// Waits; false when the phase became Stop before (an error) or the stop signal came.
bool waitUntil(TimePoint end, const std::atomic<Phase>& phase, const Console& console,
               const std::function<void()>& tick) {
    while (Clock::now() < end) {
        if (phase.load() == Phase::Stop || console.stop->requested()) return false;
        tick();
        std::this_thread::sleep_until(std::min<TimePoint>(end, Clock::now() + kTick));
    }
    return phase.load() != Phase::Stop;
}

struct Measured {
    Status threads;  ///< Not Ok: the system gave fewer than were asked for, and nothing was measured.
    double seconds = 0;
    double cpu = 0;
    bool complete = false;
};

Measured conduct(const BenchOptions& options, std::vector<Lane>& lanes, const Console& console,
                 const std::function<void(double)>& tick) {
    std::atomic<Phase> phase{Phase::WarmUp};
    std::vector<std::thread> threads;
    threads.reserve(lanes.size());
    Measured measured;
    for (auto& lane : lanes) {
        auto started = startQuietThread("troupe-bench", [&lane, &phase] { lane.run(phase); });
        if (!started) {
            measured.threads = Status(started.status().code(),
                                      fmt::format("{} of {} threads: {}; ask for fewer (--threads), or raise the limit "
                                                  "on threads (ulimit -u, pids.max)",
                                                  threads.size(), lanes.size(), started.status().message()));
            break;
        }
        threads.push_back(std::move(*started));
    }

    const auto span = [](double seconds) {
        return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    };
    const TimePoint begun = Clock::now();
    const auto ticker = [&] { tick(toSeconds(Clock::now() - begun) / (options.warmup + options.seconds)); };
    if (measured.threads && waitUntil(begun + span(options.warmup), phase, console, ticker)) {
        const TimePoint started = Clock::now();
        const double cpu = cpuSeconds();
        auto expected = Phase::WarmUp;
        phase.compare_exchange_strong(expected, Phase::Measure);
        measured.complete = waitUntil(started + span(options.seconds), phase, console, ticker);
        measured.seconds = toSeconds(Clock::now() - started);
        measured.cpu = cpuSeconds() - cpu;
    }
    phase.store(Phase::Stop);
    for (auto& thread : threads) thread.join();
    return measured;
}

Status forAll(std::vector<Lane>& lanes, Status (Lane::*call)()) {
    for (auto& lane : lanes)
        if (auto status = (lane.*call)(); !status) return status;
    return Status::ok();
}

}  // namespace

BlockWalk::BlockWalk(std::uint64_t blocks, std::uint64_t block_size, bool scatter)
    : blocks_(blocks), block_size_(block_size) {
    if (!scatter) return;
    // Fractions far from each other and from 0, 1/2 and 1, so that neither side comes in order, nor both in the same.
    local_stride_ = coprimeStride(blocks, 0.618);
    remote_stride_ = coprimeStride(blocks, 0.382);
}

BlockWalk::Pair BlockWalk::at(std::uint64_t step) const {
    const std::uint64_t turn = step % blocks_;
    return {turn * local_stride_ % blocks_ * block_size_, turn * remote_stride_ % blocks_ * block_size_};
}

std::string describe(const RowPlan& plan) {
    return fmt::format("{} {} x {}{}", plan.write ? "write" : "read", formatBytes(plan.block_size), plan.batch_size,
                       plan.threads == 1 ? "" : fmt::format(" by {} threads", plan.threads));
}

Result<BenchRow> runRow(const BenchOptions& options, const RowPlan& plan, TransferEngine& engine,
                        const BenchMemory& memory, const Console& console, const std::function<void(double)>& tick) {
    BenchRow row;
    row.operation = plan.write ? "write" : "read";
    row.block_size = plan.block_size;
    row.batch_size = plan.batch_size;
    row.threads = plan.threads;
    const std::string what = describe(plan);

    std::vector<Lane> lanes;
    lanes.reserve(plan.threads);
    const std::uint64_t contents = contentsOfRow(options.seed);
    for (unsigned i = 0; i < plan.threads; ++i) lanes.emplace_back(options, plan, engine, memory, contents, i);
    if (options.verify)
        if (auto status = forAll(lanes, &Lane::setUp); !status) return status.withContext(what);
    const auto measured = conduct(options, lanes, console, tick);
    if (!measured.threads) return measured.threads.withContext(what);
    LatencyHistogram latencies;
    for (const auto& lane : lanes) {
        if (!lane.status()) return lane.status().withContext(what);
        latencies.merge(lane.latencies());
    }
    if (!measured.complete) return row;
    if (options.verify)
        if (auto status = forAll(lanes, &Lane::verify); !status) return status.withContext(what);

    row.verified = options.verify;
    row.batches = latencies.count();
    const auto requests = static_cast<double>(row.batches) * plan.batch_size;
    const double gigabytes = requests * static_cast<double>(plan.block_size) / 1e9;
    row.requests_per_s = requests / measured.seconds;
    row.gigabytes_per_s = gigabytes / measured.seconds;
    row.cpu_s_per_gb = gigabytes > 0 ? measured.cpu / gigabytes : 0;
    row.p50_us = toMicroseconds(latencies.percentile(0.5));
    row.p99_us = toMicroseconds(latencies.percentile(0.99));
    row.p999_us = toMicroseconds(latencies.percentile(0.999));
    return row;
}

}  // namespace troupe::apps
