#include "host_backend/host_transport.h"

#include <memory>
#include <utility>

#include "host_backend/device_jobs.h"
#include "host_backend/host_nic.h"
#include "host_backend/probe.h"
#include "host_backend/socket.h"

namespace troupe {

namespace {

/// Slices that one Nic holds at a time: enough to be busy between two posts, few enough that several loops share a
/// large request.
constexpr std::uint64_t kWindowSlices = 4;
constexpr std::uint32_t kWindowRequests = 4096;
/// Connections that wait to be accepted; one for each data loop of each process that starts at the same moment.
constexpr int kBacklog = 128;

}  // namespace

Status HostTransport::install(const TransportContext& context) {
    if (shared_) return {Code::AlreadyExists, "the host transport is installed"};
    auto shared = std::make_shared<host::HostShared>(host::HostShared{context.config,
                                                                      context.regions,
                                                                      context.incarnation,
                                                                      context.log,
                                                                      {},
                                                                      host::accessHint(),
                                                                      context.auth,
                                                                      context.staging});
    boot_id_ = readBootId();
    data_loops_ = context.data_loops;
    if (context.config.host_peers && !context.incarnation.isNull()) {
        // The incarnation in the name keeps it from being anybody else's.
        const std::string name = "troupe/" + context.incarnation.toString();
        auto listener = host::listenAt(name, kBacklog);
        if (listener) {
            listener_ = std::move(*listener);
            shared->socket = name;
        } else {
            context.log->warn("host: processes of this host go through another transport: {}",
                              listener.status().message());
        }
    }
    shared_ = std::move(shared);
    return Status::ok();
}

std::vector<Transport::PlacedNic> HostTransport::takeNics() {
    std::vector<PlacedNic> nics;
    if (!shared_) return nics;
    for (unsigned loop = 0; loop < data_loops_; ++loop) {
        NicInfo info;
        info.same_address_space = true;
        info.name = "host" + std::to_string(loop);
        info.transport = "host";
        info.slice_bytes = shared_->config.slice_bytes;
        info.merge_bytes = 0;
        info.window_bytes = kWindowSlices * info.slice_bytes;
        info.window_requests = kWindowRequests;
        nics.push_back({loop, std::make_unique<HostNic>(info, shared_, std::move(listener_), loop)});
    }
    return nics;
}

Status HostTransport::registerMemory(const Region& region) {
    if (!region.isOnDevice()) return Status::ok();
    if (!shared_ || !shared_->staging)
        return {Code::Unsupported, "host: " + region.range.toString() + " is memory of " + region.location +
                                       ", and there is no staging memory for it"};
    if (const Status ready = shared_->staging->acquire(name(), region); !ready) return ready;
    if (region.remote_accessible) shared_->exports->add(region);
    return Status::ok();
}

Status HostTransport::unregisterMemory(const Region& region) {
    if (!region.isOnDevice() || !shared_ || !shared_->staging) return Status::ok();
    shared_->exports->remove(region);
    shared_->staging->release(name(), region);
    return Status::ok();
}

void HostTransport::describe(SegmentDesc& desc) const {
    if (shared_) desc.host_socket = shared_->socket;
}

Status HostTransport::reaches(const SegmentDesc& peer) const {
    const auto no = [&](const std::string& why) {
        return Status(Code::TransportMissing, "'" + peer.name + "' " + why);
    };
    if (!shared_) return no("cannot be reached before install");
    if (peer.incarnation.isNull()) return no("names no incarnation: not a Troupe engine");
    if (peer.incarnation == shared_->incarnation) return Status::ok();
    if (!shared_->config.host_peers) return no("is another process, and host.peers is off here");
    if (boot_id_.empty() || peer.boot_id != boot_id_) return no("runs on another host, or this host has no boot id");
    if (peer.host_socket.empty())
        return no("serves no other process: host.peers is off there, or it has no unix socket");
    return Status::ok();
}

std::unique_ptr<TransportProbe> HostTransport::probe(Reactor& reactor, const SegmentDesc& peer,
                                                     std::function<void(Status)> done) const {
    const Status known = reaches(peer);
    if (!known || peer.incarnation == shared_->incarnation) {
        done(known);
        return nullptr;
    }
    // It keeps nothing of this transport: it may outlive it.
    auto probe = std::make_unique<host::Probe>(
        reactor,
        host::GreetingPlan{peer.host_socket, shared_->incarnation, peer.incarnation, shared_->hint, shared_->auth},
        shared_->config.host_probe_timeout, std::move(done));
    probe->start();
    return probe;
}

std::string HostTransport::deviceWay(const DeviceRequest& request) const {
    if (!shared_) return {};
    if (request.owner != shared_->incarnation) return shared_->ways->find(request.owner, request.there.addr);
    // Which way the bytes go makes no difference to it.
    const auto here = host::DeviceSide::of(request.here, request.from);
    const auto there = host::DeviceSide::of(request.there, request.to);
    if (here.device == host::DeviceSide::kHost && there.device == host::DeviceSide::kHost) return {};
    return host::isDirect(here, there) ? "copied by the GPU" : "staged through pinned memory";
}

}  // namespace troupe
