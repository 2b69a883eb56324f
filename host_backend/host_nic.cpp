#include "host_backend/host_nic.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

namespace troupe {

namespace {

/// What a request costs beside its bytes, in bytes of copying: bounds a poll over many tiny ones.
constexpr std::uint64_t kRequestCost = 256;

/// Between two looks at the sockets while there is work. How stale a peer's word may be when a copy begins; a look
/// costs about 0.3 us, four small copies.
constexpr std::chrono::microseconds kLookEvery{50};
/// The same without work: the loop may be busy with other Nics, to whose requests each look would add its system call.
constexpr std::chrono::microseconds kLookEveryIdle{10};

ByteRange remoteRange(const WorkRequest& request) { return {request.remote, request.length}; }

bool overlapsItself(const WorkRequest& request) {
    return remoteRange(request).overlaps({reinterpret_cast<std::uint64_t>(request.local), request.length});
}

}  // namespace

HostNic::HostNic(NicInfo info, std::shared_ptr<const host::HostShared> shared, UniqueFd listener, unsigned loop)
    : info_(std::move(info)),
      shared_(std::move(shared)),
      regions_(shared_->regions.regions()),
      chunk_bytes_(std::max<std::uint64_t>(shared_->config.host_chunk_bytes, 1)),
      devices_(shared_->staging, loop, links_) {
    std::uint32_t seed = 0;
    std::memcpy(&seed, shared_->incarnation.bytes.data(), sizeof seed);
    news_.random.seed(seed);
    no_links_ = links_.open();
    if (!no_links_ || !listener) return;
    auto server = std::make_unique<host::GrantServer>(*shared_, links_, std::move(listener));
    if (const Status opened = server->open(); opened)
        server_ = std::move(server);
    else
        shared_->log->warn("host: other processes are not served: {}", opened.message());
}

HostNic::~HostNic() {
    // First what this process holds of others, then the wait for what others hold of it: two engines that end at the
    // same time do not wait for each other.
    paths_.clear();
    for (host::PathNews::Parting& parting : std::exchange(news_.partings, {})) {
        // What is mapped a driver does not unmap under a copy. Where it is used at its owner's addresses the end of the
        // connection would say what is not so; it stays open for as long as the process lives.
        if (isCopyingWhereItIs(parting)) static_cast<void>(parting.socket.release());
        host::letGo(*shared_->mapper, std::move(parting));
    }
    server_.reset();
}

Result<PathId> HostNic::openPath(std::shared_ptr<const Peer> peer) {
    if (!peer || !peer->desc) return {Code::InvalidArgument, info_.name + ": a path needs a peer with a descriptor"};
    const SegmentDesc& desc = *peer->desc;
    Path path;
    path.peer = peer->name;
    if (desc.incarnation != shared_->incarnation) {
        if (desc.incarnation.isNull() || desc.host_socket.empty())
            return {Code::TransportMissing, info_.name + ": '" + peer->name + "' is incarnation " +
                                                desc.incarnation.toString() + " and serves no other process; this is " +
                                                shared_->incarnation.toString()};
        if (!no_links_) return no_links_;
        path.remote = std::make_unique<host::RemotePath>(*shared_, links_, news_, devices_, info_.name, next_path_,
                                                         std::move(peer));
    }
    paths_.emplace(next_path_, std::move(path));
    return next_path_++;
}

void HostNic::updatePeer(PathId path, std::shared_ptr<const Peer> peer) {
    const auto found = paths_.find(path);
    if (found == paths_.end() || !found->second.remote) return;
    found->second.remote->update(std::move(peer));
    findDeadline();
}

void HostNic::closePath(PathId path, const Status& cause) {
    endAll(path, cause, false);
    paths_.erase(path);
    findDeadline();
}

void HostNic::resetPath(PathId path, const Status& cause) { endAll(path, cause, true); }

void HostNic::endAll(PathId id, const Status& cause, bool retryable) {
    const auto found = paths_.find(id);
    if (found == paths_.end()) return;
    if (host::RemotePath* const remote = found->second.remote.get()) {
        remote->drop(cause, retryable, ended_);
        if (std::exchange(remote->is_listed, false)) std::erase(runnable_, remote);
    }
    if (!devices_.isIdle()) [[unlikely]] {
        devices_.drop(id, cause, device_ended_);
        tellDropped(device_ended_, retryable);
    }
    if (found->second.remote) return;
    // A copy over its own source cannot begin anew: what it has written is not there to be read again. It is brought to
    // its end instead.
    const bool finishes = retryable && !jobs_.empty() && jobs_.front().path == id && started_ && done_bytes_ != 0 &&
                          overlapsItself(jobs_.front().request);
    if (!jobs_.empty() && jobs_.front().path == id && !finishes) {
        started_ = false;
        done_bytes_ = 0;
    }
    const auto keeps = [&](const Job& job) { return job.path != id; };
    const auto ends = std::stable_partition(jobs_.begin() + (finishes ? 1 : 0), jobs_.end(), keeps);
    for (auto job = ends; job != jobs_.end(); ++job) {
        ended_.push_back({job->request, cause, retryable, true, true});
        retire(*job);
    }
    jobs_.erase(ends, jobs_.end());
}

void HostNic::retire(const Job& job) {
    const auto path = paths_.find(job.path);
    if (path == paths_.end()) return;
    if (path->second.remote) return path->second.remote->retire(job.request);
    path->second.bytes -= job.request.length;
    path->second.requests -= 1;
}

std::size_t HostNic::post(PathId path, std::span<const WorkRequest> requests) {
    const auto found = paths_.find(path);
    if (found == paths_.end()) {
        const Status cause(Code::StaleHandle, info_.name + ": path " + std::to_string(path) + " is closed");
        for (const auto& request : requests) ended_.push_back({request, cause, false, true, true});
        return requests.size();
    }
    Path& target = found->second;
    host::RemotePath* const remote = target.remote.get();
    const bool any_device = remote != nullptr && regions_.get().devices() != 0;
    std::size_t taken = 0;
    // Any length is taken while there is room at all, or a request longer than the window would wait for ever.
    for (; taken < requests.size(); ++taken) {
        if (remote != nullptr) {
            if (remote->bytes() >= info_.window_bytes || remote->requests() >= info_.window_requests) break;
            if (any_device) [[unlikely]]
                pushRemote(*remote, requests[taken]);
            else
                remote->push(requests[taken]);
            continue;
        }
        if (target.bytes >= info_.window_bytes || target.requests >= info_.window_requests) break;
        target.bytes += requests[taken].length;
        target.requests += 1;
        jobs_.push_back({requests[taken], path});
    }
    if (remote != nullptr) enlist(*remote);
    return taken;
}

void HostNic::enlist(host::RemotePath& path) {
    if (path.is_listed || !path.runnable()) return;
    path.is_listed = true;
    runnable_.push_back(&path);
}

RangeFault HostNic::check(const WorkRequest& request, const RegionMap& regions) {
    const ByteRange range = remoteRange(request);
    if (last_region_.length != 0 && last_region_.contains(range)) return {};
    if (const RangeFault fault = regions.faultOf(range, true, request.opcode == Opcode::Write)) return fault;
    if (const Region* region = regions.find(range.addr); region && region->writable) last_region_ = region->range;
    return {};
}

/// Copies the next piece of the first job, at most `budget` bytes; returns how many.
std::uint64_t HostNic::copyPiece(const WorkRequest& request, std::uint64_t budget) {
    auto* const remote = reinterpret_cast<std::byte*>(request.remote);
    std::byte* const to = request.opcode == Opcode::Read ? request.local : remote;
    const std::byte* const from = request.opcode == Opcode::Read ? remote : request.local;
    const std::uint64_t left = request.length - done_bytes_;
    const std::uint64_t piece = std::min(left, budget);
    if (to == from) return left;
    const ByteRange target{reinterpret_cast<std::uintptr_t>(to), request.length};
    const ByteRange source{reinterpret_cast<std::uintptr_t>(from), request.length};
    if (!target.overlaps(source)) {
        copier_.copy(to + done_bytes_, from + done_bytes_, piece);
    } else {
        // The pieces go away from where the target lies, so that none overwrites what a later one reads.
        const std::uint64_t at = to < from ? done_bytes_ : left - piece;
        std::memmove(to + at, from + at, piece);
    }
    return piece;
}

// --- a poll ------------------------------------------------------------------------------------------------------

bool HostNic::poll(TimePoint now, Sweep& sweep) {
    bool moved = false;
    if (!devices_.isIdle()) [[unlikely]]
        moved = pollDevices(now, sweep);
    if (news_.bell && news_.bell->hear()) [[unlikely]] {
        onMapped();
        moved = true;
    }
    moved = moved || !ended_.empty();
    std::move(ended_.begin(), ended_.end(), std::back_inserter(sweep.failed));
    ended_.clear();
    // With work at hand a look at the sockets would cost more than a small copy; but what a peer says (that it takes
    // memory back, that it has ended) must be heard soon.
    const bool idle = jobs_.empty() && runnable_.empty();
    if (now - looked_at_ >= (idle ? kLookEveryIdle : kLookEvery) && look(now, sweep)) moved = true;
    if (now >= next_deadline_) {
        runTimers(now, sweep);
        moved = true;
    }
    if (!jobs_.empty() || !runnable_.empty()) {
        runAll(now, sweep);
        moved = true;
    }
    if (!news_.changes.empty()) {
        sweep.paths.insert(sweep.paths.end(), news_.changes.begin(), news_.changes.end());
        news_.changes.clear();
        moved = true;
    }
    if (!devices_.isIdle()) [[unlikely]]
        devices_.sift(now, sweep);
    return moved;
}

/// Everybody with work copies in turn; who is first alternates, since the first may use up the poll.
void HostNic::runAll(TimePoint now, Sweep& sweep) {
    std::uint64_t budget = chunk_bytes_;
    const std::size_t remotes = runnable_.size();
    const std::size_t count = remotes + (jobs_.empty() ? 0 : 1);
    bool dialed = false;
    ++turn_;
    for (std::size_t i = 0; i < count && budget > 0; ++i) {
        const std::size_t at = (turn_ + i) % count;
        if (at == remotes) {
            budget -= std::min(budget, runLocal(budget, sweep));
            continue;
        }
        host::RemotePath& path = *runnable_[at];
        dialed = dialed || !path.isUp();
        budget -= std::min(budget, path.run(budget, now, copier_, sweep));
        dialed = dialed || !path.isUp();
    }
    std::erase_if(runnable_, [](host::RemotePath* path) {
        path->is_listed = path->runnable();
        return !path->is_listed;
    });
    if (dialed) findDeadline();
}

bool HostNic::look(TimePoint now, Sweep& sweep) {
    looked_at_ = now;
    if (!no_links_) return false;
    bool moved = false;
    const auto events = links_.ready(events_);
    for (const epoll_event& event : events) {
        if (event.data.ptr == nullptr) continue;  // A bell: what it is for is looked at in each poll.
        const auto& link = *static_cast<const host::Link*>(event.data.ptr);
        switch (link.kind) {
            case host::Link::Kind::Listener:
            case host::Link::Kind::Connection:
            case host::Link::Kind::Process: moved = server_->onEvent(link, now) || moved; break;
            case host::Link::Kind::Path:
            case host::Link::Kind::PathProcess: {
                auto& path = *static_cast<host::RemotePath*>(link.owner);
                if (link.kind == host::Link::Kind::PathProcess)
                    path.onProcessEnded(sweep.failed);
                else
                    moved = path.onEvent(sweep.failed) || moved;
                enlist(path);
                break;
            }
        }
    }
    if (server_) server_->bury();
    // Also when nothing moved: a listener that finds no descriptor sets the time at which it is listened to again.
    if (!events.empty()) findDeadline();
    return moved;
}

void HostNic::runTimers(TimePoint now, Sweep& sweep) {
    if (server_) server_->runTimers(now);
    for (auto& [id, path] : paths_)
        if (path.remote) path.remote->onTimer(now, sweep.failed);
    findDeadline();
}

void HostNic::findDeadline() {
    next_deadline_ = server_ ? server_->nextDeadline() : kForever;
    for (const auto& [id, path] : paths_)
        if (path.remote) next_deadline_ = std::min(next_deadline_, path.remote->deadline());
}

/// Copies within the process; returns about how many bytes, with what the requests themselves cost.
std::uint64_t HostNic::runLocal(std::uint64_t chunk, Sweep& sweep) {
    const RegionMap& regions = regions_.get();
    last_region_ = {};
    std::uint64_t budget = chunk;
    while (!jobs_.empty() && budget > 0) {
        const Job& job = jobs_.front();
        if (!started_) {
            if (const RangeFault fault = check(job.request, regions)) {
                const auto path = paths_.find(job.path);
                const std::string who = path == paths_.end() ? std::string() : path->second.peer;
                const Status refusal(fault.code,
                                     "segment '" + who + "' through " + info_.name + ": " + fault.toString());
                sweep.failed.push_back({job.request, refusal, false, true, true});
                retire(job);
                jobs_.pop_front();
                budget -= std::min(budget, kRequestCost);
                continue;
            }
            if (regions.devices() != 0 && takeDevice(job, regions)) [[unlikely]] {
                jobs_.pop_front();
                budget -= std::min(budget, kRequestCost);
                continue;
            }
            started_ = true;
        }
        const std::uint64_t copied = copyPiece(job.request, budget);
        done_bytes_ += copied;
        budget -= std::min(budget, copied + kRequestCost);
        if (done_bytes_ < job.request.length) break;
        sweep.complete(job.request.cookie, job.request.length);
        retire(job);
        jobs_.pop_front();
        started_ = false;
        done_bytes_ = 0;
    }
    return chunk - budget;
}

// --- unregister --------------------------------------------------------------------------------------------------

bool HostNic::servesOwnIn(const ByteRange& range) const {
    return started_ && remoteRange(jobs_.front().request).overlaps(range);
}

bool HostNic::servesPeerIn(const ByteRange& range) const {
    return servesOwnIn(range) || (server_ && server_->holdsIn(range)) || devices_.serves(range);
}

void HostNic::cutPeersIn(const ByteRange& range) {
    if (!devices_.isIdle()) [[unlikely]] {
        devices_.dropIn(range,
                        Status(Code::AddressNotRegistered,
                               info_.name + ": " + range.toString() + " was unregistered during the copy"),
                        device_ended_);
        tellDropped(device_ended_, false);
    }
    if (!servesOwnIn(range)) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    started_ = false;
    done_bytes_ = 0;
    ended_.push_back({job.request,
                      Status(Code::AddressNotRegistered, info_.name + ": " + remoteRange(job.request).toString() +
                                                             " was unregistered during the copy"),
                      false, true, true});
    retire(job);
}

void HostNic::revokeIn(const RangeSet& ranges) {
    if (server_) server_->revokeIn(ranges);
}

Status HostNic::heldIn(const ByteRange& range) const {
    const Status held = server_ ? server_->heldIn(range) : Status::ok();
    return (held ? devices_.heldIn(range) : held).withContext(info_.name);
}

std::vector<Nic::Holding> HostNic::holdingsIn(const ByteRange& range) const {
    return server_ ? server_->holdingsIn(range) : std::vector<Holding>();
}

void HostNic::closeToPeers() {
    if (server_) server_->closeToPeers();
}

void HostNic::openToPeers() {
    if (server_) server_->openToPeers();
}

}  // namespace troupe
