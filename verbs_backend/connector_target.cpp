// Connector: pairs that peers open to this engine.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

constexpr const char* kNotDestroyed = "its device holds on to the lane's last queue pair";

}  // namespace

void Connector::onRequest(const CmEvent& event) {
    const auto greeting = openGreeting(event.private_data, auth_);
    if (!greeting) return reject(event, greeting.status().code(), greeting.status().message());
    const std::string name = api_->cmDevice(event.id);
    const std::uint8_t port = api_->cmPort(event.id);
    const auto own = std::find_if(own_.begin(), own_.end(), [&](const Own& entry) {
        return entry.device->device_name == name && entry.device->port == port;
    });
    if (own == own_.end())
        return reject(event, Code::TransportMissing, "device '" + name + "' is not one that this engine uses");
    if (!own->out) return reject(event, Code::TransportMissing, own->out.message());
    // A fence that comes again ends what has ended.
    if (hasKey(auth_) && greeting->target == incarnation_) {
        if (!greeting->fence && !seen_.isNew(*greeting)) {
            auth_->count(AuthRefusal::Replayed);
            return reject(event, Code::StaleHandle, "its greeting was seen before");
        }
        auth_->countAccepted();
    }
    if (const Status admitted = admit(*greeting); !admitted) return reject(event, admitted.code(), admitted.message());
    if (greeting->fence) return reject(event, Code::Ok, "it is a fence");
    makeRoom();
    const Status status = serve(event, *greeting, static_cast<std::size_t>(own - own_.begin()));
    if (!status) reject(event, status.code(), status.message());
}

/// Ok when a pair may be made for that greeting, or a fence be answered: the lane's earlier ones have ended then.
/// Before the answer, so that nothing they still have on the way is applied once it is there.
Status Connector::admit(const Greeting& greeting) {
    if (greeting.target != incarnation_)
        return {Code::StaleIncarnation, "it is meant for " + greeting.target.toString()};
    if (greeting.fence) {
        endPredecessors(greeting, "the initiator fenced it off");
        // The initiator waits until no packet of it lives.
        const bool ended = std::none_of(stuck_.begin(), stuck_.end(), [&](const Stuck& each) {
            return each.greeting.sameLane(greeting) && each.greeting.attempt <= greeting.attempt;
        });
        return ended ? Status() : Status(Code::Internal, kNotDestroyed);
    }
    for (const auto& [id, served] : served_)
        if (served.greeting.sameLane(greeting) && served.greeting.attempt > greeting.attempt)
            return {Code::StaleHandle, "the lane has a later connection already"};
    endPredecessors(greeting, "the initiator opened its successor");
    if (stillServes(greeting)) return {Code::Internal, kNotDestroyed};
    // So that it does not drive out those of others (makeRoom).
    const auto of_peer = std::count_if(served_.begin(), served_.end(), [&](const auto& entry) {
        return entry.second.greeting.initiator == greeting.initiator;
    });
    if (static_cast<std::size_t>(of_peer) >= config_.peer_rdma_connections)
        return {Code::CapacityExceeded,
                "it has " + std::to_string(of_peer) + " of them already (peer.rdma_connections)"};
    return {};
}

/// Whether a pair of the lane's earlier attempts may still take something in: it could neither be destroyed nor brought
/// into the error state.
bool Connector::stillServes(const Greeting& greeting) const {
    return std::any_of(stuck_.begin(), stuck_.end(),
                       [&](const Stuck& each) { return !each.takes_nothing && each.greeting.sameLane(greeting); });
}

/// Ends the lane's connections up to the greeting's attempt.
void Connector::endPredecessors(const Greeting& greeting, const char* why) {
    std::vector<CmId> predecessors;
    for (const auto& [id, served] : served_)
        if (served.greeting.sameLane(greeting) && served.greeting.attempt <= greeting.attempt)
            predecessors.push_back(id);
    for (const CmId id : predecessors) endServed(id, why);
}

Status Connector::serve(const CmEvent& event, const Greeting& greeting, std::size_t index) {
    const Device& device = *own_[index].device;
    ibv_qp_init_attr made{};
    ibv_qp* qp = createQp(device, false, made);
    if (qp == nullptr) return errnoStatus(Code::ResourceExhausted, device.describe() + ": create a queue pair", errno);
    // What it is asked to serve at once, within what the device can; rdma_cm negotiates with this.
    const auto depth = static_cast<std::uint8_t>(
        std::clamp(device.attributes.max_qp_rd_atom, 0, static_cast<int>(event.responder_resources)));
    Status status = modify(event.id, qp, IBV_QPS_INIT, device, false, 4096);
    const std::uint32_t initiators = greeting.mtu != 0 ? greeting.mtu : 4096;
    Way way;
    if (status) status = modify(event.id, qp, IBV_QPS_RTR, device, false, initiators, &way);
    if (status) status = modify(event.id, qp, IBV_QPS_RTS, device, false, 4096);
    if (status) {
        const auto answer =
            sealAnswer(Answer{Code::Ok, incarnation_, way.mtu, device.name}, event.private_data, true, auth_);
        CmParameters parameters;
        parameters.private_data = answer;
        parameters.qp_number = qp->qp_num;
        parameters.responder_resources = depth;
        parameters.rnr_retry_count = static_cast<std::uint8_t>(config_.rdma_rnr_retry);
        const int error = api_->cmAccept(event.id, parameters);
        if (error != 0) status = errnoStatus(Code::ConnectionLost, device.describe() + ": accept", error);
    }
    if (!status) {
        destroyServed(device, qp, device.queue(), greeting);
        return status;
    }
    served_[event.id] =
        Served{event.id, qp, index, greeting, ++served_order_, nextPsn(qp), 0, 0, way.gid, device.queue()};
    served_count_.store(served_.size(), std::memory_order_relaxed);
    log_->debug("rdma: {}: serves Nic {} lane {} of {}", device.describe(), greeting.nic, greeting.lane,
                greeting.initiator.toString());
    return {};
}

void Connector::reject(const CmEvent& event, Code code, const std::string& why) {
    const bool proven = code != Code::AccessDenied && code != Code::ProtocolError;
    if (code == Code::AccessDenied)
        refusals_.say(log_, Clock::now(), "rdma: connection refused: " + why);
    else
        log_->debug("rdma: connection refused: {}", why);
    const auto answer = sealAnswer(Answer{code, incarnation_, 0, "", why}, event.private_data, proven, auth_);
    static_cast<void>(api_->cmReject(event.id, answer));
    api_->cmDestroy(event.id);
}

/// False: the pair could not be destroyed.
bool Connector::endServed(CmId id, const char* why) {
    const auto found = served_.find(id);
    if (found == served_.end()) return true;
    const Served served = found->second;
    const Device& device = *own_[served.device].device;
    log_->debug("rdma: {}: ends service of Nic {} lane {} of {}: {}", device.describe(), served.greeting.nic,
                served.greeting.lane, served.greeting.initiator.toString(), why);
    served_.erase(found);
    served_count_.store(served_.size(), std::memory_order_relaxed);
    // The pair first: from here on nothing that comes by it touches memory.
    const bool destroyed = destroyServed(device, served.qp, served.queue, served.greeting);
    if (served.connection == 0) retire(id, served.device);
    return destroyed;
}

/// Also of one that never came to serve: it may be ready to. False: the device holds on to it.
bool Connector::destroyServed(const Device& device, ibv_qp* qp, std::shared_ptr<const CompletionQueue> queue,
                              const Greeting& greeting) {
    const int error = api_->destroyQp(qp);
    if (error == 0) return true;
    const Status cause = errnoStatus(Code::Internal, device.describe() + ": destroy a queue pair", error);
    log_->error("rdma: {}", cause.message());
    Stuck& stuck = getStuck(0, Stuck::kNobody, qp, std::move(queue), cause);
    stuck.greeting = greeting;
    // Without a way from there to the error state (qp_state_table of Linux); nor does it take anything in.
    ibv_qp_attr now{};
    const bool unused = api_->queryQp(qp, now, IBV_QP_STATE) == 0 && now.qp_state == IBV_QPS_RESET;
    const Status broken = unused ? Status() : toError(device, qp);
    stuck.takes_nothing = broken.isOk();
    if (!broken) log_->error("rdma: {}", broken.message());
    return false;
}

}  // namespace troupe::verbs
