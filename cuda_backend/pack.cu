// The packing kernel for the GPU. Everything is in pack.h; these are its two entries.

#include "cuda_backend/pack.h"

namespace {

__device__ void run(const troupe::cuda::PackPlan& plan, troupe::cuda::PackDirection direction) {
    troupe::cuda::PackMemory memory;
    const std::uint64_t thread = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
    troupe::cuda::packLane(memory, plan, direction, thread / troupe::cuda::kPackLanes,
                           threads / troupe::cuda::kPackLanes, threadIdx.x % troupe::cuda::kPackLanes);
}

}  // namespace

extern "C" __global__ void troupeGather(troupe::cuda::PackPlan plan) { run(plan, troupe::cuda::PackDirection::Gather); }

extern "C" __global__ void troupeScatter(troupe::cuda::PackPlan plan) {
    run(plan, troupe::cuda::PackDirection::Scatter);
}
