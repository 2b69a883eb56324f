#include "apps/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "apps/support/arguments.h"
#include "apps/support/expected_contents.h"
#include "apps/support/payload.h"
#include "apps/support/progress.h"
#include "apps/support/quarantined.h"
#include "apps/support/random.h"
#include "apps/support/transfer.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr std::uint64_t kGuard = 64;  ///< Bytes on each side of a local buffer that nothing may touch.
constexpr std::byte kGuardByte{0x5a};
constexpr std::uint64_t kMaxPieces = 8;  ///< Requests that one operation is cut into.
constexpr unsigned kSlotsPerFlight = 2;  ///< Slots are twice the operations in flight, so that the choice is random.
constexpr std::uint64_t kMinSlot = 64;

/// A stretch of remote memory that at most one operation works on at a time.
struct Slot {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    ExpectedContents contents;
    bool busy = false;
};

/// An operation between its submission and its check.
struct Operation {
    std::optional<Transfer> transfer;
    Slot* slot;
    std::span<std::byte> lane;  ///< The whole local buffer with its guards.
    std::span<std::byte> data;  ///< The part that is read or written.
    std::uint64_t offset;       ///< In the slot.
    std::uint64_t seed;         ///< Of the payload written.
    std::uint64_t number;
    bool write;
};

class Verification {
  public:
    Verification(const VerifyOptions& options, const Console& console, Session& session, Target target)
        : options_(options),
          console_(console),
          engine_(session.engine()),
          target_(std::move(target)),
          random_(options.seed) {}

    Status prepare(Session& session);
    Result<VerifyReport> run();

  private:
    bool limitReached();
    Slot& freeSlot();
    Status begin(Slot& slot, bool write, std::uint64_t offset, std::uint64_t length);
    Status beginRandom();
    Status endOldest();
    Status drain();
    Status check(const Operation& operation);
    /// Writes or reads every slot wholly.
    Status sweep(bool write);
    Status mismatch(const Operation& operation, std::uint64_t address, std::byte expected, std::byte got,
                    std::uint64_t seed) const;
    std::vector<TransferRequest> cut(const Operation& operation);

    const VerifyOptions& options_;
    const Console& console_;
    TransferEngine& engine_;
    Target target_;
    Random random_;
    std::vector<Slot> slots_;
    std::vector<std::span<std::byte>> free_lanes_;
    std::deque<Operation> running_;
    VerifyReport report_;
    TimePoint started_ = Clock::now();
};

Status Verification::prepare(Session& session) {
    const std::uint64_t count = std::uint64_t{options_.inflight} * kSlotsPerFlight;
    // The slots are spread over the whole range, so that they lie in many of its regions and across their borders.
    const std::uint64_t stride = target_.range.length / count;
    const std::uint64_t size = std::min(stride, options_.max_size);
    if (size < kMinSlot)
        return {Code::InvalidArgument, fmt::format("{} of remote memory is too little for {} operations in flight; "
                                                   "serve more or use a smaller --inflight",
                                                   formatBytes(target_.range.length), options_.inflight)};
    slots_.resize(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        slots_[i].address = target_.range.addr + i * stride;
        slots_[i].size = size;
    }
    // A lane has room for the guards and for starting at any of kGuard alignments.
    const std::uint64_t lane = size + 3 * kGuard;
    const auto memory = session.addMemory(lane * options_.inflight, false, false);
    if (!memory) return memory.status();
    for (unsigned i = 0; i < options_.inflight; ++i) free_lanes_.push_back(memory->subspan(i * lane, lane));
    return Status::ok();
}

Result<VerifyReport> Verification::run() {
    Progress progress(console_.progress, "verify");
    report_.seed = options_.seed;
    if (auto status = sweep(true); !status) return status;
    started_ = Clock::now();
    const VerifyReport filled = report_;
    while (!limitReached()) {
        if (running_.size() == options_.inflight)
            if (auto status = endOldest(); !status) return status;
        if (auto status = beginRandom(); !status) return status;
        if (!progress.due()) continue;
        const double elapsed = toSeconds(Clock::now() - started_);
        const std::uint64_t done = report_.writes - filled.writes + report_.reads;
        const double fraction = options_.rounds != 0 ? static_cast<double>(done) / static_cast<double>(options_.rounds)
                                : options_.seconds != 0 ? elapsed / options_.seconds
                                                        : -1;
        progress.update(fraction, fmt::format("{} operations, {} moved, no mismatch", done,
                                              formatBytes(report_.bytes_read + report_.bytes_written)));
    }
    if (auto status = drain(); !status) return status;
    const VerifyReport worked = report_;
    const double seconds = toSeconds(Clock::now() - started_);
    if (auto status = sweep(false); !status) return status;
    // What was counted as one, for the operations' numbers, is reported apart.
    VerifyReport report = worked;
    report.writes -= filled.writes;
    report.bytes_written -= filled.bytes_written;
    report.fill_writes = filled.writes;
    report.fill_bytes = filled.bytes_written;
    report.final_reads = report_.reads - worked.reads;
    report.seconds = seconds;
    return report;
}

bool Verification::limitReached() {
    const std::uint64_t begun = report_.writes + report_.reads - slots_.size();
    if ((options_.rounds != 0 && begun >= options_.rounds) ||
        (options_.seconds != 0 && toSeconds(Clock::now() - started_) >= options_.seconds))
        return true;
    report_.stopped = console_.stop->requested();
    return report_.stopped;
}

Slot& Verification::freeSlot() {
    // There are more slots than operations, so one is free, and soon found.
    for (;;) {
        Slot& slot = slots_[random_.below(slots_.size())];
        if (!slot.busy) return slot;
    }
}

Status Verification::beginRandom() {
    Slot& slot = freeSlot();
    const std::uint64_t length = random_.logUniform(1, slot.size);
    std::uint64_t offset = random_.below(slot.size - length + 1);
    if (random_.chance(25)) offset = offset / 4096 * 4096;
    return begin(slot, random_.chance(50), offset, length);
}

std::vector<TransferRequest> Verification::cut(const Operation& operation) {
    std::vector<TransferRequest> requests;
    std::uint64_t left = operation.data.size();
    std::uint64_t at = 0;
    for (std::uint64_t pieces = 1 + random_.below(kMaxPieces); left != 0; --pieces) {
        const std::uint64_t length = pieces <= 1 ? left : random_.logUniform(1, left);
        TransferRequest request;
        request.opcode = operation.write ? TransferRequest::WRITE : TransferRequest::READ;
        request.source = operation.data.data() + at;
        request.target_id = target_.segment;
        request.target_offset = operation.slot->address + operation.offset + at;
        request.length = length;
        requests.push_back(request);
        at += length;
        left -= length;
    }
    return requests;
}

Status Verification::begin(Slot& slot, bool write, std::uint64_t offset, std::uint64_t length) {
    const auto lane = free_lanes_.back();
    const auto data = lane.subspan(kGuard + random_.below(kGuard), length);
    std::fill(data.data() - kGuard, data.data(), kGuardByte);
    std::fill_n(data.data() + length, kGuard, kGuardByte);
    const std::uint64_t seed = mixBits(options_.seed) + report_.writes + 1;
    if (write)
        fillPayload(data, seed, offset);
    else
        std::fill(data.begin(), data.end(), kPoison);

    const std::uint64_t number = report_.writes + report_.reads;
    Operation operation{.transfer = std::nullopt,
                        .slot = &slot,
                        .lane = lane,
                        .data = data,
                        .offset = offset,
                        .seed = seed,
                        .number = number,
                        .write = write};
    auto transfer = Transfer::start(engine_, cut(operation));
    if (!transfer)
        return transfer.status().withContext(fmt::format("{} of {} B at {} refused", write ? "write" : "read", length,
                                                         formatAddress(slot.address + offset)));
    operation.transfer.emplace(std::move(transfer).value());
    running_.push_back(std::move(operation));
    free_lanes_.pop_back();
    slot.busy = true;
    (write ? report_.writes : report_.reads) += 1;
    return Status::ok();
}

Status Verification::endOldest() {
    Operation operation = std::move(running_.front());
    running_.pop_front();
    const std::uint64_t address = operation.slot->address + operation.offset;
    if (auto status = operation.transfer->finish(); !status)
        return status.withContext(fmt::format("{} of {} B at {} failed", operation.write ? "write" : "read",
                                              operation.data.size(), formatAddress(address)));
    if (auto status = check(operation); !status) return status;
    if (operation.write) operation.slot->contents.write(operation.offset, operation.data.size(), operation.seed);
    (operation.write ? report_.bytes_written : report_.bytes_read) += operation.data.size();
    operation.slot->busy = false;
    free_lanes_.push_back(operation.lane);
    return Status::ok();
}

Status Verification::check(const Operation& operation) {
    const std::byte* begin = operation.data.data();
    const std::byte* end = begin + operation.data.size();
    for (std::uint64_t i = 0; i < kGuard; ++i) {
        for (const std::byte* guard : {begin - 1 - i, end + i})
            if (*guard != kGuardByte)
                return mismatch(operation,
                                operation.slot->address + operation.offset + static_cast<std::uint64_t>(guard - begin),
                                kGuardByte, *guard, 0)
                    .withContext("bytes beside the local buffer were overwritten");
    }
    if (operation.write) {
        // A write must leave its source as it was.
        if (const auto bad = checkPayload(operation.data, operation.seed, operation.offset))
            return mismatch(operation, operation.slot->address + operation.offset + bad->index, bad->expected, bad->got,
                            operation.seed)
                .withContext("the source of a write was changed");
        return Status::ok();
    }
    if (const auto bad = operation.slot->contents.check(operation.data, operation.offset))
        return mismatch(operation, operation.slot->address + bad->offset, bad->expected, bad->got, bad->seed);
    return Status::ok();
}

Status Verification::mismatch(const Operation& operation, std::uint64_t address, std::byte expected, std::byte got,
                              std::uint64_t seed) const {
    return {Code::ChecksumMismatch,
            fmt::format(
                "MISMATCH at {}: expected 0x{:02x}, got 0x{:02x}; the first differing byte of operation {}, a {} "
                "of {} B at {} (byte {} of it; stream {:#x}; --seed {})",
                formatAddress(address), static_cast<unsigned>(expected), static_cast<unsigned>(got), operation.number,
                operation.write ? "write" : "read", operation.data.size(),
                formatAddress(operation.slot->address + operation.offset),
                static_cast<std::int64_t>(address - operation.slot->address - operation.offset), seed, options_.seed)};
}

Status Verification::drain() {
    while (!running_.empty())
        if (auto status = endOldest(); !status) return status;
    return Status::ok();
}

Status Verification::sweep(bool write) {
    for (auto& slot : slots_) {
        if (running_.size() == options_.inflight)
            if (auto status = endOldest(); !status) return status;
        if (auto status = begin(slot, write, 0, slot.size); !status) return status;
    }
    return drain();
}

Status runCommand(const VerifyOptions& options, Console& console) {
    const auto report = verify(options, console);
    if (!report) return report.status();
    fmt::print(console.out, "{}\n", options.engine.common.json ? report->toJson().dump(2) : report->toString());
    return Status::ok();
}

}  // namespace

nlohmann::json VerifyReport::toJson() const {
    return {{"ok", true},
            {"mismatches", 0},
            {"seed", seed},
            {"writes", writes},
            {"reads", reads},
            {"bytes_written", bytes_written},
            {"bytes_read", bytes_read},
            {"fill_writes", fill_writes},
            {"final_reads", final_reads},
            {"fill_bytes", fill_bytes},
            {"seconds", seconds},
            {"stopped", stopped},
            {"transport", transport},
            {"quarantine", apps::toJson(quarantined, Clock::now())}};
}

std::string VerifyReport::toString() const {
    std::string text = fmt::format(
        "{} ({}) and {} ({}) in {:.1f} s by {}, no mismatch (seed {}){}; before, {} filled {}, and at last {} read it "
        "all",
        counted(writes, "write"), formatBytes(bytes_written), counted(reads, "read"), formatBytes(bytes_read), seconds,
        transport, seed, stopped ? ", stopped by a signal" : "", counted(fill_writes, "write"), formatBytes(fill_bytes),
        counted(final_reads, "read"));
    if (std::string more = describe(quarantined, Clock::now()); !more.empty()) {
        more.pop_back();
        text += "\n" + more;
    }
    return text;
}

Result<VerifyReport> verify(const VerifyOptions& options, const Console& console) {
    auto session = Session::start(options.engine);
    if (!session) return session.status();
    auto target = (*session)->openTarget(options.target);
    if (!target) return target.status();
    Verification verification(options, console, **session, *target);
    if (auto status = verification.prepare(**session); !status) return status;
    auto report = verification.run();
    if (!report) return (*session)->explained(report.status(), !target->transport.empty());
    report->transport = (*session)->transportUsed(*target);
    report->quarantined = (*session)->engine().quarantine();
    return report;
}

void addVerifyCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<VerifyOptions>();
    auto* command = addCommand(
        app, "verify",
        "Write and read a segment's memory at random and compare, overwriting what is there; until SIGINT or a limit, "
        "or the first mismatch");
    command->add_option("target", options->target, "Segment, host:port with p2p")->type_name("SEGMENT")->required();
    addSeconds(*command, "--seconds", options->seconds, "Stop after this long [no limit]");
    command->add_option("--rounds", options->rounds, "Stop after this many operations [no limit]")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 53));
    addSeed(*command, options->seed, "Another seed makes other operations");
    command->add_option("--inflight", options->inflight, "Operations at the same time")
        ->check(CLI::Range(1u, 1024u))
        ->capture_default_str();
    addBytes(*command, "--max_size,--max-size", options->max_size, "Largest operation");
    addEngineOptions(*command, options->engine);
    command->callback([options, &chosen] {
        chosen.name = "verify";
        chosen.json = options->engine.common.json;
        chosen.check = [options]() -> Status {
            if (options->max_size < kMinSlot)
                return {Code::InvalidArgument, fmt::format("--max-size {} is too small; give at least {}",
                                                           formatBytes(options->max_size), formatBytes(kMinSlot))};
            return checkVerifiedTarget(options->engine, options->target);
        };
        chosen.run = [options](Console& console) { return runCommand(*options, console); };
    });
}

}  // namespace troupe::apps
