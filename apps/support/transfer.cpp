#include "apps/support/transfer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "apps/support/units.h"

namespace troupe::apps {

namespace {

/// The engine ends every task by its deadline (30 s unless configured); this is for an engine that breaks its word.
constexpr std::chrono::seconds kPatience{300};

}  // namespace

Result<Transfer> Transfer::start(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    // A batch has room for one task at least, also when there is nothing to do.
    const auto batch = engine.allocateBatchID(requests.empty() ? 1 : requests.size());
    if (!batch) return batch.status();
    Transfer transfer(engine, *batch, requests);
    if (auto status = engine.submitTransfer(*batch, requests); !status) return status;
    return transfer;
}

Transfer::Transfer(TransferEngine& engine, BatchID batch, const std::vector<TransferRequest>& requests)
    : engine_(&engine), batch_(batch), tasks_(requests.size()) {
    for (const auto& request : requests) bytes_ += request.length;
    if (!requests.empty()) segment_ = requests.front().target_id;
}

Transfer::Transfer(Transfer&& other) noexcept
    : engine_(other.engine_),
      batch_(std::exchange(other.batch_, kInvalidBatchID)),
      tasks_(other.tasks_),
      bytes_(other.bytes_),
      segment_(other.segment_) {}

Transfer::~Transfer() {
    // The outcome was the caller's to ask for; here only the end matters, so that the buffers may go.
    if (batch_ != kInvalidBatchID) static_cast<void>(finish());
}

Result<bool> Transfer::wait(std::chrono::microseconds timeout) {
    const auto result = engine_->waitTransfer(batch_, timeout);
    if (!result) return result.status();
    if (!isTerminal(result->s)) return false;
    const Status failure = result->s == TransferStatusEnum::COMPLETED ? Status::ok() : why(*result);
    const auto freed = engine_->freeBatchID(std::exchange(batch_, kInvalidBatchID));
    if (!failure) return failure;
    if (!freed) return freed;
    return true;
}

Status Transfer::why(const TransferStatus& ended) const {
    Status cause = ended.error.isOk()
                       ? Status(Code::Internal, std::string("the transfer ended as ") + toString(ended.s))
                       : ended.error;
    if (cause.code() == Code::Timeout) {
        const auto desc = engine_->getSegmentDescByID(segment_);
        cause = Status(cause.code(), fmt::format("{}; {} of {} had moved, with segment '{}'", cause.message(),
                                                 formatBytes(ended.transferred_bytes), formatBytes(bytes_),
                                                 desc ? (*desc)->name : "?"));
    }
    for (std::size_t i = 0; i < tasks_; ++i) {
        const auto task = engine_->getTransferStatus(batch_, i);
        // The first that failed is the one whose cause the batch has.
        if (!task || !isTerminal(task->s) || task->s == TransferStatusEnum::COMPLETED) continue;
        cause = Status(cause.code(), cause.message() + underWay(i));
        return tasks_ < 2 ? cause : cause.withContext(fmt::format("request {} of {}", i + 1, tasks_));
    }
    return cause;
}

/// What was under way when the engine ended a task; empty: a Nic or the owner refused it, and the cause says why.
std::string Transfer::underWay(std::size_t task) const {
    const auto how = engine_->explain(batch_, task);
    if (!how || !how->ending) return "";
    std::string text = how->ending->sent ? fmt::format("; it went by {}", fmt::join(how->nics, ", "))
                                         : std::string("; nothing of it had been sent");
    if (how->owner) text += "; its owner is " + how->owner->toString();
    return text;
}

Status Transfer::finish() {
    if (batch_ == kInvalidBatchID) return Status::ok();
    const auto done = wait(kPatience);
    if (!done) return done.status();
    return *done ? Status::ok() : Status(Code::Internal, "a transfer did not end; this is a defect of the engine");
}

Result<Carried> carryOne(TransferEngine& engine, const TransferRequest& request) {
    const TimePoint begin = Clock::now();
    const auto batch = engine.allocateBatchID(1);
    if (!batch) return batch.status();
    Carried carried;
    Status status = engine.submitTransfer(*batch, {request});
    if (status) {
        const auto ended = engine.waitTransfer(*batch);
        carried.took = Clock::now() - begin;
        status = ended ? ended->error : ended.status();
        if (auto how = engine.explain(*batch, 0)) carried.by = std::move(*how);
    }
    static_cast<void>(engine.freeBatchID(*batch));
    if (!status) return status;
    return carried;
}

Status transferAll(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    auto transfer = Transfer::start(engine, requests);
    return transfer ? transfer->finish() : transfer.status();
}

}  // namespace troupe::apps
