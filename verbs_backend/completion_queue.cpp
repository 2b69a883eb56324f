#include "verbs_backend/completion_queue.h"

#include <cerrno>
#include <string>
#include <utility>

#include "base/endpoint.h"

namespace troupe::verbs {

Result<std::shared_ptr<const CompletionQueue>> CompletionQueue::create(std::shared_ptr<DeviceContext> context,
                                                                       std::uint32_t entries) {
    VerbsApi& api = context->api();
    ibv_context* const device = context->get();
    const std::shared_ptr<CompletionQueue> made(new CompletionQueue(std::move(context)));
    made->channel_ = api.createChannel(device);
    if (made->channel_ == nullptr) return errnoStatus(Code::ResourceExhausted, "create a channel", errno);
    made->cq_ = api.createCq(device, static_cast<int>(entries), made->channel_);
    if (made->cq_ == nullptr)
        return errnoStatus(Code::ResourceExhausted,
                           "create a completion queue of " + std::to_string(entries) + " entries", errno);
    return std::shared_ptr<const CompletionQueue>(made);
}

CompletionQueue::~CompletionQueue() {
    if (cq_ != nullptr) static_cast<void>(context_->api().destroyCq(cq_));
    if (channel_ != nullptr) static_cast<void>(context_->api().destroyChannel(channel_));
}

}  // namespace troupe::verbs
