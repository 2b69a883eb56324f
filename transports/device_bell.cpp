#include "transports/device_bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace troupe::device {

namespace {

/// On a thread of the driver, which may not be kept or call the driver. The descriptor is in the argument itself, so
/// that nothing has to live until then; it is closed after the stream has ended.
void ring(void* descriptor) {
    const std::uint64_t one = 1;
    // A counter that is full wakes, too.
    if (::write(static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor)), &one, sizeof one) < 0) errno = 0;
}

}  // namespace

DeviceBell::~DeviceBell() {
    // Of a device that is lost nothing runs any more.
    if (stream_) device_->synchronize(stream_).isOk();
}

Status DeviceBell::make(Device& device) {
    device_ = &device;
    fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd_) return {Code::ResourceExhausted, "no descriptor is left (ulimit -n)"};
    auto stream = device.makeStream();
    if (!stream) return stream.status();
    stream_ = std::move(*stream);
    return {};
}

bool DeviceBell::arm(EventRef event) {
    auto* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd_.get()));
    armed_ = device_->wait(stream_, event).isOk() && device_->notify(stream_, ring, descriptor).isOk();
    return armed_;
}

void DeviceBell::hear() {
    std::uint64_t rung = 0;
    if (armed_ && ::read(fd_.get(), &rung, sizeof rung) == sizeof rung) armed_ = false;
}

}  // namespace troupe::device
