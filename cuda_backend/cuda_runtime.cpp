#include "cuda_backend/cuda_runtime.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <utility>

#include "topology/sysfs.h"

namespace troupe::cuda {

using namespace device;

namespace {

/// A range of so many pieces is refused: 65,536 of the 2 MiB that virtual memory is made of at least are 128 GiB.
constexpr std::size_t kMaxPieces = 1u << 17;

std::string nameOf(const PointerFacts& facts) {
    return facts.kind == MemoryKind::Device ? "cuda:" + std::to_string(facts.ordinal) : kindName(facts.kind);
}

/// By the attributes of a GPU; those that a driver does not know are 0.
NicWrites nicWrites(int ordering, int flush_options) {
    if (ordering >= static_cast<int>(api::WritesOrdering::Owner)) return NicWrites::Ordered;
    const bool can_flush = (static_cast<unsigned>(flush_options) & static_cast<unsigned>(api::FlushOptions::Host)) != 0;
    return can_flush ? NicWrites::Flushed : NicWrites::Unseen;
}

Status mixed(const ByteRange& range, const std::string& first, std::uint64_t addr, const PointerFacts& other) {
    return {Code::InvalidArgument, range.toString() + " begins as memory of the kind " + first + ", but " +
                                       hexAddress(addr) + " is " + nameOf(other) +
                                       (other.kind == MemoryKind::Host ? ", or no memory at all" : "") +
                                       ": register what is on one device at a time"};
}

}  // namespace

int numaNodeOfPci(const std::string& pci, const std::string& root) {
    return sysfs::numaNode(std::filesystem::path(root) / "bus/pci/devices" / pci);
}

Result<std::shared_ptr<CudaRuntime>> CudaRuntime::create(const CudaDriver::Source& source) {
    auto driver = CudaDriver::load(source);
    if (!driver) return driver.status();
    std::shared_ptr<CudaRuntime> runtime(new CudaRuntime(std::move(*driver)));
    if (Status status = runtime->look(); !status) return status;
    return runtime;
}

Status CudaRuntime::look() {
    int devices = 0;
    if (const Outcome counted = invoke(driver_->calls().deviceGetCount, &devices); !counted)
        return driver_->toStatus(counted);
    for (int ordinal = 0; ordinal < devices; ++ordinal) {
        auto info = lookAt(ordinal);
        if (!info) return info.status().withContext("cuda:" + std::to_string(ordinal));
        devices_.push_back(std::move(*info));
    }
    open_.resize(devices_.size());
    return {};
}

Result<DeviceInfo> CudaRuntime::lookAt(int ordinal) const {
    const api::Calls& calls = driver_->calls();
    DeviceInfo info;
    info.ordinal = ordinal;
    info.location = "cuda:" + std::to_string(ordinal);
    api::DeviceHandle device = 0;
    std::array<char, 256> name{};
    std::array<char, 32> pci{};
    api::Uuid uuid{};
    std::size_t bytes = 0;
    for (const Outcome& outcome :
         {invoke(calls.deviceGet, &device, ordinal),
          invoke(calls.deviceGetName, name.data(), static_cast<int>(name.size() - 1), device),
          invoke(calls.deviceGetUuid, &uuid, device), invoke(calls.deviceTotalMem, &bytes, device),
          invoke(calls.deviceGetPciBusId, pci.data(), static_cast<int>(pci.size() - 1), device)})
        if (!outcome) return driver_->toStatus(outcome);
    info.name = name.data();
    info.pci = pci.data();
    // As sysfs writes it.
    std::transform(info.pci.begin(), info.pci.end(), info.pci.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    static_assert(sizeof uuid == sizeof info.uuid);
    std::memcpy(info.uuid.data(), &uuid, sizeof uuid);
    info.bytes = bytes;
    // What an older driver does not know, the GPU cannot do.
    const auto attribute = [&](api::DeviceAttribute which, int otherwise = 0) {
        int value = 0;
        return invoke(calls.deviceGetAttribute, &value, which, device) ? value : otherwise;
    };
    info.major = attribute(api::DeviceAttribute::ComputeCapabilityMajor);
    info.minor = attribute(api::DeviceAttribute::ComputeCapabilityMinor);
    info.multiprocessors = attribute(api::DeviceAttribute::MultiprocessorCount);
    info.numa_node = attribute(api::DeviceAttribute::HostNumaId, -1);
    // Drivers before 12.0 do not know, and others say so on some machines.
    if (info.numa_node < 0) info.numa_node = numaNodeOfPci(info.pci);
    info.dmabuf = attribute(api::DeviceAttribute::DmaBufSupported) != 0;
    info.peer_memory = attribute(api::DeviceAttribute::GpuDirectRdmaSupported) != 0;
    info.nic_writes = nicWrites(attribute(api::DeviceAttribute::GpuDirectRdmaWritesOrdering),
                                attribute(api::DeviceAttribute::GpuDirectRdmaFlushWritesOptions));
    info.fd_handles = attribute(api::DeviceAttribute::HandleTypePosixFileDescriptorSupported) != 0;
    info.fabric_handles = attribute(api::DeviceAttribute::HandleTypeFabricSupported) != 0;
    // No attribute says it of the call as CUDA has had it since 11.7: CAN_USE_STREAM_MEM_OPS_V1 is about the one
    // before.
    info.waits_for_values = calls.streamWaitValue32.function != nullptr;
    info.host_pointers = attribute(api::DeviceAttribute::CanUseHostPointerForRegisteredMem) != 0;
    return info;
}

Status CudaRuntime::noSuchDevice(int ordinal) const {
    return {Code::NotFound, "there is no cuda:" + std::to_string(ordinal) + ": this process sees " +
                                std::to_string(devices_.size()) + " GPUs (CUDA_VISIBLE_DEVICES decides which)"};
}

Result<DeviceInfo> CudaRuntime::info(int ordinal) const {
    if (ordinal < 0 || ordinal >= count()) return noSuchDevice(ordinal);
    return devices_[static_cast<std::size_t>(ordinal)];
}

Result<std::shared_ptr<Device>> CudaRuntime::open(int ordinal) {
    auto opened = openCuda(ordinal);
    if (!opened) return opened.status();
    return std::shared_ptr<Device>(std::move(*opened));
}

Result<std::shared_ptr<CudaDevice>> CudaRuntime::openCuda(int ordinal) {
    if (ordinal < 0 || ordinal >= count()) return noSuchDevice(ordinal);
    const auto index = static_cast<std::size_t>(ordinal);
    const std::lock_guard lock(mutex_);
    if (auto there = open_[index].lock()) return there;
    auto opened = CudaDevice::open(driver_, devices_[index]);
    if (opened) open_[index] = *opened;
    return opened;
}

bool CudaRuntime::reaches(int ordinal, int peer) const {
    if (ordinal == peer) return ordinal >= 0 && ordinal < count();
    api::DeviceHandle from = 0;
    api::DeviceHandle to = 0;
    int can = 0;
    return invoke(driver_->calls().deviceGet, &from, ordinal) && invoke(driver_->calls().deviceGet, &to, peer) &&
           invoke(driver_->calls().deviceCanAccessPeer, &can, from, to) && can != 0;
}

Result<MemoryPlace> CudaRuntime::locate(const ByteRange& range) {
    if (range.length == 0 || range.wraps())
        return Status(Code::InvalidArgument, range.toString() + " is no range of memory");
    auto first = factsOf(*driver_, range.addr);
    if (!first) return first.status();
    return first->kind == MemoryKind::Device ? locateDevice(range, first->ordinal) : locateHost(range, *first);
}

/// Its two ends are looked at: memory of a GPU lies apart from the host's, so nothing of it can be between them.
Result<MemoryPlace> CudaRuntime::locateHost(const ByteRange& range, const PointerFacts& first) {
    const std::uint64_t last_addr = range.end() - 1;
    auto last = factsOf(*driver_, last_addr);
    if (!last) return last.status();
    if (last->kind == MemoryKind::Device || (first.kind == MemoryKind::Managed) != (last->kind == MemoryKind::Managed))
        return mixed(range, nameOf(first), last_addr, *last);
    MemoryPlace place;
    // Pinned in part is not pinned.
    place.kind = last->kind == MemoryKind::Host ? MemoryKind::Host : first.kind;
    place.location = kindName(place.kind);
    return place;
}

Result<MemoryPlace> CudaRuntime::locateDevice(const ByteRange& range, int ordinal) {
    // The application has memory on this GPU, so it uses it: its primary context is there, or is no surprise.
    auto device = openCuda(ordinal);
    if (!device) return device.status();
    MemoryPlace place;
    place.kind = MemoryKind::Device;
    place.device = ordinal;
    place.location = (*device)->info().location;
    for (std::uint64_t addr = range.addr; addr < range.end();) {
        auto facts = factsOf(*driver_, addr);
        if (!facts) return facts.status();
        if (facts->kind != MemoryKind::Device || facts->ordinal != ordinal)
            return mixed(range, place.location, addr, *facts);
        auto piece = (*device)->allocationAt(addr);
        if (!piece) return piece.status();
        const std::uint64_t end = std::min(range.end(), piece->allocation.end());
        piece->range = {addr, end - addr};
        place.pieces.push_back(*piece);
        addr = end;
        if (place.pieces.size() > kMaxPieces)
            return Status(Code::CapacityExceeded, range.toString() + " is made of more than " +
                                                      std::to_string(kMaxPieces) +
                                                      " allocations: register it in parts");
    }
    return place;
}

}  // namespace troupe::cuda
