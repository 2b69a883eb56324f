// VerbsNic: paths, and what the owner asks.

#include "verbs_backend/verbs_nic.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "verbs_backend/candidates.h"

namespace troupe::verbs {

namespace {

constexpr std::size_t kMaxPaths = 1u << 16;

}  // namespace

Result<std::unique_ptr<VerbsNic>> VerbsNic::create(const TransportContext& context, Shared shared, std::size_t index,
                                                   const std::string& location) {
    std::unique_ptr<VerbsNic> nic(new VerbsNic(context, std::move(shared), index, location));
    if (const Status status = nic->openDescriptors(); !status) return status;
    static_cast<void>(nic->shared_.connector->attach(index, nic->mailbox_));
    return nic;
}

VerbsNic::VerbsNic(const TransportContext& context, Shared shared, std::size_t index, const std::string& location)
    : config_(context.config),
      log_(context.log),
      incarnation_(context.incarnation),
      shared_(std::move(shared)),
      index_(index),
      device_(shared_.memory->devices()[index]),
      mailbox_(std::make_shared<Mailbox>()),
      queue_(device_->queue()),
      local_keys_(shared_.memory->keys()),
      queue_room_(device_->completions) {
    std::uint32_t seed = 0;
    std::memcpy(&seed, context.incarnation.bytes.data(), sizeof seed);
    random_.seed(seed + static_cast<std::uint32_t>(index));
    info_.name = device_->name;
    info_.transport = "rdma";
    info_.location = location;
    // A message is at most max_msg_sz (2^31 by the specification, 8 MiB for rxe).
    const std::uint64_t message = std::max<std::uint64_t>(device_->max_message, 4096);
    info_.slice_bytes = std::min({config_.slice_bytes, message, shared_.memory->chunkBytes()});
    info_.merge_bytes = info_.slice_bytes;
    info_.window_bytes = std::max(config_.rdma_window_bytes, info_.slice_bytes);
    info_.window_requests = std::max(1u, config_.rdma_lanes * config_.rdma_queue_depth);
}

Status VerbsNic::openDescriptors() {
    if (const Status status = mailbox_->open(); !status) return status;
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return errnoStatus(Code::ResourceExhausted, "epoll_create", errno);
    if (const Status watched = watch(mailbox_->fd()); !watched) return watched;
    return watch(queue_->channel()->fd);
}

Status VerbsNic::watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
    return errnoStatus(Code::ResourceExhausted, "epoll_ctl", errno);
}

VerbsNic::~VerbsNic() {
    // Unless shut was called and said otherwise, every pair is destroyed when this returns.
    static_cast<void>(shared_.connector->attach(index_, nullptr));
}

Status VerbsNic::shut() {
    // Pairs that are destroyed are the proof that the device touches no buffer any more.
    return shared_.connector->attach(index_, nullptr).withContext(info_.name);
}

// --- paths -----------------------------------------------------------------------------------------------------------

Result<PathId> VerbsNic::openPath(std::shared_ptr<const Peer> peer) {
    if (!peer || !peer->desc) return {Code::InvalidArgument, "openPath needs a peer with a descriptor"};
    const SegmentDesc& desc = *peer->desc;
    if (desc.incarnation.isNull())
        return {Code::TransportMissing, "segment '" + peer->name + "' names no incarnation: not a Troupe engine"};
    auto candidates = candidatesOf(desc, index_);
    if (candidates.empty())
        return {Code::TransportMissing,
                "segment '" + peer->name + "' has no RDMA device that " + info_.name + " could connect to"};

    auto slot = static_cast<std::size_t>(std::find(paths_.begin(), paths_.end(), nullptr) - paths_.begin());
    if (slot == kMaxPaths) return {Code::ResourceExhausted, info_.name + " has 65536 paths already"};
    // A path takes the lowest lane numbers that no living path to the same process has: when it follows a closed one,
    // the peer sees its lanes as successors and ends what the closed one left behind.
    std::uint32_t block = 0;
    const auto taken = [&](const std::unique_ptr<Path>& other) {
        return other && other->block == block && other->state->keys.peer().desc->incarnation == desc.incarnation;
    };
    while (std::any_of(paths_.begin(), paths_.end(), taken)) ++block;

    if (slot == paths_.size()) {
        paths_.emplace_back();
        slot_uses_.push_back(0);
    }
    auto path = std::make_unique<Path>();
    path->state = std::make_shared<PathState>(PathState{RemoteKeys(std::move(peer)), std::move(candidates)});
    path->id = static_cast<PathId>((slot_uses_[slot]++ & 0xffff) << 16 | slot);
    path->state->id = path->id;
    path->block = block;
    const std::uint32_t lanes = std::max(config_.rdma_lanes, 1u);
    path->state->lanes = lanes;
    for (std::uint32_t i = 0; i < lanes; ++i) {
        path->lanes.push_back(std::make_unique<Lane>(path->state, block * lanes + i));
        // Connected before there is work, so that the first request does not wait for it.
        enlist(*path->lanes.back());
    }
    const PathId id = path->id;
    paths_[slot] = std::move(path);
    return id;
}

/// Ways to the peer through the own device `own`.
std::vector<Connector::Candidate> VerbsNic::candidatesOf(const SegmentDesc& desc, std::size_t own) const {
    const Device& mine = *shared_.memory->devices()[own];
    return candidatesFor(desc, mine, own, shared_.connector->usesCm(), shared_.connector->canExchange());
}

VerbsNic::Path* VerbsNic::find(PathId id) {
    const std::size_t slot = id & 0xffff;
    return slot < paths_.size() && paths_[slot] && paths_[slot]->id == id ? paths_[slot].get() : nullptr;
}

void VerbsNic::updatePeer(PathId id, std::shared_ptr<const Peer> peer) {
    Path* path = find(id);
    if (!path || !peer || !peer->desc) return;
    // What its device has another address or number for has ended there, or is about to; and keys are found by a
    // device's place in the descriptor. The pairs of its other devices know nothing of it.
    const SegmentDesc& was = *path->state->keys.peer().desc;
    const SegmentDesc& is = *peer->desc;
    const auto is_other = [&](const Lane& lane) {
        const std::size_t at = lane.remote_device;
        return was.rdma_port != is.rdma_port || at >= was.devices.size() || at >= is.devices.size() ||
               !(was.devices[at] == is.devices[at]);
    };
    std::vector<Lane*> ending;
    for (const auto& lane : path->lanes)
        if (lane->step == Lane::Step::Up && is_other(*lane)) ending.push_back(lane.get());
    path->state->candidates = candidatesOf(is, index_);
    path->state->barren.clear();
    path->state->keys = RemoteKeys(std::move(peer));
    const TimePoint now = Clock::now();
    for (Lane* lane : ending) {
        // Nothing was lost: what is posted there goes out again, and what waits goes by the next pair.
        const Status cause(Code::PathReset, describe(*lane) + ": the peer's device has another address now");
        lane->lost = false;
        lane->incident = ++incidents_;
        beginDrain(*lane, cause, true, now, true);
    }
    if (path->state->usable) return;
    for (const auto& lane : path->lanes) enlist(*lane);
}

void VerbsNic::closePath(PathId id, const Status& cause) {
    Path* path = find(id);
    if (!path) return;
    const TimePoint now = Clock::now();
    // Of a process that is gone nobody waits for an answer.
    const bool is_gone = cause.code() == Code::PeerDown || cause.code() == Code::StaleIncarnation;
    if (is_gone)
        abandonFences(*path->state, cause);
    else
        boundFences(*path->state, cause, false, now);
    for (auto& lane : path->lanes) {
        lane->orphan = true;
        lane->reset = !is_gone;
        failWaiting(*lane, cause, false);
        if (lane->step == Lane::Step::Up) beginDrain(*lane, cause, false, now, true);
        if (lane->step == Lane::Step::Draining || lane->step == Lane::Step::Ending) {
            lane->retryable = false;
            lane->cause = cause;
        }
        if (lane->step == Lane::Step::Connecting) beginEnd(*lane, now);
        forget(*lane);
        if (lane->step != Lane::Step::Idle || lane->fences != 0) orphans_.push_back(std::move(lane));
    }
    paths_[id & 0xffff].reset();
}

void VerbsNic::resetPath(PathId id, const Status& cause) {
    Path* path = find(id);
    if (!path) return;
    const TimePoint now = Clock::now();
    boundFences(*path->state, cause, true, now);
    for (const auto& lane : path->lanes) {
        lane->incident = ++incidents_;
        failWaiting(*lane, cause, true);
        // A pair with nothing on it has nothing to end.
        if (lane->step == Lane::Step::Up && lane->queue.idle()) continue;
        lane->lost = false;
        lane->reset = true;
        if (lane->step == Lane::Step::Up) beginDrain(*lane, cause, true, now, true);
    }
}

/// One that cannot connect has nothing to do, and is no place to wait while others carry.
Lane& VerbsNic::leastBusy(Path& path) {
    Lane* best = path.lanes.front().get();
    for (std::size_t i = 1; i < path.lanes.size(); ++i) {
        Lane* const other = path.lanes[i].get();
        if (other->failed != best->failed ? best->failed : other->backlog < best->backlog) best = other;
    }
    return *best;
}

void VerbsNic::enlist(Lane& lane) {
    if (lane.is_listed) return;
    lane.is_listed = true;
    ready_.push_back(&lane);
}

// --- what the owner asks -----------------------------------------------------------------------------------------

std::size_t VerbsNic::post(PathId id, std::span<const WorkRequest> requests) {
    Path* path = find(id);
    std::size_t taken = 0;
    for (const WorkRequest& request : requests) {
        if (!path) {
            failures_.push_back({request, {Code::StaleHandle, info_.name + ": the path is closed"}, false, true});
            ++taken;
            continue;
        }
        PathState& state = *path->state;
        if (state.requests >= info_.window_requests ||
            (state.bytes != 0 && state.bytes + request.length > info_.window_bytes))
            break;
        ++taken;
        // The owner's CPU checks nothing on this transport, so the range is checked here, against its descriptor.
        if (Status status = mayCarry(state, request); !status) {
            // Memory that no device reaches is for other transports.
            const bool declined = status.code() == Code::Unsupported;
            failures_.push_back({request, std::move(status), false, true, declined, 0, 0, declined});
            continue;
        }
        state.requests += 1;
        state.bytes += request.length;
        Lane& lane = leastBusy(*path);
        lane.backlog += request.length;
        lane.waiting.push_back(request);
        enlist(lane);
    }
    return taken;
}

Status VerbsNic::mayCarry(const PathState& path, const WorkRequest& request) {
    const ByteRange local{reinterpret_cast<std::uint64_t>(request.local), request.length};
    const Status here = local_keys_.get().declined(local, request.opcode);
    return here ? path.keys.covers({request.remote, request.length}, request.opcode) : here.withContext(info_.name);
}

bool VerbsNic::arm() {
    if (!failures_.empty() || !changes_.empty() || !proven_.empty() || !early_.empty() || !ready_.empty()) return false;
    // Nothing comes by a queue that is lost; the mailbox tells of the next one.
    if (queue_lost_) return true;
    if (must_poll_) return false;
    // What was announced before is about to be looked at.
    static_cast<void>(device_->api().drainChannel(queue_->channel()));
    if (device_->api().requestNotify(queue_->get()) != 0) return false;
    armed_ = true;
    // A completion that came before the queue was armed raises no event.
    return !pollCompletions(Clock::now(), early_) && failures_.empty() && changes_.empty() && proven_.empty() &&
           ready_.empty();
}

std::map<std::string, Carried> VerbsNic::carried(PathId id) {
    Path* path = find(id);
    if (!path) return {};
    std::map<std::string, Carried> all = path->state->carried;
    const auto& devices = path->state->keys.peer().desc->devices;
    for (const auto& lane : path->lanes)
        if (lane->carried.requests != 0 && lane->remote_device < devices.size())
            all[devices[lane->remote_device].name].add(lane->carried);
    return all;
}

/// A pair has ended: what it carried goes to its path's account.
void VerbsNic::accountFor(Lane& lane) {
    const Carried carried = std::exchange(lane.carried, {});
    if (carried.requests == 0) return;
    log_->info("{}: {}: carried {} bytes in {} requests", info_.name, describe(lane), carried.bytes, carried.requests);
    const auto& devices = lane.path->keys.peer().desc->devices;
    if (lane.remote_device < devices.size()) lane.path->carried[devices[lane.remote_device].name].add(carried);
}

/// Both devices: also while there is no pair, of the last one or of what is tried first.
std::string VerbsNic::describe(const Lane& lane) const {
    std::string device = lane.peer_device;
    if (device.empty() && !lane.path->candidates.empty()) device = lane.path->candidates.front().device;
    return "segment '" + lane.path->keys.peer().name + "'" + (device.empty() ? "" : " device " + device) + " through " +
           info_.name;
}

}  // namespace troupe::verbs
