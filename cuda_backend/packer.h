#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda_backend/pack.h"
#include "transports/device.h"

namespace troupe::cuda {

/// The kernels of pack.cu for all GPUs that this build knows, as loadKernels takes them. Empty: it was built without
/// the CUDA toolkit.
std::span<const std::byte> packImage();

/// CUDA's PageMover: the packing kernel on one GPU. Copies at equal distances are one launch, others one for each
/// kPackMoves. Thread-safe.
class Packer final : public device::PageMover {
  public:
    /// Unsupported: this build has no kernels, or the driver takes none of them (it is older than the toolkit, or knows
    /// no code for this GPU).
    static Result<std::shared_ptr<const Packer>> create(std::shared_ptr<device::Device> device,
                                                        std::span<const std::byte> image = packImage());

    Status move(device::StreamRef stream, std::span<const device::PageMove> moves) const override;

    /// How many blocks of kThreads so many copies are worth, the longest of which has `bytes`: a warp per chunk, but
    /// not more than keep the GPU's memory busy, so that the application's kernels find room beside it.
    static unsigned blocksFor(std::uint64_t count, std::uint64_t bytes, int multiprocessors);

    static constexpr unsigned kThreads = 256;

  private:
    Packer() = default;
    template <class Plan>
    Status launch(device::StreamRef stream, std::uintptr_t kernel, const Plan& plan) const;

    std::shared_ptr<device::Device> device_;
    device::Kernels kernels_;
    std::uintptr_t list_ = 0;
    std::uintptr_t strides_ = 0;
};

}  // namespace troupe::cuda
