// Memory of a GPU for other processes and other devices.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda_backend/cuda_device.h"

namespace troupe::cuda {

using namespace device;

namespace {

static_assert(sizeof(api::IpcMemHandle) == kShareHandleBytes && sizeof(api::FabricHandle) == kShareHandleBytes);

constexpr auto kFile = static_cast<unsigned long long>(api::HandleType::PosixFileDescriptor);
constexpr auto kFabric = static_cast<unsigned long long>(api::HandleType::Fabric);

/// A descriptor as the driver takes it.
void* osHandle(int fd) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)); }

}  // namespace

Result<PointerFacts> factsOf(const CudaDriver& driver, std::uint64_t addr) {
    // All of them are wider than any of these attributes can be.
    std::uint64_t type = 0;
    std::uint64_t managed = 0;
    std::int64_t ordinal = -1;
    api::PointerAttribute wanted[] = {api::PointerAttribute::MemoryType, api::PointerAttribute::IsManaged,
                                      api::PointerAttribute::DeviceOrdinal};
    void* values[] = {&type, &managed, &ordinal};
    const Outcome outcome = invoke(driver.calls().pointerGetAttributes, 3u, wanted, values, api::DevicePtr{addr});
    // Of what it does not know it says so, or sets nothing, depending on its version.
    const bool unknown = outcome.result == api::Result::InvalidValue || outcome.result == api::Result::InvalidContext;
    if (unknown || (outcome && type == 0)) return PointerFacts{};
    if (!outcome) return driver.toStatus(outcome).withContext("memory at " + hexAddress(addr));
    PointerFacts facts;
    if (managed != 0) {
        facts.kind = MemoryKind::Managed;
    } else if (type == static_cast<std::uint64_t>(api::MemoryType::Device)) {
        facts.kind = MemoryKind::Device;
        facts.ordinal = static_cast<int>(ordinal);
    } else {
        facts.kind = MemoryKind::Pinned;
    }
    return facts;
}

Result<MemoryPiece> CudaDevice::allocationAt(std::uint64_t addr) {
    MemoryPiece piece;
    unsigned long long id = 0;
    api::DevicePtr start = 0;
    std::size_t bytes = 0;
    // Not by CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, which of virtual memory is the reservation, not what is mapped.
    Status status = run(driver_->calls().memGetAddressRange, &start, &bytes, api::DevicePtr{addr});
    if (!status) return status.withContext("memory at " + hexAddress(addr));
    std::uint64_t by_ipc = 0;
    api::PointerAttribute wanted[] = {api::PointerAttribute::BufferId, api::PointerAttribute::IsLegacyCudaIpcCapable};
    void* values[] = {&id, &by_ipc};
    status = run(driver_->calls().pointerGetAttributes, 2u, static_cast<api::PointerAttribute*>(wanted),
                 static_cast<void**>(values), api::DevicePtr{addr});
    if (!status) return status.withContext("memory at " + hexAddress(addr));
    piece.allocation = {start, bytes};
    piece.allocation_id = id;
    piece.is_virtual = by_ipc == 0;
    if (!piece.allocation.contains({addr, 1}))
        return Status(Code::InvalidArgument, info_.location + ": " + hexAddress(addr) + " is in no allocation");
    return piece;
}

// --- other processes -----------------------------------------------------------------------------------------------

Result<std::vector<SharedMemory>> CudaDevice::exportMemory(const MemoryPlace& place, bool fabric) {
    if (place.device != info_.ordinal)
        return Status(Code::InvalidArgument,
                      "share: memory of the kind " + place.location + " is not " + info_.location + "'s to share");
    std::vector<SharedMemory> shared;
    for (const MemoryPiece& piece : place.pieces) {
        auto one = exportPiece(piece, fabric);
        if (!one) return one.status().withContext("share " + piece.allocation.toString());
        shared.push_back(std::move(*one));
    }
    return shared;
}

Result<SharedMemory> CudaDevice::exportPiece(const MemoryPiece& piece, bool fabric) {
    std::uint64_t by_ipc = 0;
    std::uint64_t types = 0;
    api::PointerAttribute wanted[] = {api::PointerAttribute::IsLegacyCudaIpcCapable,
                                      api::PointerAttribute::AllowedHandleTypes};
    void* values[] = {&by_ipc, &types};
    const api::DevicePtr base = piece.allocation.addr;
    Status status = run(driver_->calls().pointerGetAttributes, 2u, static_cast<api::PointerAttribute*>(wanted),
                        static_cast<void**>(values), base);
    if (!status) return status;
    SharedMemory shared;
    shared.allocation = piece.allocation;
    shared.allocation_id = piece.allocation_id;
    if (!fabric && by_ipc != 0) {
        api::IpcMemHandle handle{};
        if (status = run(driver_->calls().ipcGetMemHandle, &handle, base); !status) return status;
        std::memcpy(shared.handle.data(), &handle, sizeof handle);
        return shared;
    }
    if ((types & (fabric ? kFabric : kFile)) == 0)
        return Status(Code::Unsupported,
                      info_.location + ": it was allocated without handles of the type " +
                          (fabric ? "CU_MEM_HANDLE_TYPE_FABRIC" : "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
    api::AllocationHandle allocation = 0;
    status = run(driver_->calls().memRetainAllocationHandle, &allocation, reinterpret_cast<void*>(base));
    if (!status) return status;
    int fd = -1;
    void* const out = fabric ? static_cast<void*>(shared.handle.data()) : &fd;
    const auto type = fabric ? api::HandleType::Fabric : api::HandleType::PosixFileDescriptor;
    status = run(driver_->calls().memExportToShareableHandle, out, allocation, type, 0ull);
    releaseHandle(allocation);
    if (!status) return status;
    shared.kind = fabric ? ShareKind::Fabric : ShareKind::File;
    shared.fd = UniqueFd(fd);
    return shared;
}

/// Of a device that is lost, too.
void CudaDevice::releaseHandle(api::AllocationHandle handle) const {
    const BesideGraphs beside_graphs(*driver_);
    invoke(driver_->calls().memRelease, handle);
}

Result<ImportedMemory> CudaDevice::importMemory(const SharedMemory& shared) {
    const std::string what = "map memory of another process";
    const std::uint64_t bytes = shared.allocation.length;
    if (bytes == 0 || shared.allocation.wraps())
        return Status(Code::ProtocolError, what + ": it claims to be " + shared.allocation.toString());
    if (shared.kind != ShareKind::Ipc) {
        auto mapped = importVirtual(shared);
        if (!mapped) return mapped.status().withContext(what);
        return ImportedMemory(shared_from_this(), *mapped);
    }
    api::IpcMemHandle handle{};
    std::memcpy(&handle, shared.handle.data(), sizeof handle);
    api::DevicePtr addr = 0;
    if (Status status = run(driver_->calls().ipcOpenMemHandle, &addr, handle, api::kIpcLazyEnablePeerAccess); !status)
        return status.withContext(what);
    ImportedMemory imported(shared_from_this(), addr);
    const auto there = allocationAt(addr);
    if (!there) return there.status().withContext(what);
    if (!there->allocation.contains({addr, bytes}))
        return Status(Code::ProtocolError, what + ": it is " + std::to_string(there->allocation.length) +
                                               " bytes long, not " + std::to_string(bytes));
    return imported;
}

Result<std::uint64_t> CudaDevice::importVirtual(const SharedMemory& shared) {
    const api::Calls& calls = driver_->calls();
    std::array<std::uint8_t, kShareHandleBytes> fabric_handle = shared.handle;
    const bool fabric = shared.kind == ShareKind::Fabric;
    void* const os_handle = fabric ? static_cast<void*>(fabric_handle.data()) : osHandle(shared.fd.get());
    const auto type = fabric ? api::HandleType::Fabric : api::HandleType::PosixFileDescriptor;
    api::AllocationHandle handle = 0;
    if (Status status = run(calls.memImportFromShareableHandle, &handle, os_handle, type); !status) return status;
    const std::uint64_t bytes = shared.allocation.length;
    api::DevicePtr addr = 0;
    Status status = run(calls.memAddressReserve, &addr, bytes, std::size_t{0}, api::DevicePtr{0}, 0ull);
    if (status) {
        status = mapVirtual(handle, addr, bytes);
        if (!status) run(calls.memAddressFree, addr, bytes).isOk();
    }
    // The mapping keeps the memory.
    releaseHandle(handle);
    if (!status) return status;
    const std::lock_guard lock(mutex_);
    mapped_[addr] = bytes;
    return std::uint64_t{addr};
}

Status CudaDevice::mapVirtual(api::AllocationHandle handle, api::DevicePtr addr, std::uint64_t bytes) {
    const api::Calls& calls = driver_->calls();
    // Refused when the allocation is shorter than that, whatever the exporter says it is.
    if (Status status = run(calls.memMap, addr, bytes, std::size_t{0}, handle, 0ull); !status) return status;
    const api::AccessDesc access{{api::LocationType::Device, info_.ordinal}, api::AccessFlags::ReadWrite};
    Status status = run(calls.memSetAccess, addr, bytes, &access, std::size_t{1});
    if (!status) run(calls.memUnmap, addr, bytes).isOk();
    return status;
}

void CudaDevice::unmapImport(std::uintptr_t addr) {
    std::uint64_t bytes = 0;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = mapped_.find(addr); found != mapped_.end()) {
            bytes = found->second;
            mapped_.erase(found);
        }
    }
    const api::Calls& calls = driver_->calls();
    if (bytes == 0) {
        invoke(calls.ipcCloseMemHandle, api::DevicePtr{addr});
        return;
    }
    invoke(calls.memUnmap, api::DevicePtr{addr}, bytes);
    invoke(calls.memAddressFree, api::DevicePtr{addr}, bytes);
}

// --- other devices -------------------------------------------------------------------------------------------------

Result<DmabufRange> CudaDevice::exportDmabuf(const ByteRange& range) {
    if (!info_.dmabuf)
        return Status(Code::Unsupported, info_.location +
                                             ": its driver exports no dma-buf (the open kernel modules of "
                                             "release 515 or newer do, with Linux 5.12 or newer)");
    // Whole pages of the host are what a dma-buf is made of.
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t begin = range.addr & ~(page - 1);
    const std::uint64_t end = (range.end() + page - 1) & ~(page - 1);
    int fd = -1;
    Status status = run(driver_->calls().memGetHandleForAddressRange, static_cast<void*>(&fd), api::DevicePtr{begin},
                        end - begin, api::RangeHandleType::DmaBufFd, 0ull);
    if (!status) return status.withContext("export " + range.toString());
    return DmabufRange{UniqueFd(fd), range.addr - begin};
}

Status CudaDevice::orderForNics(const ByteRange& range) {
    for (std::uint64_t addr = range.addr; addr < range.end();) {
        const auto piece = allocationAt(addr);
        if (!piece) return piece.status();
        addr = piece->allocation.end();
        // Virtual memory has no such attribute (UCX's cuda_copy_md.c exports it all the same). What would order it is a
        // flag of the whole context, which is the application's.
        if (piece->is_virtual) continue;
        const unsigned on = 1;
        Status status = run(driver_->calls().pointerSetAttribute, static_cast<const void*>(&on),
                            api::PointerAttribute::SyncMemops, api::DevicePtr{piece->allocation.addr});
        if (!status) return status;
    }
    return {};
}

Status CudaDevice::flushNicWrites() {
    if (info_.nic_writes == NicWrites::Ordered) return {};
    if (info_.nic_writes == NicWrites::Unseen)
        return Status(Code::Unsupported, info_.location + ": its driver neither orders what NICs write nor flushes it");
    // For all devices, as copies by another GPU may come next, and what is flushed is the way over the bus in any case.
    return run(driver_->calls().flushGpuDirectRdmaWrites, api::FlushTarget::CurrentContext,
               api::FlushScope::AllDevices);
}

}  // namespace troupe::cuda
