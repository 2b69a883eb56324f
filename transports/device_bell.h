#pragma once

#include "base/status.h"
#include "base/unique_fd.h"
#include "transports/device.h"

namespace troupe::device {

/// Wakes a loop when a GPU has come to an event: a descriptor that becomes readable. One thread, but for the ringing.
class DeviceBell {
  public:
    DeviceBell() = default;
    /// Waits until the device has rung, if it is to.
    ~DeviceBell();
    DeviceBell(const DeviceBell&) = delete;
    DeviceBell& operator=(const DeviceBell&) = delete;

    /// Once, before all else; `device` outlives this. ResourceExhausted: no descriptor is left; the device's errors.
    Status make(Device& device);

    int fd() const { return fd_.get(); }
    /// It will ring, or has rung and was not heard yet.
    bool isArmed() const { return armed_; }
    /// Has it ring behind `event`, which was recorded. False: that cannot be had. It must not be armed.
    bool arm(EventRef event);
    /// Takes in that it has rung.
    void hear();

  private:
    Device* device_ = nullptr;
    UniqueFd fd_;          ///< Closed after the stream has ended, as what rings has nothing but its number.
    DeviceStream stream_;  ///< A function of the host holds its stream; no copy is to wait for that.
    bool armed_ = false;
};

}  // namespace troupe::device
