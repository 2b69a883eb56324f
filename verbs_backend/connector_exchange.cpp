// Connector: pairs made by an exchange over the control connection, at both ends.
//
// The initiator makes a queue pair and offers it: its number, its first packet's, its GIDs. The target takes the first
// pair of GIDs by which its own queue pair can be made ready, and answers with that. Where the initiator finds that the
// chosen way does not lead anywhere on its side, it offers again without that GID.
//
// A fence is asked in the same way, for pairs that rdma_cm made, too, and whatever rdma.connect is: it makes none.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

/// Pairs of GIDs that a target tries for one offer; each costs some system calls.
constexpr std::size_t kMostWays = 8;
/// And how long for all of them. On RoCE the kernel may look a second for a neighbour that does not answer, and this
/// thread has the pairs of others to make and end.
constexpr std::chrono::seconds kWaysBudget{1};
constexpr std::uint32_t k24Bits = 0xffffff;

std::vector<PeerGid> asPeerGids(const std::vector<ibv_gid_entry>& entries) {
    std::vector<PeerGid> gids;
    for (const ibv_gid_entry& entry : entries) gids.push_back({entry.gid, static_cast<std::uint8_t>(entry.gid_type)});
    return gids;
}

/// "GID 1 (10.1.0.1) to 10.1.0.2", with "LID 7" of InfiniBand.
std::string wayText(const Device& device, const ExchangedRoute& route) {
    std::string text = "GID " + std::to_string(route.own.gid_index) + " (" + gidForPeople(route.own.gid) + ") to " +
                       gidForPeople(route.peer);
    if (device.infiniband) text += ", LID " + std::to_string(route.peer_lid);
    if (route.needs_grh) text += " with a global route header";
    return text;
}

}  // namespace

// --- the initiator ---------------------------------------------------------------------------------------------------

void Connector::offer(Pair& pair) {
    const Device& device = *via(pair).device;
    if (exchange_ == nullptr)
        return giveUpCandidate(pair, {Code::TransportMissing, "there is no control connection to exchange over"});
    if (const Status status = prepare(pair, ExchangedRoute{}); !status) return giveUpCandidate(pair, status);
    pair.psn = static_cast<std::uint32_t>(random_()) & k24Bits;
    Offer offer;
    offer.greeting = pair.order.greeting;
    offer.infiniband = device.infiniband;
    offer.lid = device.view()->attributes.lid;
    offer.needs_grh = device.infiniband && device.view()->needsGrh();
    offer.qp_number = pair.qp->qp_num;
    offer.psn = pair.psn;
    offer.mtu = device.mtu();
    offer.reads = static_cast<std::uint8_t>(
        std::clamp(device.attributes.max_qp_init_rd_atom, 0, static_cast<int>(config_.rdma_read_depth)));
    offer.device = pair.order.candidates[pair.candidate].device;
    offer.gids = asPeerGids(pair.gids);
    pair.offered_qp = pair.qp->qp_num;
    ask(pair, offer);
}

void Connector::offerFence(Pair& pair) {
    if (exchange_ == nullptr)
        return giveUpCandidate(pair, {Code::TransportMissing, "there is no control connection to ask over"});
    Offer fence;
    fence.what = Offer::What::End;
    fence.greeting = pair.order.greeting;
    ask(pair, fence);
}

void Connector::ask(Pair& pair, const Offer& offer) {
    pair.step = Step::Connecting;
    pair.asked = ++questions_;
    exchange_->ask(pair.order.peer_index, pair.order.greeting.target, "rdma", encode(offer), pair.deadline,
                   [inlet = inlet_, number = pair.number, asked = pair.asked](Result<std::string> said) {
                       const std::lock_guard lock(inlet->mutex);
                       if (inlet->to == nullptr) return;
                       inlet->to->command([self = inlet->to, number, asked, said = std::move(said)] {
                           self->onReply(number, asked, said);
                       });
                   });
}

void Connector::onReply(std::uint32_t number, std::uint64_t asked, const Result<std::string>& said) {
    const auto found = pairs_.find(number);
    // Its time may be over, or another offer be on its way.
    if (found == pairs_.end() || found->second.asked != asked || found->second.step != Step::Connecting) return;
    Pair& pair = found->second;
    if (pair.order.greeting.fence) return onFenceReply(pair, said);
    const Device& device = *via(pair).device;
    if (!said) return giveUpCandidate(pair, said.status(), said.status().code() != Code::StaleIncarnation);
    const auto reply = decodeOfferReply(*said);
    if (!reply) return giveUpCandidate(pair, reply.status());
    if (const Status checked = checkReply(pair, *reply); !checked)
        return giveUpCandidate(pair, checked, checked.code() != Code::StaleIncarnation);
    ExchangedRoute route;
    route.own = pair.gids[reply->gid_index];
    route.peer = reply->gid.gid;
    route.peer_lid = reply->lid;
    route.needs_grh = reply->needs_grh;
    route.peer_qp = reply->qp_number;
    route.own_psn = pair.psn;
    route.peer_psn = reply->psn;
    route.reads =
        std::min(reply->reads, static_cast<std::uint8_t>(std::clamp(device.attributes.max_qp_init_rd_atom, 0,
                                                                    static_cast<int>(config_.rdma_read_depth))));
    Way way;
    Status status = modify(route, pair.qp, IBV_QPS_RTR, device, true, reply->answer.mtu, &way);
    if (status) {
        status = modify(route, pair.qp, IBV_QPS_RTS, device, true, reply->answer.mtu);
    } else if (pair.gids.size() > 1) {
        log_->info("rdma: {}: {} does not work, the next is tried: {}", describe(pair), wayText(device, route),
                   status.message());
        if (pair.first_failure) pair.first_failure = status.withContext(describe(pair));
        pair.gids.erase(pair.gids.begin() + reply->gid_index);
        // A queue pair that failed half way is not used again. The target replaces its own: the lane is the same.
        if (const int error = api_->destroyQp(pair.qp); error != 0)
            return giveUpCandidate(pair, errnoStatus(Code::Internal, "destroy a queue pair", error));
        pair.qp = nullptr;
        return offer(pair);
    }
    if (!status) return giveUpCandidate(pair, status);
    pair.gid = way.gid;
    up(pair, reply->answer.device,
       "by exchange, " + wayText(device, route) + ", path MTU " + std::to_string(way.mtu) + ", " +
           std::to_string(route.reads) + " READs at once, P_Key index " + std::to_string(device.settings.pkey_index) +
           ", service level " + std::to_string(device.settings.service_level) + ", traffic class " +
           std::to_string(device.settings.traffic_class));
}

/// The peer ends its side of what was made over that connection, and cannot tell. Nobody has failed: what is posted
/// goes out again by the next pair, rather than find nobody there once its retries are over.
void Connector::peerLeft(std::uint32_t peer) {
    command([this, peer] {
        for (auto& [number, pair] : pairs_)
            if (pair.step == Step::Up && pair.order.peer_index == peer &&
                pair.order.candidates[pair.candidate].by_exchange)
                breakNow(pair, {Code::PathReset, "the control connection that it was made over has ended"});
    });
}

void Connector::onFenceReply(Pair& pair, const Result<std::string>& said) {
    if (!said) return giveUpCandidate(pair, said.status());
    const auto reply = decodeOfferReply(*said);
    if (!reply) return giveUpCandidate(pair, reply.status());
    // So it answers when what was to end has ended, and to nothing else.
    if (reply->answer.code == Code::Canceled && reply->answer.target == pair.order.greeting.target)
        return onFenced(pair);
    giveUpCandidate(pair, {refusalCode(reply->answer), "the peer refused the fence: " + reply->text});
}

/// The reply is a stranger's: nothing of it is used that does not fit what was offered.
Status Connector::checkReply(const Pair& pair, const OfferReply& reply) const {
    const Greeting& greeting = pair.order.greeting;
    if (reply.answer.code == Code::StaleIncarnation || reply.answer.target != greeting.target)
        return {Code::StaleIncarnation,
                "incarnation " + reply.answer.target.toString() + " answers there, not " + greeting.target.toString()};
    if (reply.answer.code != Code::Ok)
        return {refusalCode(reply.answer),
                "the peer refused the connection" + (reply.text.empty() ? std::string() : ": " + reply.text)};
    const auto bad = [](const std::string& what) { return Status(Code::ProtocolError, "rdma exchange: " + what); };
    if (reply.answer.device != pair.order.candidates[pair.candidate].device)
        return bad("device '" + reply.answer.device + "' answers for another");
    if (reply.gid_index >= pair.gids.size()) return bad("it chose a GID that was not offered");
    const ibv_gid_entry& own = pair.gids[reply.gid_index];
    if (reply.gid.type != own.gid_type || scopeOf(reply.gid.gid) != scopeOf(own.gid))
        return bad("its GID " + gidForPeople(reply.gid.gid) + " does not go with " + gidForPeople(own.gid));
    if (via(pair).device->infiniband && reply.lid == 0) return bad("it has no LID");
    return {};
}

/// Tells the target that the pair of this attempt is of no use any more; it hears of it in no other way. When it does
/// not, the lane's next attempt, or the end of the control connection, ends its side.
void Connector::withdraw(Pair& pair) {
    if (pair.asked == 0 || exchange_ == nullptr || pair.order.greeting.fence) return;
    pair.asked = 0;
    Offer end;
    end.what = Offer::What::End;
    end.qp_number = pair.offered_qp;
    end.greeting = pair.order.greeting;
    exchange_->ask(pair.order.peer_index, pair.order.greeting.target, "rdma", encode(end),
                   Clock::now() + config_.connect_timeout, [](const Result<std::string>&) {});
}

// --- the target ------------------------------------------------------------------------------------------------------

void Connector::answer(const Asker& asker, std::string question, std::function<void(Result<std::string>)> reply) {
    command([this, asker, question = std::move(question), reply = std::move(reply)] {
        reply(encode(onOffer(asker, question)));
    });
}

void Connector::askerLeft(std::uint64_t connection) {
    command([this, connection] {
        std::vector<CmId> theirs;
        for (const auto& [id, served] : served_)
            if (served.connection == connection) theirs.push_back(id);
        for (const CmId id : theirs) endServed(id, "the control connection that it was made over has ended");
    });
}

OfferReply Connector::refusal(Code code, const std::string& why) const {
    log_->debug("rdma: offer refused: {}", why);
    OfferReply reply;
    reply.answer.code = code;
    reply.answer.target = incarnation_;
    reply.text = why;
    return reply;
}

OfferReply Connector::onOffer(const Asker& asker, const std::string& question) {
    const auto offer = decodeOffer(question);
    if (!offer) return refusal(Code::ProtocolError, offer.status().message());
    // Or a peer could end the pairs of another.
    if (offer->greeting.initiator != asker.incarnation)
        return refusal(Code::ProtocolError, "rdma exchange: it speaks for another incarnation");
    if (offer->greeting.fence) {
        const Status admitted = admit(offer->greeting);
        return admitted ? refusal(Code::Canceled, "ended, as asked") : refusal(admitted.code(), admitted.message());
    }
    if (offer->what == Offer::What::End) {
        const auto ended = std::find_if(served_.begin(), served_.end(), [&](const auto& entry) {
            const Served& served = entry.second;
            return served.connection != 0 && served.peer_qp == offer->qp_number &&
                   served.greeting.sameLane(offer->greeting) && served.greeting.attempt == offer->greeting.attempt;
        });
        if (ended != served_.end() && !endServed(ended->first, "the initiator ended it"))
            return refusal(Code::Internal, "the device did not let go of it");
        return refusal(Code::Canceled, "ended, as asked");
    }
    if (!canExchange()) return refusal(Code::Unsupported, "rdma.connect is cm here");
    if (const Status admitted = admit(offer->greeting); !admitted) return refusal(admitted.code(), admitted.message());
    makeRoom();
    return serve(asker, *offer);
}

OfferReply Connector::serve(const Asker& asker, const Offer& offer) {
    const auto own =
        std::find_if(own_.begin(), own_.end(), [&](const Own& entry) { return entry.device->name == offer.device; });
    if (own == own_.end())
        return refusal(Code::TransportMissing, "device '" + offer.device + "' is not one that this engine uses");
    if (!own->out) return refusal(Code::TransportMissing, own->out.message());
    const Device& device = *own->device;
    const auto view = device.view();
    if (device.infiniband != offer.infiniband || (offer.infiniband && offer.lid == 0))
        return refusal(Code::TransportMissing, device.describe() + " is of another link layer");
    OfferReply reply;
    reply.answer = Answer{Code::Ok, incarnation_, 0, device.name};
    reply.lid = view->attributes.lid;
    reply.needs_grh = device.infiniband && (offer.needs_grh || view->needsGrh());
    reply.reads =
        static_cast<std::uint8_t>(std::clamp(device.attributes.max_qp_rd_atom, 0, static_cast<int>(offer.reads)));
    auto ways = pairGids(view->gids, offer.gids);
    if (ways.size() > kMostWays) ways.resize(kMostWays);
    std::string tried;
    const TimePoint enough = Clock::now() + kWaysBudget;
    for (const GidPair& way : ways) {
        if (!tried.empty() && Clock::now() >= enough) {
            tried.insert(0, "for want of time not all ways were tried: ");
            break;
        }
        ExchangedRoute route;
        route.own = view->gids[way.own];
        route.peer = offer.gids[way.peer].gid;
        route.peer_lid = offer.lid;
        route.needs_grh = reply.needs_grh;
        route.peer_qp = offer.qp_number;
        route.own_psn = static_cast<std::uint32_t>(random_()) & k24Bits;
        route.peer_psn = offer.psn;
        route.reads = reply.reads;
        ibv_qp_init_attr made{};
        ibv_qp* const qp = createQp(device, false, made);
        if (qp == nullptr)
            return refusal(
                Code::ResourceExhausted,
                errnoStatus(Code::ResourceExhausted, device.describe() + ": create a queue pair", errno).message());
        Status status = modify(route, qp, IBV_QPS_INIT, device, false, offer.mtu);
        Way used;
        if (status) status = modify(route, qp, IBV_QPS_RTR, device, false, offer.mtu, &used);
        if (status) status = modify(route, qp, IBV_QPS_RTS, device, false, offer.mtu);
        if (!status) {
            destroyServed(device, qp, device.queue(), offer.greeting);
            tried += (tried.empty() ? "" : "; ") + status.message();
            continue;
        }
        reply.answer.mtu = used.mtu;
        reply.qp_number = qp->qp_num;
        reply.psn = route.own_psn;
        reply.gid_index = static_cast<std::uint16_t>(way.peer);
        reply.gid = {route.own.gid, static_cast<std::uint8_t>(route.own.gid_type)};
        const CmId key = next_exchanged_++;
        served_[key] = Served{key,
                              qp,
                              static_cast<std::size_t>(own - own_.begin()),
                              offer.greeting,
                              ++served_order_,
                              nextPsn(qp),
                              asker.connection,
                              offer.qp_number,
                              used.gid,
                              device.queue()};
        served_count_.store(served_.size(), std::memory_order_relaxed);
        log_->debug("rdma: {}: serves Nic {} lane {} of {} by exchange, {}, path MTU {}", device.describe(),
                    offer.greeting.nic, offer.greeting.lane, offer.greeting.initiator.toString(),
                    wayText(device, route), reply.answer.mtu);
        return reply;
    }
    if (tried.empty()) {
        for (const PeerGid& gid : offer.gids) tried += " " + gidForPeople(gid.gid);
        tried = "no GID of " + device.describe() + " has type and scope in common with" + tried;
    }
    return refusal(Code::TransportMissing, tried);
}

}  // namespace troupe::verbs
