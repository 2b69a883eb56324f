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

Result<std::shared_ptr<Staging>> Staging::create(const std::shared_ptr<Device>& device, const StagingOptions& options,
                                                 const std::shared_ptr<PagePacking>& packing,
                                                 std::shared_ptr<DoneEvents> done_events) {
    auto out = StagingRing::create(device, options, packing);
    if (!out) return out.status();
    auto in = StagingRing::create(device, options, packing);
    if (!in) return in.status();
    auto copier = DeviceCopier::create(device, packing);
    if (!copier) return copier.status();
    auto staging = std::make_shared<Staging>();
    staging->device_ = device;
    staging->out_ = std::move(*out);
    staging->in_ = std::move(*in);
    staging->copier_ = std::move(*copier);
    staging->captures_ = std::make_shared<EventCaptures>(device);
    staging->done_events_ = std::move(done_events);
    return staging;
}

Status Staging::heldIn(const ByteRange& memory) const {
    const auto found = touched(memory);
    if (!found) return {};
    return {Code::BatchBusy, "a copy of " + device_->info().location + " from or to " + found->toString() +
                                 " was begun and has not ended; try again"};
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

/// Null: there are none of that GPU.
Result<std::shared_ptr<DoneEvents>> StagingPool::makeDoneEvents(const std::shared_ptr<Device>& device,
                                                                int numa_node) const {
    if (done_event_ == DoneEventMode::AtEnd) return std::shared_ptr<DoneEvents>();
    auto made = DoneEvents::create(device, numa_node, log_);
    if (made || made.status().code() != Code::Unsupported) return made;
    // There is another way, so that is no reason to refuse memory.
    logRecordedAtEnd(log_, *device, made.status());
    return std::shared_ptr<DoneEvents>();
}

Status StagingPool::makeRings(const PlacedMemory& place, OfDevice& of_device) const {
    StagingOptions options = options_;
    if (const int node = place.device->info().numa_node; node >= 0) options.numa_node = node;
    of_device.packing = std::make_shared<PagePacking>(place.device->info().location, log_);
    const auto done_events = makeDoneEvents(place.device, options.numa_node);
    if (!done_events) return done_events.status();
    for (unsigned loop = 0; loop < loops_; ++loop) {
        auto staging = Staging::create(place.device, options, of_device.packing, *done_events);
        if (!staging) return staging.status();
        if (pack_ != PackMode::Off && of_device.for_kernels) {
            of_device.for_kernels = (*staging)->out().isForKernels();
            if (of_device.for_kernels) of_device.for_kernels = (*staging)->in().isForKernels();
        }
        of_device.by_loop.push_back(std::move(*staging));
    }
    return {};
}

bool StagingPool::join(const std::string& transport, const Region& region) {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(region.place->memory.device);
    if (found == devices_.end()) return false;
    found->second.users.emplace(transport, region.id);
    return true;
}

Status StagingPool::acquire(const std::string& transport, const Region& region) {
    const PlacedMemory& place = *region.place;
    std::shared_ptr<PagePacking> packing;
    Status for_kernels;
    {
        // Two that are the first of a GPU: the second finds what the first has made.
        const std::lock_guard making(making_);
        if (join(transport, region)) return {};
        OfDevice made;
        if (Status status = makeRings(place, made); !status) return status;
        packing = made.packing;
        for_kernels = made.for_kernels;
        made.device = place.device;
        made.users.emplace(transport, region.id);
        connect(*place.device);
        const std::lock_guard lock(mutex_);
        devices_.emplace(place.memory.device, std::move(made));
    }
    // Until this is known pages of this GPU are moved by copies.
    if (pack_ != PackMode::Off) choosePacking(place, packing, for_kernels);
    return {};
}

void StagingPool::connect(Device& device) const {
    std::vector<std::shared_ptr<Device>> others;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [ordinal, other] : devices_) others.push_back(other.device);
    }
    // Each way by itself. Where it cannot be had a driver copies through the host's memory, which is slower.
    for (const auto& other : others)
        for (const auto& [from, to] : {std::pair{&device, other.get()}, {other.get(), &device}})
            if (const Status reached = from->reachPeer(*to); !reached && log_)
                log_->info("{}: copies between it and {} go through memory of the host: {}", from->info().location,
                           to->info().location, reached.toString());
}

/// What is in the kernel's way is said, and no reason to refuse anything.
void StagingPool::choosePacking(const PlacedMemory& place, const std::shared_ptr<PagePacking>& packing,
                                const Status& for_kernels) {
    const std::string& where = place.device->info().location;
    Kernel* kernel = nullptr;
    {
        const std::lock_guard lock(mutex_);
        kernel = &kernels_[place.memory.device];
    }
    const std::lock_guard choosing(kernel->mutex);
    Status why = for_kernels;
    if (why && !kernel->mover) {
        auto made = place.device->makeMover();
        why = made.status();
        if (made) kernel->mover = std::move(*made);
    }
    if (!why) {
        if (log_) log_->info("{}: small pages are moved by a copy each: {}", where, why.toString());
        return;
    }
    PackBorders borders;
    borders.fill(PackBorder::always());
    if (pack_ == PackMode::Auto) borders = bordersOf(place.device, *kernel);
    if (log_)
        log_->info("{}: its kernel moves pages, from the GPU: {}; to it: {}; within it: {}", where,
                   borders[0].toString(), borders[1].toString(), borders[2].toString());
    packing->use(kernel->mover, std::move(borders));
}

PackBorders StagingPool::bordersOf(const std::shared_ptr<Device>& device, Kernel& kernel) const {
    if (kernel.measured) return *kernel.measured;
    Status why;
    if (!kernel.trial) {
        auto made = PackTrial::create(device, kernel.mover, trial_);
        why = made.status();
        if (made) kernel.trial = std::move(*made);
    }
    PackTrial::Outcome outcome;
    if (why) {
        auto ran = kernel.trial->run();
        why = ran.status();
        if (ran) outcome = std::move(*ran);
    }
    if (why && outcome.is_complete) {
        kernel.measured = outcome.borders;
    } else if (log_) {
        const std::string& where = device->info().location;
        if (why)
            log_->info(
                "{}: what moves small pages faster was not measured to the end, and is again with the next rings",
                where);
        else
            log_->info("{}: what moves small pages faster is not known: {}", where,
                       why.code() == Code::Timeout ? why.message() : "it failed: " + why.toString());
    }
    // What is not known is the copies'.
    return outcome.borders;
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

Status StagingPool::copying() const {
    std::vector<std::shared_ptr<Staging>> all;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [ordinal, of_device] : devices_)
            for (const auto& staging : of_device.by_loop)
                if (staging) all.push_back(staging);
    }
    for (const auto& staging : all) {
        staging->poll();
        if (const Status held = staging->heldIn({0, UINT64_MAX}); !held) return held;
    }
    return {};
}

std::shared_ptr<Staging> StagingPool::find(unsigned loop, int ordinal) const {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(ordinal);
    return found == devices_.end() || loop >= found->second.by_loop.size() ? nullptr : found->second.by_loop[loop];
}

}  // namespace troupe::device
