// Connector: creating queue pairs and their transitions.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

/// A request's local side may lie in several registrations; more pieces than this become several work requests.
constexpr std::uint32_t kSegments = 4;

/// 0.64 ms, as rdma_cm has it; nothing that needs a receive is ever sent.
constexpr std::uint8_t kMinRnrTimer = 12;
/// As the kernel sends IP.
constexpr std::uint8_t kHopLimit = 64;

std::string stateName(ibv_qp_state state) {
    switch (state) {
        case IBV_QPS_INIT: return "INIT";
        case IBV_QPS_RTR: return "RTR";
        case IBV_QPS_RTS: return "RTS";
        case IBV_QPS_ERR: return "ERR";
        default: return std::to_string(state);
    }
}

}  // namespace

ibv_qp* Connector::createQp(const Device& device, bool initiator, ibv_qp_init_attr& attributes) const {
    attributes = {};
    attributes.send_cq = attributes.recv_cq = device.queue()->get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 0;
    const auto device_depth = static_cast<std::uint32_t>(std::max(device.attributes.max_qp_wr, 1));
    const auto device_segments = static_cast<std::uint32_t>(std::max(device.attributes.max_sge, 1));
    // A target posts nothing, so no completion of its pairs ever takes room in the queue.
    attributes.cap.max_send_wr = initiator ? std::min(config_.rdma_queue_depth, device_depth) : 1;
    attributes.cap.max_recv_wr = 1;
    attributes.cap.max_send_sge = initiator ? std::min(kSegments, device_segments) : 1;
    attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = initiator ? config_.rdma_inline_bytes : 0;
    const ibv_qp_cap asked = attributes.cap;
    ibv_qp* qp = api_->createQp(device.pd(), attributes);
    if (qp == nullptr && asked.max_inline_data != 0) {
        // How much a device takes inline is only to be found by trying.
        attributes.cap = asked;
        attributes.cap.max_inline_data = 0;
        qp = api_->createQp(device.pd(), attributes);
    }
    // A device may give more than was asked for; the accounting keeps to what was asked.
    attributes.cap.max_send_wr = std::min(attributes.cap.max_send_wr, asked.max_send_wr);
    attributes.cap.max_inline_data = std::min(attributes.cap.max_inline_data, asked.max_inline_data);
    attributes.cap.max_send_sge = std::min(attributes.cap.max_send_sge, asked.max_send_sge);
    return qp;
}

/// The initiator's queue pair, in the state INIT. A fence needs no more of it than a number that nobody else has.
Status Connector::prepare(Pair& pair, const Link& link) {
    const Device& device = *via(pair).device;
    pair.queue = device.queue();
    pair.qp = createQp(device, true, pair.made);
    if (pair.qp == nullptr)
        return errnoStatus(Code::ResourceExhausted,
                           "create a queue pair (the device takes " + std::to_string(device.attributes.max_qp) + ")",
                           errno);
    return pair.order.greeting.fence ? Status() : modify(link, pair.qp, IBV_QPS_INIT, device, true, 4096);
}

/// What a transition to `attributes.qp_state` needs of the other end; errno by result.
int Connector::attributesOf(const Link& link, const Device& device, bool initiator, ibv_qp_attr& attributes,
                            int& mask) const {
    if (link.route == nullptr) return api_->cmQpAttributes(link.id, attributes, mask);
    const ExchangedRoute& route = *link.route;
    mask = IBV_QP_STATE;
    if (attributes.qp_state == IBV_QPS_INIT) {
        attributes.port_num = device.port;
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    } else if (attributes.qp_state == IBV_QPS_RTR) {
        attributes.path_mtu = IBV_MTU_4096;
        attributes.dest_qp_num = route.peer_qp;
        attributes.rq_psn = route.peer_psn;
        attributes.max_dest_rd_atomic = initiator ? 0 : route.reads;
        attributes.min_rnr_timer = kMinRnrTimer;
        ibv_ah_attr& way = attributes.ah_attr;
        way.port_num = device.port;
        way.dlid = route.peer_lid;
        // Within one subnet packets do without, but where a port says otherwise. Both ends must do alike.
        const bool one_subnet =
            device.infiniband && route.own.gid.global.subnet_prefix == route.peer.global.subnet_prefix;
        way.is_global = one_subnet && !route.needs_grh ? 0 : 1;
        way.grh.dgid = route.peer;
        way.grh.sgid_index = static_cast<std::uint8_t>(route.own.gid_index);
        way.grh.hop_limit = kHopLimit;
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                IBV_QP_MIN_RNR_TIMER;
    } else {
        attributes.sq_psn = route.own_psn;
        attributes.max_rd_atomic = initiator ? route.reads : 0;
        mask |= IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return 0;
}

Status Connector::modify(const Link& link, ibv_qp* qp, ibv_qp_state state, const Device& device, bool initiator,
                         std::uint32_t mtu_cap, Way* way) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    const std::string what = device.describe() + ": queue pair to " + stateName(state);
    if (const int error = attributesOf(link, device, initiator, attributes, mask); error != 0)
        return errnoStatus(Code::ConnectionLost, what + ", attributes of the connection", error);
    if (state == IBV_QPS_INIT) {
        // The initiator's memory is never reachable through the pairs it opens.
        attributes.qp_access_flags = initiator ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        mask |= IBV_QP_ACCESS_FLAGS;
        if (device.settings.pkey_index != 0)
            attributes.pkey_index = static_cast<std::uint16_t>(device.settings.pkey_index);
    }
    if (state == IBV_QPS_RTR) {
        attributes.path_mtu = mtuOfBytes(std::min({mtuBytes(attributes.path_mtu), device.mtu(), mtu_cap}));
        // rdma_cm has what the initiator asked for; the answer says what of it there will be.
        attributes.max_dest_rd_atomic = static_cast<std::uint8_t>(
            std::min<int>(attributes.max_dest_rd_atomic, std::max(device.attributes.max_qp_rd_atom, 0)));
        // Otherwise as the kernel is set (default_roce_tos).
        if (device.settings.traffic_class != 0)
            attributes.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(device.settings.traffic_class);
        if (device.settings.service_level != 0)
            attributes.ah_attr.sl = static_cast<std::uint8_t>(device.settings.service_level);
        if (way != nullptr) {
            way->mtu = mtuBytes(attributes.path_mtu);
            way->gid.reset();
            if (attributes.ah_attr.is_global != 0) way->gid = device.view()->entryAt(attributes.ah_attr.grh.sgid_index);
        }
    }
    if (state == IBV_QPS_RTS) {
        attributes.timeout = static_cast<std::uint8_t>(config_.rdma_ack_timeout);
        attributes.retry_cnt = static_cast<std::uint8_t>(config_.rdma_retry_count);
        attributes.rnr_retry = static_cast<std::uint8_t>(config_.rdma_rnr_retry);
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    }
    const int error = api_->modifyQp(qp, attributes, mask);
    if (error == 0) return {};
    std::string used;
    if (state == IBV_QPS_RTR)
        used = " (path MTU " + std::to_string(mtuBytes(attributes.path_mtu)) + ", own GID index " +
               std::to_string(attributes.ah_attr.grh.sgid_index) + ", peer's GID " +
               gidForPeople(attributes.ah_attr.grh.dgid) + ")";
    return errnoStatus(Code::ConnectionLost, what + used, error);
}

Status Connector::toError(const Device& device, ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    const int error = device.api().modifyQp(qp, attributes, IBV_QP_STATE);
    return error == 0 ? Status() : errnoStatus(Code::Internal, device.describe() + ": queue pair to ERR", error);
}

}  // namespace troupe::verbs
