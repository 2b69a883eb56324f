// The backend on the strict software device: every path that an error takes.

#include <malloc.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tests/verbs_backend/soft_pair.h"
#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {
namespace {

using namespace testing;
using namespace std::chrono_literals;

TEST(VerbsFault, ManyRequestsCompleteOnceWithinTheRules) {
    SoftPair pair;
    pair.run(pair.many(5000));
    EXPECT_EQ(completedIn(pair.a.sweep), 5000u);
    pair.expectWorks();
}

TEST(VerbsFault, TheCompletionQueueNeverOverrunsHoweverManyLanes) {
    Config config = softConfig("s0");
    config.rdma_completion_queue = 64;
    config.rdma_queue_depth = 48;
    config.rdma_lanes = 5;
    SoftPair pair(config);
    // On every lane: a new one takes one request at first.
    pair.run(pair.many(100));
    pair.a.sweep.clear();
    pair.soft->hold(true);
    const auto requests = pair.many(400);
    std::size_t posted = pair.nic().post(pair.path, requests);
    for (int i = 0; i < 20; ++i) pair.nic().poll(Clock::now(), pair.a.sweep);
    // All of it is flushed at once: the most completions there can be.
    pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    pair.soft->hold(false);
    pair.a.sweep.clear();
    pair.run(requests);
    EXPECT_EQ(completedIn(pair.a.sweep), requests.size()) << failuresOf(pair.a.sweep);
}

TEST(VerbsFault, ALaneThatWaitsForRoomGoesOnWhenAPairTakesItsCompletionsAlong) {
    Config config = softConfig("s0");
    config.rdma_completion_queue = 64;
    config.rdma_queue_depth = 64;
    config.rdma_lanes = 2;
    config.rdma_packet_lifetime = 100ms;
    SoftPair pair(config);
    pair.run(pair.many(100));
    pair.a.sweep.clear();
    // One lane has all of the queue, and the other one nothing.
    pair.soft->hold(true);
    const auto requests = pair.many(200);
    const std::size_t posted = pair.nic().post(pair.path, requests);
    for (int i = 0; i < 20; ++i) pair.nic().poll(Clock::now(), pair.a.sweep);
    ASSERT_GE(pair.soft->held(), 60u);
    // The pair that has it is given up by its device, and completes nothing. What waits for the room is not heard of.
    pair.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL, /*with_work=*/true);
    pair.soft->hold(false);
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    EXPECT_NE(completedIn(pair.a.sweep), 0u) << "by the other one";
}

TEST(VerbsFault, HeldWorkEndsQuiescedByAResetThatFlushesIt) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(100);
    pair.nic().resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    EXPECT_EQ(pair.a.sweep.failed.size(), posted);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::Timeout);
        EXPECT_TRUE(failure.quiesced);
        EXPECT_TRUE(failure.retryable);
    }
    pair.soft->hold(false);
    pair.expectWorks();
}

TEST(VerbsFault, LostFlushCompletionsAreMadeUpForByDestroyingThePair) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(100);
    pair.soft->loseCompletions(1000);
    pair.nic().resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    for (const Failure& failure : pair.a.sweep.failed) EXPECT_TRUE(failure.quiesced);
    pair.soft->loseCompletions(0);
    pair.soft->hold(false);
    pair.expectWorks();
}

TEST(VerbsFault, WhatCannotEvenBeDestroyedIsReportedAsNotQuiesced) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(10);
    pair.soft->loseCompletions(1000);
    pair.soft->fail("destroyQp", EIO, 1000000);  // At both ends.
    pair.nic().resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    ASSERT_EQ(pair.a.sweep.failed.size(), posted);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_FALSE(failure.quiesced);
        EXPECT_NE(failure.doubt, 0u);
    }
    EXPECT_TRUE(pair.a.sweep.proven.empty());
    pair.soft->loseCompletions(0);
    pair.soft->hold(false);
    pair.expectWorks();
    // What could not be destroyed is with the device for good, and holds what it was made on.
    EXPECT_EQ(pair.soft->count("qp"), 4u);
    EXPECT_FALSE(pair.nic().shut().isOk());
    pair.clean_end.giveUp();
}

TEST(VerbsFault, APeersPairThatNeverLeftResetAndStaysKeepsNobodyOut) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->fail("modifyQp s1", ENOMEM, 1);
    pair.soft->fail("destroyQp s1", EBUSY, 1 << 30);
    const std::size_t posted = pair.postHeld(10);
    pair.nic().resetPath(pair.path, {Code::Canceled, "so that there is another one"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    pair.soft->hold(false);
    pair.expectWorks();
    EXPECT_EQ(pair.soft->pairsOn("s1"), 3u) << "that one, the one before, and the one that works";
    pair.soft->fail("destroyQp s1", 0, 0);
}

TEST(VerbsFault, WhatIsDestroyedAtLastIsTheProofThatWasMissing) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(10);
    pair.soft->loseCompletions(1000);
    pair.soft->fail("destroyQp", EIO, 1000000);
    pair.nic().resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    EXPECT_TRUE(pair.a.sweep.proven.empty());
    pair.soft->fail("destroyQp", EIO, 1);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.proven.empty(); }));
    ASSERT_EQ(pair.a.sweep.proven.size(), 1u);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_FALSE(failure.quiesced);
        EXPECT_EQ(failure.doubt, pair.a.sweep.proven.front());
    }
    pair.soft->loseCompletions(0);
    pair.soft->hold(false);
    pair.expectWorks();
    EXPECT_TRUE(pair.nic().shut().isOk());
}

TEST(VerbsFault, ACompletionThatComesTwiceIsCountedOnce) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->repeatCompletions(1000);
    pair.run(pair.many(500));
    EXPECT_EQ(completedIn(pair.a.sweep), 500u);
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
}

TEST(VerbsFault, APostThatFailsHalfWayLosesNothing) {
    for (const int taken : {0, 1, 7, 15, 16, 40}) {
        SoftPair pair;
        pair.expectWorks();
        pair.soft->fail("postSend", ENOMEM, 1, taken);
        pair.run(pair.many(60));
        EXPECT_EQ(endedIn(pair.a.sweep), 60u);
        ASSERT_FALSE(pair.a.sweep.failed.empty());
        for (const Failure& failure : pair.a.sweep.failed) {
            EXPECT_TRUE(failure.quiesced && failure.retryable) << failure.cause.toString();
            EXPECT_NE(failure.cause.message().find("errno 12"), std::string::npos) << failure.cause.toString();
        }
        pair.expectWorks();
    }
}

TEST(VerbsFault, EveryCallThatMakesAPairMayFailAndTheNextTryWorks) {
    for (const char* call : {"cmCreate", "cmResolveAddress", "cmResolveRoute", "createQp", "cmQpAttributes", "modifyQp",
                             "cmConnect", "cmAccept", "cmEstablish", "cmDisconnect", "modifyQpToError"})
        for (const int error : {ENOMEM, EINVAL})
            for (const int skip : {0, 1, 2, 3}) {
                SCOPED_TRACE(std::string(call) + " fails with " + std::to_string(error) + " after " +
                             std::to_string(skip));
                SoftPair pair;
                pair.soft->fail(call, error, 1, skip);
                pair.nic().resetPath(pair.path, {Code::Canceled, "to use the fault"});
                pair.run(pair.many(20));
                EXPECT_EQ(endedIn(pair.a.sweep), 20u);
                for (const Failure& failure : pair.a.sweep.failed) EXPECT_TRUE(failure.quiesced);
                pair.a.sweep.clear();
                const std::size_t posted = pair.postHeld(20);
                pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
                ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
                pair.soft->hold(false);
                pair.expectWorks();
            }
}

TEST(VerbsFault, ARefusedKeyFailsItsRequestForGoodAndTheOthersForNow) {
    SoftPair pair;
    pair.expectWorks();
    pair.b.unregisterMemory(pair.remote.data());
    std::fill(pair.remote.begin(), pair.remote.end(), 'n');
    pair.run(pair.many(40));
    EXPECT_EQ(std::count(pair.remote.begin(), pair.remote.end(), 'n'), 65536);
    ASSERT_EQ(pair.a.sweep.failed.size(), 40u);
    std::size_t final_ones = 0;
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::AccessDenied) << failure.cause.toString();
        if (!failure.retryable) ++final_ones;
    }
    EXPECT_EQ(final_ones, 1u);
}

TEST(VerbsFault, AFailedCompletionNamesBothDevicesAndWhatThePacketsWentBy) {
    for (const bool by_exchange : {false, true}) {
        SCOPED_TRACE(by_exchange);
        const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
        const auto board = std::make_shared<Switchboard>();
        soft->setMtu("s1", IBV_MTU_1024);
        Config config = softConfig("s0");
        config.rdma_connect = by_exchange ? "exchange" : "auto";
        Node a(config, soft, "a", makeSilentLogger(), board);
        Node b(softConfig("s1"), soft, "b", makeSilentLogger(), board);
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        const auto path = a.nics.front()->openPath(b.asPeer());
        ASSERT_TRUE(path);
        soft->completeWith(IBV_WC_RETRY_EXC_ERR);
        run(a, *a.nics.front(), *path, {write(local.data(), remote.data(), 4096)});
        ASSERT_EQ(a.sweep.failed.size(), 1u);
        const std::string message = a.sweep.failed.front().cause.message();
        for (const char* part :
             {"segment 'b' device s1 through s0 (port 1, ", "GID 1 (10.9.0.1)", "path MTU 1024", "retry counter"})
            EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(message.find("by exchange") != std::string::npos, by_exchange) << message;
    }
}

TEST(VerbsFault, ARefusalInWordsOfThisSidesOwnIsAnErrorOfThePeer) {
    for (const Code claimed : {Code::PathReset, Code::Canceled, Code::Timeout, static_cast<Code>(4711)}) {
        SCOPED_TRACE(codeName(claimed));
        SoftPair pair;
        pair.expectWorks();
        // Of a fence, that it was not granted; of a connection, that the device holds on to the last pair.
        pair.soft->tapRejects([claimed](std::vector<std::byte>& said) {
            const auto number = static_cast<std::uint16_t>(claimed);
            ASSERT_GE(said.size(), kAnswerBytes);
            std::memcpy(said.data() + 6, &number, sizeof number);
        });
        for (const char* call : {"destroyQp s1", "modifyQpToError s1"}) pair.soft->fail(call, EBUSY, 1 << 30);
        pair.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL);
        ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
        do {
            pair.a.sweep.clear();
            pair.run(pair.many(1));
            ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
        } while (pair.a.sweep.failed.front().cause.code() == Code::ConnectionLost);
        EXPECT_EQ(pair.a.sweep.failed.front().cause.code(), Code::Internal) << failuresOf(pair.a.sweep);
        pair.soft->tapRejects({});
        for (const char* call : {"destroyQp s1", "modifyQpToError s1"}) pair.soft->fail(call, 0, 0);
        pair.expectWorks();
    }
}

TEST(VerbsFault, APortThatGoesDownAndComesBack) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(100);
    pair.soft->setPort("s0", false);
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_TRUE(failure.quiesced && failure.retryable);
        EXPECT_NE(failure.cause.message().find("went down"), std::string::npos) << failure.cause.toString();
    }
    pair.soft->hold(false);
    pair.soft->setPort("s0", true);
    pair.expectWorks();
}

TEST(VerbsFault, ASuccessorEndsItsPredecessorBeforeItIsAnswered) {
    SoftPair pair;
    pair.expectWorks();
    for (int round = 0; round < 20; ++round) {
        const std::size_t posted = pair.postHeld(10);
        pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
        ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
        pair.soft->hold(false);
        pair.expectWorks();
        // One at each end.
        EXPECT_LE(pair.soft->count("qp"), 2u);
    }
}

TEST(VerbsFault, ARegistrationThatFailsOnOneDeviceLeavesNothingOnTheOthers) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2"});
    const CleanEnd clean_end(soft);
    {
        Config config = softConfig("");
        config.rdma_max_chunk_bytes = 4096;
        Node node(config, soft, "n");
        std::vector<char> memory(5 * 4096);
        for (int skip = 0; skip < 15; ++skip) {
            soft->fail("regMr", ENOMEM, 1, skip);
            const Status refused = node.registerMemory(memory.data(), memory.size());
            EXPECT_EQ(refused.code(), Code::ResourceExhausted) << refused.toString();
            EXPECT_NE(refused.message().find("s" + std::to_string(skip / 5)), std::string::npos) << refused.toString();
            EXPECT_NE(refused.message().find("locked memory"), std::string::npos) << refused.toString();
            EXPECT_EQ(soft->count("mr"), 0u) << skip;
        }
        EXPECT_TRUE(node.registerMemory(memory.data(), memory.size()));
        EXPECT_EQ(soft->count("mr"), 15u);
        EXPECT_EQ(node.asPeer()->desc->buffers.front().rkeys.size(), 15u);
    }
}

TEST(VerbsFault, ADeviceThatDoesNotOpenShiftsNoOther) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2"});
    {
        soft->fail("openDevice", EACCES);
        Node a(softConfig(""), soft, "a");
        ASSERT_EQ(a.nics.size(), 2u);
        EXPECT_EQ(a.nics[0]->info().name, "s1");
        EXPECT_EQ(a.nics[1]->info().name, "s2");
        Node b(softConfig("s2, s0"), soft, "b");
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        // Its peer has the devices s0 and s2; s2 is found by name from s2, whatever its place.
        const auto path = a.nics[1]->openPath(b.asPeer());
        ASSERT_TRUE(path);
        run(a, *a.nics[1], *path, {write(local.data(), remote.data(), 4096)});
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_TRUE(local == remote);
    }
    EXPECT_EQ(soft->leftovers(), "");
}

TEST(VerbsFault, ADeviceWithoutReliableConnectionsIsLeftOutAndTheReasonSaidAndTheOthersAreUsed) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2", "s3"});
    const std::pair<ibv_transport_type, const char*> kinds[] = {{IBV_TRANSPORT_IWARP, "iWARP has no reliable"},
                                                                {IBV_TRANSPORT_USNIC_UDP, "usNIC has no reliable"},
                                                                {IBV_TRANSPORT_UNSPECIFIED, "maker's own has no"}};
    for (std::size_t i = 0; i < 3; ++i) soft->setTransport("s" + std::to_string(i), kinds[i].first);
    {
        const Config config = softConfig("s0,s1,s2");
        RegistrationTable table;
        VerbsTransport transport(soft);
        const Status refused =
            transport.install({config, table, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()});
        EXPECT_EQ(refused.code(), Code::TransportMissing);
        for (std::size_t i = 0; i < 3; ++i)
            EXPECT_NE(refused.message().find("; s" + std::to_string(i) + ": "), std::string::npos)
                << refused.toString();
        for (const auto& [kind, said] : kinds)
            EXPECT_NE(refused.message().find(said), std::string::npos) << refused.toString();
    }
    Node node(softConfig(""), soft, "n");
    ASSERT_EQ(node.nics.size(), 1u);
    EXPECT_EQ(node.nics.front()->info().name, "s3");
}

TEST(VerbsFault, AnInfiniBandPortThatTheSettingsForbidIsToldFromOneWithoutAnAddress) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0"});
    Config config = softConfig("s0");
    config.rdma_connect = "cm";
    RegistrationTable table;
    const auto why = [&](bool with_control) {
        const auto board = std::make_shared<Switchboard>();
        const Incarnation own = Incarnation::random();
        const auto line = with_control ? board->join(own) : nullptr;
        VerbsTransport transport(soft);
        return transport.install({config, table, own, "127.0.0.1", 1, makeSilentLogger(), nullptr, line.get()})
            .message();
    };
    soft->setGids("s0", {SoftVerbs::gid("fe80::1", 0)});
    EXPECT_NE(why(true).find("give its network interface an IP address"), std::string::npos) << why(true);
    soft->setLid("s0", 3);
    EXPECT_NE(why(true).find("rdma.connect = cm forbids: set it to auto"), std::string::npos) << why(true);
    EXPECT_EQ(why(true).find("IP address"), std::string::npos) << why(true);
    config.rdma_connect = "auto";
    EXPECT_NE(why(false).find("needs a control connection"), std::string::npos) << why(false);
}

TEST(VerbsFault, InstallSaysOfEachDeviceWhyItIsOfNoUse) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
    const Config config = softConfig("s0,s1,nowhere");
    RegistrationTable table;
    const auto install = [&] {
        VerbsTransport transport(soft);
        return transport.install({config, table, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()});
    };
    soft->setPort("s1", false);
    soft->fail("openDevice", EACCES);
    const Status refused = install();
    EXPECT_EQ(refused.code(), Code::TransportMissing);
    for (const char* part : {"s0", "errno 13", "s1", "the port is down", "nowhere"})
        EXPECT_NE(refused.message().find(part), std::string::npos) << refused.toString();
    soft->setPort("s1", true);
    for (const char* call :
         {"openDevices", "queryGids", "allocPd", "createChannel", "createCq", "cmOpen", "cmCreate", "cmListen"}) {
        soft->fail(call, EMFILE, 2);
        const Status failed = install();
        EXPECT_FALSE(failed) << call;
        EXPECT_NE(failed.message().find("errno 24"), std::string::npos) << call << ": " << failed.toString();
        soft->fail(call, 0, 0);
        EXPECT_EQ(soft->leftovers(), "") << call;
    }
}

TEST(VerbsFault, ASleeperIsWokenByConnectionsAndCompletions) {
    SoftPair pair;
    for (int round = 0; round < 100; ++round) {
        pair.a.sweep.clear();
        ASSERT_EQ(pair.nic().post(pair.path, pair.many(1)), 1u);
        while (endedIn(pair.a.sweep) == 0) {
            pair.nic().poll(Clock::now(), pair.a.sweep);
            if (endedIn(pair.a.sweep) != 0 || !pair.nic().arm()) continue;
            pollfd watched{pair.nic().waitFd(), POLLIN, 0};
            ASSERT_EQ(::poll(&watched, 1, 60000), 1) << "slept on and on";
        }
        EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    }
}

std::size_t openDescriptors() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

/// Bytes that malloc has given out; 0 where a sanitizer has its own, which looks for leaks itself.
std::size_t heapInUse() {
    const auto heap = ::mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

TEST(VerbsFault, TwoHundredPeersComeAndGoAndNothingIsLeft) {
    SoftPair pair;
    pair.expectWorks();
    const auto meet = [&](int i) {
        Node peer(softConfig("s1"), pair.soft, "peer" + std::to_string(i));
        std::vector<char> memory(4096);
        ASSERT_TRUE(peer.registerMemory(memory.data(), memory.size()));
        const auto path = pair.nic().openPath(peer.asPeer());
        ASSERT_TRUE(path);
        pair.a.sweep.clear();
        run(pair.a, pair.nic(), *path, {write(pair.local.data(), memory.data(), 4096)});
        EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
        if (i % 2 == 0) peer.end();  // Dead before the path is closed, or after.
        pair.nic().closePath(*path, {Code::PeerDown, "gone"});
    };
    const std::string before = pair.soft->leftovers();
    const auto isBack = [&] { return pair.soft->leftovers() == before; };
    // What containers keep for the next time is there after some.
    for (int i = 0; i < 50; ++i) meet(i);
    ASSERT_TRUE(pump(pair.a, isBack)) << pair.soft->leftovers() << " where there was " << before;
    const std::size_t descriptors = openDescriptors();
    const std::size_t memory = heapInUse();
    for (int i = 0; i < 200; ++i) meet(i);
    EXPECT_TRUE(pump(pair.a, isBack)) << pair.soft->leftovers() << " where there was " << before;
    EXPECT_EQ(openDescriptors(), descriptors);
    // 200 peers of which each leaves 200 bytes would be more.
    EXPECT_LE(heapInUse(), memory + 40000);
}

TEST(VerbsFault, ANewPairIsOnTrialWithOneRequestUntilOneHasArrived) {
    SoftPair pair;
    for (int round = 0; round < 3; ++round) {
        pair.soft->hold(true);
        ASSERT_EQ(pair.nic().post(pair.path, pair.many(20)), 20u);
        ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->held() != 0; }));
        for (int i = 0; i < 100; ++i) pair.nic().poll(Clock::now(), pair.a.sweep);
        EXPECT_EQ(pair.soft->held(), 1u);
        pair.soft->hold(false);
        ASSERT_TRUE(pump(pair.a, [&] { return completedIn(pair.a.sweep) == 20; })) << failuresOf(pair.a.sweep);
        // A pair that works is not on trial any more, one that follows a failure is.
        EXPECT_EQ(pair.postHeld(20), 20u);
        EXPECT_EQ(pair.soft->held(), 20u);
        pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
        ASSERT_TRUE(pump(pair.a, [&] { return pair.a.sweep.failed.size() == 20; }));
        pair.a.sweep.clear();
    }
    pair.soft->hold(false);
}

TEST(VerbsFault, WhatAPairCarriedIsCountedAlsoWhenItHasEnded) {
    SoftPair pair;
    auto& nic = static_cast<VerbsNic&>(pair.nic());
    EXPECT_TRUE(nic.carried(pair.path).empty());
    pair.run(pair.many(10));
    ASSERT_EQ(nic.carried(pair.path).size(), 1u);
    EXPECT_EQ(nic.carried(pair.path)["s1"].bytes, 640u);
    EXPECT_EQ(nic.carried(pair.path)["s1"].requests, 10u);
    pair.a.sweep.clear();
    const std::size_t posted = pair.postHeld(5);
    pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    EXPECT_EQ(nic.carried(pair.path)["s1"].bytes, 640u) << "nothing of it arrived";
    pair.soft->hold(false);
    pair.run(pair.many(3));
    EXPECT_EQ(nic.carried(pair.path)["s1"].bytes, 640u + 192u);
    EXPECT_EQ(nic.carried(pair.path)["s1"].requests, 13u);
}

}  // namespace
}  // namespace troupe::verbs
