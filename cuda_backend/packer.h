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

/// Gathers and scatters pages on one GPU. Thread-safe; every call only puts work on a stream.
class Packer {
  public:
    /// Unsupported: this build has no kernels, or the driver takes none of them (it is older than the toolkit).
    static Result<Packer> create(std::shared_ptr<device::Device> device,
                                 std::span<const std::byte> image = packImage());

    /// Copies the pages of a plan into its buffer, or back. The list, the pages and the buffer stay as they are until
    /// an event recorded afterwards is done. InvalidArgument: the plan has no page or no byte, or passes the end of the
    /// address space.
    Status run(device::StreamRef stream, const PackPlan& plan, PackDirection direction) const;

    /// How many blocks of kThreads a plan is worth: a warp per chunk, but not more than keep the GPU's memory busy, so
    /// that the application's kernels find room beside it.
    static unsigned blocksFor(const PackPlan& plan, int multiprocessors);

    static constexpr unsigned kThreads = 256;

  private:
    Packer() = default;

    std::shared_ptr<device::Device> device_;
    device::Kernels kernels_;
    std::uintptr_t gather_ = 0;
    std::uintptr_t scatter_ = 0;
};

}  // namespace troupe::cuda
