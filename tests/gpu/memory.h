#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_backend/cuda_fixture.h"
#include "tests/cuda_backend/virtual_memory.h"

namespace troupe::gpu::testing {

using Bytes = std::vector<std::uint8_t>;

/// Memory of one of the kinds that an application may have: "host", "pinned", "managed", "gpu0", "gpu1", "virtual0"
/// (expandable segments, given to others by descriptors), "fabric0" (the same, by fabric handles alone), "private0"
/// (the same, given to nobody). The application's view of it: past all streams.
class Memory {
  public:
    /// `gpus` gives the GPU of an ordinal.
    template <class Gpus>
    Memory(std::string kind, std::uint64_t bytes, cuda::CudaRuntime& runtime, fake_cuda::Control& control, Gpus&& gpus)
        : kind_(std::move(kind)), bytes_(bytes), control_(control) {
        if (kind_ == "host") {
            host_.resize(bytes);
            addr_ = reinterpret_cast<std::uint64_t>(host_.data());
        } else if (kind_ == "pinned") {
            pinned_ = std::move(*gpus(0).allocateHost(bytes));
            addr_ = pinned_.get();
        } else if (kind_ == "managed") {
            managed_ = std::make_unique<Managed>(runtime.driver(), gpus(0), bytes);
            addr_ = managed_->addr;
        } else if (kind_.rfind("gpu", 0) == 0) {
            device_ = std::move(*gpus(kind_.back() - '0').allocate(bytes));
            addr_ = device_.get();
        } else {
            constexpr std::uint64_t kPiece = cuda::testing::VirtualMemory::kPiece;
            // CUmemAllocationHandleType.
            const unsigned shared_by = kind_.rfind("virtual", 0) == 0 ? 1 : kind_.rfind("fabric", 0) == 0 ? 8 : 0;
            gpus(kind_.back() - '0');
            virtual_ = std::make_unique<cuda::testing::VirtualMemory>(runtime.driver(), kind_.back() - '0',
                                                                      (bytes + kPiece - 1) / kPiece, shared_by);
            addr_ = virtual_->base();
        }
    }

    const std::string& kind() const { return kind_; }
    std::uint64_t addr(std::uint64_t offset = 0) const { return addr_ + offset; }
    void* pointer(std::uint64_t offset = 0) const { return reinterpret_cast<void*>(addr_ + offset); }
    std::uint64_t size() const { return bytes_; }
    bool isOnGpu() const { return kind_ != "host" && kind_ != "pinned" && kind_ != "managed"; }

    void write(std::uint64_t offset, const Bytes& bytes) {
        if (isOnGpu())
            control_.write(addr(offset), bytes);
        else
            std::memcpy(pointer(offset), bytes.data(), bytes.size());
    }
    Bytes read(std::uint64_t offset, std::uint64_t bytes) {
        if (isOnGpu()) return control_.read(addr(offset), bytes);
        const auto* begin = static_cast<const std::uint8_t*>(pointer(offset));
        return Bytes(begin, begin + bytes);
    }

  private:
    /// In whatever context is current, which any will do for.
    struct Managed {
        Managed(const cuda::CudaDriver& its_driver, device::Device& gpu, std::uint64_t bytes)
            : driver(its_driver), keep(gpu.shared_from_this()) {
            cuda::invoke(driver.calls().devicePrimaryCtxRetain, &context, 0);
            const cuda::CurrentContext current(driver, context);
            cuda::invoke(driver.calls().memAllocManaged, &addr, std::size_t{bytes}, cuda::api::kMemAttachGlobal);
        }
        ~Managed() {
            {
                const cuda::CurrentContext current(driver, context);
                cuda::invoke(driver.calls().memFree, addr);
            }
            cuda::invoke(driver.calls().devicePrimaryCtxRelease, 0);
        }
        Managed(const Managed&) = delete;
        Managed& operator=(const Managed&) = delete;

        const cuda::CudaDriver& driver;
        std::shared_ptr<device::Device> keep;
        cuda::api::ContextHandle context = nullptr;
        cuda::api::DevicePtr addr = 0;
    };

    std::string kind_;
    std::uint64_t bytes_;
    fake_cuda::Control& control_;
    std::uint64_t addr_ = 0;
    Bytes host_;
    device::HostMemory pinned_;
    device::DeviceMemory device_;
    std::unique_ptr<cuda::testing::VirtualMemory> virtual_;
    std::unique_ptr<Managed> managed_;
};

}  // namespace troupe::gpu::testing
