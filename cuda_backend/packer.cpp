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

/// One bound for all sums and products in the kernel.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

Status check(std::span<const PageMove> moves) {
    if (moves.empty()) return {Code::InvalidArgument, "pack: no page"};
    for (const PageMove& move : moves)
        if (move.bytes == 0 || move.bytes > kMostBytes || ByteRange{move.to, move.bytes}.wraps() ||
            ByteRange{move.from, move.bytes}.wraps())
            return {Code::InvalidArgument, "pack: a page of " + std::to_string(move.bytes) + " bytes from " +
                                               hexAddress(move.from) + " to " + hexAddress(move.to)};
    return {};
}

/// False: they lie at no equal distances.
bool findStrides(std::span<const PageMove> moves, PackStrides& plan) {
    const PageMove& first = moves.front();
    plan = {moves.size(), first.bytes, first.to, 0, first.from, 0};
    if (moves.size() > 1) {
        plan.to_stride = moves[1].to - first.to;
        plan.from_stride = moves[1].from - first.from;
    }
    for (std::size_t index = 1; index < moves.size(); ++index) {
        const PackMove expected = plan.move(index);
        const PageMove& move = moves[index];
        if (move.to != expected.to || move.from != expected.from || move.bytes != expected.bytes) return false;
    }
    return true;
}

}  // namespace

Result<std::shared_ptr<const Packer>> Packer::create(std::shared_ptr<Device> device, std::span<const std::byte> image) {
    auto kernels = device->loadKernels(image);
    if (!kernels) return kernels.status().withContext("packing kernel");
    std::shared_ptr<Packer> packer(new Packer);
    for (const auto& [name, into] :
         {std::pair{"troupeMoveList", &packer->list_}, {"troupeMoveStrides", &packer->strides_}}) {
        auto found = device->findKernel(*kernels, name);
        if (!found) return found.status().withContext("packing kernel");
        *into = *found;
    }
    packer->kernels_ = std::move(*kernels);
    packer->device_ = std::move(device);
    return std::shared_ptr<const Packer>(std::move(packer));
}

Status Packer::move(StreamRef stream, std::span<const PageMove> moves) const {
    if (Status status = check(moves); !status) return status;
    PackStrides strides;
    if (findStrides(moves, strides)) return launch(stream, strides_, strides);
    while (!moves.empty()) {
        PackList list;
        list.count = std::min<std::size_t>(moves.size(), kPackMoves);
        for (std::size_t index = 0; index < list.count; ++index) {
            const PageMove& move = moves[index];
            list.moves[index] = {move.to, move.from, move.bytes};
            list.bytes = std::max(list.bytes, move.bytes);
        }
        if (Status status = launch(stream, list_, list); !status) return status;
        moves = moves.subspan(list.count);
    }
    return {};
}

template <class Plan>
Status Packer::launch(StreamRef stream, std::uintptr_t kernel, const Plan& plan) const {
    Plan copied = plan;
    void* parameters[] = {&copied};
    return device_->launch(stream, kernel, blocksFor(plan.count, plan.bytes, device_->info().multiprocessors), kThreads,
                           parameters);
}

unsigned Packer::blocksFor(std::uint64_t count, std::uint64_t bytes, int multiprocessors) {
    constexpr std::uint64_t kWarpsPerBlock = kThreads / kPackLanes;
    const std::uint64_t units = count * packChunksOf(bytes);
    const std::uint64_t most = kBlocksPerMultiprocessor * static_cast<std::uint64_t>(std::max(multiprocessors, 1));
    return static_cast<unsigned>(std::clamp((units + kWarpsPerBlock - 1) / kWarpsPerBlock, std::uint64_t{1}, most));
}

}  // namespace troupe::cuda
