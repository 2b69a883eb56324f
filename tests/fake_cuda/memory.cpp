// Memory: what cuMemAlloc, cuMemHostAlloc and their like give, and what a pointer is.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/reserve.h"
#include "tests/fake_cuda/state.h"

namespace troupe::fake_cuda {

Mapping* State::find(std::uint64_t addr) {
    auto after = mappings.upper_bound(addr);
    if (after == mappings.begin()) return nullptr;
    Mapping& mapping = std::prev(after)->second;
    return addr - mapping.base < mapping.bytes ? &mapping : nullptr;
}

bool State::resolve(std::uint64_t addr, std::uint64_t bytes, int device, std::vector<Segment>& segments) {
    while (bytes != 0) {
        Mapping* const mapping = find(addr);
        if (mapping == nullptr) return false;
        if (mapping->kind == Mapping::Kind::Virtual && device >= 0 && mapping->access.count(device) == 0) {
            violate("virtual memory that cuMemSetAccess did not open to this device was touched");
            return false;
        }
        if (mapping->kind == Mapping::Kind::Imported && mapping->backing->page().freed.load() != 0) {
            violate("memory that its exporter freed was touched");
            return false;
        }
        const std::uint64_t inside = addr - mapping->base;
        const std::uint64_t here = std::min(bytes, mapping->bytes - inside);
        if (mapping->backing)
            segments.push_back({mapping->backing->data() + mapping->offset + inside, here, mapping->backing});
        else
            segments.push_back({reinterpret_cast<std::uint8_t*>(addr), here, nullptr});
        addr += here;
        bytes -= here;
        // One copy stays within one allocation, but for virtual memory, where a reservation may be of many.
        if (bytes != 0 && mapping->kind != Mapping::Kind::Virtual) return false;
    }
    return true;
}

bool State::isPageable(std::uint64_t addr, std::uint64_t bytes) const {
    const auto touches = [&](const auto& ranges, auto lengthOf) {
        auto after = ranges.lower_bound(addr + bytes);
        if (after == ranges.begin()) return false;
        --after;
        return after->first + lengthOf(after->second) > addr;
    };
    return !touches(reservations, [](std::uint64_t length) { return length; }) &&
           !touches(mappings, [](const Mapping& mapping) { return mapping.bytes; });
}

std::size_t State::endMemory(const ContextObject& context) {
    return std::erase_if(mappings, [&](const auto& each) {
        const Mapping& mapping = each.second;
        if (mapping.context != &context) return false;
        if (mapping.kind == Mapping::Kind::Pinned || mapping.kind == Mapping::Kind::Managed)
            ::munmap(reinterpret_cast<void*>(mapping.base), mapping.bytes);
        if (mapping.kind == Mapping::Kind::Allocated) mapping.backing->page().freed = 1;
        if (mapping.kind == Mapping::Kind::Imported) mapping.backing->removeImporter(::getpid());
        if (mapping.isDevice()) giveBack(*this, mapping.base - mapping.offset);
        return true;
    });
}

std::uint64_t reserve(State& state, std::uint64_t bytes) {
    if (auto& free = state.freed[bytes]; state.settings.reuse && !free.empty()) {
        const std::uint64_t base = free.back();
        free.pop_back();
        return base;
    }
    // Aligned as the driver's virtual memory is.
    const std::uint64_t length = bytes + kGranularity;
    void* mapped = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const auto begin = reinterpret_cast<std::uint64_t>(mapped);
    const std::uint64_t base = (begin + kGranularity - 1) / kGranularity * kGranularity;
    if (base > begin) ::munmap(mapped, base - begin);
    if (base + bytes < begin + length) ::munmap(reinterpret_cast<void*>(base + bytes), begin + length - base - bytes);
    state.reservations[base] = bytes;
    return base;
}

void giveBack(State& state, std::uint64_t base) { state.freed[state.reservations.at(base)].push_back(base); }

namespace {

/// Memory of the host that the driver knows from now on.
void know(State& state, Mapping::Kind kind, std::uint64_t base, std::uint64_t bytes, ContextObject* context) {
    Mapping mapping;
    mapping.kind = kind;
    mapping.base = base;
    mapping.bytes = bytes;
    mapping.device = context->device;
    mapping.context = context;
    mapping.id = state.next_id++;
    state.mappings[base] = mapping;
}

/// Whole pages of the host; its address, or 0.
std::uint64_t knowNewPages(State& state, Mapping::Kind kind, std::size_t bytes, ContextObject* context) {
    const std::uint64_t length = roundUp(bytes, 4096);
    void* const mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const auto base = reinterpret_cast<std::uint64_t>(mapped);
    know(state, kind, base, length, context);
    return base;
}

}  // namespace

}  // namespace troupe::fake_cuda

namespace troupe::cuda::api {

using fake_cuda::Backing;
using fake_cuda::Mapping;
using fake_cuda::State;

extern "C" {

Result cuMemAlloc_v2(DevicePtr* memory, std::size_t bytes) {
    TROUPE_ENTER_CONTEXT("cuMemAlloc")
    if (bytes == 0) return Result::InvalidValue;
    // Small allocations share blocks: they begin anywhere in one, on 512 bytes, and no page is theirs alone.
    const std::uint64_t id = state.next_id++;
    const std::uint64_t skew = bytes < fake_cuda::kGranularity ? 512 * (1 + id % 15) : 0;
    const std::uint64_t length = fake_cuda::roundUp(skew + bytes, 64 * 1024);
    Mapping mapping;
    mapping.id = id;
    mapping.backing = Backing::create(skew + bytes, state.uuidOf(context->device), id, 0);
    const std::uint64_t base = mapping.backing ? fake_cuda::reserve(state, length) : 0;
    if (base == 0) return Result::OutOfMemory;
    mapping.base = base + skew;
    mapping.bytes = bytes;
    mapping.offset = skew;
    mapping.device = context->device;
    mapping.context = context;
    *memory = mapping.base;
    state.mappings[mapping.base] = std::move(mapping);
    return Result::Success;
}

Result cuMemFree_v2(DevicePtr memory) {
    TROUPE_ENTER_CONTEXT("cuMemFree")
    Mapping* mapping = state.find(memory);
    if (mapping == nullptr || mapping->base != memory) return Result::InvalidValue;
    if (mapping->kind == Mapping::Kind::Managed) {
        state.drain(context->device, lock);
        ::munmap(reinterpret_cast<void*>(memory), mapping->bytes);
        state.mappings.erase(memory);
        return Result::Success;
    }
    if (mapping->kind != Mapping::Kind::Allocated) return Result::InvalidValue;
    // It waits for the device, as the driver does.
    state.drain(mapping->device, lock);
    mapping = state.find(memory);
    if (const int process = mapping->backing->importer(); process != 0)
        state.violate("cuMemFree of memory that process " + std::to_string(process) + " still maps");
    mapping->backing->page().freed = 1;
    fake_cuda::giveBack(state, memory - mapping->offset);
    state.mappings.erase(memory);
    return Result::Success;
}

Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    TROUPE_ENTER_CONTEXT("cuMemHostAlloc")
    if (bytes == 0) return Result::InvalidValue;
    const std::uint64_t base = fake_cuda::knowNewPages(state, Mapping::Kind::Pinned, bytes, context);
    if (base == 0) return Result::OutOfMemory;
    *memory = reinterpret_cast<void*>(base);
    return Result::Success;
}

Result cuMemFreeHost(void* memory) {
    TROUPE_ENTER_CONTEXT("cuMemFreeHost")
    const auto base = reinterpret_cast<std::uint64_t>(memory);
    Mapping* mapping = state.find(base);
    if (mapping == nullptr || mapping->base != base || mapping->kind != Mapping::Kind::Pinned)
        return Result::InvalidValue;
    state.drain(mapping->device, lock);
    ::munmap(memory, state.find(base)->bytes);
    state.mappings.erase(base);
    return Result::Success;
}

Result cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
    TROUPE_ENTER_CONTEXT("cuMemHostRegister")
    const auto base = reinterpret_cast<std::uint64_t>(memory);
    if (bytes == 0 || base == 0) return Result::InvalidValue;
    if (!state.isPageable(base, bytes)) return Result::HostMemoryAlreadyRegistered;
    fake_cuda::know(state, Mapping::Kind::Registered, base, bytes, context);
    state.mappings[base].for_kernels = (flags & kMemHostRegisterDeviceMap) != 0 && !state.settings.own_addresses;
    return Result::Success;
}

Result cuMemHostGetDevicePointer_v2(DevicePtr* device, void* memory, unsigned flags) {
    TROUPE_ENTER_CONTEXT("cuMemHostGetDevicePointer")
    const auto addr = reinterpret_cast<std::uint64_t>(memory);
    const Mapping* mapping = state.find(addr);
    if (flags != 0 || mapping == nullptr || !mapping->isHost()) return Result::InvalidValue;
    if (mapping->kind == Mapping::Kind::Registered && state.settings.own_addresses) {
        *device = addr + (std::uint64_t{1} << 46);
        return Result::Success;
    }
    if (!mapping->for_kernels) return Result::InvalidValue;
    *device = addr;
    return Result::Success;
}

Result cuMemHostUnregister(void* memory) {
    TROUPE_ENTER_CONTEXT("cuMemHostUnregister")
    const auto base = reinterpret_cast<std::uint64_t>(memory);
    Mapping* mapping = state.find(base);
    if (mapping == nullptr || mapping->base != base || mapping->kind != Mapping::Kind::Registered)
        return Result::HostMemoryNotRegistered;
    state.mappings.erase(base);
    return Result::Success;
}

Result cuMemAllocManaged(DevicePtr* memory, std::size_t bytes, unsigned flags) {
    TROUPE_ENTER_CONTEXT("cuMemAllocManaged")
    if (bytes == 0 || flags != kMemAttachGlobal) return Result::InvalidValue;
    const std::uint64_t base = fake_cuda::knowNewPages(state, Mapping::Kind::Managed, bytes, context);
    if (base == 0) return Result::OutOfMemory;
    *memory = base;
    return Result::Success;
}

Result cuMemGetAddressRange_v2(DevicePtr* base, std::size_t* bytes, DevicePtr pointer) {
    TROUPE_ENTER_CONTEXT("cuMemGetAddressRange")
    const Mapping* mapping = state.find(pointer);
    if (mapping == nullptr) return Result::NotFound;
    if (base != nullptr) *base = mapping->base;
    if (bytes != nullptr) *bytes = mapping->bytes;
    return Result::Success;
}

// --- attributes --------------------------------------------------------------------------------------------------

/// Writes one attribute with the width that the driver gives it.
static void attributeOf(const Mapping* mapping, PointerAttribute attribute, unsigned handle_types, void* out) {
    const auto put = [out](auto value) { std::memcpy(out, &value, sizeof value); };
    const bool device = mapping != nullptr && mapping->isDevice();
    switch (attribute) {
        case PointerAttribute::Context: put(mapping != nullptr ? mapping->context : nullptr); break;
        case PointerAttribute::MemoryType:
            put(mapping == nullptr ? 0u
                                   : static_cast<unsigned>(mapping->isHost() ? MemoryType::Host : MemoryType::Device));
            break;
        case PointerAttribute::IsManaged: put(mapping != nullptr && mapping->kind == Mapping::Kind::Managed); break;
        case PointerAttribute::DeviceOrdinal: put(mapping != nullptr ? mapping->device : -2); break;
        case PointerAttribute::BufferId:
            put(mapping != nullptr ? static_cast<unsigned long long>(mapping->id) : 0ull);
            break;
        case PointerAttribute::IsLegacyCudaIpcCapable: put(device && mapping->kind == Mapping::Kind::Allocated); break;
        case PointerAttribute::AllowedHandleTypes:
            put(device && mapping->kind == Mapping::Kind::Virtual ? static_cast<unsigned long long>(handle_types)
                                                                  : 0ull);
            break;
        case PointerAttribute::IsGpuDirectRdmaCapable: put(device); break;
        case PointerAttribute::DevicePointer:
        case PointerAttribute::HostPointer:
        case PointerAttribute::SyncMemops: put(0ull); break;
    }
}

Result cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** values, DevicePtr pointer) {
    TROUPE_ENTER("cuPointerGetAttributes")
    const Mapping* mapping = state.find(pointer);
    const unsigned types = mapping != nullptr && mapping->backing ? mapping->backing->page().handle_types : 0;
    for (unsigned index = 0; index < count; ++index) attributeOf(mapping, attributes[index], types, values[index]);
    return Result::Success;
}

Result cuPointerSetAttribute(const void* value, PointerAttribute attribute, DevicePtr pointer) {
    TROUPE_ENTER_CONTEXT("cuPointerSetAttribute")
    const Mapping* mapping = state.find(pointer);
    if (value == nullptr || attribute != PointerAttribute::SyncMemops || mapping == nullptr)
        return Result::InvalidValue;
    return mapping->kind == Mapping::Kind::Allocated ? Result::Success : Result::NotSupported;
}

}  // extern "C"
}  // namespace troupe::cuda::api
