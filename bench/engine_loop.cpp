#include "bench/engine_loop.h"

#include <fmt/format.h>

#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "bench/memory.h"
#include "bench/processes.h"
#include "bench/stats.h"

namespace troupe::bench {

namespace {

using SteadyClock = std::chrono::steady_clock;
/// Far beyond what any batch takes; past it the engine hangs.
constexpr auto kBatchTimeout = std::chrono::seconds(60);

/// Waits for `batch` and frees it; its error unless it completed.
Status await(TransferEngine& engine, BatchID batch, Waiting waiting) {
    auto status =
        waiting == Waiting::Wait ? engine.waitTransfer(batch, kBatchTimeout) : engine.getBatchTransferStatus(batch);
    if (waiting == Waiting::Spin) {
        // The clock is left alone while there is no need: it costs as much as a tenth of a small request.
        SteadyClock::time_point until{};
        for (std::uint32_t polls = 1; status && !isTerminal(status->s); ++polls) {
            if (polls == 1) until = SteadyClock::now() + kBatchTimeout;
            if (polls % 4096 == 0 && SteadyClock::now() > until) break;
            status = engine.getBatchTransferStatus(batch);
        }
    }
    if (!status) return status.status();
    if (!isTerminal(status->s)) return {Code::Timeout, "a batch did not end within a minute"};
    if (status->s != TransferStatusEnum::COMPLETED) {
        return {status->error ? Code::Internal : status->error.code(),
                fmt::format("a batch ended as {}: {}", toString(status->s), status->error.toString())};
    }
    return engine.freeBatchID(batch);
}

/// Keeps a window of batches submitted.
class Submitter {
  public:
    Submitter(const LoopEnds& ends, const LoopOptions& options, Waiting waiting)
        : ends_(ends),
          waiting_(waiting),
          walk_(options.footprint, options.block, options.scattered),
          requests_(options.batch),
          ring_(options.inflight, kInvalidBatchID) {
        for (auto& request : requests_) {
            request.opcode = options.write ? TransferRequest::WRITE : TransferRequest::READ;
            request.target_id = ends.segment;
            request.length = options.block;
        }
    }

    Status runFor(double seconds) {
        const auto until = SteadyClock::now() + std::chrono::duration<double>(seconds);
        for (std::uint32_t steps = 0; steps % kStepsPerLook != 0 || SteadyClock::now() < until; ++steps) {
            if (Status status = step(); !status) return status;
        }
        return drain();
    }

    std::uint64_t finishedRequests() const { return finished_ * requests_.size(); }

  private:
    static constexpr std::uint32_t kStepsPerLook = 4;

    Status step() {
        if (submitted_ - finished_ == ring_.size()) {
            if (Status status = awaitOldest(); !status) return status;
        }
        for (auto& request : requests_) {
            const std::uint64_t offset = walk_.next();
            request.source = ends_.local + offset;
            request.target_offset = ends_.remote + offset;
        }
        auto batch = ends_.engine->allocateBatchID(requests_.size());
        if (!batch) return batch.status();
        ring_[submitted_++ % ring_.size()] = *batch;
        return ends_.engine->submitTransfer(*batch, requests_);
    }

    Status drain() {
        while (finished_ < submitted_) {
            if (Status status = awaitOldest(); !status) return status;
        }
        return Status::ok();
    }

    Status awaitOldest() { return await(*ends_.engine, ring_[finished_++ % ring_.size()], waiting_); }

    const LoopEnds& ends_;
    Waiting waiting_;
    BlockWalk walk_;
    std::vector<TransferRequest> requests_;
    std::vector<BatchID> ring_;    ///< Batches that are out.
    std::uint64_t submitted_ = 0;  ///< Batches.
    std::uint64_t finished_ = 0;
};

TransferRequest oneRequest(const LoopEnds& ends, bool write, std::size_t bytes) {
    TransferRequest request;
    request.opcode = write ? TransferRequest::WRITE : TransferRequest::READ;
    request.source = ends.local;
    request.target_id = ends.segment;
    request.target_offset = ends.remote;
    request.length = bytes;
    return request;
}

}  // namespace

Result<std::unique_ptr<TransferEngine>> makeEngine(const Settings& settings, const std::string& transport,
                                                   bool serves) {
    auto config = configOf(settings);
    if (!config) return config.status();
    EngineOptions options;
    options.config = std::move(*config);
    if ((transport == "tcp" || transport == "rdma") && !serves) options.config.host_peers = false;
    auto engine = std::make_unique<TransferEngine>(std::move(options));
    if (Status status = engine->init("p2p", "127.0.0.1", "127.0.0.1"); !status) return status;
    if (!transport.empty()) {
        if (auto installed = engine->installTransport(transport); !installed) return installed.status();
    }
    return engine;
}

LoopOptions loopOptions(const Settings& settings, bool write, std::size_t block, std::uint32_t batch) {
    LoopOptions options;
    options.write = write;
    options.block = block;
    options.batch = batch;
    options.inflight = settings.inflight;
    options.streams = settings.streams;
    options.footprint = settings.footprint;
    options.seconds = settings.seconds;
    options.warmup_seconds = settings.warmup_seconds;
    return options;
}

Result<LoopFigures> runEngineLoop(const LoopEnds& ends, const LoopOptions& options, Waiting waiting) {
    if (options.block > options.footprint) return {Code::InvalidArgument, "the footprint is smaller than a block"};
    const auto cpuSeconds = [&] { return ownCpuSeconds() + (ends.peer_cpu_seconds ? ends.peer_cpu_seconds() : 0); };
    Submitter submitter(ends, options, waiting);
    if (Status status = submitter.runFor(options.warmup_seconds); !status) return status;
    const std::uint64_t before = submitter.finishedRequests();
    const double cpu_before = cpuSeconds();
    const auto start = SteadyClock::now();
    if (Status status = submitter.runFor(options.seconds); !status) return status;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    const double cpu = cpuSeconds() - cpu_before;
    const auto done = static_cast<double>(submitter.finishedRequests() - before);
    const double gigabytes = done * static_cast<double>(options.block) / 1e9;
    return LoopFigures{gigabytes / seconds, done / seconds, cpu / gigabytes};
}

Result<LatencyFigures> runEngineLatency(const LoopEnds& ends, bool write, std::size_t bytes, std::size_t count,
                                        Waiting waiting) {
    const std::vector<TransferRequest> requests(1, oneRequest(ends, write, bytes));
    std::vector<double> samples;
    samples.reserve(count);
    const std::size_t warmup = count / 10;
    for (std::size_t i = 0; i < count + warmup; ++i) {
        auto batch = ends.engine->allocateBatchID(1);
        if (!batch) return batch.status();
        const auto start = SteadyClock::now();
        if (Status status = ends.engine->submitTransfer(*batch, requests); !status) return status;
        // Freeing is part of await; it is a few nanoseconds and every caller pays it.
        if (Status status = await(*ends.engine, *batch, waiting); !status) return status;
        const std::chrono::duration<double, std::micro> took = SteadyClock::now() - start;
        if (i >= warmup) samples.push_back(took.count());
    }
    const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
    const double p50 = percentile(samples, 0.50);
    return LatencyFigures{p50, percentile(samples, 0.99), mean};
}

Status transferOnce(const LoopEnds& ends, bool write, std::size_t bytes) {
    auto batch = ends.engine->allocateBatchID(1);
    if (!batch) return batch.status();
    if (Status status = ends.engine->submitTransfer(*batch, {oneRequest(ends, write, bytes)}); !status) return status;
    return await(*ends.engine, *batch, Waiting::Wait);
}

}  // namespace troupe::bench
