// Whole engines with a cluster key, by nothing but RDMA. Runs in the VM.

#include "tests/security/auth_keys.h"
#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;

/// Without a letter: without a key.
EngineSetup with(const std::string& letter, const std::string& names, const std::string& connect) {
    EngineSetup setup = Engines::setup(names, false);
    if (!letter.empty()) setup.config.auth_key = std::string(32, letter[0]);
    setup.config.rdma_connect = connect;
    return setup;
}

TEST(VerbsVmAuth, OneKeyAtBothEndsWorksByRdmaCmAndByExchange) {
    for (const std::string connect : {"cm", "exchange"}) {
        Engines engines(with("k", "rxe_0a", connect), with("k", "rxe_0b", connect), 1u << 20);
        const std::uint64_t opened[] = {engines.a->authCounts().accepted, engines.b->authCounts().accepted};
        EXPECT_GE(opened[0], 1u) << "the control connection";
        EXPECT_GE(opened[1], 1u) << "the control connection";
        engines.local.fillPattern(1);
        expectCompleted(runBatch(*engines.a, engines.pieces(Opcode::Write, 256u << 10)), engines.local.size());
        EXPECT_TRUE(engines.remote.holdsPattern(1));
        engines.remote.fillPattern(2);
        expectCompleted(runBatch(*engines.a, engines.pieces(Opcode::Read, 256u << 10)), engines.local.size());
        EXPECT_TRUE(engines.local.holdsPattern(2));
        // What is exchanged over the control connection is proven by that.
        if (connect == "exchange") continue;
        EXPECT_GT(engines.a->authCounts().accepted, opened[0]) << "the pair";
        EXPECT_GT(engines.b->authCounts().accepted, opened[1]) << "the pair";
    }
}

TEST(VerbsVmAuth, AnotherKeyAndNoneAreRefusedAtTheControlConnectionAndCounted) {
    for (const auto& [letter, why] : {std::pair("x", AuthRefusal::WrongProof), std::pair("", AuthRefusal::NoProof)}) {
        for (const std::string connect : {"cm", "exchange"}) {
            const auto a = startRdma(with(letter, "rxe_0a", connect));
            const auto b = startRdma(with("k", "rxe_0b", connect));
            const auto segment = a->openSegment(b->localSegmentName());
            EXPECT_EQ(segment.status().code(), Code::AccessDenied) << segment.status().toString();
            EXPECT_GE(b->authCounts().of(why), 1u);
            EXPECT_EQ(b->authCounts().accepted, 0u);
        }
    }
}

/// Writes to the first region of `owner` by an RDMA transport alone, which has asked nobody for the way there; how it
/// ended.
Status writePastTheControlConnection(TransferEngine& owner, const std::string& letter, const Buffer& from) {
    Config config;
    config.rdma_devices = "rxe_0a";
    config.rdma_ack_timeout = 17;
    verbs::testing::Node node(config, verbs::systemVerbs(), "stranger", vmLog("stranger"), nullptr, nullptr,
                              authOf(letter));
    if (const Status taken = node.registerMemory(from.data(), from.size()); !taken) return taken;
    const auto desc = owner.getSegmentDescByID(kLocalSegmentID);
    if (!desc) return desc.status();
    auto peer = std::make_shared<Peer>();
    peer->name = owner.localSegmentName();
    peer->host = "127.0.0.1";
    peer->desc = *desc;
    Nic& nic = *node.nics.front();
    const auto path = nic.openPath(peer);
    if (!path) return path.status();
    const auto* const to = reinterpret_cast<const void*>((*desc)->buffers.front().addr);
    verbs::testing::run(node, nic, *path, {verbs::testing::write(from.data(), to, from.size())});
    return node.sweep.failed.empty() ? Status::ok() : node.sweep.failed.front().cause;
}

TEST(VerbsVmAuth, WhoGoesStraightToTheRdmaPortWithAnotherKeyOrNoneIsRefusedAndCounted) {
    Buffer from(65536);
    Buffer to(65536);
    from.fillPattern(3);
    const auto owner = startRdma(with("k", "rxe_0b", "auto"));
    ASSERT_TRUE(owner->registerLocalMemory(to.data(), to.size()));
    for (const auto& [letter, why] : {std::pair("x", AuthRefusal::WrongProof), std::pair("", AuthRefusal::NoProof)}) {
        const Status refused = writePastTheControlConnection(*owner, letter, from);
        EXPECT_EQ(refused.code(), Code::AccessDenied) << refused.toString();
        EXPECT_GE(owner->authCounts().of(why), 1u);
        EXPECT_EQ(owner->authCounts().accepted, 0u);
        EXPECT_TRUE(to.holdsOnly(std::byte{0}, 0, to.size()));
    }
    // With the key it is let in, so it was the key.
    const Status let_in = writePastTheControlConnection(*owner, "k", from);
    EXPECT_TRUE(let_in) << let_in.toString();
    EXPECT_EQ(owner->authCounts().accepted, 1u);
    EXPECT_TRUE(to.holdsPattern(3));
}

}  // namespace
}  // namespace troupe
