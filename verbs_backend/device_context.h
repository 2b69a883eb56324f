#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <utility>

#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

/// A device's open context; several ports share one.
class DeviceContext {
  public:
    DeviceContext(std::shared_ptr<VerbsApi> api, ibv_context* context) : api_(std::move(api)), context_(context) {}
    ~DeviceContext() { static_cast<void>(api_->closeDevice(context_)); }
    DeviceContext(const DeviceContext&) = delete;
    DeviceContext& operator=(const DeviceContext&) = delete;

    ibv_context* get() const { return context_; }
    VerbsApi& api() const { return *api_; }

  private:
    std::shared_ptr<VerbsApi> api_;
    ibv_context* context_;
};

}  // namespace troupe::verbs
