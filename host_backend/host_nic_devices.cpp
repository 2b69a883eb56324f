// HostNic: memory of GPUs.

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "host_backend/host_nic.h"

namespace troupe {

namespace {

/// As long as StagingUser keeps back what touches the local end.
constexpr std::chrono::milliseconds kFenceBound{1000};

}  // namespace

using host::DeviceJobs;
using host::DeviceSide;

Status HostNic::shut() { return devices_.shut().withContext(info_.name); }

/// A copy within the process that a GPU takes part in is theirs, from now on or as failed. False: a processor may do
/// it.
bool HostNic::takeDevice(const Job& job, const RegionMap& regions) {
    const WorkRequest& request = job.request;
    const ByteRange here{reinterpret_cast<std::uint64_t>(request.local), request.length};
    const ByteRange there{request.remote, request.length};
    const auto local = regions.deviceOf(here);
    const auto remote = regions.deviceOf(there);
    if (!local || !remote) {
        failTaken(job, local ? remote.status() : local.status());
        return true;
    }
    if (*local == nullptr && *remote == nullptr) return false;
    devices_.push(job.path, request, DeviceSide::of(here, regions.findTaken(here.addr)),
                  DeviceSide::of(there, regions.findTaken(there.addr)));
    return true;
}

void HostNic::failTaken(const Job& job, const Status& cause) {
    ended_.push_back({job.request, cause.withContext(info_.name), false, true, true});
    retire(job);
}

void HostNic::pushRemote(host::RemotePath& path, const WorkRequest& request) {
    const auto local = regions_.get().deviceOf({reinterpret_cast<std::uint64_t>(request.local), request.length});
    if (local)
        path.push(request, *local != nullptr ? (*local)->place.get() : nullptr);
    else
        ended_.push_back({request, local.status().withContext(info_.name), false, true, true});
}

bool HostNic::isCopyingWhereItIs(const host::PathNews::Parting& parting) const {
    return std::any_of(parting.imports.begin(), parting.imports.end(), [this](const auto& import) {
        const auto ranges = import->isOwn() ? import->mapped() : std::vector<ByteRange>();
        return std::any_of(ranges.begin(), ranges.end(),
                           [this](const ByteRange& range) { return devices_.touches(range); });
    });
}

/// What paths let go of may be unmapped, and the owner told, as soon as no GPU copies there. True when anything may.
bool HostNic::releaseParting() {
    return std::erase_if(news_.partings, [this](host::PathNews::Parting& parting) {
               for (const auto& import : parting.imports)
                   for (const ByteRange& range : import->mapped())
                       if (devices_.touches(range)) return false;
               host::letGo(*shared_->mapper, std::move(parting));
               return true;
           }) != 0;
}

/// Something was mapped, or unmapped.
void HostNic::onMapped() {
    for (auto& [id, path] : paths_) {
        if (!path.remote) continue;
        path.remote->onMapped();
        enlist(*path.remote);
    }
}

bool HostNic::pollDevices(TimePoint now, Sweep& sweep) {
    bool moved = devices_.poll(now, chunk_bytes_, device_ended_);
    for (auto& [id, path] : paths_)
        if (path.remote && path.remote->releaseLeaving()) moved = true;
    if (!news_.partings.empty() && releaseParting()) moved = true;
    for (const DeviceJobs::Ended& ended : std::exchange(device_ended_, {})) {
        if (ended.outcome) {
            sweep.complete(ended.request.cookie, ended.request.length);
            retire({ended.request, ended.path});
        } else {
            tellFailed(ended, ended.outcome.withContext(info_.name), false);
        }
    }
    if (!unfenced_.empty() && tellUnfenced(now)) moved = true;
    return moved;
}

/// What was given up.
void HostNic::tellDropped(std::vector<DeviceJobs::Ended>& dropped, bool retryable) {
    for (const DeviceJobs::Ended& ended : std::exchange(dropped, {})) tellFailed(ended, ended.outcome, retryable);
}

/// Told by the next poll, or once no copy touches the other end: what is written there from then on must not be
/// overtaken. The local end is looked after by DeviceJobs::sift.
void HostNic::tellFailed(const DeviceJobs::Ended& ended, const Status& cause, bool retryable) {
    retire({ended.request, ended.path});
    Failure failure{ended.request, cause, retryable, true, true};
    if (devices_.touches(ended.there))
        unfenced_.push_back({std::move(failure), ended.there, Clock::now()});
    else
        ended_.push_back(std::move(failure));
}

/// True when any is told.
bool HostNic::tellUnfenced(TimePoint now) {
    return std::erase_if(unfenced_, [&](Unfenced& unfenced) {
               if (devices_.touches(unfenced.there)) {
                   if (now - unfenced.since < kFenceBound) return false;
                   // Nothing that this Nic does would end it.
                   unfenced.failure.fenced = false;
                   unfenced.failure.retryable = false;
               }
               ended_.push_back(std::move(unfenced.failure));
               return true;
           }) != 0;
}

}  // namespace troupe
