#include "host_backend/device_exports.h"

#include <algorithm>
#include <utility>

namespace troupe::host {

namespace {

/// Numbers of regions are counted from 1 and never come here.
constexpr std::uint64_t kPieceBit = std::uint64_t{1} << 63;
/// A place has at most 2^17 pieces.
constexpr unsigned kPieceBits = 18;

}  // namespace

const DeviceExport::Piece* DeviceExport::find(std::uint64_t addr) const {
    const auto above =
        std::upper_bound(pieces.begin(), pieces.end(), addr,
                         [](std::uint64_t value, const Piece& piece) { return value < piece.range.addr; });
    if (above == pieces.begin()) return nullptr;
    const Piece& piece = *std::prev(above);
    return piece.range.contains({addr, 1}) ? &piece : nullptr;
}

void DeviceExports::add(const Region& region) {
    auto made = std::make_shared<DeviceExport>();
    device::Device& gpu = *region.place->device;
    auto shared = gpu.exportMemory(region.place->memory, false);
    made->why = shared.status();
    if (made->why.code() == Code::Unsupported && gpu.info().fabric_handles) {
        // Memory for several hosts is often made with fabric handles alone; they serve within one as well.
        shared = gpu.exportMemory(region.place->memory, true);
        made->why =
            shared ? Status() : Status(made->why.code(), made->why.message() + "; " + shared.status().message());
    }
    if (shared) {
        for (std::size_t index = 0; index < shared->size(); ++index)
            made->pieces.push_back({kPieceBit | region.id << kPieceBits | index,
                                    region.place->memory.pieces[index].range, std::move((*shared)[index])});
    }
    const std::lock_guard lock(mutex_);
    by_region_[region.id] = std::move(made);
}

void DeviceExports::remove(const Region& region) {
    const std::lock_guard lock(mutex_);
    by_region_.erase(region.id);
}

std::shared_ptr<const DeviceExport> DeviceExports::find(std::uint64_t region) const {
    const std::lock_guard lock(mutex_);
    const auto found = by_region_.find(region);
    return found == by_region_.end() ? nullptr : found->second;
}

}  // namespace troupe::host
