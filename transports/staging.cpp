#include "transports/staging.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace troupe::device {

namespace {

/// A Nic lets go of rings that it has not used for 10 ms (StagingUser). Whoever has them last waits for the driver,
/// which no data loop is to do: within this bound it is who unregisters.
constexpr std::chrono::milliseconds kLetGoBound{100};
constexpr std::chrono::milliseconds kLetGoStep{1};

}  // namespace

Result<std::shared_ptr<Staging>> Staging::create(const std::shared_ptr<Device>& device, const StagingOptions& options) {
    auto out = StagingRing::create(device, options);
    if (!out) return out.status();
    auto in = StagingRing::create(device, options);
    if (!in) return in.status();
    auto copier = DeviceCopier::create(device);
    if (!copier) return copier.status();
    auto staging = std::make_shared<Staging>();
    staging->device_ = device;
    staging->out_ = std::move(*out);
    staging->in_ = std::move(*in);
    staging->copier_ = std::move(*copier);
    return staging;
}

bool Staging::poll() const {
    const bool sent = out_->poll();
    const bool received = in_->poll();
    return copier_->poll() || sent || received;
}

bool Staging::arm() const {
    for (StagingRing* ring : {out_.get(), in_.get()}) {
        if (!ring->arm()) return false;
        if (ring->isStarved() && !ring->hasWork()) return false;
    }
    return copier_->arm();
}

Status StagingPool::acquire(const std::string& transport, const Region& region) {
    const PlacedMemory& place = *region.place;
    const std::lock_guard lock(mutex_);
    OfDevice& of_device = devices_[place.memory.device];
    if (of_device.users.empty()) {
        StagingOptions options = options_;
        if (const int node = place.device->info().numa_node; node >= 0) options.numa_node = node;
        for (unsigned loop = 0; loop < loops_; ++loop) {
            auto staging = Staging::create(place.device, options);
            if (!staging) {
                devices_.erase(place.memory.device);
                return staging.status();
            }
            of_device.by_loop.push_back(std::move(*staging));
        }
    }
    of_device.users.emplace(transport, region.id);
    return {};
}

void StagingPool::release(const std::string& transport, const Region& region) {
    OfDevice ended;
    {
        const std::lock_guard lock(mutex_);
        const auto found = devices_.find(region.place->memory.device);
        if (found == devices_.end()) return;
        found->second.users.erase({transport, region.id});
        if (!found->second.users.empty()) return;
        ended = std::move(found->second);
        devices_.erase(found);
    }
    // Nobody gets them any more, so the count only falls.
    const auto is_used = [](const std::shared_ptr<Staging>& staging) { return staging.use_count() > 1; };
    for (auto left = kLetGoBound; left > kLetGoBound.zero(); left -= kLetGoStep) {
        if (std::none_of(ended.by_loop.begin(), ended.by_loop.end(), is_used)) break;
        std::this_thread::sleep_for(kLetGoStep);
    }
}

std::shared_ptr<Staging> StagingPool::find(unsigned loop, int ordinal) const {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(ordinal);
    return found == devices_.end() || loop >= found->second.by_loop.size() ? nullptr : found->second.by_loop[loop];
}

}  // namespace troupe::device
