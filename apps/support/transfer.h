#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/transfer_engine.h"

namespace troupe::apps {

/// One submitted batch. Frees its batch when destroyed, after waiting for its end. One thread at a time.
class Transfer {
  public:
    /// Errors are submitTransfer's; nothing is left behind then.
    static Result<Transfer> start(TransferEngine& engine, const std::vector<TransferRequest>& requests);
    Transfer(Transfer&& other) noexcept;
    Transfer& operator=(Transfer&&) = delete;
    ~Transfer();

    /// True: every request COMPLETED. False: not ended within `timeout`. An error: a request ended otherwise, for the
    /// first one's cause, which one it was, and of a deadline how far the batch had come. The batch is freed once it
    /// has ended.
    Result<bool> wait(std::chrono::microseconds timeout);
    /// Waits for the end, as long as the engine's own deadlines can take.
    Status finish();

  private:
    Transfer(TransferEngine& engine, BatchID batch, const std::vector<TransferRequest>& requests);
    /// Of a batch that ended without success and is not freed yet.
    Status why(const TransferStatus& ended) const;
    std::string underWay(std::size_t task) const;

    TransferEngine* engine_;
    BatchID batch_;  ///< kInvalidBatchID once freed.
    std::size_t tasks_;
    std::uint64_t bytes_ = 0;
    SegmentID segment_ = kLocalSegmentID;  ///< Of the first request; the commands' batches have one target.
};

/// One request by itself: how long it took from its submit to the end of the wait, and who carried it.
struct Carried {
    Duration took{};
    RouteExplanation by;
};
/// Errors are submitTransfer's, and why it did not complete. Waits as long as its deadline lets it.
Result<Carried> carryOne(TransferEngine& engine, const TransferRequest& request);

/// Starts and finishes.
Status transferAll(TransferEngine& engine, const std::vector<TransferRequest>& requests);

}  // namespace troupe::apps
