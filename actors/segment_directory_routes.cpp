// SegmentDirectory: which transports reach a peer, what the data plane is told of it, and `explain`.

#include <algorithm>
#include <utility>

#include "actors/segment_directory.h"
#include "base/printable.h"

namespace troupe {

namespace {

// Between two looks at the descriptor of a peer that no transport reaches; doubled each time.
constexpr std::chrono::milliseconds kFirstLook{20};
constexpr std::chrono::milliseconds kLastLook{1000};
// The same for a peer that is reached, but not by the best transport, whose probe got no answer. A look costs a
// connection, and nothing waits for it.
constexpr std::chrono::milliseconds kFirstRetry{200};
constexpr std::chrono::milliseconds kLastRetry{10'000};

// Transports of a peer that an error names.
constexpr std::size_t kMaxOffersNamed = 4;

}  // namespace

void SegmentDirectory::transportsChanged(const TransportsChanged& change) {
    transports_ = change.transports;
    std::stable_sort(transports_.begin(), transports_.end(),
                     [](const auto& a, const auto& b) { return a.preference < b.preference; });
    transports_dirty_ = true;
    routeLocal();
    for (const std::uint32_t index : remoteIndices()) {
        Entry* entry = find(index);
        if (entry == nullptr || !entry->peer) continue;
        // A search may take a while, and the workers of a transport that was uninstalled leave before it is over.
        if (auto& route = entry->routing.route;
            route && std::erase_if(route->workers, [this](std::uint32_t worker) { return !isInstalled(worker); }) != 0)
            useRoute(entry->id, entry->peer, *route);
        entry->routing.searched = nullptr;
        findRoute(*entry);
    }
    // Somebody asks: it is rare, and a record without it says the wrong thing of how the segment is reached.
    publishLocal({[](const Status&) {}});
}

bool SegmentDirectory::isInstalled(std::uint32_t worker) const {
    return std::any_of(transports_.begin(), transports_.end(), [worker](const InstalledTransport& installed) {
        return std::find(installed.workers.begin(), installed.workers.end(), worker) != installed.workers.end();
    });
}

std::vector<std::uint32_t> SegmentDirectory::remoteIndices() const {
    std::vector<std::uint32_t> indices;
    for (const auto& entry : entries_) indices.push_back(entry.first);
    return indices;
}

/// Lets callers, trackers and workers use a peer through the best transport that reaches it: at once when that is known
/// already, else when the search is over.
void SegmentDirectory::findRoute(Entry& entry) {
    Routing& routing = entry.routing;
    const auto& desc = entry.peer->desc;
    if (routing.searched && sameReach(*routing.searched, *desc)) {
        if (routing.isSettled()) {
            useRoute(entry.id, entry.peer, *routing.route);
            tellRoute(entry);
        }
        return;
    }
    search(entry, false);
}

/// `again`: what is in use stays in use until a better way is found.
void SegmentDirectory::search(Entry& entry, bool again) {
    Routing& routing = entry.routing;
    const auto& desc = entry.peer->desc;
    routing.searched = desc;
    routing.looking_again = again;
    loop().cancelTimer(std::exchange(routing.look_again, 0));
    // It is this process under another name; callers get the id of the local segment.
    if (desc->incarnation == local_.incarnation) {
        routing.search.reset();
        routing.route.emplace();
        return;
    }
    auto next = std::make_unique<RouteSearch>(loop(), transports_, desc, [this, index = entry.index](Route route) {
        if (Entry* self = find(index)) routeFound(*self, std::move(route));
    });
    RouteSearch& started = *next;
    routing.search = std::move(next);
    started.start();
}

void SegmentDirectory::routeFound(Entry& entry, Route route) {
    Routing& routing = entry.routing;
    routing.search.reset();
    const bool again = std::exchange(routing.looking_again, false);
    const bool same = again && routing.route->workers == route.workers;
    if (!again) routing.pause = {};
    routing.route = std::move(route);
    tellRoute(entry);
    if (!same) useRoute(entry.id, entry.peer, *routing.route);
    if (routing.route->workers.empty() || routing.route->unsettled) lookAgain(entry);
    if (entry.state == PeerState::Up) nowOpen(entry);
}

/// Once for each way that is found: a search that repeats itself says nothing new. Nothing is said of a peer that is
/// down: of course nobody listens there.
void SegmentDirectory::tellRoute(Entry& entry) {
    Routing& routing = entry.routing;
    if (entry.state != PeerState::Up) return;
    std::string way = routing.route->explanation.toString();
    if (way == routing.told) return;
    // What was tried in vain is worth a look; that another host is no place for copies is not.
    log_->log(routing.route->tried.empty() ? spdlog::level::info : spdlog::level::warn, "segment {} goes by {}",
              entry.name, way);
    routing.told = std::move(way);
}

/// A peer that no transport reaches may only be about to install one, and says so in its descriptor alone. One whose
/// probe got no answer, because it stood still for a moment, says nothing at all.
void SegmentDirectory::lookAgain(Entry& entry) {
    Routing& routing = entry.routing;
    const bool reached = !routing.route->workers.empty();
    const Duration first = reached ? kFirstRetry : kFirstLook;
    const Duration last = reached ? kLastRetry : kLastLook;
    routing.pause = routing.pause == Duration::zero() ? first : std::min<Duration>(2 * routing.pause, last);
    routing.look_again = loop().runAt(loop().now() + routing.pause, [this, index = entry.index] {
        Entry* self = find(index);
        if (self == nullptr) return;
        self->routing.look_again = 0;
        if (self->monitor && self->state == PeerState::Up) {
            if (self->routing.route->workers.empty()) send(self->monitor, FetchDescriptor{});
            // It looks again itself if it must.
            if (self->routing.route->unsettled) return search(*self, true);
        }
        lookAgain(*self);
    });
}

void SegmentDirectory::useRoute(SegmentID id, const std::shared_ptr<const Peer>& peer, const Route& route) {
    const UsePeer use{peer, id, route.workers};
    // Workers first: a train may follow as soon as a tracker knows. All of them: some may have left the route.
    for (const caf::actor& worker : data_plane_.workers)
        if (worker) send(worker, use);
    for (const caf::actor& tracker : data_plane_.trackers) send(tracker, use);
    if (!use.workers.empty())
        board_.set(id, SegmentBoard::Reach::Open, peer);
    else
        board_.set(id, SegmentBoard::Reach::NoTransport, peer, whyUnreached(*peer, route.explanation));
}

/// For the caller whose submit is refused: the segment, what each transport said, and what to install.
std::string SegmentDirectory::whyUnreached(const Peer& peer, const RouteExplanation& explanation) const {
    std::string text = "no installed transport reaches segment '" + peer.name + "'";
    for (const auto& refusal : explanation.refused) text += "; not " + refusal.transport + ": " + refusal.why.message();
    std::string offered;
    std::size_t named = 0;
    for (const std::string& name : peer.desc->transports) {
        const bool here = std::any_of(transports_.begin(), transports_.end(),
                                      [&](const auto& installed) { return installed.transport->name() == name; });
        // A stranger's list may be long.
        if (!here && named++ < kMaxOffersNamed) offered += (offered.empty() ? "" : ", ") + printable(name);
    }
    if (offered.empty()) return text + "; a transport that both ends install (installTransport) would";
    return text + "; its owner offers " + offered + ", which is not installed here (installTransport)";
}

void SegmentDirectory::explain(const ExplainSegment& request) {
    const Entry* entry = findId(request.segment);
    if (request.segment != kLocalSegmentID && (entry == nullptr || !entry->routing.route))
        return request.reply(Status(Code::StaleHandle, "segment " + std::to_string(request.segment) + " is not open"));
    RouteExplanation explanation = entry == nullptr ? local_route_ : entry->routing.route->explanation;
    std::optional<std::uint64_t> carriers = request.carriers;
    // Of a task that goes on: those that are left to it.
    if (!carriers && request.history.declined != 0 && entry != nullptr) {
        carriers = 0;
        for (const std::uint32_t worker : entry->routing.route->workers) *carriers |= workerBit(worker);
    }
    if (carriers) nameCarriers(request.history.carriersAmong(*carriers), explanation);
    explanation.attempts_left_out = request.history.left_out;
    for (const TaskHistory::Attempt& attempt : request.history.attempts) {
        RouteExplanation::Attempt named{"", "a Nic that has left", attempt.bytes, attempt.cause, attempt.pause};
        for (const InstalledTransport& installed : transports_) {
            const auto worker = std::find(installed.workers.begin(), installed.workers.end(), attempt.worker);
            if (worker == installed.workers.end()) continue;
            named.transport = installed.transport->name();
            named.nic = installed.nics[static_cast<std::size_t>(worker - installed.workers.begin())];
        }
        explanation.attempts.push_back(std::move(named));
    }
    if (request.history.ending) explanation.ending = describeEnding(request);
    if (entry != nullptr) explanation.owner = describeOwner(*entry);
    request.reply(std::move(explanation));
}

/// The Nics of some workers, as in Task::workers, by transport, best first.
std::vector<RouteExplanation::Way> SegmentDirectory::waysOf(std::uint64_t workers) const {
    std::vector<RouteExplanation::Way> ways;
    for (const InstalledTransport& installed : transports_) {
        RouteExplanation::Way way{installed.transport->name(), {}};
        for (std::size_t i = 0; i < installed.workers.size(); ++i)
            if ((workers >> std::min<std::uint32_t>(installed.workers[i], 63) & 1) != 0)
                way.nics.push_back(installed.nics[i]);
        if (!way.nics.empty()) ways.push_back(std::move(way));
    }
    return ways;
}

/// Puts those that carried a task in the place of those that may. The route may have changed since.
void SegmentDirectory::nameCarriers(std::uint64_t carriers, RouteExplanation& explanation) const {
    std::vector<RouteExplanation::Way> ways = waysOf(carriers);
    explanation.nics.clear();
    explanation.then.clear();
    explanation.refused_next.clear();
    if (ways.empty()) return;
    explanation.transport = std::move(ways.front().transport);
    explanation.nics = std::move(ways.front().nics);
    explanation.then.assign(std::make_move_iterator(ways.begin() + 1), std::make_move_iterator(ways.end()));
}

RouteExplanation::Ending SegmentDirectory::describeEnding(const ExplainSegment& request) const {
    const TaskHistory::Ending& known = *request.history.ending;
    RouteExplanation::Ending ending;
    ending.cause = known.cause;
    ending.length = request.length;
    ending.arrived = known.arrived;
    ending.under_way = known.flights;
    ending.sent = known.arrived != 0 || known.flights != 0 || request.carriers.value_or(0) != 0;
    for (const RouteExplanation::Way& way : waysOf(known.lost))
        ending.lost.insert(ending.lost.end(), way.nics.begin(), way.nics.end());
    ending.retries_left = known.retries_left;
    return ending;
}

RouteExplanation::Owner SegmentDirectory::describeOwner(const Entry& entry) const {
    const TimePoint now = loop().now();
    RouteExplanation::Owner owner;
    owner.state = entry.state;
    owner.silent = now - entry.heard;
    owner.trouble = entry.trouble;
    if (!entry.trouble) owner.trouble_since = now - entry.troubled_at;
    return owner;
}

/// Trackers first: what waits there must not go out any more; then the workers end what is on its way.
void SegmentDirectory::tellDataPlane(const DropPeer& drop) {
    for (const caf::actor& tracker : data_plane_.trackers) send(tracker, drop);
    for (const caf::actor& worker : data_plane_.workers)
        if (worker) send(worker, drop);
}

}  // namespace troupe
