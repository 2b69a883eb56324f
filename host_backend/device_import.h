#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "host_backend/device_mapper.h"
#include "transports/device.h"

namespace troupe::host {

/// Memory of another process's GPU, and where it is mapped for GPUs of this process. The mapper maps it and gives it
/// back; calls are one thread's at a time, and never wait.
class DeviceImport {
  public:
    /// Who does it, and who is told that it is done.
    struct By {
        DeviceMapper& mapper;  ///< Started.
        std::shared_ptr<MapperBell> bell;
    };

    /// `granted`: what of the allocation may be used, as the owner has it.
    DeviceImport(device::SharedMemory shared, const ByteRange& granted)
        : shared_(std::make_shared<const device::SharedMemory>(std::move(shared))), granted_(granted) {}
    /// Unmaps what was not given back, but for what is being mapped, which is unmapped by the mapper.
    ~DeviceImport() = default;
    DeviceImport(const DeviceImport&) = delete;
    DeviceImport& operator=(const DeviceImport&) = delete;

    /// Where `addr` of the owner is mapped for `gpu`, or what that was refused with, which is remembered. Nothing: it
    /// is being mapped, and the bell will ring. Not after giveBack.
    std::optional<Result<std::uint64_t>> addressFor(const std::shared_ptr<device::Device>& gpu, std::uint64_t addr,
                                                    const By& by);
    /// What is granted of it, wherever it is mapped and can be copied from and to. No more than that: another grant may
    /// be of the same allocation, which a driver maps once.
    std::vector<ByteRange> mapped() const;
    /// Has all of it unmapped, also what is being mapped; the bell rings. No copy may be under way there. Once more is
    /// nothing.
    void giveBack(const By& by);
    /// How it came, for who explains; gone with this, and with what is mapped of it.
    std::weak_ptr<const device::SharedMemory> memory() const { return shared_; }
    /// Nothing of it is mapped, or being mapped.
    bool isGone() const;

  private:
    enum class State : std::uint8_t { Asked, Mapped, Gone };
    /// Shared with the mapper, to which all but `gpu` and `state` belongs until it is Mapped, and again from giveBack.
    struct Mapping {
        std::shared_ptr<device::Device> gpu;
        device::ImportedMemory memory;
        Status refused;
        std::atomic<State> state{State::Asked};
    };

    const std::shared_ptr<const device::SharedMemory> shared_;
    const ByteRange granted_;
    std::vector<std::shared_ptr<Mapping>> mappings_;
    bool given_back_ = false;
};

}  // namespace troupe::host
