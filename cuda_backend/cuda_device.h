#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cuda_backend/current_context.h"
#include "cuda_backend/driver.h"
#include "transports/device.h"

namespace troupe::cuda {

/// What the driver says of one address.
struct PointerFacts {
    device::MemoryKind kind = device::MemoryKind::Host;
    int ordinal = -1;  ///< Of memory of a GPU.
};

/// Needs no context, and makes none.
Result<PointerFacts> factsOf(const CudaDriver& driver, std::uint64_t addr);

/// A GPU by its primary context, which the CUDA runtime uses, too. It is retained as long as this lives.
class CudaDevice final : public device::Device {
  public:
    static Result<std::shared_ptr<CudaDevice>> open(std::shared_ptr<const CudaDriver> driver, device::DeviceInfo info);
    ~CudaDevice() override;

    const device::DeviceInfo& info() const override { return info_; }
    Status state() const override;

    Result<device::DeviceMemory> allocate(std::uint64_t bytes) override;
    Result<device::HostMemory> allocateHost(std::uint64_t bytes) override;
    Result<device::Pinning> pin(const ByteRange& host) override;
    Status reachesPinned(const ByteRange& pinned) override;
    Status reachPeer(device::Device& peer) override;

    Result<device::DeviceStream> makeStream() override;
    Result<device::DeviceEvent> makeEvent() override;
    Status copy(device::StreamRef stream, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) override;
    Status record(device::EventRef event, device::StreamRef stream) override;
    Status wait(device::StreamRef stream, device::EventRef event) override;
    Status waitForValue(device::StreamRef stream, const std::uint32_t* word, std::uint32_t value) override;
    Result<bool> isDone(device::EventRef event) override;
    Status notify(device::StreamRef stream, void (*function)(void*), void* argument) override;
    Status synchronize(device::StreamRef stream) override;

    Result<device::Kernels> loadKernels(std::span<const std::byte> image) override;
    Result<std::uintptr_t> findKernel(const device::Kernels& kernels, const char* name) override;
    Status launch(device::StreamRef stream, std::uintptr_t kernel, unsigned blocks, unsigned threads,
                  std::span<void*> parameters) override;
    Result<std::shared_ptr<const device::PageMover>> makeMover() override;

    Result<std::vector<device::SharedMemory>> exportMemory(const device::MemoryPlace& place, bool fabric) override;
    Result<device::ImportedMemory> importMemory(const device::SharedMemory& shared) override;
    Result<device::DmabufRange> exportDmabuf(const ByteRange& range) override;
    Status orderForNics(const ByteRange& range) override;
    Status flushNicWrites() override;

    /// The allocation around an address that is known to be this GPU's.
    Result<device::MemoryPiece> allocationAt(std::uint64_t addr);

  private:
    CudaDevice(std::shared_ptr<const CudaDriver> driver, device::DeviceInfo info, api::ContextHandle context)
        : driver_(std::move(driver)), info_(std::move(info)), context_(context) {}
    void release(device::Resource kind, std::uintptr_t value) override;
    void unmapImport(std::uintptr_t addr);

    /// An error that a call answers with again and again.
    struct Streak {
        std::atomic<bool> goes_on{false};
        api::Result result = api::Result::Success;
        TimePoint since{};
        TimePoint last{};
    };

    /// Of a call that was made in this context: a sticky error loses the device.
    Status settle(const Outcome& outcome);
    /// The same of calls that who waits for a copy makes until they succeed: one that only ever answers with the same
    /// error, whatever that is, loses the device, too. Otherwise the copy would be under way for ever.
    Status settle(const Outcome& outcome, Streak& streak);
    /// The same of a call about an event or stream of the application, made in this context: the error may be of
    /// another, whose event it is. What is asked of this one alone tells.
    Status settleForeign(const Outcome& outcome);
    Status lose(const Status& why);
    /// Ok where a stream of the application runs what it is given.
    Status checkRuns(device::StreamRef stream);
    /// Of a stream of the application that is of another context: whose it is, and what to do. Empty: it is of this
    /// one.
    std::string whose(device::StreamRef stream) const;
    /// Makes one call in this context.
    template <class Signature, class... Arguments>
    Status run(const Call<Signature>& call, Arguments... arguments) {
        if (lost_.load(std::memory_order_acquire)) return state();
        const CurrentContext current(*driver_, context_);
        if (!current.outcome()) return settle(current.outcome());
        return settle(invoke(call, arguments...));
    }

    std::optional<std::uint64_t> firstUnknown(const ByteRange& range) const;
    Result<device::SharedMemory> exportPiece(const device::MemoryPiece& piece, bool fabric);
    Result<std::uint64_t> importVirtual(const device::SharedMemory& shared);
    void releaseHandle(api::AllocationHandle handle) const;
    Status mapVirtual(api::AllocationHandle handle, api::DevicePtr addr, std::uint64_t bytes);

    const std::shared_ptr<const CudaDriver> driver_;
    const device::DeviceInfo info_;
    const api::ContextHandle context_;
    std::atomic<bool> lost_{false};
    mutable std::mutex mutex_;
    Status cause_;    ///< Of the loss.
    Streak queries_;  ///< Of cuEventQuery. But for `goes_on` guarded by the mutex, as is the next.
    Streak records_;  ///< Of cuEventRecord.
    /// What was mapped of other processes' virtual memory: address -> bytes. Other imports are the driver's to know.
    std::map<std::uint64_t, std::uint64_t> mapped_;
};

}  // namespace troupe::cuda
