#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "verbs_backend/device_context.h"

namespace troupe::verbs {

/// A completion queue with the channel that tells when to look at it. Held by the Device that makes pairs with it, by
/// what owns those pairs, and by the VerbsNic that polls it; closed with the last of them, because a device does not
/// close a queue that still has pairs. Immutable.
class CompletionQueue {
  public:
    /// ResourceExhausted says what there is none left of.
    static Result<std::shared_ptr<const CompletionQueue>> create(std::shared_ptr<DeviceContext> context,
                                                                 std::uint32_t entries);
    ~CompletionQueue();
    CompletionQueue(const CompletionQueue&) = delete;
    CompletionQueue& operator=(const CompletionQueue&) = delete;

    ibv_cq* get() const { return cq_; }
    ibv_comp_channel* channel() const { return channel_; }

  private:
    explicit CompletionQueue(std::shared_ptr<DeviceContext> context) : context_(std::move(context)) {}

    const std::shared_ptr<DeviceContext> context_;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* cq_ = nullptr;
};

}  // namespace troupe::verbs
