// The packing kernel for the GPU. Everything is in pack.h; these are its two entries.

#include "cuda_backend/pack.h"

namespace {

template <class Plan>
__device__ void run(const Plan& plan) {
    troupe::cuda::PackMemory memory;
    const std::uint64_t thread = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
    troupe::cuda::packLane(memory, plan, thread / troupe::cuda::kPackLanes, threads / troupe::cuda::kPackLanes,
                           threadIdx.x % troupe::cuda::kPackLanes);
}

}  // namespace

// __grid_constant__: the plan is read where the launch put it. Otherwise each thread would have a copy of the list, as
// it is indexed.
extern "C" __global__ void troupeMoveList(const __grid_constant__ troupe::cuda::PackList plan) { run(plan); }

extern "C" __global__ void troupeMoveStrides(const __grid_constant__ troupe::cuda::PackStrides plan) { run(plan); }
