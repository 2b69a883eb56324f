#include "verbs_backend/exchange_messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "tests/verbs_backend/soft_verbs.h"

namespace troupe::verbs {
namespace {

using testing::SoftVerbs;

Offer someOffer() {
    Offer offer;
    offer.greeting = {Incarnation::random(), Incarnation::random(), 3, 7, 1234567890123};
    offer.infiniband = true;
    offer.lid = 0xabcd;
    offer.qp_number = 0xfedcba;
    offer.psn = 0x123456;
    offer.mtu = 2048;
    offer.reads = 16;
    offer.device = "mlx5_0:2";
    for (int i = 0; i < 3; ++i)
        offer.gids.push_back({SoftVerbs::gid("2001:db8::" + std::to_string(i), 0).gid, static_cast<std::uint8_t>(i)});
    return offer;
}

OfferReply someReply() {
    OfferReply reply;
    reply.answer = {Code::Ok, Incarnation::random(), 1024, "mlx5_1"};
    reply.qp_number = 77;
    reply.psn = 0xffffff;
    reply.lid = 9;
    reply.reads = 255;
    reply.gid_index = 2;
    reply.gid = {SoftVerbs::gid("::ffff:10.0.0.9", 0).gid, 2};
    reply.text = "all is well";
    return reply;
}

bool same(const PeerGid& a, const PeerGid& b) {
    return std::memcmp(a.gid.raw, b.gid.raw, sizeof a.gid.raw) == 0 && a.type == b.type;
}

TEST(ExchangeMessages, AnOfferArrivesAsItWasSent) {
    const Offer sent = someOffer();
    const auto got = decodeOffer(encode(sent));
    ASSERT_TRUE(got) << got.status().toString();
    EXPECT_TRUE(got->greeting.sameLane(sent.greeting));
    EXPECT_EQ(got->greeting.target, sent.greeting.target);
    EXPECT_EQ(got->greeting.attempt, sent.greeting.attempt);
    EXPECT_EQ(got->what, Offer::What::Connect);
    EXPECT_EQ(std::tuple(got->infiniband, got->lid, got->qp_number, got->psn, got->mtu, got->reads, got->device),
              std::tuple(true, 0xabcd, 0xfedcbau, 0x123456u, 2048u, 16, std::string("mlx5_0:2")));
    ASSERT_EQ(got->gids.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(got->gids[i], sent.gids[i]));
}

TEST(ExchangeMessages, AReplyArrivesAsItWasSent) {
    const OfferReply sent = someReply();
    const auto got = decodeOfferReply(encode(sent));
    ASSERT_TRUE(got) << got.status().toString();
    EXPECT_EQ(got->answer.target, sent.answer.target);
    EXPECT_EQ(std::tuple(got->answer.mtu, got->answer.device, got->qp_number, got->psn, got->lid, got->reads,
                         got->gid_index, got->text),
              std::tuple(1024u, std::string("mlx5_1"), 77u, 0xffffffu, 9, 255, 2, std::string("all is well")));
    EXPECT_TRUE(same(got->gid, sent.gid));
}

TEST(ExchangeMessages, ThatAGlobalRouteHeaderIsNeededArrivesAndNoOtherFlagDoes) {
    for (const bool needed : {false, true}) {
        Offer offer = someOffer();
        offer.needs_grh = needed;
        EXPECT_EQ(decodeOffer(encode(offer))->needs_grh, needed);
        EXPECT_TRUE(decodeOffer(encode(offer))->infiniband);
        OfferReply reply = someReply();
        reply.needs_grh = needed;
        EXPECT_EQ(decodeOfferReply(encode(reply))->needs_grh, needed);
        EXPECT_EQ(decodeOfferReply(encode(reply))->reads, 255);
    }
    std::string offer = encode(someOffer());
    offer[kGreetingBytes + 1] = 4;
    EXPECT_FALSE(decodeOffer(offer));
    std::string reply = encode(someReply());
    reply[kAnswerBytes + 11] = 2;
    EXPECT_FALSE(decodeOfferReply(reply));
}

TEST(ExchangeMessages, ALengthThatIsNotExactIsRefused) {
    const std::string offer = encode(someOffer());
    const std::string reply = encode(someReply());
    for (std::size_t size = 0; size < offer.size(); ++size) EXPECT_FALSE(decodeOffer(offer.substr(0, size))) << size;
    for (std::size_t size = 0; size < reply.size(); ++size)
        EXPECT_FALSE(decodeOfferReply(reply.substr(0, size))) << size;
    EXPECT_FALSE(decodeOffer(offer + '\0'));
    EXPECT_FALSE(decodeOfferReply(reply + 'x'));
}

TEST(ExchangeMessages, ValuesOutOfTheirRangeAreRefused) {
    const auto refused = [](const auto& change) {
        Offer offer = someOffer();
        change(offer);
        const auto decoded = decodeOffer(encode(offer));
        EXPECT_EQ(decoded.status().code(), Code::ProtocolError);
        return !decoded;
    };
    EXPECT_TRUE(refused([](Offer& offer) { offer.qp_number = 1u << 24; }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.psn = 1u << 24; }));
    for (const std::uint32_t mtu : {0u, 128u, 1500u, 8192u, 0xffffffffu})
        EXPECT_TRUE(refused([&](Offer& offer) { offer.mtu = mtu; })) << mtu;
    EXPECT_TRUE(refused([](Offer& offer) { offer.gids.clear(); }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.gids[1].type = 3; }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.device = "mlx5 0"; }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.device = std::string("a\0b", 3); }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.what = static_cast<Offer::What>(3); }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.greeting.initiator = {}; }));
    EXPECT_TRUE(refused([](Offer& offer) { offer.greeting.fence = true; })) << "a fence makes no pair";
    OfferReply reply = someReply();
    reply.answer.mtu = 1000;
    EXPECT_FALSE(decodeOfferReply(encode(reply)));
    reply = someReply();
    reply.answer.device.clear();
    EXPECT_FALSE(decodeOfferReply(encode(reply)));
}

TEST(ExchangeMessages, TextIsCutAndCleanedWhereItIsMade) {
    OfferReply reply = someReply();
    reply.text = "line\nline\x01" + std::string(2000, 'x');
    const auto got = decodeOfferReply(encode(reply));
    ASSERT_TRUE(got) << got.status().toString();
    EXPECT_EQ(got->text.size(), kMaxReplyText);
    EXPECT_EQ(got->text.substr(0, 11), "line?line?x");
}

TEST(GidPairs, OnlyTheSameTypeAndScopeGoTogetherAndTheWidestComesFirst) {
    const auto own = std::vector{SoftVerbs::gid("fe80::1", 0), SoftVerbs::gid("fe80::1", 1, IBV_GID_TYPE_ROCE_V1),
                                 SoftVerbs::gid("::ffff:10.1.0.1", 2), SoftVerbs::gid("::ffff:10.2.0.1", 3),
                                 SoftVerbs::gid("2001:db8::1", 4)};
    const auto peer = [](const std::string& address, ibv_gid_type type = IBV_GID_TYPE_ROCE_V2) {
        return PeerGid{SoftVerbs::gid(address, 0).gid, static_cast<std::uint8_t>(type)};
    };
    const std::vector<PeerGid> theirs = {peer("fe80::2", IBV_GID_TYPE_ROCE_V1), peer("fe80::2"),
                                         peer("::ffff:10.2.0.7"), peer("2001:db8::2"), peer("::")};
    EXPECT_EQ(pairGids(own, theirs), (std::vector<GidPair>{{3, 2}, {2, 2}, {4, 3}, {0, 1}, {1, 0}}));
    EXPECT_TRUE(pairGids(own, {}).empty());
    EXPECT_TRUE(pairGids({own[4]}, {theirs[0], theirs[1], theirs[2]}).empty());
}

}  // namespace
}  // namespace troupe::verbs
