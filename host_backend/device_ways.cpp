#include "host_backend/device_ways.h"

#include <utility>

namespace troupe::host {

void DeviceWays::add(const Incarnation& owner, const ByteRange& range, std::weak_ptr<const device::SharedMemory> memory,
                     bool is_own) {
    const std::lock_guard lock(mutex_);
    std::erase_if(given_, [](const Given& each) { return each.memory.expired(); });
    given_.push_back({owner, range, std::move(memory), is_own});
}

std::string DeviceWays::find(const Incarnation& owner, std::uint64_t addr) const {
    const std::lock_guard lock(mutex_);
    for (const Given& each : given_) {
        if (each.owner != owner || addr - each.range.addr >= each.range.length) continue;
        const auto memory = each.memory.lock();
        if (!memory) continue;
        if (each.is_own) return "copied by the GPU";
        switch (memory->kind) {
            case device::ShareKind::Ipc: return "mapped by an IPC handle";
            case device::ShareKind::File: return "mapped by its descriptor";
            case device::ShareKind::Fabric: return "mapped by its fabric handle";
        }
    }
    return "mapped";
}

}  // namespace troupe::host
