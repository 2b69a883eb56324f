#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_row.h"
#include "apps/support/arguments.h"
#include "apps/support/payload.h"
#include "apps/support/progress.h"
#include "apps/support/quarantined.h"
#include "apps/support/say.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr std::uint64_t kDefaultFootprint = 64u << 20;  ///< More than the caches of most machines.
constexpr std::uint64_t kSweepBatchBytes = 64u << 20;   ///< A sweep leaves out rows with larger batches.

Status footprintTooSmall(std::uint64_t footprint, std::uint64_t needed) {
    return {Code::InvalidArgument, fmt::format("--footprint {} is less than the {} in flight; give at least that",
                                               formatBytes(footprint), formatBytes(needed))};
}

/// Whom a share of the target is for.
std::string eachOf(unsigned threads) {
    return threads == 1 ? std::string("the thread") : fmt::format("each of {} threads", threads);
}

/// Bytes per thread and side that a row works on, of `available` for each of its threads.
Result<std::uint64_t> shareOf(const BenchOptions& options, std::uint64_t block, std::uint64_t batch, unsigned threads,
                              std::uint64_t available) {
    const std::uint64_t blocks_in_flight = batch * options.inflight;
    if (block > available / blocks_in_flight)
        return {Code::InvalidArgument,
                fmt::format("blocks of {} x batch {} x {} in flight do not fit the {} of remote memory that {} has; "
                            "serve more (troupe serve --size) or ask for less",
                            formatBytes(block), batch, options.inflight, formatBytes(available), eachOf(threads))};
    const std::uint64_t needed = block * blocks_in_flight;
    if (options.footprint != 0 && options.footprint < needed) return footprintTooSmall(options.footprint, needed);
    const std::uint64_t wanted = options.footprint != 0 ? options.footprint : std::max(kDefaultFootprint, needed);
    if (options.footprint > available)
        return {Code::InvalidArgument,
                fmt::format("--footprint {} does not fit the target, which has {} for {}",
                            formatBytes(options.footprint), formatBytes(available), eachOf(threads))};
    return std::min(wanted, available) / block * block;
}

/// Every combination of the lists, for `remote` bytes of remote memory.
Result<std::vector<RowPlan>> planRows(const BenchOptions& options, std::uint64_t remote) {
    std::vector<std::uint64_t> blocks = options.block_sizes;
    std::vector<std::uint32_t> batches = options.batch_sizes;
    if (options.sweep) {
        blocks = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 4u << 20};
        batches = {1, 16, 128};
    }
    std::vector<RowPlan> plans;
    for (const bool write : {true, false}) {
        if (options.operation == (write ? "read" : "write")) continue;
        for (const auto block : blocks) {
            for (const auto batch : batches) {
                for (const auto threads : options.threads) {
                    const std::uint64_t available = remote / threads;
                    const bool large = block * batch > std::min(kSweepBatchBytes, available / options.inflight);
                    if (options.sweep && large) continue;
                    const auto share = shareOf(options, block, batch, threads, available);
                    if (!share) return share.status();
                    plans.push_back({write, block, batch, threads, *share});
                }
            }
        }
    }
    if (plans.empty()) return {Code::InvalidArgument, "the target has too little memory for any row of the sweep"};
    return plans;
}

/// The remote memory: the target's, or with --local a stretch of our own.
Result<Target> findRemote(const BenchOptions& options, Session& session) {
    if (!options.local) return session.openTarget(options.target);
    std::uint64_t share = std::max(kDefaultFootprint, options.footprint);
    const std::vector<std::uint64_t> blocks =
        options.sweep ? std::vector<std::uint64_t>{1u << 20} : options.block_sizes;
    const std::vector<std::uint32_t> batches = options.sweep ? std::vector<std::uint32_t>{64} : options.batch_sizes;
    const std::uint64_t block = *std::max_element(blocks.begin(), blocks.end());
    const std::uint64_t flight = *std::max_element(batches.begin(), batches.end()) * std::uint64_t{options.inflight};
    share = std::max(share, block * flight);
    const unsigned threads = *std::max_element(options.threads.begin(), options.threads.end());
    const auto memory = session.addMemory(share * threads, options.huge, true);
    if (!memory) return memory.status();
    return Target{kLocalSegmentID,
                  session.engine().localSegmentName(),
                  {reinterpret_cast<std::uint64_t>(memory->data()), memory->size()},
                  {}};
}

/// The largest row's bytes in flight, against what the arguments alone bound.
Status checkFlight(const BenchOptions& options) {
    const std::uint64_t block = *std::max_element(options.block_sizes.begin(), options.block_sizes.end());
    const std::uint64_t flight =
        *std::max_element(options.batch_sizes.begin(), options.batch_sizes.end()) * std::uint64_t{options.inflight};
    constexpr std::uint64_t kMaxThreads = 4096;  // More than --threads takes.
    if (block > UINT64_MAX / kMaxThreads / flight)
        return {Code::InvalidArgument, "the block sizes and batch sizes are larger than any memory"};
    if (options.footprint != 0 && options.footprint < block * flight)
        return footprintTooSmall(options.footprint, block * flight);
    return Status::ok();
}

Status checkOptions(const BenchOptions& options) {
    if (options.local != options.target.empty())
        return {Code::InvalidArgument, "give a target segment (host:port with p2p), or --local, and not both"};
    if (options.seconds == 0) return {Code::InvalidArgument, "--duration must be more than 0 seconds"};
    if (options.engine.transport == "null" && options.verify)
        return {Code::InvalidArgument,
                "--transport null moves no bytes, so there is nothing to verify; leave --verify out"};
    if (options.local && (options.engine.transport == "tcp" || options.engine.transport == "rdma"))
        return {Code::InvalidArgument,
                fmt::format("--transport {} with --local: a local target always goes by the same-process path; leave "
                            "--transport out, or measure a troupe serve on this machine",
                            options.engine.transport)};
    return options.sweep ? Status::ok() : checkFlight(options);
}

Status runCommand(const BenchOptions& options, Console& console) {
    const bool json = options.engine.common.json;
    if (json && console.partial != nullptr) *console.partial = {{"rows", nlohmann::json::array()}};
    // A row may take minutes: what is measured is shown, and stays when a later row fails.
    const auto report = bench(options, console, [&](const BenchReport& so_far) {
        if (json && console.partial != nullptr) *console.partial = so_far.toJson();
        if (json) return;
        say(console.out, "{}{}", so_far.rows.size() == 1 ? BenchReport::head() : "", so_far.line(so_far.rows.back()));
    });
    if (!report) return report.status();
    fmt::print(console.out, "{}", json ? report->toJson().dump(2) + "\n" : report->foot());
    return Status::ok();
}

/// The columns of the table: rows are printed one by one, so that widths are not those of what comes.
template <class... Cells>
std::string benchLine(const Cells&... cells) {
    return fmt::format("{:<9}  {:>8}  {:>5}  {:>7}  {:>8}  {:>10}  {:>8}  {:>8}  {:>9}  {:>8}  {:>8}\n", cells...);
}

}  // namespace

nlohmann::json BenchReport::toJson() const {
    auto list = nlohmann::json::array();
    const auto ofBytes = [&](double figure) { return movesBytes() ? nlohmann::json(figure) : nlohmann::json(); };
    for (const auto& row : rows)
        list.push_back({{"operation", row.operation},
                        {"block_size", row.block_size},
                        {"batch_size", row.batch_size},
                        {"threads", row.threads},
                        {"batches", row.batches},
                        {"gigabytes_per_s", ofBytes(row.gigabytes_per_s)},
                        {"requests_per_s", row.requests_per_s},
                        {"batch_p50_us", row.p50_us},
                        {"batch_p99_us", row.p99_us},
                        {"batch_p999_us", row.p999_us},
                        {"cpu_s_per_gb", ofBytes(row.cpu_s_per_gb)},
                        {"verified", row.verified}});
    return {{"ok", true},
            {"target", target},
            {"transport", transport},
            {"inflight", inflight},
            {"scatter", scatter},
            {"stopped", stopped},
            {"rows", list},
            {"quarantine", apps::toJson(quarantined, Clock::now())}};
}

std::string BenchReport::head() {
    return benchLine("operation", "block", "batch", "threads", "GB/s", "requests/s", "p50 us", "p99 us", "p99.9 us",
                     "CPU s/GB", "verified");
}

std::string BenchReport::line(const BenchRow& row) const {
    return benchLine(row.operation, formatBytes(row.block_size), row.batch_size, row.threads,
                     movesBytes() ? formatFigure(row.gigabytes_per_s) : "-", fmt::format("{:.0f}", row.requests_per_s),
                     fmt::format("{:.1f}", row.p50_us), fmt::format("{:.1f}", row.p99_us),
                     fmt::format("{:.1f}", row.p999_us), movesBytes() ? formatFigure(row.cpu_s_per_gb) : "-",
                     row.verified ? "yes" : "-");
}

std::string BenchReport::foot() const {
    return fmt::format("target {}, transport {}{}, {} in flight for each thread; latencies are of a batch{}\n", target,
                       transport, movesBytes() ? "" : ", which moves nothing", counted(inflight, "batch", "batches"),
                       stopped ? "\nstopped by a signal before the last row" : "") +
           describe(quarantined, Clock::now());
}

Result<BenchReport> bench(const BenchOptions& options, const Console& console, const BenchRowDone& row_done) {
    if (auto status = checkOptions(options); !status) return status;
    auto session = Session::start(options.engine);
    if (!session) return session.status();
    const auto remote = findRemote(options, **session);
    if (!remote) return remote.status();
    const auto plans = planRows(options, remote->range.length);
    if (!plans) return plans.status();
    std::uint64_t bytes = 0;
    for (const auto& plan : *plans) bytes = std::max(bytes, plan.share * plan.threads);
    const auto local = options.engine_memory ? (*session)->allocateMemory(bytes, options.huge, false)
                                             : (*session)->addMemory(bytes, options.huge, false);
    if (!local) return local.status();
    fillPayload(*local, options.seed, 0);

    BenchReport report{.target = remote->name,
                       .transport = (*session)->transportUsed(*remote),
                       .inflight = options.inflight,
                       .scatter = options.scatter,
                       .stopped = false,
                       .rows = {},
                       .quarantined = {}};
    Progress progress(console.progress, "bench");
    const BenchMemory memory{*local, *remote};
    for (std::size_t i = 0; i < plans->size() && !report.stopped; ++i) {
        const auto& plan = (*plans)[i];
        auto row = runRow(options, plan, (*session)->engine(), memory, console, [&](double done) {
            progress.update((static_cast<double>(i) + done) / static_cast<double>(plans->size()), describe(plan));
        });
        if (!row) return (*session)->explained(row.status(), !remote->transport.empty());
        report.stopped = row->batches == 0 && console.stop->requested();
        if (report.stopped) break;
        report.rows.push_back(std::move(row).value());
        progress.clear();
        if (row_done) row_done(report);
    }
    report.transport = (*session)->transportUsed(*remote);
    report.quarantined = (*session)->engine().quarantine();
    return report;
}

void addBenchCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<BenchOptions>();
    auto* command = addCommand(app, "bench", "Measure reads and writes of a segment; overwrites its memory");
    command->add_option("target", options->target, "Segment, host:port with p2p")->type_name("SEGMENT");
    command->add_flag("--local", options->local, "Work on memory of the own segment instead of a target");
    auto* blocks =
        addBytesList(*command, "--block_size,--block-size", options->block_sizes, "Bytes of one request [64KiB]");
    auto* batches =
        addNumbersList(*command, "--batch_size,--batch-size", options->batch_sizes, 1, 65536, "Requests of one batch");
    addNumbersList(*command, "--threads", options->threads, 1, 256,
                   "Submitting threads (data loops are --set data_loops=N, or --threads of serve)");
    addSeconds(*command, "--duration", options->seconds, "Time measured for each row");
    addSeconds(*command, "--warmup", options->warmup, "Time before it", Zero::Allowed);
    command->add_option("--operation", options->operation, "read, write or both")
        ->transform(CLI::IsMember({"read", "write", "both"}, CLI::ignore_case))
        ->capture_default_str();
    addBytes(*command, "--footprint", options->footprint, "Memory per thread and side [64MiB, more if needed]");
    command->add_option("--inflight", options->inflight, "Batches per thread at the same time")
        ->check(CLI::Range(1u, 1024u))
        ->capture_default_str();
    command->add_flag("--verify", options->verify, "Compare the contents after each row");
    command->add_flag("--scatter", options->scatter, "Blocks in scattered order on both sides, so that none merge");
    command->add_flag("--sweep", options->sweep, "Block sizes 4 KiB to 4 MiB by batches of 1, 16 and 128")
        ->excludes(blocks)
        ->excludes(batches);
    command->add_flag("--huge", options->huge, "Take local memory from the pool of huge pages");
    command->add_flag("--engine-memory", options->engine_memory, "Let the engine allocate local memory");
    addSeed(*command, options->seed, "Of the contents");
    addEngineOptions(*command, options->engine);
    command->callback([options, &chosen] {
        chosen.name = "bench";
        chosen.json = options->engine.common.json;
        chosen.check = [options]() -> Status {
            if (auto status = checkOptions(*options); !status) return status;
            if (auto status = checkEngineArguments(options->engine); !status) return status;
            return options->local ? Status::ok() : checkTarget(options->engine, options->target);
        };
        chosen.run = [options](Console& console) { return runCommand(*options, console); };
    });
}

}  // namespace troupe::apps
