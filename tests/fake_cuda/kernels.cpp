// Kernels: known by name, and run as the host forms of the project's own.

#include <cstring>
#include <exception>
#include <utility>

#include "cuda_backend/pack.h"
#include "tests/fake_cuda/reserve.h"
#include "tests/fake_cuda/state.h"

namespace troupe::cuda::api {

using fake_cuda::IllegalAccess;
using fake_cuda::State;

std::uint8_t* DeviceView::at(std::uint64_t addr, std::uint64_t bytes) {
    for (const Known& known : known_)
        if (addr - known.begin < known.bytes && bytes <= known.bytes - (addr - known.begin))
            return known.data + (addr - known.begin);
    const std::lock_guard lock(state_.mutex);
    const fake_cuda::Mapping* mapping = state_.find(addr);
    std::vector<fake_cuda::Segment> segments;
    if (mapping == nullptr || !mapping->for_kernels ||
        !state_.resolve(mapping->base, mapping->bytes, device_, segments) ||
        bytes > mapping->bytes - (addr - mapping->base))
        throw IllegalAccess();
    keep_.push_back(segments.front().keep);
    Known& known = known_[next_++ % known_.size()];
    known = {mapping->base, mapping->bytes, segments.front().data};
    return known.data + (addr - known.begin);
}

namespace {

struct KnownKernel {
    const char* name;
    HostKernel kernel;
    std::vector<std::size_t> parameters;  ///< Bytes of each.
};

/// A misaligned access is illegal, too.
struct ViewMemory {
    DeviceView& view;

    template <class Word>
    Word load(std::uint64_t addr) const {
        Word word;
        std::memcpy(&word, find(addr, sizeof word), sizeof word);
        return word;
    }
    template <class Word>
    void store(std::uint64_t addr, const Word& word) const {
        std::memcpy(find(addr, sizeof word), &word, sizeof word);
    }
    std::uint8_t* find(std::uint64_t addr, std::uint64_t bytes) const {
        if (addr % bytes != 0) throw IllegalAccess();
        return view.at(addr, bytes);
    }
};

template <class Plan>
void pack(DeviceView& view, unsigned blocks, unsigned threads, void** parameters) {
    Plan plan;
    std::memcpy(&plan, parameters[0], sizeof plan);
    ViewMemory memory{view};
    const std::uint64_t warps = std::uint64_t{blocks} * threads / kPackLanes;
    for (std::uint64_t warp = 0; warp < warps; ++warp)
        for (unsigned lane = 0; lane < kPackLanes; ++lane) packLane(memory, plan, warp, warps, lane);
}

const std::vector<KnownKernel>& knownKernels() {
    static const std::vector<KnownKernel> kernels = {
        {"troupeMoveList", pack<PackList>, {sizeof(PackList)}},
        {"troupeMoveStrides", pack<PackStrides>, {sizeof(PackStrides)}},
    };
    return kernels;
}

}  // namespace

extern "C" {

/// The image is not looked into, but one that is no image of a GPU is refused.
Result cuModuleLoadData(ModuleHandle* module, const void* image) {
    TROUPE_ENTER_CONTEXT("cuModuleLoadData")
    // Fat binaries begin so; "FAKE" is for builds that have none.
    constexpr std::uint32_t kFatbin = 0xba55ed50;
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof magic);
    if (magic != kFatbin && std::memcmp(image, "FAKE", 4) != 0) return Result::InvalidImage;
    auto made = std::make_unique<ModuleObject>();
    made->context = context;
    *module = made.get();
    state.modules[made.get()] = std::move(made);
    return Result::Success;
}

Result cuModuleUnload(ModuleHandle module) {
    TROUPE_ENTER_CONTEXT("cuModuleUnload")
    state.drain(context->device, lock);
    for (auto each = state.functions.begin(); each != state.functions.end();)
        each = each->second->module == module ? state.functions.erase(each) : std::next(each);
    return state.modules.erase(module) != 0 ? Result::Success : Result::InvalidHandle;
}

Result cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
    TROUPE_ENTER_CONTEXT("cuModuleGetFunction")
    if (state.modules.count(module) == 0) return Result::InvalidHandle;
    for (const KnownKernel& known : knownKernels()) {
        if (std::strcmp(known.name, name) != 0) continue;
        auto made = std::make_unique<FunctionObject>();
        made->module = module;
        made->kernel = known.kernel;
        made->parameters = known.parameters;
        *function = made.get();
        state.functions[made.get()] = std::move(made);
        return Result::Success;
    }
    return Result::NotFound;
}

Result cuLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned, StreamHandle stream, void** parameters,
                      void** extra) {
    TROUPE_ENTER_CONTEXT("cuLaunchKernel")
    if (state.functions.count(function) == 0 || !state.isAlive(stream) || stream->context != context)
        return Result::InvalidHandle;
    if (function->module->context != context) return Result::InvalidContext;
    if (grid_x == 0 || block_x == 0 || block_x > 1024 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 ||
        extra != nullptr)
        return Result::InvalidValue;
    // Copied now, as the driver does.
    std::vector<std::vector<std::uint8_t>> copied;
    for (std::size_t index = 0; index < function->parameters.size(); ++index) {
        const auto* bytes = static_cast<const std::uint8_t*>(parameters[index]);
        copied.emplace_back(bytes, bytes + function->parameters[index]);
    }
    const HostKernel kernel = function->kernel;
    state.enqueue(*stream, [&state, context, kernel, copied, grid_x, block_x](std::unique_lock<std::mutex>& running) {
        state.sleepFor(0, running);
        running.unlock();
        bool legal = true;
        std::vector<std::vector<std::uint8_t>> values = copied;
        std::vector<void*> pointers;
        for (auto& value : values) pointers.push_back(value.data());
        try {
            DeviceView view(state, context->device);
            kernel(view, grid_x, block_x, pointers.data());
        } catch (const IllegalAccess&) {
            legal = false;
        }
        running.lock();
        if (!legal) state.lose(*context, Result::IllegalAddress);
    });
    return Result::Success;
}

}  // extern "C"
}  // namespace troupe::cuda::api
