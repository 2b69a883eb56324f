// Connector: pairs that peers open to this engine.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

void Connector::onRequest(const CmEvent& event) {
    const auto greeting = decodeGreeting(event.private_data);
    if (!greeting) return reject(event.id, Code::ProtocolError, greeting.status().message());
    const std::string name = api_->cmDevice(event.id);
    const std::uint8_t port = api_->cmPort(event.id);
    const auto own = std::find_if(own_.begin(), own_.end(), [&](const Own& entry) {
        return entry.device->device_name == name && entry.device->port == port;
    });
    if (own == own_.end())
        return reject(event.id, Code::TransportMissing, "device '" + name + "' is not one that this engine uses");
    if (const Status admitted = admit(*greeting); !admitted)
        return reject(event.id, admitted.code(), admitted.message());
    if (greeting->fence) return reject(event.id, Code::Ok, "it is a fence");
    makeRoom();
    const Status status = serve(event, *greeting, static_cast<std::size_t>(own - own_.begin()));
    if (!status) reject(event.id, status.code(), status.message());
}

/// Ok when a pair may be made for that greeting, or a fence be answered: the lane's earlier ones have ended then.
/// Before the answer, so that nothing they still have on the way is applied once it is there.
Status Connector::admit(const Greeting& greeting) {
    if (greeting.target != incarnation_)
        return {Code::StaleIncarnation, "it is meant for " + greeting.target.toString()};
    const auto is_later = [&](const auto& entry) {
        return entry.second.greeting.sameLane(greeting) && entry.second.greeting.attempt > greeting.attempt;
    };
    if (!greeting.fence && std::any_of(served_.begin(), served_.end(), is_later))
        return {Code::StaleHandle, "the lane has a later connection already"};
    endPredecessors(greeting, greeting.fence ? "the initiator fenced it off" : "the initiator opened its successor");
    return {};
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
    std::uint32_t mtu = 0;
    if (status) status = modify(event.id, qp, IBV_QPS_RTR, device, false, 4096, &mtu);
    if (status) status = modify(event.id, qp, IBV_QPS_RTS, device, false, 4096);
    if (status) {
        const auto answer = encode(Answer{Code::Ok, incarnation_, mtu, device.name});
        CmParameters parameters;
        parameters.private_data = answer;
        parameters.qp_number = qp->qp_num;
        parameters.responder_resources = depth;
        parameters.rnr_retry_count = static_cast<std::uint8_t>(config_.rdma_rnr_retry);
        const int error = api_->cmAccept(event.id, parameters);
        if (error != 0) status = errnoStatus(Code::ConnectionLost, device.describe() + ": accept", error);
    }
    if (!status) {
        static_cast<void>(api_->destroyQp(qp));
        return status;
    }
    served_[event.id] = Served{event.id, qp, index, greeting, ++served_order_, nextPsn(qp)};
    served_count_.store(served_.size(), std::memory_order_relaxed);
    log_->debug("rdma: {}: serves Nic {} lane {} of {}", device.describe(), greeting.nic, greeting.lane,
                greeting.initiator.toString());
    return {};
}

void Connector::reject(CmId id, Code code, const std::string& why) {
    log_->debug("rdma: connection refused: {}", why);
    static_cast<void>(api_->cmReject(id, encode(Answer{code, incarnation_, 0, ""})));
    api_->cmDestroy(id);
}

void Connector::endServed(CmId id, const char* why) {
    const auto found = served_.find(id);
    if (found == served_.end()) return;
    const Served served = found->second;
    const Device& device = *own_[served.device].device;
    log_->debug("rdma: {}: ends service of Nic {} lane {} of {}: {}", device.describe(), served.greeting.nic,
                served.greeting.lane, served.greeting.initiator.toString(), why);
    served_.erase(found);
    served_count_.store(served_.size(), std::memory_order_relaxed);
    // The pair first: from here on nothing that comes by it touches memory.
    if (const int error = api_->destroyQp(served.qp); error != 0) {
        const Status cause = errnoStatus(Code::Internal, device.describe() + ": destroy a queue pair", error);
        log_->error("rdma: {}", cause.message());
        getStuck(0, Stuck::kNobody, served.qp, cause);
    }
    if (served.connection == 0) retire(id, served.device);
}

}  // namespace troupe::verbs
