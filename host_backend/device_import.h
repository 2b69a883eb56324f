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

/// Memory of another engine's GPU, and where GPUs of this process have it. Another process's the mapper maps and gives
/// back. That of an engine of this process is used where it is, as a driver opens no IPC handle in the process that
/// made it: the grant alone says until when. Calls are one thread's at a time, and never wait.
class DeviceImport {
  public:
    /// Who does it, and who is told that it is done.
    struct By {
        DeviceMapper& mapper;  ///< Started.
        std::shared_ptr<MapperBell> bell;
    };

    /// `granted`: what of the allocation may be used, as the owner has it. `is_same_process`: the owner is this
    /// process.
    DeviceImport(device::SharedMemory shared, const ByteRange& granted, bool is_same_process)
        : shared_(std::make_shared<const device::SharedMemory>(std::move(shared))),
          granted_(granted),
          is_own_(is_same_process && shared_->kind == device::ShareKind::Ipc) {}
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
    /// Used at the owner's own addresses.
    bool isOwn() const { return is_own_; }
    /// Nothing of it is mapped, being mapped, or in use where it is.
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
    const bool is_own_;
    bool was_used_ = false;  ///< Of one that is: addressFor said where it is.
    std::vector<std::shared_ptr<Mapping>> mappings_;
    bool given_back_ = false;
};

}  // namespace troupe::host
