// Connector: which pair of a peer ends when there are rdma.max_connections.

#include <algorithm>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

namespace {

/// Pairs looked at before one that is in use has to go: each look is a command to the device.
constexpr int kMostLooks = 64;
/// Packet sequence numbers have 24 bits, so this is none.
constexpr std::uint32_t kUnknownPsn = 1u << 24;

}  // namespace

/// What is written and read here passes by this process, but the device counts packets: the number of the one that it
/// expects next tells whether any came since the last look. Where it does not say, every pair looks unused.
std::uint32_t Connector::nextPsn(ibv_qp* qp) const {
    ibv_qp_attr attributes{};
    return api_->queryQp(qp, attributes, IBV_QP_RQ_PSN) == 0 ? attributes.rq_psn & 0xffffff : kUnknownPsn;
}

/// A peer whose host died says nothing, and a pair that only serves notices nothing: at the bound the one goes that was
/// not seen in use for longest. Those that were used since they were looked at last are passed over once. An initiator
/// that is alive connects anew when it has work.
void Connector::makeRoom() {
    const auto longest_unseen = [this] {
        return std::min_element(served_.begin(), served_.end(),
                                [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    };
    while (served_.size() >= config_.rdma_max_connections) {
        auto candidate = longest_unseen();
        for (int looks = 0; looks < kMostLooks; ++looks, candidate = longest_unseen()) {
            Served& served = candidate->second;
            const std::uint32_t psn = nextPsn(served.qp);
            if (psn == served.psn) break;
            served.psn = psn;
            served.order = ++served_order_;
        }
        endServed(candidate->first, "there are rdma.max_connections, and this was not used for longest");
    }
}

}  // namespace troupe::verbs
