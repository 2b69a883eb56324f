// RemotePath: memory of GPUs there, which is mapped and given back by the mapper.

#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "host_backend/remote_path.h"

namespace troupe::host {

void letGo(DeviceMapper& mapper, PathNews::Parting parting) {
    mapper.give([all = std::make_shared<PathNews::Parting>(std::move(parting))] {
        // The end of the connection says that it is unmapped.
        all->imports.clear();
        if (all->socket) ::shutdown(all->socket.get(), SHUT_RDWR);
        all->socket.reset();
    });
}

/// What there is of GPUs by this connection goes: first what waits for it, then, when no GPU copies there, the
/// mappings, and then the connection. False: there is none.
bool RemotePath::partWithDevices() {
    PathNews::Parting parting;
    parting.imports = grants_.clear();
    for (Leaving& leaving : leaving_) parting.imports.push_back(std::move(leaving.import));
    leaving_.clear();
    for (const auto& import : parting.imports) takeBack(*import);
    std::erase_if(parting.imports, [](const auto& import) { return import->isGone(); });
    if (parting.imports.empty()) return false;
    parting.socket = std::move(socket_);
    const bool copying = std::any_of(parting.imports.begin(), parting.imports.end(),
                                     [this](const auto& import) { return isCopying(*import); });
    if (copying)
        news_.partings.push_back(std::move(parting));
    else
        letGo(*shared_.mapper, std::move(parting));
    return true;
}

/// Work for that memory which has not begun waits for another grant.
void RemotePath::takeBack(const DeviceImport& import) {
    for (const ByteRange& range : import.mapped())
        for (auto& [request, device] : devices_.takeBack(id_, range)) jobs_.push_back({request, 0, false, 0, device});
}

bool RemotePath::isCopying(const DeviceImport& import) const {
    const auto ranges = import.mapped();
    return std::any_of(ranges.begin(), ranges.end(),
                       [this](const ByteRange& range) { return devices_.touches(range); });
}

bool RemotePath::releaseLeaving() {
    return std::erase_if(leaving_, [this](Leaving& leaving) {
               if (isCopying(*leaving.import)) return false;
               leaving.import->giveBack({*shared_.mapper, news_.bell});
               if (!leaving.import->isGone()) return false;
               say(RevokeAck{leaving.region});
               return true;
           }) != 0;
}

void RemotePath::onMapped() {
    releaseLeaving();
    if (state_ == State::Up) reconsider();
}

/// From here on there is a mapper, and a bell that it rings.
Status RemotePath::needMapper() {
    if (news_.bell) return {};
    if (const Status started = shared_.mapper->start(); !started) return started;
    auto bell = std::make_shared<MapperBell>();
    if (const Status opened = bell->open(); !opened) return opened;
    if (const Status watched = links_.watch(bell->fd()); !watched) return watched;
    news_.bell = std::move(bell);
    return {};
}

/// The first job is one that a GPU of this process does, where both ends are of GPUs and the other can be mapped; what
/// else GPUs take part in goes another way.
void RemotePath::runDevice(const GrantCache::Entry& grant, Sweep& sweep) {
    const Job job = jobs_.front();
    jobs_.pop_front();
    const WorkRequest& request = job.request;
    const std::string there = std::string("memory of ") + (grant.device ? "a GPU" : "the host") + " there";
    if (!grant.device || !job.device)
        return decline(job,
                       Status(Code::Unsupported,
                              there + ", and of " + (job.device ? job.device->memory.location : "the host") + " here"),
                       sweep.failed);
    if (!grant.range.contains({request.remote, request.length}))
        return decline(job, Status(Code::Unsupported, there + " of several allocations"), sweep.failed);
    if (const Status ready = needMapper(); !ready) return decline(job, ready, sweep.failed);
    const auto addr = grant.device->addressFor(job.device->device, request.remote, {*shared_.mapper, news_.bell});
    if (!addr) {
        // It goes on with onMapped, or with whatever else has those that wait looked at again.
        waiting_.push_back(job);
        return;
    }
    if (!*addr) return decline(job, addr->status(), sweep.failed);
    const ByteRange source{reinterpret_cast<std::uint64_t>(request.local), request.length};
    if (grant.device->isOwn() && source.overlaps({**addr, request.length}))
        return decline(
            job,
            Status(Code::Unsupported, "source " + source.toString() + " and destination overlap in memory of a GPU"),
            sweep.failed);
    DeviceSide local;
    local.addr = reinterpret_cast<std::uint64_t>(request.local);
    local.device = job.device->memory.device;
    DeviceSide remote = local;
    remote.addr = **addr;
    devices_.push(id_, request, local, remote, job.device);
}

void RemotePath::decline(const Job& job, const Status& why, std::vector<Failure>& failures) {
    // Where tcp is not, this is how the task ends.
    const Status remedy(why.code(), why.message() +
                                        "; between processes tcp carries memory of GPUs, staged, where both "
                                        "ends have that installed");
    Failure declined = failure(job.request, remedy, false);
    declined.declined = true;
    retire(job.request);
    failures.push_back(std::move(declined));
}

}  // namespace troupe::host
