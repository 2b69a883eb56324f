#include "host_backend/host_transport.h"

#include <memory>

#include "host_backend/host_nic.h"

namespace troupe {

namespace {

/// Slices that one Nic holds at a time: enough to be busy between two posts, few enough that several loops share a
/// large request.
constexpr std::uint64_t kWindowSlices = 4;
constexpr std::uint32_t kWindowRequests = 4096;

}  // namespace

Status HostTransport::install(const TransportContext& context) {
    if (config_) return {Code::AlreadyExists, "the host transport is installed"};
    config_ = &context.config;
    regions_ = &context.regions;
    incarnation_ = context.incarnation;
    data_loops_ = context.data_loops;
    return Status::ok();
}

std::vector<Transport::PlacedNic> HostTransport::takeNics() {
    std::vector<PlacedNic> nics;
    if (!config_) return nics;
    for (unsigned loop = 0; loop < data_loops_; ++loop) {
        NicInfo info;
        info.name = "host" + std::to_string(loop);
        info.transport = "host";
        info.slice_bytes = config_->slice_bytes;
        info.merge_bytes = 0;
        info.window_bytes = kWindowSlices * config_->slice_bytes;
        info.window_requests = kWindowRequests;
        nics.push_back({loop, std::make_unique<HostNic>(info, incarnation_, *regions_, config_->host_chunk_bytes)});
    }
    return nics;
}

Status HostTransport::registerMemory(const Region& region) {
    if (region.location.rfind("cuda", 0) == 0)
        return {Code::Unsupported, "host: " + region.range.toString() + " lies on '" + region.location +
                                       "', which this transport cannot copy"};
    return Status::ok();
}

Status HostTransport::reaches(const SegmentDesc& peer) const {
    if (peer.incarnation == incarnation_ && !incarnation_.isNull()) return Status::ok();
    return {Code::TransportMissing, "host: '" + peer.name + "' is another process"};
}

}  // namespace troupe
