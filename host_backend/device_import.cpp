#include "host_backend/device_import.h"

#include <algorithm>
#include <utility>

namespace troupe::host {

std::optional<Result<std::uint64_t>> DeviceImport::addressFor(const std::shared_ptr<device::Device>& gpu,
                                                              std::uint64_t addr, const By& by) {
    if (is_own_) {
        was_used_ = true;
        return Result<std::uint64_t>(addr);
    }
    const auto found =
        std::find_if(mappings_.begin(), mappings_.end(), [&](const auto& mapping) { return mapping->gpu == gpu; });
    if (found == mappings_.end()) {
        const auto mapping = mappings_.emplace_back(std::make_shared<Mapping>());
        mapping->gpu = gpu;
        by.mapper.give([mapping, shared = shared_, bell = by.bell] {
            auto memory = mapping->gpu->importMemory(*shared);
            mapping->refused = memory.status();
            if (memory) mapping->memory = std::move(*memory);
            mapping->state.store(memory ? State::Mapped : State::Gone, std::memory_order_release);
            bell->ring();
        });
        return std::nullopt;
    }
    const Mapping& mapping = **found;
    switch (mapping.state.load(std::memory_order_acquire)) {
        case State::Asked: return std::nullopt;
        case State::Gone: return Result<std::uint64_t>(mapping.refused);
        case State::Mapped: break;
    }
    return Result<std::uint64_t>(std::uint64_t{mapping.memory.get()} + (addr - shared_->allocation.addr));
}

std::vector<ByteRange> DeviceImport::mapped() const {
    std::vector<ByteRange> ranges;
    if (given_back_) return ranges;
    if (was_used_) ranges.push_back(granted_);
    for (const auto& mapping : mappings_)
        if (mapping->state.load(std::memory_order_acquire) == State::Mapped)
            ranges.push_back({mapping->memory.get() + (granted_.addr - shared_->allocation.addr), granted_.length});
    return ranges;
}

void DeviceImport::giveBack(const By& by) {
    if (std::exchange(given_back_, true) || is_own_ || isGone()) return;
    by.mapper.give([mappings = mappings_, bell = by.bell] {
        for (const auto& mapping : mappings) {
            mapping->memory.reset();
            mapping->state.store(State::Gone, std::memory_order_release);
        }
        bell->ring();
    });
}

bool DeviceImport::isGone() const {
    if (is_own_) return given_back_ || !was_used_;
    return std::all_of(mappings_.begin(), mappings_.end(), [](const auto& mapping) {
        return mapping->state.load(std::memory_order_acquire) == State::Gone;
    });
}

}  // namespace troupe::host
