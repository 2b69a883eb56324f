#pragma once

#include <chrono>
#include <optional>
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
    /// first one's cause. The batch is freed once it has ended.
    Result<bool> wait(std::chrono::microseconds timeout);
    /// Waits for the end, as long as the engine's own deadlines can take.
    Status finish();

  private:
    Transfer(TransferEngine& engine, BatchID batch) : engine_(&engine), batch_(batch) {}

    TransferEngine* engine_;
    BatchID batch_;  ///< kInvalidBatchID once freed.
};

/// Starts and finishes.
Status transferAll(TransferEngine& engine, const std::vector<TransferRequest>& requests);

}  // namespace troupe::apps
