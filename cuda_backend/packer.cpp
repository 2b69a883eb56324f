#include "cuda_backend/packer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::cuda {

using namespace device;

namespace {

/// Each of 256 threads with 128 bytes in flight: a few blocks on each multiprocessor cover the latency of its memory.
/// Not measured on a GPU yet.
constexpr unsigned kBlocksPerMultiprocessor = 4;

Status check(const PackPlan& plan) {
    if (plan.count == 0 || plan.page_bytes == 0 || plan.packed == 0)
        return {Code::InvalidArgument, "pack: " + std::to_string(plan.count) + " pages of " +
                                           std::to_string(plan.page_bytes) + " bytes at " + hexAddress(plan.packed)};
    // One bound for all sums and products in the kernel.
    constexpr std::uint64_t kMost = std::uint64_t{1} << 46;
    const bool strided = plan.list == 0;
    if (plan.page_bytes > kMost || plan.count > kMost / plan.page_bytes ||
        ByteRange{plan.packed, plan.count * plan.page_bytes}.wraps() || plan.list % sizeof(std::uint64_t) != 0 ||
        (strided && (plan.stride < plan.page_bytes || plan.stride > kMost || plan.count > kMost / plan.stride ||
                     ByteRange{plan.base, plan.count * plan.stride}.wraps())))
        return {Code::InvalidArgument, "pack: the pages overlap, or pass the end of the address space"};
    return {};
}

}  // namespace

Result<Packer> Packer::create(std::shared_ptr<Device> device, std::span<const std::byte> image) {
    auto kernels = device->loadKernels(image);
    if (!kernels) return kernels.status().withContext("packing kernel");
    Packer packer;
    for (const auto& [name, into] : {std::pair{"troupeGather", &packer.gather_}, {"troupeScatter", &packer.scatter_}}) {
        auto found = device->findKernel(*kernels, name);
        if (!found) return found.status().withContext("packing kernel");
        *into = *found;
    }
    packer.kernels_ = std::move(*kernels);
    packer.device_ = std::move(device);
    return packer;
}

Status Packer::run(StreamRef stream, const PackPlan& plan, PackDirection direction) const {
    if (Status status = check(plan); !status) return status;
    PackPlan copied = plan;
    void* parameters[] = {&copied};
    const std::uintptr_t kernel = direction == PackDirection::Gather ? gather_ : scatter_;
    return device_->launch(stream, kernel, blocksFor(plan, device_->info().multiprocessors), kThreads, parameters);
}

unsigned Packer::blocksFor(const PackPlan& plan, int multiprocessors) {
    constexpr std::uint64_t kWarpsPerBlock = kThreads / kPackLanes;
    const std::uint64_t units = plan.count * packChunksPerPage(plan.page_bytes);
    const std::uint64_t most = kBlocksPerMultiprocessor * static_cast<std::uint64_t>(std::max(multiprocessors, 1));
    return static_cast<unsigned>(std::clamp((units + kWarpsPerBlock - 1) / kWarpsPerBlock, std::uint64_t{1}, most));
}

}  // namespace troupe::cuda
