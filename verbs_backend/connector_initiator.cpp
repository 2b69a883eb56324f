// Connector: pairs that this engine opens.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

/// Enough for a loaded peer; with more candidates each gets its share of connect_timeout, but at least this.
constexpr std::chrono::milliseconds kLeastPatience{500};
constexpr int kResolveMs = 2000;
/// Reasons of a rejection: InfiniBand specification, table 108.
constexpr int kNobodyListens = 8;  // Invalid service id.
constexpr int kConsumerDefined = 28;
/// As many ways as a sealed greeting can tell apart; nobody has as many.
constexpr std::size_t kMostCandidate = (1u << 13) - 1;

/// Before a queue pair that could not be destroyed is tried once more; doubled each time.
constexpr std::chrono::milliseconds kStuckPause{100};
constexpr std::chrono::seconds kLongestStuckPause{10};

}  // namespace

std::string Connector::describe(const Pair& pair) const {
    const Candidate& candidate = pair.order.candidates[pair.candidate];
    if (!takesDevice(pair)) return pair.order.peer + " over the control connection";
    return pair.order.peer + " device " + candidate.device +
           (candidate.by_exchange ? "" : " at " + candidate.address.toString()) + " through " +
           via(pair).device->describe();
}

void Connector::tryCandidate(Pair& pair) {
    const Own& own = via(pair);
    const Candidate& candidate = pair.order.candidates[pair.candidate];
    // One more may follow when nothing has answered.
    const bool by_cm = !candidate.by_exchange && !pair.order.greeting.fence;
    const std::size_t ways = std::max(pair.order.ways, pair.order.candidates.size()) + (by_cm && canExchange() ? 1 : 0);
    const auto share = std::max<Duration>(config_.connect_timeout / static_cast<std::int64_t>(ways), kLeastPatience);
    pair.step = Step::Resolving;
    pair.order.greeting.candidate = static_cast<std::uint16_t>(std::min(pair.candidate, kMostCandidate));
    pair.order.greeting.mtu = own.device->mtu();
    pair.deadline = Clock::now() + share;
    if (!takesDevice(pair)) return offerFence(pair);
    if (!own.out) return giveUpCandidate(pair, own.out);
    if (own.port_down || !isActive(own))
        return giveUpCandidate(pair, {Code::ConnectionLost, own.device->describe() + " is down"});
    const auto view = own.device->view();
    pair.gid.reset();
    if (candidate.by_exchange) {
        pair.gids = view->gids;
        if (pair.gids.empty())
            return giveUpCandidate(pair, {Code::TransportMissing, "the own port has no address any more"});
        if (pair.gids.size() > kMaxOfferedGids) pair.gids.resize(kMaxOfferedGids);
        return offer(pair);
    }
    pair.id = api_->cmCreate(channel_);
    if (pair.id == 0) return giveUpCandidate(pair, errnoStatus(Code::ResourceExhausted, "rdma_create_id", errno));
    pair_of_id_[pair.id] = pair.number;
    pair.gid = view->gid;
    if (!view->by_cm || view->address.family() != candidate.address.family())
        return giveUpCandidate(pair, {Code::TransportMissing, "the own port has no address of its family"});
    const int error = api_->cmResolveAddress(pair.id, view->address, candidate.address, kResolveMs);
    if (error != 0) giveUpCandidate(pair, errnoStatus(Code::ConnectionLost, "resolve the address", error));
}

/// Ends what there is of the connection; tries the next candidate, or tells the Nic that there is none.
void Connector::giveUpCandidate(Pair& pair, const Status& why, bool retryable) {
    const Status cause = why.withContext(describe(pair));
    log_->debug("rdma: {}", cause.message());
    if (pair.first_failure) pair.first_failure = cause;
    if (pair.id != 0 && pair.step == Step::Connecting && why.code() == Code::Timeout) keepForExchange(pair);
    dropConnection(pair);
    // One of the two ports may be deaf to connection messages, for which rdma_cm knows no remedy, and carry data. Of
    // several that did not answer only the first, which is the likeliest: the others may be of another rail.
    if (retryable && pair.candidate + 1 == pair.order.candidates.size() && pair.unanswered) {
        pair.order.candidates.push_back(*pair.unanswered);
        pair.unanswered.reset();
    }
    if (retryable && pair.candidate + 1 < pair.order.candidates.size()) {
        ++pair.candidate;
        return tryCandidate(pair);
    }
    PairEvent event;
    event.kind = pair.order.greeting.fence ? PairEvent::Kind::Fenced : PairEvent::Kind::Failed;
    // Of several ways the first is the likeliest one; a refusal for good says more than any.
    event.status = retryable ? pair.first_failure : cause;
    event.retryable = retryable;
    tell(pair, std::move(event));
    pairs_.erase(pair.number);
}

void Connector::keepForExchange(Pair& pair) {
    if (pair.unanswered || pair.order.greeting.fence || !canExchange()) return;
    pair.unanswered = pair.order.candidates[pair.candidate];
    pair.unanswered->by_exchange = true;
}

void Connector::dropConnection(Pair& pair) {
    const Device& device = *via(pair).device;
    if (pair.qp != nullptr) {
        if (const int error = api_->destroyQp(pair.qp); error != 0) {
            const Status cause = errnoStatus(Code::Internal, device.describe() + ": destroy a queue pair", error);
            log_->error("rdma: {}", cause.message());
            // Nothing was ever posted on it, so nobody waits for its end.
            getStuck(pair.number, Stuck::kNobody, pair.qp, pair.queue, cause);
        }
        pair.qp = nullptr;
    }
    pair.queue = nullptr;
    withdraw(pair);
    if (pair.id != 0) {
        pair_of_id_.erase(pair.id);
        retire(pair.id, pair.order.candidates[pair.candidate].own);
        pair.id = 0;
    }
}

void Connector::onResolved(Pair& pair) {
    if (pair.step != Step::Resolving) return;
    const Device& device = *via(pair).device;
    const std::string leaves_by = api_->cmDevice(pair.id);
    if (leaves_by != device.device_name || api_->cmPort(pair.id) != device.port)
        return giveUpCandidate(pair,
                               {Code::TransportMissing, "the way to it leaves through device '" + leaves_by + "'"});
    pair.step = Step::Routing;
    if (const int error = api_->cmResolveRoute(pair.id, kResolveMs); error != 0)
        giveUpCandidate(pair, errnoStatus(Code::ConnectionLost, "resolve the route", error));
}

void Connector::onRoute(Pair& pair) {
    if (pair.step != Step::Routing) return;
    const Device& device = *via(pair).device;
    if (const Status status = prepare(pair, pair.id); !status) return giveUpCandidate(pair, status);
    const auto greeting = sealGreeting(pair.order.greeting, auth_);
    if (!greeting) return giveUpCandidate(pair, greeting.status(), false);
    CmParameters parameters;
    parameters.private_data = *greeting;
    parameters.qp_number = pair.qp->qp_num;
    parameters.initiator_depth = static_cast<std::uint8_t>(
        std::clamp(device.attributes.max_qp_init_rd_atom, 0, static_cast<int>(config_.rdma_read_depth)));
    parameters.retry_count = static_cast<std::uint8_t>(config_.rdma_retry_count);
    parameters.rnr_retry_count = static_cast<std::uint8_t>(config_.rdma_rnr_retry);
    pair.step = Step::Connecting;
    if (const int error = api_->cmConnect(pair.id, parameters); error != 0)
        giveUpCandidate(pair, errnoStatus(Code::ConnectionLost, "connect", error));
}

Result<Answer> Connector::readAnswer(const Pair& pair, const CmEvent& event) const {
    // The same bytes as were sent.
    const auto greeting = sealGreeting(pair.order.greeting, auth_);
    return greeting ? openAnswer(event.private_data, *greeting, auth_) : Result<Answer>(greeting.status());
}

void Connector::onResponse(Pair& pair, const CmEvent& event) {
    if (pair.step != Step::Connecting) return;
    if (pair.order.greeting.fence) return giveUpCandidate(pair, {Code::ProtocolError, "a fence was accepted"});
    const Device& device = *via(pair).device;
    const auto answer = readAnswer(pair, event);
    if (!answer) return giveUpCandidate(pair, answer.status(), answer.status().code() != Code::AccessDenied);
    if (answer->code != Code::Ok || answer->target != pair.order.greeting.target)
        return giveUpCandidate(
            pair,
            {Code::StaleIncarnation, "incarnation " + answer->target.toString() + " answers there, not " +
                                         pair.order.greeting.target.toString()},
            false);
    Way way;
    Status status = modify(pair.id, pair.qp, IBV_QPS_RTR, device, true, answer->mtu, &way);
    if (status) status = modify(pair.id, pair.qp, IBV_QPS_RTS, device, true, answer->mtu);
    if (status) {
        const int error = api_->cmEstablish(pair.id);
        if (error != 0) status = errnoStatus(Code::ConnectionLost, "establish", error);
    }
    if (!status) return giveUpCandidate(pair, status);
    pair.gid = way.gid;
    const std::string gid =
        way.gid ? "GID " + std::to_string(way.gid->gid_index) + " (" + gidForPeople(way.gid->gid) + "), "
                : std::string();
    up(pair, answer->device,
       gid + "path MTU " + std::to_string(way.mtu) + ", " + std::to_string(event.initiator_depth) + " READs at once");
}

/// The pair is made; `way`: what it goes by, for the log and for errors.
void Connector::up(Pair& pair, const std::string& device, const std::string& way) {
    pair.step = Step::Up;
    pair.deadline = kForever;
    log_->info("rdma: up: {}, {}, {} work requests", describe(pair), way, pair.made.cap.max_send_wr);
    PairEvent event;
    event.kind = PairEvent::Kind::Up;
    event.qp = pair.qp;
    event.depth = pair.made.cap.max_send_wr;
    event.segments = pair.made.cap.max_send_sge;
    event.inlined = pair.made.cap.max_inline_data;
    event.device = device;
    event.way = "port " + std::to_string(via(pair).device->port) + ", " + way;
    event.by_exchange = pair.order.candidates[pair.candidate].by_exchange;
    tell(pair, std::move(event));
}

void Connector::onRejected(Pair& pair, const CmEvent& event) {
    if (pair.step != Step::Connecting) return;
    const auto answer = readAnswer(pair, event);
    if (!answer && answer.status().code() == Code::AccessDenied) return giveUpCandidate(pair, answer.status(), false);
    if (!answer) {
        // Without an answer of ours it is the kernel's: nobody listens there (IBTA reason 8), or rdma_cm has no use for
        // the request, as where no route leads back (28, "consumer defined"), or it is somebody else's.
        if (event.status != kNobodyListens) keepForExchange(pair);
        return giveUpCandidate(pair, {Code::ConnectionRefused,
                                      "the connection was rejected, reason " + std::to_string(event.status) +
                                          (event.status == kNobodyListens ? " (nobody listens there)"
                                           : event.status == kConsumerDefined
                                               ? " (by the peer's kernel: has it a route back to this port's address?)"
                                               : "")});
    }
    if (pair.order.greeting.fence && answer->code == Code::Ok && answer->target == pair.order.greeting.target)
        return onFenced(pair);
    const bool other = answer->code == Code::StaleIncarnation;
    giveUpCandidate(pair,
                    {refusalCode(*answer),
                     other ? "incarnation " + answer->target.toString() + " answers there, not " +
                                 pair.order.greeting.target.toString()
                           : "the peer refused the connection" + (answer->text.empty() ? "" : ": " + answer->text)},
                    !other);
}

void Connector::onFenced(Pair& pair) {
    log_->debug("rdma: fenced: {}", describe(pair));
    dropConnection(pair);
    PairEvent event;
    event.kind = PairEvent::Kind::Fenced;
    tell(pair, std::move(event));
    pairs_.erase(pair.number);
}

void Connector::breakNow(Pair& pair, const Status& cause, bool by_peer) {
    // Before it is up there is nothing posted; its candidate fails by itself or by its deadline.
    if (pair.step != Step::Up) return;
    pair.step = Step::Broken;
    const Device& device = *via(pair).device;
    // The Nic is told first, so that it has the cause before it sees anything flushed, and in any case: what is not
    // flushed ends when the pair is destroyed.
    PairEvent event;
    event.kind = PairEvent::Kind::Broken;
    event.by_peer = by_peer;
    event.status = cause.withContext(describe(pair));
    tell(pair, std::move(event));
    if (const Status status = toError(device, pair.qp); !status) log_->error("rdma: {}", status.message());
    if (pair.id == 0) return;
    // What breaks a pair may be its link, and the port not know yet: no goodbye is worth the port's ears. The peer
    // hears of it when the id is destroyed, or by the lane's next connection.
    Own& own = via(pair);
    if (cause.code() == Code::ConnectionLost && !by_peer) {
        own.quiet_until = std::max(own.quiet_until, Clock::now() + kSettle);
        return;
    }
    if (maySpeak(own)) static_cast<void>(api_->cmDisconnect(pair.id));
}

void Connector::destroyNow(std::uint32_t number) {
    const auto found = pairs_.find(number);
    if (found == pairs_.end()) return;
    Pair& pair = found->second;
    PairEvent event;
    event.kind = PairEvent::Kind::Destroyed;
    if (pair.qp != nullptr) {
        if (const int error = api_->destroyQp(pair.qp); error != 0) {
            event.status = errnoStatus(Code::Internal, describe(pair) + ": destroy the queue pair", error);
            log_->error("rdma: {}", event.status.message());
            getStuck(number, pair.order.device, pair.qp, pair.queue, event.status);
        }
        pair.qp = nullptr;
    }
    dropConnection(pair);
    tell(pair, std::move(event));
    pairs_.erase(found);
}

Connector::Stuck& Connector::getStuck(std::uint32_t number, std::size_t owner, ibv_qp* qp,
                                      std::shared_ptr<const CompletionQueue> queue, const Status& cause) {
    stuck_.push_back(
        {number, owner, qp, std::move(queue), cause, kStuckPause, Clock::now() + kStuckPause, Greeting(), false});
    return stuck_.back();
}

/// A queue pair that is gone at last is the proof that its Nic could not give before.
void Connector::tryStuck(const std::function<bool(const Stuck&)>& which, TimePoint now) {
    std::erase_if(stuck_, [&](Stuck& each) {
        if (!which(each)) return false;
        if (api_->destroyQp(each.qp) != 0) {
            each.pause = std::min<Duration>(2 * each.pause, kLongestStuckPause);
            each.next = now + each.pause;
            return false;
        }
        log_->info("rdma: it went at last: {}", each.cause.message());
        if (each.owner == Stuck::kNobody) return true;
        PairEvent event;
        event.kind = PairEvent::Kind::Destroyed;
        event.pair = each.number;
        if (const auto& mailbox = own_[each.owner].mailbox) mailbox->put(std::move(event));
        return true;
    });
}

}  // namespace troupe::verbs
