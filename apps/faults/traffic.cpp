#include "apps/faults/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "apps/support/payload.h"
#include "apps/support/units.h"

namespace troupe::apps::faults {

namespace {

/// Buffers beside those of the operations under way, for what rests.
constexpr std::uint32_t kSpareBuffers = 2;
/// Blocks for each operation under way, so that the choice is random.
constexpr std::uint32_t kBlocksPerOperation = 2;
constexpr std::chrono::milliseconds kRest{200};
/// After a refused submit.
constexpr std::chrono::milliseconds kRefusedPause{1};
constexpr std::size_t kMostSeeds = 64;
constexpr std::uint64_t kStormDeadlineUs = 3000;

}  // namespace

std::uint64_t Tally::failures() const {
    std::uint64_t all = 0;
    for (const auto& [cause, count] : failed) all += count;
    return all;
}

void Tally::add(const Tally& other) {
    completed += other.completed;
    bytes += other.bytes;
    for (const auto& [cause, count] : other.failed) failed[cause] += count;
    refused += other.refused;
    wrong += other.wrong;
    hung += other.hung;
    quarantined += other.quarantined;
    if (first_wrong.empty()) first_wrong = other.first_wrong;
}

std::uint64_t Traffic::localBytes(const Options& options) {
    return std::uint64_t{options.inflight} * (1 + kSpareBuffers) * options.block;
}

Traffic::Traffic(TransferEngine& engine, std::span<std::byte> local, const Options& options)
    : engine_(engine), options_(options), random_(options.seed), expected_(options.block) {
    for (std::uint64_t at = 0; at + options.block <= localBytes(options); at += options.block)
        free_.push_back(local.subspan(at, options.block));
    blocks_.resize(std::size_t{options.inflight} * kBlocksPerOperation);
    for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].offset = i * options.block;
}

Traffic::~Traffic() {
    for (const Operation& operation : running_) {
        static_cast<void>(engine_.cancelTransfer(operation.batch));
        static_cast<void>(engine_.waitTransfer(operation.batch, options_.drain));
        static_cast<void>(engine_.freeBatchID(operation.batch));
    }
}

void Traffic::aim(SegmentID segment, const ByteRange& remote) {
    segment_ = segment;
    remote_ = remote;
    forget();
}

void Traffic::forget() {
    ++life_;
    for (Block& block : blocks_) block.seeds.clear();
}

void Traffic::markFault(TimePoint now) {
    fault_at_ = fault_works_at_ = now;
    first_move_.reset();
    first_failure_.reset();
    all_ended_.reset();
}

void Traffic::faultWorks(TimePoint now) {
    fault_works_at_ = now;
    all_ended_.reset();
}

void Traffic::markHealed(TimePoint now) {
    healed_at_ = now;
    first_success_.reset();
}

std::optional<BatchID> Traffic::oldest() const {
    if (running_.empty()) return std::nullopt;
    return running_.front().batch;
}

void Traffic::step(TimePoint now) {
    drain(now);
    wakeResting(now);
    while (running_.size() < options_.inflight && now >= refused_until_ && begin(now)) {
    }
}

bool Traffic::drain(TimePoint now) {
    std::erase_if(running_, [&](Operation& operation) { return take(operation, now); });
    const bool some_older = std::any_of(running_.begin(), running_.end(),
                                        [&](const Operation& operation) { return operation.begun < fault_works_at_; });
    if (now >= fault_works_at_ && !some_older && !all_ended_) all_ended_ = now;
    return running_.empty();
}

Traffic::Operation Traffic::prepare() {
    // What was refused is tried again as it is: to fill a buffer anew for each try of a peer that is gone would take
    // more of a processor than the tries do, and so from the operations of the others.
    if (refused_ && refused_->life == life_) return *std::exchange(refused_, std::nullopt);
    if (refused_) free_.push_back(refused_->buffer);
    refused_.reset();
    std::vector<Block*> idle;
    for (Block& block : blocks_)
        if (!block.busy) idle.push_back(&block);
    Block& block = *idle[random_.below(idle.size())];
    Operation operation;
    operation.block = &block;
    operation.buffer = free_.back();
    free_.pop_back();
    operation.write = block.seeds.empty() || random_.chance(50);
    operation.seed = mixBits(options_.seed) + ++writes_;
    if (operation.write)
        fillPayload(operation.buffer, operation.seed, 0);
    else
        std::fill(operation.buffer.begin(), operation.buffer.end(), kPoison);
    operation.life = life_;
    return operation;
}

bool Traffic::begin(TimePoint now) {
    if (free_.empty() && !refused_) return false;
    Operation operation = prepare();
    Block& block = *operation.block;
    operation.begun = now;
    const TimePoint deadline =
        now + (storm_ == Storm::Deadlines ? Duration(std::chrono::microseconds(random_.below(kStormDeadlineUs)))
                                          : Duration(options_.deadline));
    operation.ends_by = options_.ends_within ? now + *options_.ends_within : deadline + options_.drain;
    TransferRequest request;
    request.opcode = operation.write ? TransferRequest::WRITE : TransferRequest::READ;
    request.source = operation.buffer.data();
    request.target_id = segment_;
    request.target_offset = remote_.addr + block.offset;
    request.length = options_.block;
    request.deadline = deadline;
    const auto batch = engine_.allocateBatchID(1);
    const Status submitted = batch ? engine_.submitTransfer(*batch, {request}) : batch.status();
    if (!submitted) {
        if (batch) static_cast<void>(engine_.freeBatchID(*batch));
        ++tally_.refused;
        refused_until_ = now + kRefusedPause;
        refused_ = operation;
        return false;
    }
    operation.batch = *batch;
    block.busy = true;
    running_.push_back(operation);
    return true;
}

/// True when it has ended, and is taken in.
bool Traffic::take(Operation& operation, TimePoint now) {
    if (storm_ == Storm::Cancels && !operation.is_canceled && random_.chance(20)) {
        operation.is_canceled = true;
        static_cast<void>(engine_.cancelTransfer(operation.batch));
    }
    const auto status = engine_.getTransferStatus(operation.batch, 0);
    if (!status || !isTerminal(status->s)) {
        if (!operation.is_hung && now > operation.ends_by) {
            operation.is_hung = true;
            ++tally_.hung;
        }
        return false;
    }
    if (looks_for_moves_ && fault_at_ != kForever) noteMove(operation);
    if (const Status freed = engine_.freeBatchID(operation.batch); !freed)
        wrong("an ended batch cannot be freed: " + freed.toString());
    operation.block->busy = false;
    if (status->s == TransferStatusEnum::COMPLETED)
        onCompleted(operation, now);
    else
        onFailed(operation, *status, now);
    return true;
}

void Traffic::onCompleted(const Operation& operation, TimePoint now) {
    ++tally_.completed;
    tally_.bytes += options_.block;
    if (operation.begun >= healed_at_ && !first_success_) first_success_ = now;
    check(operation);
    if (operation.write && operation.life == life_) operation.block->seeds = {operation.seed};
    free_.push_back(operation.buffer);
}

void Traffic::onFailed(const Operation& operation, const TransferStatus& status, TimePoint now) {
    ++tally_.failed[std::string(codeName(status.error.code()))];
    if (now >= fault_at_ && !first_failure_) first_failure_ = now;
    auto& seeds = operation.block->seeds;
    if (operation.write && !seeds.empty()) {
        seeds.push_back(operation.seed);
        // They lie there before their checksum is looked at.
        if (damaged_ || seeds.size() > kMostSeeds) seeds.clear();
    }
    if (!status.quiesced) {
        ++tally_.quarantined;
        return;  // Nobody's any more.
    }
    std::fill(operation.buffer.begin(), operation.buffer.end(), kPoison);
    resting_.push_back({operation.buffer, now + kRest});
}

void Traffic::check(const Operation& operation) {
    if (operation.write) {
        if (checkPayload(operation.buffer, operation.seed, 0)) wrong("the source of a write was changed");
        return;
    }
    if (operation.life != life_) return;
    // Each byte is of one of the streams.
    agrees_.assign(options_.block, false);
    for (const std::uint64_t seed : operation.block->seeds) {
        fillPayload(expected_, seed, 0);
        if (operation.block->seeds.size() == 1 &&
            std::memcmp(expected_.data(), operation.buffer.data(), options_.block) == 0)
            return;
        for (std::size_t i = 0; i < options_.block; ++i)
            if (expected_[i] == operation.buffer[i]) agrees_[i] = true;
    }
    const auto bad = std::find(agrees_.begin(), agrees_.end(), false);
    if (bad == agrees_.end()) return;
    const auto index = static_cast<std::uint64_t>(bad - agrees_.begin());
    wrong(
        fmt::format("a read of {} at {} of the target has a wrong byte at {}: {:#04x}, and the writes before can have "
                    "left only what {} say",
                    formatBytes(options_.block), operation.block->offset, index,
                    static_cast<unsigned>(operation.buffer[index]), counted(operation.block->seeds.size(), "stream")));
}

void Traffic::noteMove(const Operation& operation) {
    const auto way = engine_.explain(operation.batch, 0);
    if (!way) return;
    std::vector<std::string> lost;
    for (const RouteExplanation::Attempt& attempt : way->attempts) {
        if (!attempt.cause.isOk())
            lost.push_back(attempt.nic);
        else if (!lost.empty() && std::find(lost.begin(), lost.end(), attempt.nic) == lost.end())
            first_move_ = std::min(first_move_.value_or(attempt.pause), attempt.pause);
    }
}

void Traffic::wakeResting(TimePoint now) {
    while (!resting_.empty() && resting_.front().until <= now) {
        const Resting& resting = resting_.front();
        if (std::any_of(resting.buffer.begin(), resting.buffer.end(), [](std::byte each) { return each != kPoison; }))
            wrong("a buffer was written after its operation had ended");
        free_.push_back(resting.buffer);
        resting_.pop_front();
    }
}

void Traffic::wrong(std::string what) {
    ++tally_.wrong;
    if (tally_.first_wrong.empty()) tally_.first_wrong = std::move(what);
}

}  // namespace troupe::apps::faults
