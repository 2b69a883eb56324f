// Memory for other processes: IPC handles, virtual memory and its handles. A handle names a process and a descriptor of
// it, which is how the real ones end when their process does.

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "tests/fake_cuda/reserve.h"
#include "tests/fake_cuda/state.h"

namespace troupe::cuda::api {

using fake_cuda::Backing;
using fake_cuda::kGranularity;
using fake_cuda::Mapping;
using fake_cuda::Physical;
using fake_cuda::State;

namespace {

constexpr std::uint32_t kMagic = 0x46435544;

struct HandleBytes {
    std::uint32_t magic = kMagic;
    std::int32_t process = 0;
    std::int32_t fd = -1;
    std::uint32_t skew = 0;
    std::uint64_t started = 0;
    std::uint64_t serial = 0;
    std::uint64_t bytes = 0;
    Uuid uuid{};
};
static_assert(sizeof(HandleBytes) <= sizeof(IpcMemHandle));

void write(const Mapping& mapping, const Backing& backing, void* handle) {
    HandleBytes bytes;
    bytes.process = ::getpid();
    bytes.fd = backing.fd();
    bytes.skew = static_cast<std::uint32_t>(mapping.offset);
    bytes.started = fake_cuda::factsOf(::getpid()).started;
    bytes.serial = backing.page().serial;
    bytes.bytes = mapping.bytes;
    bytes.uuid = backing.page().uuid;
    std::memset(handle, 0, sizeof(IpcMemHandle));
    std::memcpy(handle, &bytes, sizeof bytes);
}

/// Null: the process has ended, or has given the memory up.
std::shared_ptr<Backing> open(const HandleBytes& handle) {
    const auto facts = fake_cuda::factsOf(handle.process);
    if (!facts.runs || facts.started != handle.started) return nullptr;
    const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    auto backing = Backing::open(fd);
    if (!backing || backing->page().serial != handle.serial || backing->page().freed.load() != 0) return nullptr;
    return backing;
}

/// The ordinal that this process gives a GPU; -1: it does not see it.
int ordinalOf(const State& state, const Uuid& uuid) {
    for (int ordinal = 0; ordinal < static_cast<int>(state.primaries.size()); ++ordinal)
        if (const Uuid mine = state.uuidOf(ordinal); std::memcmp(&mine, &uuid, sizeof uuid) == 0) return ordinal;
    return -1;
}

bool isAligned(std::uint64_t value) { return value % kGranularity == 0; }

void release(State& state, AllocationHandle handle) {
    const auto found = state.physical.find(handle);
    if (found->second.references == 0 && found->second.mappings == 0) state.physical.erase(found);
}

}  // namespace

extern "C" {

// --- IPC ---------------------------------------------------------------------------------------------------------

Result cuIpcGetMemHandle(IpcMemHandle* handle, DevicePtr memory) {
    TROUPE_ENTER_CONTEXT("cuIpcGetMemHandle")
    const Mapping* mapping = state.find(memory);
    if (mapping == nullptr || mapping->kind != Mapping::Kind::Allocated) return Result::InvalidValue;
    if (mapping->base != memory)
        state.violate("cuIpcGetMemHandle of an address that is not the base of its allocation");
    write(*mapping, *mapping->backing, handle);
    return Result::Success;
}

Result cuIpcOpenMemHandle_v2(DevicePtr* memory, IpcMemHandle handle, unsigned flags) {
    TROUPE_ENTER_CONTEXT("cuIpcOpenMemHandle")
    HandleBytes bytes;
    std::memcpy(static_cast<void*>(&bytes), &handle, sizeof bytes);
    if (flags != kIpcLazyEnablePeerAccess || bytes.magic != kMagic) return Result::InvalidValue;
    if (bytes.process == ::getpid()) return Result::InvalidContext;
    auto backing = open(bytes);
    if (!backing) return Result::InvalidHandle;
    // Opened already: counted.
    for (auto& [base, mapping] : state.mappings) {
        if (mapping.kind != Mapping::Kind::Imported || mapping.context != context ||
            mapping.backing->page().serial != bytes.serial || mapping.backing->page().freed.load() != 0)
            continue;
        ++mapping.opened;
        *memory = base;
        return Result::Success;
    }
    const int ordinal = ordinalOf(state, bytes.uuid);
    if (ordinal != context->device && !state.settings.peer) return Result::PeerAccessUnsupported;
    Mapping mapping;
    const std::uint64_t base = fake_cuda::reserve(state, fake_cuda::roundUp(bytes.skew + bytes.bytes, 64 * 1024));
    if (base == 0 || !backing->addImporter(::getpid())) return Result::OutOfMemory;
    mapping.kind = Mapping::Kind::Imported;
    mapping.base = base + bytes.skew;
    mapping.bytes = bytes.bytes;
    mapping.offset = bytes.skew;
    mapping.device = ordinal >= 0 ? ordinal : context->device;
    mapping.context = context;
    mapping.id = state.next_id++;
    mapping.backing = std::move(backing);
    mapping.opened = 1;
    *memory = mapping.base;
    state.mappings[mapping.base] = std::move(mapping);
    return Result::Success;
}

Result cuIpcCloseMemHandle(DevicePtr memory) {
    TROUPE_ENTER_CONTEXT("cuIpcCloseMemHandle")
    Mapping* mapping = state.find(memory);
    if (mapping == nullptr || mapping->base != memory || mapping->kind != Mapping::Kind::Imported)
        return Result::InvalidValue;
    // Draining lets go of the lock: another thread may open or close the same memory meanwhile.
    if (mapping->opened == 1) state.drain(context->device, lock);
    mapping = state.find(memory);
    if (mapping == nullptr) return Result::InvalidValue;
    if (--mapping->opened > 0) return Result::Success;
    mapping->backing->removeImporter(::getpid());
    fake_cuda::giveBack(state, memory - mapping->offset);
    state.mappings.erase(memory);
    return Result::Success;
}

// --- virtual memory ----------------------------------------------------------------------------------------------

Result cuMemGetAllocationGranularity(std::size_t* granularity, const AllocationProp* properties, Granularity) {
    TROUPE_ENTER("cuMemGetAllocationGranularity")
    if (properties->type != AllocationType::Pinned) return Result::InvalidValue;
    *granularity = kGranularity;
    return Result::Success;
}

Result cuMemCreate(AllocationHandle* handle, std::size_t bytes, const AllocationProp* properties,
                   unsigned long long flags) {
    TROUPE_ENTER("cuMemCreate")
    const int device = properties->location.id;
    if (bytes == 0 || !isAligned(bytes) || flags != 0 || properties->type != AllocationType::Pinned ||
        properties->location.type != LocationType::Device)
        return Result::InvalidValue;
    if (device < 0 || device >= static_cast<int>(state.primaries.size())) return Result::InvalidDevice;
    const auto types = static_cast<unsigned>(properties->requested_handle_types);
    if ((types & static_cast<unsigned>(HandleType::Fabric)) != 0 && !state.settings.fabric) return Result::NotPermitted;
    Physical physical;
    physical.backing = Backing::create(bytes, state.uuidOf(device), state.next_id, types);
    if (!physical.backing) return Result::OutOfMemory;
    physical.device = device;
    physical.references = 1;
    *handle = state.next_id++;
    state.physical[*handle] = std::move(physical);
    return Result::Success;
}

Result cuMemRelease(AllocationHandle handle) {
    TROUPE_ENTER("cuMemRelease")
    const auto found = state.physical.find(handle);
    if (found == state.physical.end() || found->second.references == 0) return Result::InvalidValue;
    --found->second.references;
    release(state, handle);
    return Result::Success;
}

Result cuMemAddressReserve(DevicePtr* address, std::size_t bytes, std::size_t alignment, DevicePtr,
                           unsigned long long flags) {
    TROUPE_ENTER("cuMemAddressReserve")
    if (bytes == 0 || !isAligned(bytes) || flags != 0 || alignment > kGranularity) return Result::InvalidValue;
    *address = fake_cuda::reserve(state, bytes);
    return *address != 0 ? Result::Success : Result::OutOfMemory;
}

Result cuMemAddressFree(DevicePtr address, std::size_t bytes) {
    TROUPE_ENTER("cuMemAddressFree")
    const auto found = state.reservations.find(address);
    if (found == state.reservations.end() || found->second != bytes) return Result::InvalidValue;
    const auto mapping = state.mappings.lower_bound(address);
    if (mapping != state.mappings.end() && mapping->first < address + bytes) {
        state.violate("cuMemAddressFree of addresses with memory mapped there");
        return Result::InvalidValue;
    }
    fake_cuda::giveBack(state, address);
    return Result::Success;
}

Result cuMemMap(DevicePtr address, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                unsigned long long flags) {
    TROUPE_ENTER("cuMemMap")
    const auto physical = state.physical.find(handle);
    auto reservation = state.reservations.upper_bound(address);
    if (physical == state.physical.end() || reservation == state.reservations.begin()) return Result::InvalidValue;
    --reservation;
    if (bytes == 0 || !isAligned(address) || !isAligned(bytes) || offset != 0 || flags != 0 ||
        bytes > physical->second.backing->bytes() || address + bytes > reservation->first + reservation->second ||
        !(state.find(address) == nullptr && state.find(address + bytes - 1) == nullptr))
        return Result::InvalidValue;
    Mapping mapping;
    mapping.kind = Mapping::Kind::Virtual;
    mapping.base = address;
    mapping.bytes = bytes;
    mapping.device = physical->second.device;
    mapping.id = state.next_id++;
    mapping.backing = physical->second.backing;
    mapping.handle = handle;
    ++physical->second.mappings;
    state.mappings[address] = std::move(mapping);
    return Result::Success;
}

Result cuMemUnmap(DevicePtr address, std::size_t bytes) {
    TROUPE_ENTER("cuMemUnmap")
    auto mapping = state.mappings.find(address);
    std::uint64_t end = address;
    for (; mapping != state.mappings.end() && mapping->first == end && end < address + bytes; ++mapping) {
        if (mapping->second.kind != Mapping::Kind::Virtual) return Result::InvalidValue;
        end += mapping->second.bytes;
    }
    if (end != address + bytes) return Result::InvalidValue;
    state.drain(state.find(address)->device, lock);
    for (std::uint64_t at = address; at < end;) {
        const auto found = state.mappings.find(at);
        at += found->second.bytes;
        const AllocationHandle handle = found->second.handle;
        --state.physical.at(handle).mappings;
        state.mappings.erase(found);
        release(state, handle);
    }
    return Result::Success;
}

Result cuMemSetAccess(DevicePtr address, std::size_t bytes, const AccessDesc* access, std::size_t count) {
    TROUPE_ENTER("cuMemSetAccess")
    std::vector<Mapping*> covered;
    for (std::uint64_t at = address; at < address + bytes; at += covered.back()->bytes) {
        Mapping* mapping = state.find(at);
        if (mapping == nullptr || mapping->base != at || mapping->kind != Mapping::Kind::Virtual ||
            mapping->bytes > address + bytes - at)
            return Result::InvalidValue;
        covered.push_back(mapping);
    }
    for (std::size_t index = 0; index < count; ++index) {
        if (access[index].location.type != LocationType::Device) return Result::InvalidValue;
        for (Mapping* mapping : covered) {
            if (access[index].flags == AccessFlags::None)
                mapping->access.erase(access[index].location.id);
            else
                mapping->access.insert(access[index].location.id);
        }
    }
    return Result::Success;
}

Result cuMemRetainAllocationHandle(AllocationHandle* handle, void* address) {
    TROUPE_ENTER("cuMemRetainAllocationHandle")
    const Mapping* mapping = state.find(reinterpret_cast<std::uint64_t>(address));
    if (mapping == nullptr || mapping->kind != Mapping::Kind::Virtual) return Result::InvalidValue;
    *handle = mapping->handle;
    ++state.physical.at(*handle).references;
    return Result::Success;
}

Result cuMemExportToShareableHandle(void* shareable, AllocationHandle handle, HandleType type,
                                    unsigned long long flags) {
    TROUPE_ENTER("cuMemExportToShareableHandle")
    const auto found = state.physical.find(handle);
    if (found == state.physical.end() || flags != 0) return Result::InvalidValue;
    Backing& backing = *found->second.backing;
    if ((backing.page().handle_types & static_cast<unsigned>(type)) == 0) return Result::InvalidValue;
    if (type == HandleType::Fabric) {
        Mapping whole;
        whole.bytes = backing.bytes();
        write(whole, backing, shareable);
        return Result::Success;
    }
    const int fd = ::fcntl(backing.fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return Result::OperatingSystem;
    std::memcpy(shareable, &fd, sizeof fd);
    return Result::Success;
}

Result cuMemImportFromShareableHandle(AllocationHandle* handle, void* shareable, HandleType type) {
    TROUPE_ENTER("cuMemImportFromShareableHandle")
    std::shared_ptr<Backing> backing;
    if (type == HandleType::Fabric) {
        if (!state.settings.fabric) return Result::NotPermitted;
        HandleBytes bytes;
        std::memcpy(static_cast<void*>(&bytes), shareable, sizeof bytes);
        if (bytes.magic != kMagic) return Result::InvalidValue;
        backing = open(bytes);
    } else {
        const int fd = ::fcntl(static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
        if (fd >= 0) backing = Backing::open(fd);
    }
    if (!backing) return Result::InvalidValue;
    const int ordinal = ordinalOf(state, backing->page().uuid);
    if (ordinal < 0) return Result::NotSupported;
    *handle = state.next_id++;
    state.physical[*handle] = {std::move(backing), ordinal, 1, 0};
    return Result::Success;
}

}  // extern "C"
}  // namespace troupe::cuda::api
