// Pairs made by an exchange over the control connection, on the strict software device.

#include <atomic>
#include <cerrno>
#include <future>
#include <random>

#include "tests/verbs_backend/soft_pair.h"
#include "verbs_backend/exchange_messages.h"

namespace troupe::verbs {
namespace {

using namespace testing;

/// An initiator on s0 and a target on s1, whose ports have no address unless `arrange` gives them one.
struct ExchangePair {
    explicit ExchangePair(const std::function<void(SoftVerbs&)>& arrange = {}, Config base = softConfig("s0"))
        : soft(std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"})) {
        for (const int i : {1, 2})
            soft->setGids("s" + std::to_string(i - 1), {SoftVerbs::gid("fe80::" + std::to_string(i), 0)});
        // What works here does without it.
        soft->fail("cmConnect", EOPNOTSUPP, 1 << 30);
        if (arrange) arrange(*soft);
        a = std::make_unique<Node>(base, soft, "a", makeSilentLogger(), board);
        b = std::make_unique<Node>(softConfig("s1"), soft, "b", makeSilentLogger(), board);
        EXPECT_TRUE(a->registerMemory(local.data(), local.size()));
        EXPECT_TRUE(b->registerMemory(remote.data(), remote.size()));
        const auto opened = nic().openPath(b->asPeer());
        EXPECT_TRUE(opened) << opened.status().toString();
        if (opened) path = *opened;
    }
    ~ExchangePair() {
        a->end();
        b->end();
    }

    Nic& nic() { return *a->nics.front(); }
    /// The failures of one write.
    std::vector<Failure> tryOnce() {
        a->sweep.clear();
        run(*a, nic(), path, {write(local.data(), remote.data(), local.size())});
        return a->sweep.failed;
    }
    void expectWorks() {
        const auto limit = Clock::now() + 30s;
        std::fill(remote.begin(), remote.end(), 'x');
        std::vector<Failure> failed;
        do failed = tryOnce();
        while (!failed.empty() && Clock::now() < limit);
        EXPECT_TRUE(failed.empty()) << failed.front().cause.toString();
        EXPECT_TRUE(local == remote);
    }
    void expectFails(Code code, const std::string& part) {
        const auto failed = tryOnce();
        ASSERT_EQ(failed.size(), 1u) << "it worked";
        EXPECT_EQ(failed.front().cause.code(), code) << failed.front().cause.toString();
        EXPECT_NE(failed.front().cause.message().find(part), std::string::npos) << failed.front().cause.toString();
        EXPECT_TRUE(failed.front().quiesced);
    }
    bool eventuallyPairs(std::size_t count) {
        return pump(*a, [&] { return soft->count("qp") == count; });
    }

    std::vector<char> local = noise(8192);
    std::vector<char> remote = std::vector<char>(8192);
    std::shared_ptr<SoftVerbs> soft;
    CleanEnd clean_end{soft};
    std::shared_ptr<Switchboard> board = std::make_shared<Switchboard>();
    std::unique_ptr<Node> a;
    std::unique_ptr<Node> b;
    PathId path = 0;
};

const auto kMapped = [](SoftVerbs& soft) {
    for (const int i : {1, 2})
        soft.setGids("s" + std::to_string(i - 1), {SoftVerbs::gid("fe80::" + std::to_string(i), 0),
                                                   SoftVerbs::gid("2001:db8::" + std::to_string(i), 3),
                                                   SoftVerbs::gid("::ffff:10.9.0." + std::to_string(i), 5)});
};

Config byExchange() {
    Config config = softConfig("s0");
    config.rdma_connect = "exchange";
    return config;
}

TEST(VerbsExchange, PortsWithoutAnAddressReachEachOther) {
    ExchangePair pair;
    pair.expectWorks();
    EXPECT_EQ(pair.b->asPeer()->desc->rdma_port, 0);
    EXPECT_EQ(pair.soft->lastRoute("s0").max_dest_rd_atomic, 0) << "nobody reads from the initiator";
    EXPECT_EQ(pair.soft->lastRoute("s1").max_dest_rd_atomic, 16);
}

TEST(VerbsExchange, ThePathMtuIsTheSmallerOfBothAtBothEnds) {
    for (const auto& [first, second] : {std::pair{IBV_MTU_4096, IBV_MTU_1024}, std::pair{IBV_MTU_512, IBV_MTU_4096}}) {
        ExchangePair pair([&, mtus = std::pair{first, second}](SoftVerbs& soft) {
            soft.setMtu("s0", mtus.first);
            soft.setMtu("s1", mtus.second);
        });
        pair.expectWorks();
        EXPECT_EQ(pair.soft->lastRoute("s0").path_mtu, std::min(first, second));
        EXPECT_EQ(pair.soft->lastRoute("s1").path_mtu, std::min(first, second));
    }
    Config capped = byExchange();
    capped.rdma_mtu = 1500;
    ExchangePair pair({}, capped);
    pair.expectWorks();
    EXPECT_EQ(pair.soft->lastRoute("s1").path_mtu, IBV_MTU_1024);
}

TEST(VerbsExchange, TheWidestScopeThatBothHaveIsChosen) {
    ExchangePair both(kMapped, byExchange());
    both.expectWorks();
    EXPECT_EQ(both.soft->lastRoute("s0").ah_attr.grh.sgid_index, 5);
    ExchangePair one([](SoftVerbs& soft) {
        kMapped(soft);
        soft.setGids("s1", {SoftVerbs::gid("fe80::2", 0), SoftVerbs::gid("2001:db8::2", 7)});
    });
    one.expectWorks();
    EXPECT_EQ(one.soft->lastRoute("s0").ah_attr.grh.sgid_index, 3);
    EXPECT_EQ(one.soft->lastRoute("s1").ah_attr.grh.sgid_index, 7);
}

TEST(VerbsExchange, AGidThatLeadsNowhereAtEitherEndGivesWayToTheNext) {
    for (const char* end : {"s0", "s1"})
        for (const int cut : {1, 2}) {
            ExchangePair pair(
                [&](SoftVerbs& soft) {
                    kMapped(soft);
                    soft.cutRoute(end, 5);
                    if (cut == 2) soft.cutRoute(end, 3);
                },
                byExchange());
            pair.expectWorks();
            EXPECT_EQ(pair.soft->lastRoute("s0").ah_attr.grh.sgid_index, cut == 2 ? 0 : 3) << end;
            EXPECT_EQ(pair.soft->count("qp"), 2u);
        }
}

TEST(VerbsExchange, WithoutAnyWayTheErrorNamesAllThatWasTried) {
    ExchangePair cut([](SoftVerbs& soft) { soft.cutRoute("s1", 0); });
    cut.expectFails(Code::TransportMissing, "own GID index 0, peer's GID fe80:0000:0000:0000:0000:0000:0000:0001");
    ExchangePair apart([](SoftVerbs& soft) { soft.setGids("s1", {SoftVerbs::gid("2001:db8::2", 4)}); });
    apart.expectFails(Code::TransportMissing, "has type and scope in common with fe80:");
}

TEST(VerbsExchange, ATargetDoesNotLookForAWayForLong) {
    ExchangePair pair([](SoftVerbs& soft) {
        std::vector<ibv_gid_entry> gids;
        for (std::uint32_t i = 0; i < 4; ++i) {
            gids.push_back(SoftVerbs::gid("fe80::2:" + std::to_string(i), i));
            soft.cutRoute("s1", i);
        }
        soft.setGids("s1", gids);
        soft.setSearchTime(400ms);
    });
    pair.expectFails(Code::TransportMissing, "not all ways were tried");
}

TEST(VerbsExchange, InfiniBandPortsReachEachOtherByTheirLids) {
    const auto ports = [](SoftVerbs& soft) {
        for (const int i : {1, 2}) {
            const std::string device = "s" + std::to_string(i - 1);
            soft.setLid(device, static_cast<std::uint16_t>(i * 3));
            soft.setGids(device, {SoftVerbs::gid("fe80::a00:" + std::to_string(i), 0, IBV_GID_TYPE_IB)});
        }
    };
    Config config = softConfig("s0");
    config.rdma_service_level = 4;
    config.rdma_pkey_index = 1;
    ExchangePair pair(ports, config);
    pair.expectWorks();
    EXPECT_EQ(pair.soft->lastRoute("s0").ah_attr.dlid, 6);
    EXPECT_EQ(pair.soft->lastRoute("s0").ah_attr.is_global, 0);
    EXPECT_EQ(pair.soft->lastRoute("s0").ah_attr.sl, 4);
    EXPECT_EQ(pair.soft->lastRoute("s1").ah_attr.dlid, 3);
}

TEST(VerbsExchange, WhereAPortOfEitherEndNeedsAGlobalRouteHeaderBothEndsSendOne) {
    for (const char* needs : {"s0", "s1", "both"}) {
        SCOPED_TRACE(needs);
        ExchangePair pair([&](SoftVerbs& soft) {
            for (const int i : {1, 2}) {
                const std::string device = "s" + std::to_string(i - 1);
                soft.setLid(device, static_cast<std::uint16_t>(i * 3));
                soft.setGids(device, {SoftVerbs::gid("fe80::a00:" + std::to_string(i), 0, IBV_GID_TYPE_IB)});
                if (device == needs || needs == std::string("both")) soft.requireGrh(device);
            }
        });
        pair.expectWorks();
        for (const int i : {0, 1}) {
            const auto way = pair.soft->lastRoute("s" + std::to_string(i)).ah_attr;
            EXPECT_EQ(way.is_global, 1);
            EXPECT_EQ(gidText(way.grh.dgid), gidText(SoftVerbs::gid("fe80::a00:" + std::to_string(2 - i), 0).gid));
        }
    }
}

TEST(VerbsExchange, WhereRdmaCmIsNotThereItIsUsedThoughPortsHaveAddresses) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
    const auto board = std::make_shared<Switchboard>();
    {
        soft->fail("cmOpen", ENODEV, 2);
        Node a(softConfig("s0"), soft, "a", makeSilentLogger(), board);
        Node b(softConfig("s1"), soft, "b", makeSilentLogger(), board);
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        EXPECT_EQ(b.asPeer()->desc->rdma_port, 0);
        const auto path = a.nics.front()->openPath(b.asPeer());
        ASSERT_TRUE(path);
        run(a, *a.nics.front(), *path, {write(local.data(), remote.data(), 4096)});
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_TRUE(local == remote);
    }
    EXPECT_EQ(soft->leftovers(), "");
}

TEST(VerbsExchange, ARestartedPeerRefusesWhatWasMeantForItsPredecessor) {
    ExchangePair pair;
    pair.expectWorks();
    const auto before = pair.b->asPeer();
    pair.b->restart();
    ASSERT_TRUE(pair.b->registerMemory(pair.remote.data(), pair.remote.size()));
    // The question reaches the successor, as it may when the control connection knows no better.
    pair.board->serve(before->desc->incarnation, *pair.b->transport);
    std::fill(pair.remote.begin(), pair.remote.end(), 'n');
    std::vector<Failure> failed;
    do failed = pair.tryOnce();
    while (!failed.empty() && failed.front().cause.code() == Code::ConnectionLost);
    ASSERT_FALSE(failed.empty());
    EXPECT_EQ(failed.front().cause.code(), Code::StaleIncarnation) << failed.front().cause.toString();
    EXPECT_FALSE(failed.front().retryable);
    EXPECT_EQ(std::count(pair.remote.begin(), pair.remote.end(), 'n'), 8192);
    pair.board->leave(before->desc->incarnation);
    pair.board->serve(pair.b->incarnation, *pair.b->transport);
    pair.nic().closePath(pair.path, {Code::PeerDown, "gone"});
    pair.path = *pair.nic().openPath(pair.b->asPeer());
    pair.expectWorks();
}

TEST(VerbsExchange, ASuccessorEndsItsPredecessorAndAnEndedPairEndsAtBothEnds) {
    Config config = softConfig("s0");
    config.rdma_idle_timeout = 20ms;
    ExchangePair pair({}, config);
    for (int round = 0; round < 10; ++round) {
        pair.expectWorks();
        EXPECT_LE(pair.soft->count("qp"), 2u);
        pair.soft->hold(true);
        ASSERT_EQ(pair.nic().post(pair.path, std::vector{write(pair.local.data(), pair.remote.data(), 64)}), 1u);
        pair.nic().poll(Clock::now(), pair.a->sweep);
        pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
        ASSERT_TRUE(pump(*pair.a, [&] { return !pair.a->sweep.failed.empty(); }));
        pair.soft->hold(false);
    }
    pair.expectWorks();
    EXPECT_TRUE(pair.eventuallyPairs(0)) << "the target keeps what the initiator closed";
}

TEST(VerbsExchange, TheEndOfTheControlConnectionEndsThePairsThatWereMadeOverIt) {
    ExchangePair pair;
    pair.expectWorks();
    pair.board->hangUp(pair.a->incarnation);
    EXPECT_TRUE(pair.eventuallyPairs(0)) << "at either end";
    // The initiator connects over the new one when there is work.
    static_cast<void>(pair.tryOnce());
    EXPECT_TRUE(pair.a->sweep.failed.empty()) << "it found nobody there: " << failuresOf(pair.a->sweep);
}

TEST(VerbsExchange, WhatIsPostedWhenTheControlConnectionEndsIsNoLoss) {
    ExchangePair pair;
    pair.expectWorks();
    pair.a->sweep.clear();
    pair.soft->hold(true);
    std::vector<WorkRequest> requests;
    for (std::uint64_t i = 0; i < 20; ++i) requests.push_back(write(pair.local.data(), pair.remote.data(), 64, i));
    ASSERT_EQ(pair.nic().post(pair.path, requests), requests.size());
    pair.nic().poll(Clock::now(), pair.a->sweep);
    ASSERT_EQ(pair.soft->held(), requests.size());
    pair.board->hangUp(pair.a->incarnation);
    ASSERT_TRUE(pump(*pair.a, [&] { return endedIn(pair.a->sweep) == requests.size(); }));
    for (const Failure& failure : pair.a->sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::PathReset) << failure.cause.toString();
        EXPECT_TRUE(failure.retryable && failure.quiesced && failure.fenced);
    }
    EXPECT_TRUE(pair.a->sweep.paths.empty()) << "it is not lost";
    pair.soft->hold(false);
    EXPECT_TRUE(pair.tryOnce().empty());
}

TEST(VerbsExchange, APairByRdmaCmOutlivesTheControlConnection) {
    ExchangePair pair([](SoftVerbs& soft) {
        kMapped(soft);
        soft.fail("cmConnect", 0, 0);
    });
    pair.expectWorks();
    pair.a->sweep.clear();
    pair.soft->hold(true);
    ASSERT_EQ(pair.nic().post(pair.path, std::vector{write(pair.local.data(), pair.remote.data(), 64)}), 1u);
    pair.nic().poll(Clock::now(), pair.a->sweep);
    pair.board->hangUp(pair.a->incarnation);
    pair.soft->hold(false);
    ASSERT_TRUE(pump(*pair.a, [&] { return endedIn(pair.a->sweep) == 1; }));
    EXPECT_TRUE(pair.a->sweep.failed.empty()) << failuresOf(pair.a->sweep);
}

TEST(VerbsExchange, WithoutAnAnswerThePairFailsInTimeAndWorksWhenOneComes) {
    Config config = softConfig("s0");
    config.connect_timeout = 500ms;
    std::atomic<bool> lost = true;
    ExchangePair pair({}, config);
    pair.expectWorks();
    pair.board->tapQuestions([&](std::string&) { return !lost; });
    pair.nic().closePath(pair.path, {Code::PeerDown, "gone"});
    ASSERT_TRUE(pair.eventuallyPairs(1));
    pair.path = *pair.nic().openPath(pair.b->asPeer());
    pair.expectFails(Code::Timeout, "no answer");
    lost = false;
    pair.expectWorks();
}

TEST(VerbsExchange, NobodyMayEndThePairsOfAnother) {
    std::string seen;
    ExchangePair pair;
    pair.expectWorks();
    pair.board->tapQuestions([&](std::string& question) { return seen = question, true; });
    pair.nic().closePath(pair.path, {Code::PeerDown, "gone"});
    ASSERT_TRUE(pair.eventuallyPairs(0));
    pair.path = *pair.nic().openPath(pair.b->asPeer());
    ASSERT_TRUE(pair.eventuallyPairs(2));
    pair.board->tapQuestions({});
    const auto offer = decodeOffer(seen);
    ASSERT_TRUE(offer) << offer.status().toString();
    for (const auto& [what, fence] :
         {std::pair{Offer::What::Connect, false}, {Offer::What::End, false}, {Offer::What::End, true}}) {
        Offer forged = *offer;
        forged.what = what;
        forged.greeting.fence = fence;
        forged.greeting.attempt += what == Offer::What::Connect || fence ? 1 : 0;
        std::promise<std::string> said;
        pair.b->transport->answer({Incarnation::random(), 99}, encode(forged),
                                  [&](const Result<std::string>& reply) { said.set_value(*reply); });
        const auto reply = decodeOfferReply(said.get_future().get());
        ASSERT_TRUE(reply) << reply.status().toString();
        EXPECT_EQ(reply->answer.code, Code::ProtocolError);
        EXPECT_EQ(pair.soft->count("qp"), 2u);
    }
    pair.expectWorks();
}

TEST(VerbsExchange, EveryCallThatMakesAPairMayFailAndTheNextTryWorks) {
    for (const char* call : {"createQp", "modifyQp", "modifyQpToError", "queryQp"})
        for (const int error : {ENOMEM, EINVAL, ETIMEDOUT})
            for (const int skip : {0, 1, 2, 3, 4, 5}) {
                SCOPED_TRACE(std::string(call) + " fails with " + std::to_string(error) + " after " +
                             std::to_string(skip));
                ExchangePair pair([&](SoftVerbs& soft) { soft.fail(call, error, 1, skip); });
                pair.expectWorks();
                EXPECT_EQ(pair.soft->count("qp"), 2u);
            }
}

TEST(VerbsExchange, APairThatDidNotComeToServeAndCannotBeDestroyedIsTriedAgain) {
    for (const bool by_cm : {false, true}) {
        SCOPED_TRACE(by_cm);
        ExchangePair pair([&](SoftVerbs& soft) {
            if (by_cm) {
                kMapped(soft);
                soft.fail("cmConnect", 0, 0);
                soft.fail("cmAccept", ENOMEM, 1);
            } else {
                soft.cutRoute("s1", 0);
            }
            soft.fail("destroyQp s1", EBUSY, 1);
        });
        static_cast<void>(pair.tryOnce());
        // With it everything would be held that it was made on; the end of the nodes looks for that, too.
        EXPECT_TRUE(pump(
            *pair.a, [&] { return pair.soft->pairsOn("s1") <= (by_cm ? 1u : 0u); }, 20s))
            << pair.soft->pairsOn("s1");
    }
}

TEST(VerbsExchange, ARefusalInWordsOfThisSidesOwnIsAnErrorOfThePeer) {
    for (const Code claimed : {Code::PathReset, Code::Canceled, Code::Timeout, static_cast<Code>(4711)}) {
        SCOPED_TRACE(codeName(claimed));
        ExchangePair pair;
        pair.expectWorks();
        pair.board->tapReplies([claimed](std::string& text) {
            auto reply = decodeOfferReply(text);
            if (!reply) return true;
            reply->answer.code = claimed;
            text = encode(*reply);
            return true;
        });
        pair.nic().closePath(pair.path, {Code::PeerDown, "gone"});
        pair.path = *pair.nic().openPath(pair.b->asPeer());
        pair.expectFails(Code::Internal, "the peer refused the connection");
        pair.board->tapReplies({});
        pair.expectWorks();
    }
}

TEST(VerbsExchange, WhateverTheOtherEndSaysNothingBreaksAndHonestWordsWorkAgain) {
    for (unsigned seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        std::atomic<int> left = 3;
        ExchangePair pair(kMapped, byExchange());
        const auto spoil = [&random](std::string& text) {
            for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
                switch (random() % 4) {
                    case 0: text.resize(random() % (text.size() + 1)); break;
                    case 1: text += static_cast<char>(random()); break;
                    default:
                        if (!text.empty()) text[random() % text.size()] = static_cast<char>(random());
                }
            }
            return true;
        };
        const auto tap = [&left, spoil](std::string& text) { return left <= 0 || (--left, spoil(text)); };
        if (seed % 2 == 0)
            pair.board->tapQuestions(tap);
        else
            pair.board->tapReplies(tap);
        pair.nic().resetPath(pair.path, {Code::Canceled, "to say it anew"});
        const auto limit = Clock::now() + 30s;
        while (!pair.tryOnce().empty() && Clock::now() < limit) {
        }
        // What was said with a mistaken incarnation is final for the path.
        pair.nic().closePath(pair.path, {Code::PeerDown, "gone"});
        pair.board->tapQuestions({});
        pair.board->tapReplies({});
        pair.path = *pair.nic().openPath(pair.b->asPeer());
        pair.expectWorks();
    }
}

}  // namespace
}  // namespace troupe::verbs
