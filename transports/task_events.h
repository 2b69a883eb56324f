#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "transports/device.h"
#include "transports/staging.h"

namespace troupe::device {

/// What of the application a transfer waits for before it begins, and what it tells when its bytes are there. The
/// vendor's handles, of the GPU that the local memory is on; 0: none.
struct EventHandles {
    std::uintptr_t wait_event = 0;
    std::uintptr_t wait_stream = 0;  ///< All that it was given so far.
    std::uintptr_t done_event = 0;

    bool any() const { return (wait_event | wait_stream | done_event) != 0; }
};

/// The same of one task. Made by the thread that submits, then on the turn of the loop that `staging` is of.
class TaskEvents {
  public:
    /// What the driver says of a handle that it does not take.
    static Result<std::unique_ptr<TaskEvents>> create(std::shared_ptr<Staging> staging, const EventHandles& handles);

    /// Nothing is waited for any more. No call waits; an event that never comes holds nothing but this task.
    Result<bool> isReady();
    /// The destination is complete: records the event.
    Status signal();

  private:
    TaskEvents(std::shared_ptr<Staging> staging, const EventHandles& handles)
        : staging_(std::move(staging)), handles_(handles) {}

    std::shared_ptr<Staging> staging_;
    EventHandles handles_;
    DeviceEvent of_stream_;  ///< What `wait_stream` has come so far.
};

}  // namespace troupe::device
