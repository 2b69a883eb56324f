#include "apps/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <unordered_set>

#include "apps/support/arguments.h"
#include "apps/support/block_store.h"
#include "apps/support/payload.h"
#include "apps/support/progress.h"
#include "apps/support/random.h"
#include "apps/support/say.h"
#include "apps/support/table.h"
#include "apps/support/trace.h"
#include "apps/support/transfer.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kTick{
    50};  ///< Between looks at the stop signal while waiting for the next request.

/// What happens to one block of a request.
struct BlockMove {
    std::uint64_t block = 0;
    std::size_t slot = 0;
    bool fetch = false;  ///< Else it is stored.
};

class Replayer {
  public:
    Replayer(const ReplayOptions& options, const Console& console, TransferEngine& engine, Target target,
             std::span<std::byte> staging, std::size_t slots)
        : options_(options),
          console_(console),
          engine_(engine),
          target_(std::move(target)),
          staging_(staging),
          block_size_(kTokensPerBlock * options.bytes_per_token),
          store_(slots) {
        report_.block_size = block_size_;
        report_.slots = slots;
    }

    Status run(const std::vector<TraceRequest>& trace);
    ReplayReport& report() { return report_; }

  private:
    /// Sleeps until the request's time; false when the stop signal came.
    bool awaitTime(const TraceRequest& request, std::uint64_t first_ms, Progress& progress);
    Status play(const TraceRequest& request);
    /// Decides what to fetch and what to store, and gives the new blocks their slots. All slots differ.
    std::vector<BlockMove> plan(const TraceRequest& request);
    Status move(std::span<const BlockMove> moves, Duration& transferring);
    std::span<std::byte> staged(std::size_t index) const { return staging_.subspan(index * block_size_, block_size_); }
    std::uint64_t contents(std::uint64_t block) const { return mixBits(options_.seed) ^ mixBits(block + 1); }
    std::uint64_t address(std::size_t slot) const { return target_.range.addr + slot * block_size_; }
    void showProgress(Progress& progress) const;

    const ReplayOptions& options_;
    const Console& console_;
    TransferEngine& engine_;
    Target target_;
    std::span<std::byte> staging_;
    std::uint64_t block_size_;
    BlockStore store_;
    ReplayReport report_;
    std::size_t total_ = 0;
    TimePoint started_ = Clock::now();
};

Status Replayer::run(const std::vector<TraceRequest>& trace) {
    Progress progress(console_.progress, "replay");
    total_ = trace.size();
    started_ = Clock::now();
    for (const auto& request : trace) {
        if (!awaitTime(request, trace.front().timestamp_ms, progress)) {
            report_.stopped = true;
            break;
        }
        if (auto status = play(request); !status) {
            report_.failed = true;
            report_.seconds = toSeconds(Clock::now() - started_);
            return status.withContext(fmt::format("request {} of the trace", report_.requests + 1));
        }
        ++report_.requests;
        if (request.hash_ids.size() != (request.input_tokens + kTokensPerBlock - 1) / kTokensPerBlock) ++report_.uneven;
        showProgress(progress);
    }
    report_.seconds = toSeconds(Clock::now() - started_);
    return Status::ok();
}

bool Replayer::awaitTime(const TraceRequest& request, std::uint64_t first_ms, Progress& progress) {
    if (options_.as_fast_as_possible) return !console_.stop->requested();
    const double after = static_cast<double>(request.timestamp_ms - first_ms) / 1e3 / options_.speedup;
    while (!console_.stop->requested()) {
        const double left = after - toSeconds(Clock::now() - started_);
        if (left <= 0) {
            report_.worst_lag_seconds = std::max(report_.worst_lag_seconds, -left);
            return true;
        }
        showProgress(progress);
        std::this_thread::sleep_for(
            std::min<std::chrono::duration<double>>(std::chrono::duration<double>(left), kTick));
    }
    return false;
}

void Replayer::showProgress(Progress& progress) const {
    if (!progress.due()) return;
    progress.update(static_cast<double>(report_.requests) / static_cast<double>(total_),
                    fmt::format("{} of {} requests, {:.0f} % hits, {} moved", report_.requests, total_,
                                report_.hitRate() * 100, formatBytes(report_.bytesRead() + report_.bytesWritten())));
}

std::vector<BlockMove> Replayer::plan(const TraceRequest& request) {
    std::vector<std::uint64_t> blocks;
    std::unordered_set<std::uint64_t> seen;
    for (const auto block : request.hash_ids)
        if (seen.insert(block).second) blocks.push_back(block);
    report_.blocks += blocks.size();
    if (blocks.size() > store_.capacity()) {
        report_.not_stored += blocks.size() - store_.capacity();
        blocks.resize(store_.capacity());
    }
    // All hits are touched before anything is stored, so that no new block takes the slot of one still to be fetched.
    std::vector<BlockMove> moves;
    std::vector<std::uint64_t> missing;
    for (const auto block : blocks) {
        if (const auto slot = store_.touch(block))
            moves.push_back({block, *slot, true});
        else
            missing.push_back(block);
    }
    report_.hits += moves.size();
    report_.written += missing.size();
    for (const auto block : missing) {
        const auto placement = store_.insert(block);
        if (placement.evicted) ++report_.evictions;
        moves.push_back({block, placement.slot, false});
    }
    return moves;
}

Status Replayer::play(const TraceRequest& request) {
    const auto moves = plan(request);
    const std::size_t part = staging_.size() / block_size_;
    Duration transferring{};
    for (std::size_t first = 0; first < moves.size(); first += part) {
        const std::size_t count = std::min(part, moves.size() - first);
        if (auto status = move(std::span(moves).subspan(first, count), transferring); !status) return status;
    }
    report_.latency.record(transferring);
    report_.transfer_seconds += toSeconds(transferring);
    return Status::ok();
}

Status Replayer::move(std::span<const BlockMove> moves, Duration& transferring) {
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i < moves.size(); ++i) {
        // What was staged here before may be the very block that is fetched now.
        if (moves[i].fetch)
            std::fill_n(staged(i).data(), block_size_, kPoison);
        else
            fillPayload(staged(i), contents(moves[i].block), 0);
        TransferRequest request;
        request.opcode = moves[i].fetch ? TransferRequest::READ : TransferRequest::WRITE;
        request.source = staged(i).data();
        request.target_id = target_.segment;
        request.target_offset = address(moves[i].slot);
        request.length = block_size_;
        requests.push_back(request);
    }
    const TimePoint started = Clock::now();
    if (auto status = transferAll(engine_, requests); !status) return status;
    transferring += Clock::now() - started;
    for (std::size_t i = 0; i < moves.size(); ++i) {
        if (!moves[i].fetch) continue;
        const auto bad = checkPayload(staged(i), contents(moves[i].block), 0);
        if (!bad) continue;
        return {
            Code::ChecksumMismatch,
            fmt::format("MISMATCH at {}: expected 0x{:02x}, got 0x{:02x}; the first differing byte of block {} (byte "
                        "{} of {}, slot {})",
                        formatAddress(address(moves[i].slot) + bad->index), static_cast<unsigned>(bad->expected),
                        static_cast<unsigned>(bad->got), moves[i].block, bad->index, block_size_, moves[i].slot)};
    }
    return Status::ok();
}

Status checkOptions(const ReplayOptions& options) {
    if (options.bytes_per_token == 0 || options.bytes_per_token > std::uint64_t{1} << 32)
        return {Code::InvalidArgument, "--bytes-per-token must be between 1 B and 4 GiB"};
    const std::uint64_t block = options.bytes_per_token * kTokensPerBlock;
    if (options.staging < block)
        return {Code::InvalidArgument, fmt::format("--staging {} does not hold one block of {}; give at least that",
                                                   formatBytes(options.staging), formatBytes(block))};
    return Status::ok();
}

Status runCommand(const ReplayOptions& options, Console& console) {
    ReplayReport before;
    const auto report = replay(options, console, &before);
    if (!report) {
        if (before.requests == 0) return report.status();
        if (!options.engine.common.json)
            say(console.out, "{}\n", before.toString());
        else if (console.partial != nullptr)
            *console.partial = {{"before", before.toJson()}};
        return report.status();
    }
    fmt::print(console.out, "{}\n", options.engine.common.json ? report->toJson().dump(2) : report->toString());
    return Status::ok();
}

}  // namespace

double ReplayReport::gigabytesPerSecond() const {
    return transfer_seconds > 0 ? static_cast<double>(bytesRead() + bytesWritten()) / 1e9 / transfer_seconds : 0;
}

nlohmann::json ReplayReport::toJson() const {
    // Of a replay that failed only the error says what it is.
    nlohmann::json json = failed ? nlohmann::json::object() : nlohmann::json{{"ok", true}, {"mismatches", 0}};
    json.update({{"requests", requests},
                 {"requests_uneven", uneven},
                 {"blocks", blocks},
                 {"hit_blocks", hits},
                 {"hit_rate", hitRate()},
                 {"written_blocks", written},
                 {"blocks_not_stored", not_stored},
                 {"evictions", evictions},
                 {"block_size", block_size},
                 {"slots", slots},
                 {"bytes_read", bytesRead()},
                 {"bytes_written", bytesWritten()},
                 {"seconds", seconds},
                 {"transfer_seconds", transfer_seconds},
                 {"gigabytes_per_s", gigabytesPerSecond()},
                 {"request_p50_us", toMicroseconds(latency.percentile(0.5))},
                 {"request_p99_us", toMicroseconds(latency.percentile(0.99))},
                 {"request_p999_us", toMicroseconds(latency.percentile(0.999))},
                 {"worst_lag_seconds", worst_lag_seconds},
                 {"transport", transport},
                 {"stopped", stopped}});
    return json;
}

std::string ReplayReport::toString() const {
    Table table({"replayed", fmt::format("{} in {:.1f} s{}", counted(requests, "request"), seconds,
                                         failed    ? ", then one failed"
                                         : stopped ? ", stopped by a signal before the end"
                                                   : "")});
    table.alignLeft();
    table.add({"blocks", fmt::format("{} of {}, {} hits ({:.1f} %), {} written, {} evicted from {} slots", blocks,
                                     formatBytes(block_size), hits, hitRate() * 100, written, evictions, slots)});
    if (not_stored != 0)
        table.add({"not stored", fmt::format("{} of requests larger than the store{}", counted(not_stored, "block"),
                                             not_stored > blocks / 2 ? ", which is most of them: give the target more "
                                                                       "memory (troupe serve --size)"
                                                                     : "")});
    if (uneven != 0)
        table.add({"uneven", fmt::format("{}: not one hash id for each block of {} input tokens; taken as they are",
                                         counted(uneven, "request"), kTokensPerBlock)});
    table.add({"moved", fmt::format("{} read, {} written by {}, {} while transferring", formatBytes(bytesRead()),
                                    formatBytes(bytesWritten()), transport, formatRate(gigabytesPerSecond() * 1e9))});
    table.add({"latency",
               fmt::format("of a request's transfers: p50 {}, p99 {}, p99.9 {}", formatTime(latency.percentile(0.5)),
                           formatTime(latency.percentile(0.99)), formatTime(latency.percentile(0.999)))});
    if (worst_lag_seconds > 0)
        table.add({"pace", fmt::format("the latest request began {:.3f} s late", worst_lag_seconds)});
    if (!failed) table.add({"contents", "every fetched block compared, no mismatch"});
    std::string text = table.toString();
    text.pop_back();
    return text;
}

Result<ReplayReport> replay(const ReplayOptions& options, const Console& console, ReplayReport* before) {
    if (auto status = checkOptions(options); !status) return status;
    auto trace = options.read;
    if (!trace) {
        auto read = readTraceFile(options.trace, options.requests);
        if (!read) return read.status();
        trace = std::make_shared<const std::vector<TraceRequest>>(std::move(read).value());
    }
    auto session = Session::start(options.engine);
    if (!session) return session.status();
    auto target = (*session)->openTarget(options.target);
    if (!target) return target.status();
    const std::uint64_t block_size = kTokensPerBlock * options.bytes_per_token;
    const std::uint64_t slots = target->range.length / block_size;
    if (slots == 0)
        return {Code::InvalidArgument, fmt::format("the target's {} do not hold one block of {}; serve more or use a "
                                                   "smaller --bytes-per-token",
                                                   formatBytes(target->range.length), formatBytes(block_size))};
    std::size_t longest = 1;
    for (const auto& request : *trace) longest = std::max(longest, request.hash_ids.size());
    const std::uint64_t staged = std::min<std::uint64_t>(options.staging / block_size, longest);
    const auto staging = options.engine_memory ? (*session)->allocateMemory(staged * block_size, options.huge, false)
                                               : (*session)->addMemory(staged * block_size, options.huge, false);
    if (!staging) return staging.status();
    Replayer replayer(options, console, (*session)->engine(), *target, *staging, slots);
    const Status ended = replayer.run(*trace);
    replayer.report().transport = (*session)->transportUsed(*target);
    if (ended) return std::move(replayer.report());
    if (before != nullptr) *before = std::move(replayer.report());
    return (*session)->explained(ended, !target->transport.empty());
}

void addReplayCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<ReplayOptions>();
    auto* command =
        addCommand(app, "replay", "Replay a serving trace as KV-cache traffic; overwrites the target's memory");
    command->add_option("trace", options->trace, "One JSON object a line, see docs/apps.md")
        ->type_name("FILE")
        ->required();
    command->add_option("--target,target", options->target, "Segment whose memory holds the blocks, host:port with p2p")
        ->type_name("SEGMENT")
        ->required();
    addBytes(*command, "--bytes-per-token,--bytes_per_token", options->bytes_per_token,
             "KV-cache bytes of one token: 2 x layers x KV heads x head size x bytes of an element");
    command->add_option("--requests", options->requests, "Replay the first so many [all]")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{kMaxTraceRequests}));
    auto* speedup = command->add_option("--speedup", options->speedup, "Times the trace's own pace")
                        ->check(CLI::Range(1e-3, 1e9))
                        ->capture_default_str();
    command->add_flag("--as-fast-as-possible", options->as_fast_as_possible, "Ignore the trace's times")
        ->excludes(speedup);
    addBytes(*command, "--staging", options->staging, "Local memory; larger requests go in parts");
    addSeed(*command, options->seed, "Of the contents");
    command->add_flag("--huge", options->huge, "Take local memory from the pool of huge pages");
    command->add_flag("--engine-memory", options->engine_memory, "Let the engine allocate local memory");
    addEngineOptions(*command, options->engine);
    command->callback([options, &chosen] {
        chosen.name = "replay";
        chosen.json = options->engine.common.json;
        chosen.check = [options]() -> Status {
            if (auto status = checkOptions(*options); !status) return status;
            if (auto status = checkVerifiedTarget(options->engine, options->target); !status) return status;
            // All of it, so that a bad line is said before anything starts, as a missing file is.
            auto trace = readTraceFile(options->trace, options->requests);
            if (!trace) return trace.status();
            options->read = std::make_shared<const std::vector<TraceRequest>>(std::move(trace).value());
            return Status::ok();
        };
        chosen.run = [options](Console& console) { return runCommand(*options, console); };
    });
}

}  // namespace troupe::apps
