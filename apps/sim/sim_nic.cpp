#include "apps/sim/sim_nic.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

namespace {

// Of a peer's request, worked on in one go.
constexpr std::uint64_t kChunk = 128;
constexpr auto kLongestChunk = 20 * kMicrosecond;

// Between a reset and the last thing that the device does for a request.
constexpr auto kLongestFlush = 500 * kMicrosecond;

// How long what could not be quiesced goes on.
constexpr auto kLongestLate = 50 * kMillisecond;

constexpr std::size_t kTakenPerPoll = 8;

// Of every Fence; those of requests are larger.
constexpr std::uint64_t kFenceId = 0;

// How long lost WRITEs wait to be fenced, and between two tries to get a path back, doubled each time.
constexpr auto kFenceBound = 50 * kMillisecond;
constexpr auto kFirstTry = 500 * kMicrosecond;
constexpr unsigned kMostDoublings = 6;

std::uint64_t address(const std::byte* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

Packet Packet::answer(Kind its_kind) const {
    Packet packet;
    packet.kind = its_kind;
    packet.from_host = to_host;
    packet.from_nic = to_nic;
    packet.to_host = from_host;
    packet.to_nic = from_nic;
    packet.from = expect;
    packet.expect = from;
    packet.owner = owner;
    packet.epoch = epoch;
    packet.id = id;
    packet.addr = addr;
    packet.length = length;
    packet.task = task;
    return packet;
}

SimNic::SimNic(World& world, Network& network, Ledger& ledger, const Seat& seat, unsigned index, unsigned installs,
               NicInfo info, NicCharacter character, const TransportContext& context, std::vector<SimNic*>& registry)
    : world_(world),
      network_(network),
      ledger_(ledger),
      seat_(seat),
      index_(index),
      port_(installs * kNicPorts + index),
      info_(std::move(info)),
      character_(character),
      self_(context.incarnation),
      registry_(registry),
      regions_(context.regions.regions()),
      next_id_((static_cast<std::uint64_t>(index) + 1) << 32),
      // What its predecessor in this process sent is of an earlier epoch.
      next_epoch_((static_cast<std::uint64_t>(installs) << 32) + 1) {
    network_.addNic(seat_.host, port_, this);
    registry_[index_] = this;
}

/// What it has sent, it takes back no more: the owner fails it, and nobody asks the peer.
Status SimNic::shut() {
    for (const auto& [id, posted] : posted_)
        if (posted.request.opcode == Opcode::Write && posted.attempts != 0) mayLinger(posted.request);
    for (const auto& [id, path] : paths_)
        for (const Failure& failure : path.unfenced) mayLinger(failure.request);
    return {};
}

void SimNic::mayLinger(const WorkRequest& request) const {
    ledger_.mayLinger(seat_.host, {address(request.local), request.length});
}

/// The device's end is the proof that nothing touches a buffer any more.
SimNic::~SimNic() {
    network_.removeNic(seat_.host, port_, this);
    registry_[index_] = nullptr;
}

// --- paths -------------------------------------------------------------------------------------------------------

std::optional<unsigned> SimNic::nicOf(const SegmentDesc& desc) const {
    const auto& ports = desc.lane_ports;
    const auto port = std::find_if(ports.begin(), ports.end(),
                                   [this](std::uint16_t each) { return (each - kFirstNicPort) % kNicPorts == index_; });
    return port == ports.end() ? std::nullopt : std::optional<unsigned>(*port - kFirstNicPort);
}

bool SimNic::isSamePlace(const Peer& was, const Peer& is) const {
    return was.host == is.host && nicOf(*was.desc) == nicOf(*is.desc);
}

Result<PathId> SimNic::openPath(std::shared_ptr<const Peer> peer) {
    Path path;
    path.host = hostOfAddress(peer->host);
    const auto nic = nicOf(*peer->desc);
    if (path.host < 0 || !nic)
        return Status(Code::TransportMissing, "segment " + peer->name + " serves no Nic like " + info_.name);
    path.nic = *nic;
    path.peer = std::move(peer);
    path.epoch = next_epoch_++;
    paths_.emplace(next_path_, std::move(path));
    return next_path_++;
}

void SimNic::closePath(PathId path, const Status& cause) {
    if (paths_.count(path) == 0) return world_.fail(seat_.label + ": closePath of a path that is not open");
    endPath(path, cause, false);
    abandonFence(paths_.at(path), cause, false);
    paths_.erase(path);
}

void SimNic::resetPath(PathId path, const Status& cause) {
    if (paths_.count(path) == 0) return world_.fail(seat_.label + ": resetPath of a path that is not open");
    world_.say("{} {}: path to {} is reset", seat_.label, info_.name, paths_.at(path).peer->name);
    endPath(path, cause, true);
    // A deadline waits for no peer, unless the Nic asks it anyhow.
    if (!character_.fences_all || cause.code() == Code::PeerDown) abandonFence(paths_.at(path), cause, true);
}

void SimNic::endPath(PathId id, const Status& cause, bool retryable, bool lost) {
    Path& path = paths_.at(id);
    path.epoch = next_epoch_++;
    path.bytes = 0;
    path.requests = 0;
    ++incidents_;
    for (auto& [number, posted] : posted_) {
        if (posted.path != id) continue;
        // What is dying already and was lost then is nobody's to wait for any more.
        posted.is_lost = posted.dying ? posted.is_lost && lost : lost;
        if (posted.dying) continue;
        posted.incident = incidents_;
        die(posted, cause, retryable);
    }
}

/// The way to the peer is gone: says so, and tries to get it back.
void SimNic::losePath(PathId id, const Status& cause) {
    endPath(id, cause, true, true);
    Path& path = paths_.at(id);
    world_.count("paths_lost");
    world_.say("{} {}: path to {} is lost: {}", seat_.label, info_.name, path.peer->name, cause.message());
    path.lost = true;
    changes_.push_back({id, false});
    path.next_try = seat_.ahead + world_.now() + kFirstTry * (1 << std::min(path.tries, kMostDoublings));
}

/// Asks the peer to take in nothing of an earlier epoch. Over its own link the answer shows that the path is there
/// again; while that is down another Nic of the process may at least have the lost WRITEs fenced.
void SimNic::tryPath(Path& path) {
    path.next_try = now_ + kFirstTry * (1 << std::min(++path.tries, kMostDoublings));
    Packet packet;
    packet.kind = Packet::Kind::Fence;
    packet.from_host = seat_.host;
    packet.from_nic = port_;
    if (down_) {
        const auto other = std::find_if(registry_.begin(), registry_.end(),
                                        [](const SimNic* nic) { return nic != nullptr && !nic->down_; });
        if (other == registry_.end()) return;
        packet.from_nic = (*other)->port_;
    }
    packet.owner = index_;
    packet.id = kFenceId;
    packet.to_host = path.host;
    packet.to_nic = path.nic;
    packet.from = self_;
    packet.expect = path.peer->desc->incarnation;
    packet.epoch = path.epoch;
    network_.send(std::move(packet));
}

void SimNic::takeFenced(const Packet& packet) {
    for (auto& [id, path] : paths_) {
        if (path.host != packet.from_host || path.nic != packet.from_nic || path.epoch != packet.epoch) continue;
        if (path.peer->desc->incarnation != packet.from) continue;
        giveBack(path, true);
        // Its target may be gone, which fences, too.
        if (packet.kind != Packet::Kind::Fenced || !path.lost || packet.to_nic != port_ || down_) return;
        path.lost = false;
        path.tries = 0;
        path.next_try = kForever;
        changes_.push_back({id, true});
        world_.count("paths_returned");
        world_.say("{} {}: path to {} is there again", seat_.label, info_.name, path.peer->name);
        return;
    }
}

void SimNic::giveBack(Path& path, bool fenced) {
    for (Failure& failure : path.unfenced) {
        failure.fenced = fenced;
        if (!failure.fenced) mayLinger(failure.request);
        given_back_.push_back(std::move(failure));
        world_.count(fenced ? "writes_fenced" : "writes_unfenced");
    }
    path.unfenced.clear();
    path.fence_until = kForever;
    if (path.lost) return;
    path.tries = 0;
    path.next_try = kForever;
}

void SimNic::abandonFence(Path& path, const Status& cause, bool retryable) {
    for (Failure& failure : path.unfenced) {
        failure.cause = cause;
        failure.retryable = retryable;
    }
    giveBack(path, false);
}

bool SimNic::idle() const {
    return posted_.empty() && given_back_.empty() &&
           std::all_of(paths_.begin(), paths_.end(), [](const auto& each) { return each.second.unfenced.empty(); });
}

std::vector<int> SimNic::paths() const {
    std::vector<int> hosts;
    for (const auto& [id, path] : paths_) hosts.push_back(path.host);
    return hosts;
}

std::uint64_t SimNic::lateBytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [id, late] : late_) bytes += late.request.length;
    return bytes;
}

bool SimNic::lateIn(const ByteRange& range) const {
    return std::any_of(late_.begin(), late_.end(), [&](const auto& each) {
        const WorkRequest& request = each.second.request;
        return range.overlaps({address(request.local), request.length});
    });
}

void SimNic::die(Posted& posted, const Status& cause, bool retryable) {
    posted.dying = true;
    posted.cause = cause;
    posted.retryable = retryable;
    posted.next = seat_.ahead + world_.now() + world_.span({}, kLongestFlush);
}

/// The last that is heard of a request which failed.
void SimNic::bury(std::uint64_t id, Posted& posted, Sweep& sweep) {
    const WorkRequest& request = posted.request;
    const bool read = request.opcode == Opcode::Read;
    const bool late = world_.chance(character_.late);
    // Until here the device may touch the buffer, and does.
    if (read)
        ledger_.writeLocal(seat_.host, address(request.local), std::vector<std::byte>(request.length, std::byte{0xee}));
    else
        ledger_.readLocal(seat_.host, address(request.local), request.length);
    // READs leave nothing at the peer, and what was never sent neither.
    Failure failure{request,         posted.cause, posted.retryable, !late, posted.attempts == 0,
                    posted.incident, late ? id : 0};
    const auto path = paths_.find(posted.path);
    const bool waits = posted.is_lost || (character_.fences_all && posted.cause.code() != Code::PeerDown);
    if (!read && waits && !late && !failure.fenced && path != paths_.end()) {
        path->second.unfenced.push_back(std::move(failure));
        path->second.fence_until = std::min(path->second.fence_until, now_ + kFenceBound);
        if (!path->second.lost) path->second.next_try = now_;
    } else {
        if (!read && !failure.fenced) mayLinger(request);
        sweep.failed.push_back(std::move(failure));
    }
    if (!late) return;
    world_.count("late_completions");
    Posted goes_on = posted;
    goes_on.next = seat_.ahead + world_.now() + world_.span(kMillisecond, kLongestLate);
    if (world_.chance(character_.never)) goes_on.lost = true;
    world_.count(goes_on.lost ? "never_quiesced" : "quiesced_late");
    late_.emplace(id, std::move(goes_on));
}

void SimNic::setDown(bool down) {
    down_ = down;
    if (!down) {
        // What was held against the paths was the link's fault.
        for (auto& [id, path] : paths_) {
            if (!path.lost) continue;
            path.tries = 0;
            path.next_try = seat_.ahead + world_.now();
        }
        return;
    }
    const Status lost(Code::ConnectionLost, "the link of " + info_.name + " went down");
    for (const auto& [id, path] : paths_) losePath(id, lost);
    jobs_.clear();
    inbox_.clear();
    for (auto& [key, caller] : callers_) caller.begun.clear();
}

// --- posting -----------------------------------------------------------------------------------------------------

std::size_t SimNic::post(PathId id, std::span<const WorkRequest> requests) {
    const auto found = paths_.find(id);
    if (found == paths_.end()) {
        world_.fail(seat_.label + ": post on a path that is not open");
        return requests.size();
    }
    Path& path = found->second;
    std::size_t taken = 0;
    for (const WorkRequest& request : requests) {
        if (path.requests >= info_.window_requests) break;
        const ByteRange local{address(request.local), request.length};
        if (request.length == 0 || request.length > info_.slice_bytes)
            world_.fail(fmt::format("{}: a work request of {} bytes", seat_.label, request.length));
        for (const auto& [number, late] : late_)
            if (local.overlaps({address(late.request.local), late.request.length}))
                world_.fail(seat_.label + ": a buffer is used again before the earlier attempt is quiesced");
        Posted posted;
        posted.path = id;
        posted.request = request;
        posted.epoch = path.epoch;
        posted_.emplace(next_id_++, std::move(posted));
        path.bytes += request.length;
        ++path.requests;
        ++taken;
    }
    return taken;
}

void SimNic::transmit(std::uint64_t id, Posted& posted) {
    const Path& path = paths_.at(posted.path);
    ++posted.attempts;
    posted.next = now_ + character_.patience * std::min(posted.attempts, 8u);
    if (down_) return;
    Packet packet;
    packet.kind = posted.request.opcode == Opcode::Read ? Packet::Kind::Read : Packet::Kind::Write;
    packet.from_host = seat_.host;
    packet.from_nic = port_;
    packet.owner = index_;
    packet.to_host = path.host;
    packet.to_nic = path.nic;
    packet.from = self_;
    packet.expect = path.peer->desc->incarnation;
    packet.epoch = posted.epoch;
    packet.id = id;
    packet.addr = posted.request.remote;
    packet.length = posted.request.length;
    packet.task = ledger_.ownerOf(seat_.host, address(posted.request.local));
    if (packet.kind == Packet::Kind::Write)
        packet.payload = ledger_.readLocal(seat_.host, address(posted.request.local), posted.request.length);
    network_.send(std::move(packet));
}

void SimNic::forget(std::uint64_t id) {
    const auto found = posted_.find(id);
    if (const auto path = paths_.find(found->second.path);
        path != paths_.end() && path->second.epoch == found->second.epoch) {
        path->second.bytes -= found->second.request.length;
        --path->second.requests;
    }
    posted_.erase(found);
}

// --- one pass ----------------------------------------------------------------------------------------------------

bool SimNic::poll(TimePoint now, Sweep& sweep) {
    now_ = now;
    bool moved = false;
    for (std::size_t i = 0; i < kTakenPerPoll && !inbox_.empty(); ++i) {
        const Packet packet = std::move(inbox_.front());
        inbox_.pop_front();
        take(packet, sweep);
        moved = true;
    }
    for (std::size_t i = 0; i < jobs_.size();) {
        if (jobs_[i].next > now) {
            ++i;
            continue;
        }
        moved = true;
        if (work(jobs_[i]))
            jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
        else
            ++i;
    }
    std::vector<PathId> broken;
    for (auto& [id, posted] : posted_) {
        if (posted.dying || posted.lost || posted.next > now) continue;
        moved = true;
        if (character_.attempts != 0 && posted.attempts >= character_.attempts)
            broken.push_back(posted.path);
        else
            transmit(id, posted);
    }
    for (const PathId path : broken)
        losePath(path, Status(Code::ConnectionLost, paths_.at(path).peer->name + " does not answer"));
    for (auto& [id, path] : paths_) {
        if (path.next_try <= now) tryPath(path);
        if (path.fence_until <= now) giveBack(path, false);
    }
    std::vector<std::uint64_t> over;
    for (auto& [id, posted] : posted_) {
        if (!posted.dying || posted.next > now) continue;
        bury(id, posted, sweep);
        over.push_back(id);
    }
    for (const std::uint64_t id : over) forget(id);
    for (auto late = late_.begin(); late != late_.end();) {
        if (late->second.next > now) {
            ++late;
            continue;
        }
        const WorkRequest& request = late->second.request;
        if (request.opcode == Opcode::Read)
            ledger_.writeLocal(seat_.host, address(request.local),
                               std::vector<std::byte>(request.length, std::byte{0xdd}));
        else
            ledger_.readLocal(seat_.host, address(request.local), request.length);
        if (late->second.lost) {
            // And once more, for ever.
            late->second.next = now + world_.span(kMillisecond, kLongestLate);
            ++late;
            continue;
        }
        sweep.proven.push_back(late->first);
        late = late_.erase(late);
    }
    sweep.failed.insert(sweep.failed.end(), given_back_.begin(), given_back_.end());
    given_back_.clear();
    sweep.paths.insert(sweep.paths.end(), changes_.begin(), changes_.end());
    changes_.clear();
    return moved || !over.empty() || !sweep.empty();
}

TimePoint SimNic::nextDeadline() const {
    if (!inbox_.empty() || !given_back_.empty() || !changes_.empty()) return TimePoint::min();
    TimePoint next = kForever;
    for (const auto& [id, path] : paths_) next = std::min({next, path.next_try, path.fence_until});
    for (const Job& job : jobs_) next = std::min(next, job.next);
    for (const auto& [id, posted] : posted_)
        if (!posted.lost || posted.dying) next = std::min(next, posted.next);
    for (const auto& [id, late] : late_) next = std::min(next, late.next);
    return next;
}

void SimNic::take(const Packet& packet, Sweep& sweep) {
    if (down_) return;
    if (packet.isRequest())
        takeRequest(packet);
    else
        takeAnswer(packet, sweep);
}

// --- what peers ask ----------------------------------------------------------------------------------------------

void SimNic::refuse(const Packet& request, const Status& why) {
    Packet answer = request.answer(Packet::Kind::Refused);
    answer.refusal = why;
    network_.send(std::move(answer));
}

void SimNic::takeRequest(const Packet& packet) {
    if (packet.expect != self_)
        return refuse(packet, Status(Code::StaleIncarnation, "another incarnation lives there now"));
    Caller& caller = callers_[{packet.from, packet.owner}];
    if (packet.epoch < caller.epoch) return;
    if (packet.epoch > caller.epoch) {
        // A new connection ends the one before it, and what was being done for it.
        caller.epoch = packet.epoch;
        caller.begun.clear();
        caller.applied.clear();
        caller.refused.clear();
        std::erase_if(jobs_, [&](const Job& job) {
            return job.request.from == packet.from && job.request.owner == packet.owner;
        });
    }
    if (packet.kind == Packet::Kind::Fence) return network_.send(packet.answer(Packet::Kind::Fenced));
    if (caller.applied.count(packet.id) != 0) return network_.send(packet.answer(Packet::Kind::WriteDone));
    if (const auto known = caller.refused.find(packet.id); known != caller.refused.end())
        return refuse(packet, known->second);
    if (!caller.begun.insert(packet.id).second) return;
    const bool write = packet.kind == Packet::Kind::Write;
    const Status allowed = regions_.get().covers({packet.addr, packet.length}, true, write);
    if (!allowed) {
        caller.begun.erase(packet.id);
        caller.refused.emplace(packet.id, allowed);
        return refuse(packet, allowed);
    }
    Job job;
    job.request = packet;
    job.next = now_ + world_.span({}, kLongestChunk) * seat_.slowness;
    jobs_.push_back(std::move(job));
}

/// True when it is done.
bool SimNic::work(Job& job) {
    const Packet& request = job.request;
    const std::uint64_t count = std::min(kChunk, request.length - job.done);
    if (request.kind == Packet::Kind::Write) {
        ledger_.writeServed(seat_.host, request.addr + job.done, request.payload.data() + job.done, count,
                            request.task);
    } else {
        const auto part = ledger_.readServed(seat_.host, request.addr + job.done, count, request.task);
        job.read.insert(job.read.end(), part.begin(), part.end());
    }
    job.done += count;
    job.next = now_ + world_.span({}, kLongestChunk) * seat_.slowness;
    if (job.done < request.length) return false;
    Caller& caller = callers_[{request.from, request.owner}];
    caller.begun.erase(request.id);
    if (request.kind == Packet::Kind::Write) {
        caller.applied.insert(request.id);
        network_.send(request.answer(Packet::Kind::WriteDone));
    } else {
        Packet answer = request.answer(Packet::Kind::ReadData);
        answer.payload = std::move(job.read);
        network_.send(std::move(answer));
    }
    return true;
}

bool SimNic::servesPeerIn(const ByteRange& range) const {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
        return range.overlaps({job.request.addr, job.request.length});
    });
}

void SimNic::cutPeersIn(const ByteRange& range) {
    std::erase_if(jobs_, [&](const Job& job) {
        if (!range.overlaps({job.request.addr, job.request.length})) return false;
        network_.send(job.request.answer(Packet::Kind::Unreachable));
        callers_[{job.request.from, job.request.owner}].begun.erase(job.request.id);
        return true;
    });
}

// --- what peers answer -------------------------------------------------------------------------------------------

void SimNic::takeAnswer(const Packet& packet, Sweep& sweep) {
    if (packet.expect != self_) return;
    if (packet.id == kFenceId) {
        if (SimNic* const owner = registry_[packet.owner]; owner != nullptr) owner->takeFenced(packet);
        return;
    }
    const auto found = posted_.find(packet.id);
    // Of an earlier epoch, or a second time.
    if (found == posted_.end() || found->second.epoch != packet.epoch || found->second.dying || found->second.lost)
        return;
    Posted& posted = found->second;
    const WorkRequest request = posted.request;
    switch (packet.kind) {
        case Packet::Kind::Refused: {
            sweep.failed.push_back({request, packet.refusal, false, true});
            return forget(packet.id);
        }
        case Packet::Kind::Unreachable:
            return losePath(posted.path, Status(Code::ConnectionLost, "the connection was reset by the peer's host"));
        case Packet::Kind::ReadData: ledger_.writeLocal(seat_.host, address(request.local), packet.payload); break;
        default: break;
    }
    if (world_.random().below(1000) < character_.lost_completions) {
        world_.count("lost_completions");
        posted.lost = true;
        return;
    }
    sweep.complete(request.cookie, request.length);
    forget(packet.id);
}

// --- the transport -----------------------------------------------------------------------------------------------

Status SimTransport::install(const TransportContext& context) {
    if (place_.nics->size() < place_.first + place_.characters.size())
        place_.nics->resize(place_.first + place_.characters.size(), nullptr);
    for (unsigned i = 0; i < place_.characters.size(); ++i) {
        const NicCharacter& character = place_.characters[i];
        NicInfo info;
        info.name = place_.name + std::to_string(i);
        info.transport = place_.name;
        info.slice_bytes = character.slice_bytes;
        info.merge_bytes = character.merge_bytes;
        info.window_bytes = character.window_bytes;
        info.window_requests = character.window_requests;
        auto nic = std::make_unique<SimNic>(*place_.world, *place_.network, *place_.ledger, *place_.seat,
                                            place_.first + i, place_.installs, info, character, context, *place_.nics);
        nics_.push_back({i, std::move(nic)});
    }
    return Status::ok();
}

Status SimTransport::registerMemory(const Region& region) {
    if (place_.world->chance(refusals)) {
        place_.world->count("registrations_refused");
        return {Code::ResourceExhausted, "the device has no keys left"};
    }
    registered_.insert(region.id);
    return Status::ok();
}

Status SimTransport::unregisterMemory(const Region& region) {
    if (registered_.erase(region.id) == 0) place_.world->fail("a region was unregistered that was not registered");
    return Status::ok();
}

void SimTransport::describe(SegmentDesc& desc) const {
    desc.transports.push_back(name());
    for (std::uint16_t i = 0; i < place_.characters.size(); ++i)
        desc.lane_ports.push_back(
            static_cast<std::uint16_t>(kFirstNicPort + place_.installs * kNicPorts + place_.first + i));
}

Status SimTransport::reaches(const SegmentDesc& peer) const {
    const auto& theirs = peer.transports;
    if (std::find(theirs.begin(), theirs.end(), name()) != theirs.end()) return Status::ok();
    return {Code::TransportMissing, "segment " + peer.name + " has no simulated Nics"};
}

}  // namespace troupe::sim
