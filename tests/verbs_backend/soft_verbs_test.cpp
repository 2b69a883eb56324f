// The rules that the software device keeps, where a real one does: what it lets pass no other test would find.

#include <cerrno>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;

/// A queue pair on a device, with what it is made on.
struct End {
    std::string device;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
    ibv_mr* mr = nullptr;
    std::vector<char> memory = std::vector<char>(4096);
};

class SoftVerbsRules : public ::testing::Test {
  protected:
    void open(End& end, const std::string& device) {
        end.device = device;
        std::vector<VerbsApi::Opened> opened;
        ASSERT_EQ(soft_.openDevices([&](const std::string& name) { return name == device; }, opened), 0);
        ASSERT_EQ(opened.size(), 1u);
        end.context = opened[0].context;
        end.pd = soft_.allocPd(end.context);
        end.channel = soft_.createChannel(end.context);
        end.cq = soft_.createCq(end.context, 100, end.channel);
        end.mr = soft_.regMr(end.pd, end.memory.data(), end.memory.size(),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
        end.qp = createQp(end, 1);
        ASSERT_TRUE(end.pd != nullptr && end.cq != nullptr && end.mr != nullptr && end.qp != nullptr);
    }
    ibv_qp* createQp(const End& end, std::uint32_t pieces) {
        ibv_qp_init_attr wanted{};
        wanted.send_cq = wanted.recv_cq = end.cq;
        wanted.qp_type = IBV_QPT_RC;
        wanted.cap = {64, 1, pieces, 1, 0};
        return soft_.createQp(end.pd, wanted);
    }
    int toInit(const End& end) {
        ibv_qp_attr wanted{};
        wanted.qp_state = IBV_QPS_INIT;
        wanted.port_num = 1;
        wanted.qp_access_flags = IBV_ACCESS_REMOTE_READ;
        return soft_.modifyQp(end.qp, wanted, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    }
    /// Serves that many READs at once.
    int toRtr(const End& end, const End& other, std::uint8_t reads) {
        ibv_qp_attr wanted{};
        wanted.qp_state = IBV_QPS_RTR;
        wanted.path_mtu = IBV_MTU_1024;
        wanted.dest_qp_num = other.qp->qp_num;
        wanted.max_dest_rd_atomic = reads;
        wanted.ah_attr.is_global = 1;
        wanted.ah_attr.port_num = 1;
        wanted.ah_attr.grh.sgid_index = 1;
        wanted.ah_attr.grh.dgid = SoftVerbs::gid(other.device == "s0" ? "::ffff:10.9.0.1" : "::ffff:10.9.0.2", 1).gid;
        return soft_.modifyQp(end.qp, wanted,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    }
    /// Has that many READs outstanding at once.
    int toRts(const End& end, std::uint8_t reads) {
        ibv_qp_attr wanted{};
        wanted.qp_state = IBV_QPS_RTS;
        wanted.max_rd_atomic = reads;
        return soft_.modifyQp(end.qp, wanted,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                  IBV_QP_MAX_QP_RD_ATOMIC);
    }
    /// How the last of so many READs ends that are posted at once, by a pair that may have `outstanding`, from one that
    /// serves `served`.
    ibv_wc_status readAtOnce(std::size_t count, std::uint8_t outstanding, std::uint8_t served) {
        End a;
        End b;
        open(a, "s0");
        open(b, "s1");
        EXPECT_EQ(toInit(a) | toInit(b) | toRtr(a, b, 0) | toRtr(b, a, served) | toRts(a, outstanding) | toRts(b, 0),
                  0);
        std::vector<ibv_sge> pieces(count);
        std::vector<ibv_send_wr> list(count);
        for (std::size_t i = 0; i < count; ++i) {
            pieces[i] = {reinterpret_cast<std::uint64_t>(a.memory.data()), 64, a.mr->lkey};
            list[i].wr_id = i;
            list[i].next = i + 1 < count ? &list[i + 1] : nullptr;
            list[i].sg_list = &pieces[i];
            list[i].num_sge = 1;
            list[i].opcode = IBV_WR_RDMA_READ;
            list[i].send_flags = IBV_SEND_SIGNALED;
            list[i].wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(b.memory.data());
            list[i].wr.rdma.rkey = b.mr->rkey;
        }
        ibv_send_wr* bad = nullptr;
        EXPECT_EQ(soft_.postSend(a.qp, list.data(), &bad), 0);
        std::vector<ibv_wc> ends(count);
        EXPECT_EQ(soft_.pollCq(a.cq, ends), static_cast<int>(count));
        // What is behind one that fails is flushed.
        for (const ibv_wc& end : ends)
            if (end.status != IBV_WC_SUCCESS) return end.status;
        return IBV_WC_SUCCESS;
    }
    void request(CmId& initiator, CmEvent& asked) {
        const CmChannel there = soft_.cmOpen();
        const CmId listener = soft_.cmCreate(there);
        std::uint16_t port = 0;
        ASSERT_EQ(soft_.cmListen(listener, *SocketAddress::fromNumeric("0.0.0.0", 0), 1, port), 0);
        initiator = soft_.cmCreate(soft_.cmOpen());
        ASSERT_EQ(soft_.cmResolveAddress(initiator, *SocketAddress::fromNumeric("10.9.0.1", 0),
                                         *SocketAddress::fromNumeric("10.9.0.2", port), 1000),
                  0);
        ASSERT_EQ(soft_.cmResolveRoute(initiator, 1000), 0);
        CmParameters parameters;
        parameters.initiator_depth = 8;
        ASSERT_EQ(soft_.cmConnect(initiator, parameters), 0);
        ASSERT_TRUE(soft_.cmNextEvent(there, asked));
        ASSERT_EQ(asked.kind, CmEvent::Kind::ConnectRequest);
        EXPECT_EQ(asked.responder_resources, 8);
    }

    SoftVerbs soft_{{"s0", "s1"}};
};

TEST_F(SoftVerbsRules, AsManyReadsAreUnderWayAsBothEndsAgreedTo) {
    // The initiator waits with what it may not have outstanding.
    EXPECT_EQ(readAtOnce(20, 4, 4), IBV_WC_SUCCESS);
    EXPECT_EQ(readAtOnce(20, 4, 16), IBV_WC_SUCCESS);
    // The other end has no room for what was not agreed to; it hears nothing of it while there is not as much.
    EXPECT_EQ(readAtOnce(4, 16, 4), IBV_WC_SUCCESS);
    EXPECT_EQ(readAtOnce(20, 16, 4), IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(readAtOnce(1, 16, 0), IBV_WC_REM_INV_REQ_ERR);
    EXPECT_TRUE(soft_.violations().empty());
    EXPECT_EQ(readAtOnce(1, 0, 16), IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(soft_.violations().size(), 1u) << "a real device waits for ever";
}

TEST_F(SoftVerbsRules, NoPairHasMoreReadsThanItsDevice) {
    End a;
    End b;
    open(a, "s0");
    open(b, "s1");
    soft_.setReads("s0", 4);
    ASSERT_EQ(toInit(a), 0);
    EXPECT_EQ(toRtr(a, b, 5), EINVAL);
    ASSERT_EQ(toRtr(a, b, 4), 0);
    EXPECT_EQ(toRts(a, 5), EINVAL);
    EXPECT_EQ(toRts(a, 4), 0);
}

TEST_F(SoftVerbsRules, NoPairHasMorePiecesThanItsDevice) {
    End a;
    open(a, "s0");
    ibv_device_attr attributes{};
    ASSERT_EQ(soft_.queryDevice(a.context, attributes), 0);
    const auto most = static_cast<std::uint32_t>(attributes.max_sge);
    EXPECT_NE(createQp(a, most), nullptr);
    errno = 0;
    EXPECT_EQ(createQp(a, most + 1), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(SoftVerbsRules, FromResetThereIsNoWayToTheErrorState) {
    End a;
    open(a, "s0");
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(soft_.modifyQp(a.qp, error, IBV_QP_STATE), EINVAL);
    EXPECT_EQ(soft_.violations().size(), 1u);
    ASSERT_EQ(toInit(a), 0);
    EXPECT_EQ(soft_.modifyQp(a.qp, error, IBV_QP_STATE), 0);
}

TEST_F(SoftVerbsRules, AnAnswerHasRoomForSoManyBytes) {
    for (const std::size_t bytes : {std::size_t{196}, std::size_t{197}}) {
        CmId initiator = 0;
        CmEvent asked;
        request(initiator, asked);
        const std::vector<std::byte> data(bytes);
        CmParameters parameters;
        parameters.private_data = data;
        parameters.responder_resources = 4;
        EXPECT_EQ(soft_.cmAccept(asked.id, parameters), bytes > 196 ? EINVAL : 0);
        // Both ends have what they agreed to then; till then what was asked for.
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_RTS;
        int mask = 0;
        ASSERT_EQ(soft_.cmQpAttributes(initiator, attributes, mask), 0);
        EXPECT_EQ(attributes.max_rd_atomic, bytes > 196 ? 8 : 4);
    }
    EXPECT_EQ(soft_.violations().size(), 1u);
}

TEST_F(SoftVerbsRules, ARefusalHasRoomForSoManyBytes) {
    for (const std::size_t bytes : {std::size_t{148}, std::size_t{149}}) {
        CmId initiator = 0;
        CmEvent asked;
        request(initiator, asked);
        EXPECT_EQ(soft_.cmReject(asked.id, std::vector<std::byte>(bytes)), bytes > 148 ? EINVAL : 0);
    }
    EXPECT_EQ(soft_.violations().size(), 1u);
}

}  // namespace
}  // namespace troupe::verbs
