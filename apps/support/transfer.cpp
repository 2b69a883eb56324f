#include "apps/support/transfer.h"

#include <utility>

namespace troupe::apps {

namespace {

/// The engine ends every task by its deadline (30 s unless configured); this is for an engine that breaks its word.
constexpr std::chrono::seconds kPatience{300};

}  // namespace

Result<Transfer> Transfer::start(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    // A batch has room for one task at least, also when there is nothing to do.
    const auto batch = engine.allocateBatchID(requests.empty() ? 1 : requests.size());
    if (!batch) return batch.status();
    Transfer transfer(engine, *batch);
    if (auto status = engine.submitTransfer(*batch, requests); !status) return status;
    return transfer;
}

Transfer::Transfer(Transfer&& other) noexcept
    : engine_(other.engine_), batch_(std::exchange(other.batch_, kInvalidBatchID)) {}

Transfer::~Transfer() {
    // The outcome was the caller's to ask for; here only the end matters, so that the buffers may go.
    if (batch_ != kInvalidBatchID) static_cast<void>(finish());
}

Result<bool> Transfer::wait(std::chrono::microseconds timeout) {
    const auto result = engine_->waitTransfer(batch_, timeout);
    if (!result) return result.status();
    if (!isTerminal(result->s)) return false;
    const auto freed = engine_->freeBatchID(std::exchange(batch_, kInvalidBatchID));
    if (result->s != TransferStatusEnum::COMPLETED)
        return result->error.isOk()
                   ? Status(Code::Internal, std::string("the transfer ended as ") + toString(result->s))
                   : result->error;
    if (!freed) return freed;
    return true;
}

Status Transfer::finish() {
    if (batch_ == kInvalidBatchID) return Status::ok();
    const auto done = wait(kPatience);
    if (!done) return done.status();
    return *done ? Status::ok() : Status(Code::Internal, "a transfer did not end; this is a defect of the engine");
}

Status transferAll(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    auto transfer = Transfer::start(engine, requests);
    return transfer ? transfer->finish() : transfer.status();
}

}  // namespace troupe::apps
