#include "tcp_backend/tcp_nic.h"

#include <algorithm>
#include <cstring>

namespace troupe::tcp {

namespace {

constexpr std::size_t kMaxPaths = 1u << 16;

/// With checksums a request's whole payload is summed up before its header goes out, so slices stay short.
constexpr std::uint64_t kMaxCheckedSlice = 1u << 20;

}  // namespace

Result<std::unique_ptr<TcpNic>> TcpNic::create(const TransportContext& context, std::uint32_t index,
                                               UniqueFd listener) {
    std::unique_ptr<TcpNic> nic(new TcpNic(context, index, std::move(listener)));
    if (const Status status = nic->shared_.events.open(); !status) return status;
    if (const Status status = nic->shared_.events.add(nic->listener_, EPOLLIN); !status) return status;
    return nic;
}

TcpNic::TcpNic(const TransportContext& context, std::uint32_t index, UniqueFd listener)
    : shared_(context.config, context.regions, context.incarnation, context.log, context.auth, context.staging, index) {
    shared_.name = "tcp" + std::to_string(index);
    shared_.index = index;
    shared_.faults = context.faults;
    // Above those of its predecessor in this engine, whose connections a peer may not know to be gone yet.
    shared_.attempts = std::uint64_t{context.installation} << 32;
    std::uint32_t seed = 0;
    std::memcpy(&seed, context.incarnation.bytes.data(), sizeof seed);
    shared_.random.seed(seed + index);
    listener_.fd = std::move(listener);

    const Config& config = context.config;
    info_.name = shared_.name;
    info_.transport = "tcp";
    info_.slice_bytes = std::min(config.slice_bytes, config.tcp_crc ? kMaxCheckedSlice : kMaxRequestBytes);
    info_.merge_bytes = info_.slice_bytes;
    info_.window_bytes = std::max(config.tcp_window_bytes, info_.slice_bytes);
    info_.window_requests = std::max(config.tcp_window_requests, 1u);
}

TcpNic::~TcpNic() = default;

Status TcpNic::shut() {
    // First nothing begins any more.
    for (const auto& server : servers_)
        if (server->state() != ServerConnection::State::Closed) server->close("the Nic ends");
    paths_.clear();
    fencing_.clear();
    return shared_.gpu.shut().withContext(shared_.name);
}

/// Where the peer serves this Nic; 0: nowhere.
std::uint16_t TcpNic::portOf(const SegmentDesc& desc) const {
    return desc.lane_ports.empty() ? desc.tcp_data_port : desc.lane_ports[shared_.index % desc.lane_ports.size()];
}

bool TcpNic::isSamePlace(const Peer& was, const Peer& is) const {
    return was.host == is.host && portOf(*was.desc) == portOf(*is.desc);
}

Result<PathId> TcpNic::openPath(std::shared_ptr<const Peer> peer) {
    if (!peer || !peer->desc) return {Code::InvalidArgument, "openPath needs a peer with a descriptor"};
    const SegmentDesc& desc = *peer->desc;
    if (desc.incarnation.isNull())
        return {Code::TransportMissing, "segment '" + peer->name + "' names no incarnation: not a Troupe engine"};
    const std::uint16_t port = portOf(desc);
    if (port == 0) return {Code::TransportMissing, "segment '" + peer->name + "' has no TCP data port"};
    const auto address = SocketAddress::fromNumeric(peer->host, port);
    if (!address.isOk()) return address.status().withContext("segment '" + peer->name + "'");

    auto slot = static_cast<std::size_t>(std::find(paths_.begin(), paths_.end(), nullptr) - paths_.begin());
    if (slot == kMaxPaths) return {Code::ResourceExhausted, shared_.name + " has 65536 paths already"};
    // A path takes the lowest lane numbers that no living path to the same process has: when it follows a closed one,
    // the peer sees its lanes as successors and drops what the closed one left behind.
    std::uint32_t block = 0;
    const auto taken = [&](const std::unique_ptr<Path>& other) {
        return other && other->block == block && other->state.peer->desc->incarnation == desc.incarnation;
    };
    while (std::any_of(paths_.begin(), paths_.end(), taken) || std::any_of(fencing_.begin(), fencing_.end(), taken))
        ++block;

    if (slot == paths_.size()) {
        paths_.emplace_back();
        slot_uses_.push_back(0);
    }
    auto path = std::make_unique<Path>();
    path->state.peer = std::move(peer);
    path->state.address = *address;
    path->id = static_cast<PathId>((slot_uses_[slot]++ & 0xffff) << 16 | slot);
    path->state.id = path->id;
    path->block = block;
    const std::uint32_t lanes = std::max(shared_.config.tcp_lanes, 1u);
    path->state.lanes = lanes;
    for (std::uint32_t i = 0; i < lanes; ++i) {
        path->lanes.push_back(std::make_unique<Lane>(shared_, path->state, block * lanes + i));
        enlist(*path->lanes.back());
    }
    const PathId id = path->id;
    paths_[slot] = std::move(path);
    return id;
}

TcpNic::Path* TcpNic::find(PathId id) {
    const std::size_t slot = id & 0xffff;
    return slot < paths_.size() && paths_[slot] && paths_[slot]->id == id ? paths_[slot].get() : nullptr;
}

void TcpNic::closePath(PathId id, const Status& cause) {
    Path* path = find(id);
    if (!path) return;
    for (const auto& lane : path->lanes) end(*lane, cause, false);
    shared_.gpu.drop(id, cause, false, failures_);
    auto& slot = paths_[id & 0xffff];
    if (isUnfenced(*path))
        fencing_.push_back(std::move(slot));
    else
        slot.reset();
}

void TcpNic::resetPath(PathId id, const Status& cause) {
    Path* path = find(id);
    if (!path) return;
    for (const auto& lane : path->lanes) end(*lane, cause, true);
    shared_.gpu.drop(id, cause, true, failures_);
}

void TcpNic::end(Lane& lane, const Status& cause, bool retryable) {
    lane.end(cause, retryable, failures_);
    forget(lane);
    if (lane.isUnfenced()) enlist(lane);
}

bool TcpNic::isUnfenced(const Path& path) {
    return std::any_of(path.lanes.begin(), path.lanes.end(), [](const auto& lane) { return lane->isUnfenced(); });
}

/// At the end of a poll: events may name their lanes until then.
void TcpNic::forgetFenced() {
    std::erase_if(fencing_, [this](const std::unique_ptr<Path>& path) {
        if (isUnfenced(*path)) return false;
        for (const auto& lane : path->lanes) forget(*lane);
        return true;
    });
}

void TcpNic::forget(Lane& lane) {
    if (lane.is_active) std::erase(active_, &lane);
    if (lane.is_pending) std::erase(pending_, &lane);
    lane.is_active = false;
    lane.is_pending = false;
}

void TcpNic::enlist(Lane& lane) {
    if (lane.state() == Lane::State::Up) {
        if (lane.is_active) return;
        lane.is_active = true;
        active_.push_back(&lane);
    } else if (!lane.is_pending) {
        lane.is_pending = true;
        pending_.push_back(&lane);
        start_pending_ = true;
    }
}

Lane& TcpNic::leastBusy(Path& path) {
    Lane* best = path.lanes.front().get();
    for (std::size_t i = 1; i < path.lanes.size(); ++i)
        if (path.lanes[i]->backlogBytes() < best->backlogBytes()) best = path.lanes[i].get();
    return *best;
}

std::size_t TcpNic::post(PathId id, std::span<const WorkRequest> requests) {
    Path* path = find(id);
    const std::uint64_t longest = shared_.config.tcp_crc ? kMaxCheckedBytes : kMaxRequestBytes;
    const bool any_gpu = shared_.gpu.mayBe();
    std::size_t taken = 0;
    for (const WorkRequest& request : requests) {
        int device = Gpu::kNone;
        if (any_gpu && !findDevice(request, device)) [[unlikely]] {
            ++taken;
            continue;
        }
        if (!path) {
            failures_.push_back({request, {Code::StaleHandle, shared_.name + ": the path is closed"}, false, true});
        } else if (request.length > longest) {
            failures_.push_back(
                {request,
                 {Code::InvalidArgument, shared_.name + ": a request of " + std::to_string(request.length) +
                                             " bytes, at most " + std::to_string(longest)},
                 false,
                 true});
        } else {
            PathState& state = path->state;
            if (state.requests >= info_.window_requests ||
                (state.bytes != 0 && state.bytes + request.length > info_.window_bytes))
                break;
            state.requests += 1;
            state.bytes += request.length;
            Lane& lane = leastBusy(*path);
            lane.push(request, device);
            if (!lane.is_active) enlist(lane);
        }
        ++taken;
    }
    return taken;
}

/// Where the local memory of a request is. False: that cannot be told, and the request has failed.
bool TcpNic::findDevice(const WorkRequest& request, int& device) {
    const auto found = shared_.gpu.deviceOf({reinterpret_cast<std::uint64_t>(request.local), request.length});
    if (found)
        device = *found;
    else
        failures_.push_back({request, found.status().withContext(shared_.name), false, true, true});
    return found.isOk();
}

bool TcpNic::arm() {
    if (!failures_.empty() || start_pending_) return false;
    if (shared_.gpu.isActive() && !shared_.gpu.arm()) return false;
    for (Lane* lane : active_) {
        const bool sends = lane->hasUnsent() && !lane->waitsForGpu();
        if (sends && !lane->isBlocked()) return false;
        std::uint32_t interest = lane->isStarved() ? 0u : EPOLLIN;
        if (lane->hasUnsent() && lane->isBlocked()) interest |= EPOLLOUT;
        shared_.events.setInterest(*lane, interest);
    }
    for (ServerConnection* server : hot_) {
        std::uint32_t interest = server->isPaused() || server->isStarved() ? 0u : EPOLLIN;
        // What waits for the socket may come before what waits for a GPU.
        if (server->hasUnsent() && (!server->waitsForGpu() || server->isBlocked())) interest |= EPOLLOUT;
        shared_.events.setInterest(*server, interest);
    }
    return true;
}

bool TcpNic::servesPeerIn(const ByteRange& range) const {
    return std::any_of(servers_.begin(), servers_.end(), [&](const auto& server) { return server->touches(range); }) ||
           shared_.gpu.touches(range);
}

Status TcpNic::heldIn(const ByteRange& range) const {
    // Of everything this is asked when the Nic is to leave, while its peers may still be at work: what is under way
    // then is waited for by shut().
    if (range.length == UINT64_MAX) return {};
    return shared_.gpu.heldIn(range).withContext(shared_.name);
}

void TcpNic::cutPeersIn(const ByteRange& range) {
    for (const auto& server : servers_) {
        if (!server->touches(range)) continue;
        server->close("the memory it was working on is being unregistered");
        anyone_closed_ = true;
    }
    bury();
}

}  // namespace troupe::tcp
