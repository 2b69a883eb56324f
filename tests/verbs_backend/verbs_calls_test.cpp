// What is asked of devices, call by call, and what each of their answers becomes: on the strict software device.

#include <cerrno>
#include <functional>
#include <random>
#include <set>

#include "base/back_off.h"
#include "tests/verbs_backend/soft_pair.h"
#include "verbs_backend/device.h"

namespace troupe::verbs {
namespace {

using namespace testing;

TEST(VerbsCalls, WhatCannotBeClosedIsLeftBehindAndTheRestIsClosedAllTheSame) {
    const std::pair<const char*, const char*> calls[] = {{"closeDevice", "1 context, "},
                                                         {"deallocPd", "1 pd, "},
                                                         {"destroyCq", "1 channel, 1 cq, "},
                                                         {"destroyChannel", "1 channel, "},
                                                         {"cmDestroy", "1 id, "}};
    for (const auto& [call, left] : calls) {
        SCOPED_TRACE(call);
        SoftPair pair;
        pair.expectWorks();
        // The soft device objects to what is closed after that.
        pair.clean_end.giveUp();
        pair.soft->fail(call, EBUSY, 1);
        pair.a.end();
        pair.b.end();
        EXPECT_EQ(pair.soft->leftovers(), left);
    }
}

TEST(VerbsCalls, AQueueThatCannotBeArmedIsPolled) {
    SoftPair pair;
    pair.expectWorks();
    while (pair.nic().poll(Clock::now(), pair.a.sweep)) {
    }
    pair.soft->fail("requestNotify", ENOMEM, 1);
    EXPECT_FALSE(pair.nic().arm());
    EXPECT_TRUE(pair.nic().arm());
    // What is not taken from the channel wakes once more, and nothing is lost.
    pair.soft->fail("drainChannel", EAGAIN, 3);
    pair.expectWorks();
}

TEST(VerbsCalls, AQueueThatCannotBePolledIsMadeAnew) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->fail("pollCq", EIO, 1);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
    pair.expectWorks();
}

TEST(VerbsCalls, ADeviceThatCannotBeAskedIsLeftOutByName) {
    for (const char* call : {"queryDevice", "queryPort", "queryGids"}) {
        SCOPED_TRACE(call);
        const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
        soft->fail(call, EIO, 1);
        const auto rest = Device::openAll(soft, softConfig("s*"), false, makeSilentLogger());
        ASSERT_TRUE(rest) << rest.status().toString();
        ASSERT_EQ(rest->size(), 1u);
        EXPECT_EQ(rest->front()->name, "s1");
        soft->fail(call, EIO, 1);
        const auto none = Device::openAll(soft, softConfig("s0"), false, makeSilentLogger());
        ASSERT_FALSE(none);
        EXPECT_NE(none.status().message().find("s0"), std::string::npos) << none.status().toString();
        EXPECT_NE(none.status().message().find("errno 5"), std::string::npos) << none.status().toString();
    }
}

TEST(VerbsCalls, WhatRdmaCmSaysOfAFailedConnectionIsTheCauseAndTheNextTryWorks) {
    const std::pair<const char*, int> events[] = {{"RDMA_CM_EVENT_UNREACHABLE", -ETIMEDOUT},
                                                  {"RDMA_CM_EVENT_CONNECT_ERROR", -EHOSTUNREACH}};
    for (const auto& [name, status] : events) {
        SoftPair pair;
        pair.soft->answerConnect(name, status);
        pair.run(pair.many(1));
        ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
        const Status& cause = pair.a.sweep.failed.front().cause;
        EXPECT_NE(cause.message().find(name), std::string::npos) << cause.toString();
        EXPECT_TRUE(pair.a.sweep.failed.front().retryable);
        pair.expectWorks();
    }
}

TEST(VerbsCalls, ConnectionsOfADeviceThatIsBeingRemovedEndAtEitherEnd) {
    for (const char* device : {"s0", "s1"}) {
        SoftPair pair;
        pair.expectWorks();
        ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->connectionsOf(device) == 1; }));
        pair.soft->announceRemoval(device);
        ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->pairsOn(device) == 0; }));
        pair.expectWorks();
    }
}

TEST(VerbsCalls, ARefusalSaysWhyAndOneThatIsNotHeardIsARefusal) {
    for (const bool heard : {true, false}) {
        const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
        {
            Config config = softConfig("s1");
            config.peer_rdma_connections = 0;
            Node a(softConfig("s0"), soft, "a");
            Node b(config, soft, "b");
            auto local = noise(64);
            std::vector<char> remote(64);
            ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
            ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
            if (!heard) soft->fail("cmReject", EIO, 1);
            const auto path = a.nics.front()->openPath(b.asPeer());
            ASSERT_TRUE(path);
            run(a, *a.nics.front(), *path, {write(local.data(), remote.data(), 64)});
            ASSERT_EQ(a.sweep.failed.size(), 1u);
            const char* said = heard
                                   ? "the peer refused the connection: it has 0 of them already (peer.rdma_connections)"
                                   : "rejected, reason 28";
            EXPECT_NE(a.sweep.failed.front().cause.message().find(said), std::string::npos) << failuresOf(a.sweep);
            // Else it might ask again what is not there any more.
            a.end();
        }
        EXPECT_EQ(soft->leftovers(), "");
    }
}

TEST(VerbsCalls, EachStatusOfACompletionHasItsCode) {
    const std::pair<ibv_wc_status, Code> statuses[] = {
        {IBV_WC_LOC_LEN_ERR, Code::InvalidArgument},      {IBV_WC_LOC_PROT_ERR, Code::AddressNotRegistered},
        {IBV_WC_REM_INV_REQ_ERR, Code::InvalidArgument},  {IBV_WC_REM_ACCESS_ERR, Code::AccessDenied},
        {IBV_WC_RNR_RETRY_EXC_ERR, Code::ConnectionLost}, {IBV_WC_FATAL_ERR, Code::ConnectionLost},
        {IBV_WC_GENERAL_ERR, Code::ConnectionLost},       {IBV_WC_LOC_QP_OP_ERR, Code::ConnectionLost},
        {IBV_WC_RESP_TIMEOUT_ERR, Code::ConnectionLost},  {IBV_WC_RETRY_EXC_ERR, Code::ConnectionLost}};
    SoftPair pair;
    for (const auto& [status, code] : statuses) {
        pair.expectWorks();
        pair.soft->completeWith(status);
        pair.run(pair.many(1));
        ASSERT_EQ(pair.a.sweep.failed.size(), 1u) << ibv_wc_status_str(status);
        const Failure& failure = pair.a.sweep.failed.front();
        EXPECT_EQ(failure.cause.code(), code) << failure.cause.toString();
        // The way broke, or the request itself was refused.
        EXPECT_EQ(failure.retryable, code == Code::ConnectionLost) << failure.cause.toString();
        EXPECT_TRUE(failure.quiesced);
    }
}

TEST(VerbsCalls, AListOfWorkIsPostedAtOnce) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t before = pair.soft->lists();
    pair.run(pair.many(64));
    EXPECT_EQ(pair.soft->lists(), before + 1);
}

TEST(VerbsCalls, RegistrationsMayBeOrderedLoosely) {
    SoftPair pair;
    EXPECT_NE(pair.soft->lastAccess() & IBV_ACCESS_RELAXED_ORDERING, 0);
}

TEST(VerbsCalls, HowOftenAndForHowLongAQueuePairTriesIsAsItIsSet) {
    Config config = softConfig("s0");
    config.rdma_rnr_retry = 3;
    config.rdma_retry_count = 5;
    config.rdma_ack_timeout = 11;
    SoftPair pair(config);
    pair.expectWorks();
    EXPECT_EQ(pair.soft->lastReady("s0").rnr_retry, 3);
    EXPECT_EQ(pair.soft->lastReady("s0").retry_cnt, 5);
    EXPECT_EQ(pair.soft->lastReady("s0").timeout, 11);
}

TEST(VerbsCalls, BothEndsMayConnectToEachOtherInTheSameMoment) {
    SoftPair pair;
    const auto back = pair.b.nics.front()->openPath(pair.a.asPeer());
    ASSERT_TRUE(back) << back.status().toString();
    std::vector<char> there = noise(4096, 2);
    std::vector<char> here(4096);
    ASSERT_TRUE(pair.b.registerMemory(there.data(), there.size()));
    ASSERT_TRUE(pair.a.registerMemory(here.data(), here.size()));
    pair.b.nics.front()->updatePeer(*back, pair.a.asPeer());
    const auto one = pair.many(1);
    const std::vector<WorkRequest> other{write(there.data(), here.data(), 4096)};
    const auto post = [&] {
        for (Node* node : {&pair.a, &pair.b}) node->sweep.clear();
        ASSERT_EQ(pair.nic().post(pair.path, one), 1u);
        ASSERT_EQ(pair.b.nics.front()->post(*back, other), 1u);
    };
    const auto pollBothUntil = [&](const std::function<bool()>& done) {
        const auto limit = Clock::now() + 30s;
        while (!done() && Clock::now() < limit)
            for (Node* node : {&pair.a, &pair.b}) node->nics.front()->poll(Clock::now(), node->sweep);
        EXPECT_TRUE(done());
    };
    const auto ended = [&] { return endedIn(pair.a.sweep) == 1 && endedIn(pair.b.sweep) == 1; };
    for (int round = 0; round < 20; ++round) {
        post();
        pollBothUntil(ended);
        EXPECT_EQ(completedIn(pair.a.sweep), 1u) << failuresOf(pair.a.sweep);
        EXPECT_EQ(completedIn(pair.b.sweep), 1u) << failuresOf(pair.b.sweep);
        EXPECT_EQ(pair.soft->count("qp"), 4u) << "a pair for each direction, two ends each";
        // Both lose what they have, and come back, in the same moment.
        pair.soft->hold(true);
        post();
        pollBothUntil([&] { return pair.soft->held() == 2; });
        pair.nic().resetPath(pair.path, {Code::Canceled, "to connect anew"});
        pair.b.nics.front()->resetPath(*back, {Code::Canceled, "to connect anew"});
        pollBothUntil(ended);
        pair.soft->hold(false);
    }
    EXPECT_EQ(there, here);
}

TEST(BackOff, BeginsAtOnceGrowsToASecondAndForgetsWithPeace) {
    std::minstd_rand random(1);
    BackOff back_off;
    TimePoint now = Clock::now();
    EXPECT_EQ(back_off.broke(now, random), now) << "at once the first time";
    Duration least = 5ms;
    for (int strike = 2; strike < 12; ++strike) {
        const Duration pause = back_off.broke(now, random) - now;
        EXPECT_GE(pause, least) << strike;
        EXPECT_LE(pause, 2 * least) << strike;
        least = std::min<Duration>(2 * least, 500ms);
    }
    // Two seconds of peace each.
    now += 2s * 7;
    EXPECT_LE(back_off.broke(now, random) - now, 20ms);
    now += 1h;
    EXPECT_EQ(back_off.broke(now, random), now);
    back_off.broke(now, random);
    back_off.forget();
    EXPECT_EQ(back_off.broke(now, random), now);
}

TEST(BackOff, WhatBrokeTogetherDoesNotReturnTogether) {
    std::minstd_rand random(1);
    const TimePoint now = Clock::now();
    std::set<Duration> pauses;
    for (int i = 0; i < 20; ++i) {
        BackOff one;
        one.broke(now, random);
        pauses.insert(one.broke(now, random) - now);
    }
    EXPECT_GT(pauses.size(), 10u);
}

}  // namespace
}  // namespace troupe::verbs
