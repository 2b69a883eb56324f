// Connector: creating queue pairs and their transitions.

#include <algorithm>
#include <cerrno>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

/// A request's local side may lie in several registrations; more pieces than this become several work requests.
constexpr std::uint32_t kSegments = 4;

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
    attributes.send_cq = device.cq();
    attributes.recv_cq = device.cq();
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

Status Connector::modify(CmId id, ibv_qp* qp, ibv_qp_state state, const Device& device, bool initiator,
                         std::uint32_t mtu_cap, std::uint32_t* mtu_used) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    const std::string what = device.describe() + ": queue pair to " + stateName(state);
    if (const int error = api_->cmQpAttributes(id, attributes, mask); error != 0)
        return errnoStatus(Code::ConnectionLost, what + ", attributes of the connection", error);
    if (state == IBV_QPS_INIT) {
        // The initiator's memory is never reachable through the pairs it opens.
        attributes.qp_access_flags = initiator ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        mask |= IBV_QP_ACCESS_FLAGS;
    }
    if (state == IBV_QPS_RTR) {
        const std::uint32_t own = std::min(config_.rdma_mtu, mtuBytes(device.port_attributes.active_mtu));
        attributes.path_mtu = mtuOfBytes(std::min({mtuBytes(attributes.path_mtu), own, mtu_cap}));
        attributes.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(config_.rdma_traffic_class);
        if (mtu_used != nullptr) *mtu_used = mtuBytes(attributes.path_mtu);
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
               gidText(attributes.ah_attr.grh.dgid) + ")";
    return errnoStatus(Code::ConnectionLost, what + used, error);
}

Status Connector::toError(const Device& device, ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    const int error = device.api().modifyQp(qp, attributes, IBV_QP_STATE);
    return error == 0 ? Status() : errnoStatus(Code::Internal, device.describe() + ": queue pair to ERR", error);
}

}  // namespace troupe::verbs
