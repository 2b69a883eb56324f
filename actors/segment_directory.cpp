#include "actors/segment_directory.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <caf/behavior.hpp>
#include <caf/system_messages.hpp>

#include "actors/peer_monitor.h"

namespace troupe {

namespace {

// Index 0 is never a peer and index 1 is the local segment (kLocalSegmentID); remote ones follow.
constexpr std::uint32_t kLocalIndex = 1;
constexpr std::uint32_t kFirstRemoteIndex = 2;

// Pause before a monitor that ended by a defect is replaced; doubled for each, up to 64 times.
constexpr auto kRestartPause = std::chrono::milliseconds(10);

}  // namespace

SegmentDirectory::SegmentDirectory(caf::actor_config& config, Loop& loop, Local local,
                                   std::unique_ptr<MetadataStore> store, const RegistrationTable& regions,
                                   SegmentBoard& board, const Config& settings, Logger log)
    : HostedActor(config, loop, std::move(log)),
      local_(std::move(local)),
      store_(std::move(store)),
      regions_(regions),
      board_(board),
      settings_(settings),
      ids_(kFirstRemoteIndex, SegmentBoard::kMaxSegments) {}

caf::behavior SegmentDirectory::make_behavior() {
    set_down_handler([this](const caf::down_msg& down) {
        if (std::erase_if(subscribers_, [&](const caf::actor& each) { return each.address() == down.source; }) == 0)
            monitorEnded(down);
    });
    // A store may call back from threads of its own.
    loop().keepBy(this);
    remote_faults_ = std::make_unique<RemoteFaults>(loop(), settings_.faults_remote, log_);
    if (store_) beginWithStore();
    return {
        [this](const OpenSegment& request) { open(request); },
        [this](const CloseSegment& request) { close(request); },
        [this](const SyncSegments& request) { sync(request); },
        [this](const ProbePeer& request) { probe(request); },
        [this](const AskPeer& request) { ask(request); },
        [this](const AnswerPeer& request) { answerPeer(request); },
        [this](const AskerLeft& left) {
            if (remote_faults_) remote_faults_->askerLeft(left.connection);
            for (const InstalledTransport& entry : transports_) entry.transport->askerLeft(left.connection);
        },
        [this](const ExplainSegment& request) { explain(request); },
        [this](const PublishLocal& request) { publishLocal(request); },
        [this](const TransportDescribedAnew&) { describedAnew(); },
        [this](const DescribeLocal& request) { describeLocal(request); },
        [this](const SubscribePeers& request) {
            // The struct's own default names nobody, whom CAF cannot monitor.
            if (!request.subscriber) return;
            subscribers_.push_back(request.subscriber);
            monitor(request.subscriber);
        },
        [this](const PeerDescribed& event) { described(event); },
        [this](const PeerConnecting& event) { connecting(event); },
        [this](const PeerTrouble& event) { troubled(event); },
        [this](const SuspectPeer& event) { suspect(event); },
        [this](const DataPlane& plane) { data_plane_ = plane; },
        [this](const TransportsChanged& change) { transportsChanged(change); },
        [this](const Shutdown& request) {
            for (auto& [index, entry] : entries_)
                if (entry->monitor) send(std::exchange(entry->monitor, nullptr), request);
            endPublishing();
        },
    };
}

void SegmentDirectory::atEnd() {
    const Status ended(Code::Canceled, "the engine ends");
    for (auto& [index, entry] : entries_) {
        loop().cancelTimer(entry->timer);
        loop().cancelTimer(entry->restart);
        loop().cancelTimer(entry->routing.look_again);
        answer(entry->opening, ended);
        answer(entry->syncing, ended);
    }
    entries_.clear();
    loop().cancelTimer(withdraw_timer_);
    remote_faults_.reset();
    if (publisher_) publisher_->end(ended);
    publisher_.reset();
    store_.reset();
    subscribers_.clear();
    data_plane_ = {};
    transports_.clear();
}

// --- callers -----------------------------------------------------------------------------------------------------

void SegmentDirectory::open(const OpenSegment& request) {
    if (request.name.empty() || request.name.size() > kMaxSegmentName)
        return request.reply(Status(Code::InvalidArgument, "a segment name has 1 to " +
                                                               std::to_string(kMaxSegmentName) + " bytes, this has " +
                                                               std::to_string(request.name.size())));
    if (request.name == local_.name) return request.reply(kLocalSegmentID);

    const auto known = by_name_.find(request.name);
    Entry* entry = known == by_name_.end() ? nullptr : find(known->second);
    if (entry != nullptr && entry->routing.route) {
        ++entry->opens;
        if (entry->state == PeerState::Down && entry->monitor) send(entry->monitor, ConnectPeer{});
        return request.reply(entry->id);
    }
    if (entry == nullptr) {
        const auto id = ids_.take(loop().now());
        if (!id)
            return request.reply(
                Status(Code::CapacityExceeded, std::to_string(SegmentBoard::kMaxSegments) +
                                                   " segments are open, or were within the last minute; close some"));
        auto fresh = std::make_unique<Entry>();
        fresh->name = request.name;
        fresh->index = static_cast<std::uint32_t>(*id);
        fresh->id = *id;
        entry = fresh.get();
        entries_.emplace(entry->index, std::move(fresh));
        by_name_.emplace(request.name, entry->index);
    }
    const auto reply = request.reply;
    const std::uint32_t index = entry->index;
    entry->opening.push_back({request.deadline, [this, reply, index](const Status& status) {
                                  Entry* self = find(index);
                                  if (!status || self == nullptr) return reply(status);
                                  // It may be this very process under another spelling of its address.
                                  if (self->peer->desc->incarnation == local_.incarnation)
                                      return reply(kLocalSegmentID);
                                  ++self->opens;
                                  reply(self->id);
                              }});
    armTimer(*entry);
    if (!entry->monitor && entry->opening.size() == 1) begin(*entry);
}

void SegmentDirectory::begin(Entry& entry) {
    if (store_) return resolveInStore(entry);
    const auto endpoint = Endpoint::parse(entry.name);
    const Status bad = !endpoint ? endpoint.status()
                       : endpoint->port == 0
                           ? Status(Code::InvalidArgument,
                                    "with p2p metadata a segment is named host:port; '" + entry.name + "' has no port")
                           : Status::ok();
    if (!bad) {
        const std::uint32_t index = entry.index;
        answer(entry.opening, bad);
        return removeUnused(index);
    }
    startMonitor(entry, *endpoint);
}

void SegmentDirectory::startMonitor(Entry& entry, const Endpoint& control) {
    PeerMonitor::Target target;
    target.index = entry.index;
    target.control = control;
    target.expect = entry.expect;
    target.own_name = local_.name;
    target.own = local_.incarnation;
    target.auth = local_.auth;
    entry.dropped = false;
    turn(entry, PeerState::Connecting);
    entry.monitor = spawnHosted<PeerMonitor>(loop(), std::move(target), std::cref(settings_), caf::actor(this), log_);
    monitor(entry.monitor);
    send(entry.monitor, ConnectPeer{});
}

/// A monitor that ended by itself (a defect; CAF has logged it) is replaced. Those that were told to end are not found.
void SegmentDirectory::monitorEnded(const caf::down_msg& down) {
    for (auto& [index, entry] : entries_) {
        if (!entry->monitor || entry->monitor.address() != down.source) continue;
        entry->monitor = nullptr;
        const auto pause = kRestartPause * (1 << std::min(entry->defects++, 6u));
        loop().cancelTimer(entry->restart);
        entry->restart = loop().runAt(loop().now() + pause, [this, which = index] {
            if (Entry* self = find(which)) restartMonitor(*self);
        });
        return;
    }
}

void SegmentDirectory::restartMonitor(Entry& entry) {
    entry.restart = 0;
    // A caller may have come meanwhile, or the store.
    if (entry.monitor || ending_) return;
    if (entry.peer)
        startMonitor(entry, entry.peer->desc->control);
    else
        begin(entry);
}

void SegmentDirectory::close(const CloseSegment& request) {
    if (request.segment == kLocalSegmentID) return request.reply(Status::ok());
    Entry* entry = findId(request.segment);
    if (entry == nullptr || entry->opens == 0)
        return request.reply(Status(Code::StaleHandle, "segment " + std::to_string(request.segment) + " is not open"));
    --entry->opens;
    const std::uint32_t index = entry->index;
    removeUnused(index);
    // Last: what the caller does next with the id is refused.
    request.reply(Status::ok());
}

/// Forgets an entry that nobody has open or waits for.
void SegmentDirectory::removeUnused(std::uint32_t index) {
    Entry* entry = find(index);
    if (entry == nullptr || entry->opens > 0 || !entry->opening.empty()) return;
    answer(entry->syncing, Status(Code::StaleHandle, "segment " + entry->name + " was closed"));
    // Whoever heard that it begins hears how it ends.
    if (entry->state == PeerState::Connecting)
        turn(*entry, PeerState::Down, Status(Code::Canceled, "nobody waits for it any more"));
    if (entry->monitor) send(entry->monitor, Shutdown{});
    loop().cancelTimer(entry->timer);
    loop().cancelTimer(entry->restart);
    loop().cancelTimer(entry->routing.look_again);
    if (entry->peer) {
        board_.set(entry->id, SegmentBoard::Reach::Closed, nullptr);
        tellDataPlane(DropPeer{index, Status(Code::Canceled, "segment " + entry->name + " was closed"), true});
    }
    by_name_.erase(entry->name);
    ids_.giveBack(entry->id, loop().now());
    entries_.erase(index);
}

void SegmentDirectory::sync(const SyncSegments& request) {
    if (!request.name.empty() && request.name != local_.name && by_name_.count(request.name) == 0)
        return request.reply(Status(Code::NotFound, "segment '" + request.name + "' is not open"));
    // One reply for all of them: the first error, once the last has answered.
    struct Gather {
        std::size_t left = 1;
        Status first;
        std::function<void(Status)> reply;
    };
    const auto gather = std::make_shared<Gather>();
    gather->reply = request.reply;
    const auto one = [gather](const Status& status) {
        if (!status && gather->first.isOk()) gather->first = status;
        if (--gather->left == 0) gather->reply(gather->first);
    };
    for (auto& [index, entry] : entries_) {
        if (!request.name.empty() && request.name != entry->name) continue;
        ++gather->left;
        entry->syncing.push_back({request.deadline, one});
        armTimer(*entry);
        if (store_)
            resolveInStore(*entry);
        else if (entry->monitor)
            send(entry->monitor, FetchDescriptor{});
    }
    one(Status::ok());
}

void SegmentDirectory::probe(const ProbePeer& request) {
    if (request.segment == kLocalSegmentID) return request.reply(Status::ok());
    const Entry* entry = findId(request.segment);
    if (entry == nullptr || !entry->peer)
        return request.reply(Status(Code::StaleHandle, "segment " + std::to_string(request.segment) + " is not open"));
    if (!entry->monitor) return request.reply(Status(Code::PeerDown, "peer " + entry->name + " is being looked up"));
    send(entry->monitor, PingPeer{request.deadline, request.reply});
}

void SegmentDirectory::ask(const AskPeer& request) {
    const Entry* entry = find(request.peer);
    if (entry == nullptr || !entry->monitor)
        return request.answered(Status(Code::PeerDown, "the segment is not open any more"));
    send(entry->monitor, request);
}

void SegmentDirectory::answerPeer(const AnswerPeer& request) {
    if (request.transport == kFaultsExchange)
        return request.reply(remote_faults_->answer(request.asker, request.from, request.question));
    const auto found = std::find_if(transports_.begin(), transports_.end(), [&](const InstalledTransport& entry) {
        return entry.transport->name() == request.transport;
    });
    if (found == transports_.end())
        return request.reply(
            Status(Code::TransportMissing, "transport '" + request.transport.substr(0, 64) + "' is not installed"));
    found->transport->answer(request.asker, request.question, request.reply);
}

// --- entries -----------------------------------------------------------------------------------------------------

SegmentDirectory::Entry* SegmentDirectory::find(std::uint32_t index) {
    const auto found = entries_.find(index);
    return found == entries_.end() ? nullptr : found->second.get();
}

SegmentDirectory::Entry* SegmentDirectory::findId(SegmentID id) {
    Entry* entry = find(static_cast<std::uint32_t>(id));
    return entry != nullptr && entry->id == id ? entry : nullptr;
}

void SegmentDirectory::answer(std::vector<Waiter>& waiters, const Status& status) {
    for (auto& waiter : std::exchange(waiters, {})) waiter.reply(status);
}

void SegmentDirectory::armTimer(Entry& entry) {
    TimePoint next = kForever;
    for (const auto* waiters : {&entry.opening, &entry.syncing})
        for (const Waiter& waiter : *waiters) next = std::min(next, waiter.deadline);
    loop().cancelTimer(entry.timer);
    entry.timer = 0;
    if (next == kForever) return;
    entry.timer = loop().runAt(next, [this, index = entry.index] {
        if (Entry* self = find(index)) expire(*self);
    });
}

void SegmentDirectory::expire(Entry& entry) {
    const TimePoint now = loop().now();
    const Status late(Code::Timeout, "segment " + entry.name + ": its owner did not answer in time");
    for (auto* waiters : {&entry.opening, &entry.syncing}) {
        std::vector<Waiter> expired;
        const auto first = std::stable_partition(waiters->begin(), waiters->end(),
                                                 [now](const Waiter& waiter) { return waiter.deadline > now; });
        std::move(first, waiters->end(), std::back_inserter(expired));
        waiters->erase(first, waiters->end());
        answer(expired, late);
    }
    armTimer(entry);
    removeUnused(entry.index);
}

void SegmentDirectory::described(const PeerDescribed& event) {
    Entry* entry = find(event.index);
    if (entry == nullptr) return;
    // A monitor that was told to end, because the store named another incarnation, may still have said this.
    if (!entry->expect.isNull() && event.desc->incarnation != entry->expect) return;
    entry->looked_again = false;
    entry->outdated = event.outdated;
    entry->heard = loop().now();
    if (store_ && !event.name.empty() && event.name != entry->name) {
        // Two names, one endpoint: the record is of somebody else.
        const Status other(Code::StaleIncarnation,
                           "the owner of '" + entry->name + "' calls itself '" + event.name + "'");
        answer(entry->opening, other);
        answer(entry->syncing, other);
        return removeUnused(event.index);
    }
    const bool news = !entry->peer || entry->peer->desc != event.desc || entry->peer->host != event.host;
    const bool came_up = entry->state != PeerState::Up;
    entry->state = PeerState::Up;
    entry->dropped = false;
    // The successor may be reached another way: no worker, on its route or not, has anything to do with the
    // predecessor.
    if (entry->peer && entry->peer->desc->incarnation != event.desc->incarnation) {
        const DropPeer drop{entry->index, Status(Code::StaleIncarnation, "segment " + entry->name + " was restarted"),
                            true};
        for (const caf::actor& worker : data_plane_.workers)
            if (worker) send(worker, drop);
    }
    if (news) {
        auto peer = std::make_shared<Peer>();
        peer->index = entry->index;
        peer->name = entry->name;
        peer->host = event.host;
        peer->desc = event.desc;
        entry->peer = std::move(peer);
        findRoute(*entry);
        entry = find(event.index);
        if (entry == nullptr) return;
    }
    if (came_up) announce(*entry, Status::ok());
    if (entry->routing.isSettled()) nowOpen(*entry);
}

/// The peer is described, and how it is reached is known.
void SegmentDirectory::nowOpen(Entry& entry) {
    answer(entry.opening, Status::ok());
    // A keepalive's answer may be on its way when a caller asks for what there is by now.
    if (!entry.outdated) answer(entry.syncing, Status::ok());
    armTimer(entry);
    removeUnused(entry.index);
}

void SegmentDirectory::connecting(const PeerConnecting& event) {
    Entry* entry = find(event.index);
    if (entry != nullptr && entry->state == PeerState::Down) turn(*entry, PeerState::Connecting);
}

void SegmentDirectory::troubled(const PeerTrouble& event) {
    Entry* entry = find(event.index);
    if (entry == nullptr) return;
    // The record was that of its predecessor: look once more before anybody is told.
    if (store_ && !entry->peer && event.cause.code() == Code::StaleIncarnation &&
        !std::exchange(entry->looked_again, true))
        return resolveInStore(*entry);
    answer(entry->opening, event.cause);
    answer(entry->syncing, event.cause);
    const bool went_down = event.state == PeerState::Down && !entry->dropped;
    const bool turned_suspect = event.state == PeerState::Suspect && entry->state == PeerState::Up;
    // What was submitted since it went down would wait for each transport's time-outs, as often as it may be retried:
    // for the same silence, or for devices of a process that is not there any more, as nobody listens where it did.
    const bool still_gone = event.state == PeerState::Down && !went_down &&
                            (event.cause.code() == Code::Timeout || event.cause.code() == Code::ConnectionRefused);
    entry->dropped = event.state == PeerState::Down;
    entry->trouble = event.cause;
    entry->troubled_at = loop().now();
    if ((went_down || still_gone) && entry->peer) {
        const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(entry->troubled_at - entry->heard);
        const Status down = event.cause.withCode(Code::PeerDown);
        tellDataPlane(DropPeer{
            event.index,
            Status(down.code(), down.message() + "; last heard of " + std::to_string(silent.count()) + " ms before"),
            false});
    }
    // Of one that went down all paths end.
    if (turned_suspect)
        for (const InstalledTransport& installed : transports_) installed.transport->peerLeft(event.index);
    // One that has greeted, and was lost before it described itself, goes on being connected to.
    if (event.state == PeerState::Down || entry->state == PeerState::Up) turn(*entry, event.state, event.cause);
    // The store may know its successor, now or after a while; with p2p the monitor finds it at the same endpoint.
    if (event.state == PeerState::Down && entry->peer && store_) look(*entry);
    removeUnused(event.index);
}

void SegmentDirectory::suspect(const SuspectPeer& event) {
    Entry* entry = find(event.index);
    if (entry == nullptr || !entry->monitor) return;
    log_->debug("segment {}: {}", entry->name, event.cause.toString());
    // A transport whose keys are in the descriptor refuses what was registered since; a restarted peer may have been
    // described before it registered anything. The next request finds what there is by then.
    if (event.cause.code() == Code::AddressNotRegistered) return send(entry->monitor, FetchDescriptor{});
    // Nobody listens any more where it served a transport: it may have installed it anew, at another port.
    if (event.cause.code() == Code::ConnectionRefused) send(entry->monitor, FetchDescriptor{});
    // What a probe found possible may have become impossible since.
    if (entry->routing.route && entry->routing.route->probed && !entry->routing.search) {
        entry->routing.searched = nullptr;
        findRoute(*entry);
        entry = find(event.index);
        if (entry == nullptr) return;
    }
    send(entry->monitor, ConnectPeer{});
    send(entry->monitor, PingPeer{loop().now() + settings_.keepalive_timeout, [](const Status&) {}});
}

void SegmentDirectory::announce(const Entry& entry, const Status& cause) {
    for (const caf::actor& listener : subscribers_) send(listener, PeerEvent{entry.name, entry.id, entry.state, cause});
}

void SegmentDirectory::turn(Entry& entry, PeerState state, const Status& cause) {
    if (std::exchange(entry.state, state) != state) announce(entry, cause);
}

// --- the local segment -------------------------------------------------------------------------------------------

SegmentDesc SegmentDirectory::describe(const Local& local, const RegionMap& regions,
                                       const std::vector<InstalledTransport>& transports) {
    SegmentDesc desc;
    desc.name = local.name;
    desc.incarnation = local.incarnation;
    desc.boot_id = local.boot_id;
    desc.control = local.control;
    desc.priority_matrix = local.matrix;
    const auto all = regions.all();
    desc.buffers.reserve(all.size());
    for (const Region& region : all) {
        BufferDesc buffer;
        buffer.location = region.location;
        buffer.addr = region.range.addr;
        buffer.length = region.range.length;
        buffer.generation = region.id;
        buffer.remote_accessible = region.remote_accessible;
        desc.buffers.push_back(std::move(buffer));
    }
    // After the buffers, to which a transport may have keys to add.
    for (const InstalledTransport& installed : transports) installed.transport->describe(desc);
    if (!desc.transports.empty()) desc.protocol = desc.transports.front();
    const std::time_t now = std::time(nullptr);
    std::tm broken{};
    gmtime_r(&now, &broken);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &broken);
    desc.timestamp = text;
    return desc;
}

/// Peers hear of it when they ask next; a store, and who watches it, at once.
void SegmentDirectory::describedAnew() {
    transports_dirty_ = true;
    routeLocal();
    publishLocal({});
}

const SegmentDesc& SegmentDirectory::localDesc() {
    const std::uint64_t version = regions_.regions().version();
    if (version != described_regions_ || transports_dirty_) {
        const std::uint64_t next = local_desc_.version + 1;
        local_desc_ = describe(local_, *regions_.regions().load(), transports_);
        local_desc_.version = next;
        described_regions_ = version;
        transports_dirty_ = false;
        local_json_ = nullptr;
    }
    return local_desc_;
}

void SegmentDirectory::routeLocal() {
    auto peer = std::make_shared<Peer>();
    peer->index = kLocalIndex;
    peer->name = local_.name;
    peer->host = local_.control.host;
    peer->desc = std::make_shared<const SegmentDesc>(localDesc());
    // Nothing has to be tried to reach the own process, so the answer comes at once.
    RouteSearch search(loop(), transports_, peer->desc, [&](Route route) {
        // Within the process nothing breaks that another transport could make good, and only the one that knows that
        // both ends are the same memory copies over its own source as it should.
        route.workers.resize(route.explanation.nics.size());
        route.explanation.then.clear();
        route.explanation.refused_next.clear();
        local_route_ = route.explanation;
        useRoute(kLocalSegmentID, peer, route);
    });
    search.start();
}

void SegmentDirectory::describeLocal(const DescribeLocal& request) {
    const SegmentDesc& desc = localDesc();
    if (request.known_version == desc.version) return request.reply(nullptr, desc.version);
    if (!local_json_) local_json_ = std::make_shared<const std::string>(encodeSegmentDesc(desc));
    request.reply(local_json_, desc.version);
}

}  // namespace troupe
