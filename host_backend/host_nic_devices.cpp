// HostNic: memory of GPUs.

#include <sys/socket.h>

#include <utility>

#include "host_backend/host_nic.h"

namespace troupe {

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
    devices_.push(job.path, request, DeviceSide::of(here.addr, regions.find(here.addr)),
                  DeviceSide::of(there.addr, regions.find(there.addr)));
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

/// What paths let go of is unmapped, and the owner told, as soon as no GPU copies there. True when anything was.
bool HostNic::releaseParting() {
    return std::erase_if(news_.partings, [this](host::PathNews::Parting& parting) {
               for (const auto& import : parting.imports)
                   for (const ByteRange& range : import->mapped())
                       if (devices_.touches(range)) return false;
               parting.imports.clear();
               if (parting.socket) ::shutdown(parting.socket.get(), SHUT_RDWR);
               return true;
           }) != 0;
}

bool HostNic::pollDevices(TimePoint now, Sweep& sweep) {
    bool moved = devices_.poll(now, chunk_bytes_, device_ended_);
    for (auto& [id, path] : paths_)
        if (path.remote && path.remote->releaseLeaving()) moved = true;
    if (!news_.partings.empty() && releaseParting()) moved = true;
    for (const DeviceJobs::Ended& ended : std::exchange(device_ended_, {})) {
        if (ended.outcome)
            sweep.complete(ended.request.cookie, ended.request.length);
        else
            sweep.failed.push_back({ended.request, ended.outcome.withContext(info_.name), false, true, true});
        retire({ended.request, ended.path});
    }
    return moved;
}

/// What was given up: told by the next poll, or once no copy touches it.
void HostNic::tellDropped(std::vector<DeviceJobs::Ended>& dropped, bool retryable) {
    for (const DeviceJobs::Ended& ended : std::exchange(dropped, {})) {
        ended_.push_back({ended.request, ended.outcome, retryable, true, true});
        retire({ended.request, ended.path});
    }
}

}  // namespace troupe
