// What devices say by themselves: addresses, numbers, queues and pairs that are gone. On the strict software device.

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;
using namespace std::chrono_literals;

/// All that was posted comes back, free for another try, for a cause that names `part`.
void expectEnded(SoftPair& pair, std::size_t posted, const std::string& part) {
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; })) << part;
    EXPECT_EQ(pair.a.sweep.failed.size(), posted);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_TRUE(failure.quiesced && failure.retryable) << failure.cause.toString();
        EXPECT_NE(failure.cause.message().find(part), std::string::npos) << failure.cause.toString();
    }
    pair.a.sweep.clear();
}

std::string gidOf(const Node& node, std::size_t device = 0) { return node.asPeer()->desc->devices.at(device).gid; }

TEST(VerbsEvents, PairsByAGidThatIsGoneAreMadeAnewAndTheNewOneIsPublished) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(20);
    pair.soft->setGids("s0", {SoftVerbs::gid("fe80::1", 0), SoftVerbs::gid("::ffff:10.9.7.1", 3)});
    pair.soft->raise("s0", IBV_EVENT_GID_CHANGE);
    expectEnded(pair, posted, "device s0 port 1 (GID 1: 10.9.0.1): its GID was removed");
    pair.soft->hold(false);
    pair.expectWorks();
    EXPECT_EQ(pair.soft->lastRoute("s0").ah_attr.grh.sgid_index, 3);
    EXPECT_EQ(gidOf(pair.a), gidText(SoftVerbs::gid("::ffff:10.9.7.1", 3).gid));
    EXPECT_EQ(pair.a.described_anew, 1);
}

TEST(VerbsEvents, ATargetEndsWhatGoesByAGidThatIsGoneAndIsReachedByTheNewOne) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->setGids("s1", {SoftVerbs::gid("fe80::2", 0), SoftVerbs::gid("::ffff:10.9.7.2", 1)});
    pair.soft->raise("s1", IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->count("qp") == 0; }));
    ASSERT_TRUE(pump(pair.a, [&] { return pair.b.described_anew == 1; }));
    pair.a.sweep.clear();
    pair.run(pair.many(1));
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u) << "nobody is there any more";
    EXPECT_TRUE(pair.a.sweep.failed.front().quiesced && pair.a.sweep.failed.front().retryable);
    pair.nic().updatePeer(pair.path, pair.b.asPeer());
    pair.expectWorks();
}

TEST(VerbsEvents, AGidThatComesOrThatNobodyUsesDisturbsNothing) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(20);
    const auto mapped = SoftVerbs::gid("::ffff:10.9.0.1", 1);
    pair.soft->setGids("s0", {SoftVerbs::gid("fe80::1", 0), mapped, SoftVerbs::gid("2001:db8::1", 2)});
    pair.soft->raise("s0", IBV_EVENT_GID_CHANGE);
    pair.soft->setGids("s0", {mapped});
    pair.soft->raise("s0", IBV_EVENT_GID_CHANGE);
    for (int i = 0; i < 1000; ++i) pair.nic().poll(Clock::now(), pair.a.sweep);
    pair.soft->hold(false);
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    EXPECT_EQ(pair.a.described_anew, 0);
}

TEST(VerbsEvents, APortThatLostAllItsAddressesIsPassedOverUntilItHasOne) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->setGids("s1", {});
    pair.soft->raise("s1", IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.b.described_anew == 1; }));
    ASSERT_EQ(pair.b.asPeer()->desc->devices.size(), 1u) << "it keeps its place";
    EXPECT_EQ(gidOf(pair.b), gidText(ibv_gid{}));
    EXPECT_EQ(pair.nic().openPath(pair.b.asPeer()).status().code(), Code::TransportMissing);
    pair.nic().updatePeer(pair.path, pair.b.asPeer());
    pair.a.sweep.clear();
    pair.run(pair.many(1));
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    EXPECT_EQ(pair.a.sweep.failed.front().cause.code(), Code::TransportMissing);
    pair.soft->setGids("s1", {SoftVerbs::gid("::ffff:10.9.0.2", 1)});
    pair.soft->raise("s1", IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.b.described_anew == 2; }));
    pair.nic().updatePeer(pair.path, pair.b.asPeer());
    pair.expectWorks();
}

TEST(VerbsEvents, WhatAPortHasWhenItIsActiveAgainIsRead) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->setPort("s0", false);
    pair.soft->setGids("s0", {SoftVerbs::gid("::ffff:10.9.7.1", 1)});
    pair.soft->setPort("s0", true);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.a.described_anew == 1; }));
    pair.expectWorks();
    EXPECT_EQ(gidOf(pair.a), gidText(SoftVerbs::gid("::ffff:10.9.7.1", 1).gid));
}

TEST(VerbsEvents, APortThatCannotBeReadStaysAsItWasUntilTheNextEvent) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->setGids("s0", {SoftVerbs::gid("::ffff:10.9.7.1", 1)});
    pair.soft->fail("queryGids", EIO, 1);
    pair.soft->raise("s0", IBV_EVENT_GID_CHANGE);
    pair.soft->raise("s0", IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.a.described_anew == 1; }));
    pair.expectWorks();
}

/// An initiator on s0 and a target on s1, InfiniBand ports with the LIDs 3 and 6, in the partition of P_Key 1.
struct Fabric {
    Fabric()
        : soft(std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"})),
          board(std::make_shared<Switchboard>()) {
        for (const int i : {1, 2}) {
            const std::string device = "s" + std::to_string(i - 1);
            soft->setLid(device, static_cast<std::uint16_t>(i * 3));
            soft->setGids(device, {SoftVerbs::gid("fe80::a00:" + std::to_string(i), 0, IBV_GID_TYPE_IB)});
        }
        Config config = softConfig("s0");
        config.rdma_pkey_index = 1;
        a = std::make_unique<Node>(config, soft, "a", makeSilentLogger(), board);
        config.rdma_devices = "s1";
        b = std::make_unique<Node>(config, soft, "b", makeSilentLogger(), board);
        EXPECT_TRUE(a->registerMemory(local.data(), local.size()));
        EXPECT_TRUE(b->registerMemory(remote.data(), remote.size()));
        path = *a->nics.front()->openPath(b->asPeer());
    }
    ~Fabric() {
        a->end();
        b->end();
    }
    std::string tryOnce() {
        a->sweep.clear();
        run(*a, *a->nics.front(), path, {write(local.data(), remote.data(), local.size())});
        return failuresOf(a->sweep);
    }
    void expectWorks() {
        const auto limit = Clock::now() + 30s;
        std::string failed;
        do failed = tryOnce();
        while (!failed.empty() && Clock::now() < limit);
        EXPECT_EQ(failed, "");
        EXPECT_EQ(local, remote);
    }

    std::vector<char> local = noise(4096);
    std::vector<char> remote = std::vector<char>(4096);
    std::shared_ptr<SoftVerbs> soft;
    CleanEnd clean_end{soft};
    std::shared_ptr<Switchboard> board;
    std::unique_ptr<Node> a;
    std::unique_ptr<Node> b;
    PathId path = 0;
};

TEST(VerbsEvents, ALidThatChangesEndsThePairsOfItsPortAtEitherEndAndIsPublished) {
    Fabric fabric;
    fabric.expectWorks();
    fabric.soft->setLid("s0", 30);
    fabric.soft->raise("s0", IBV_EVENT_LID_CHANGE);
    ASSERT_TRUE(pump(*fabric.a, [&] { return fabric.a->described_anew == 1; }));
    EXPECT_EQ(fabric.a->asPeer()->desc->devices.front().lid, 30);
    fabric.expectWorks();
    EXPECT_EQ(fabric.soft->lastRoute("s1").ah_attr.dlid, 30);
    fabric.soft->setLid("s1", 60);
    fabric.soft->raise("s1", IBV_EVENT_LID_CHANGE);
    ASSERT_TRUE(pump(*fabric.a, [&] { return fabric.soft->pairsOn("s1") == 0; }));
    EXPECT_EQ(fabric.b->asPeer()->desc->devices.front().lid, 60);
    fabric.expectWorks();
    EXPECT_EQ(fabric.soft->lastRoute("s0").ah_attr.dlid, 60);
}

TEST(VerbsEvents, APKeyThatChangesEndsThePairsOfItsPortAndOneThatDoesNotEndsNone) {
    Fabric fabric;
    fabric.expectWorks();
    for (const char* device : {"s0", "s1"}) fabric.soft->raise(device, IBV_EVENT_PKEY_CHANGE);
    EXPECT_EQ(fabric.tryOnce(), "");
    for (const char* device : {"s0", "s1"}) fabric.soft->setPkey(device, 0x8005);
    EXPECT_NE(fabric.tryOnce(), "") << "the device does not look at them";
    fabric.expectWorks();
    const auto peersOf = [&](const char* device) { return fabric.soft->lastRoute(device).dest_qp_num; };
    const std::uint32_t before[] = {peersOf("s0"), peersOf("s1")};
    for (const char* device : {"s0", "s1"}) fabric.soft->setPkey(device, 0x8006);
    for (const char* device : {"s0", "s1"}) fabric.soft->raise(device, IBV_EVENT_PKEY_CHANGE);
    // A new pair at both ends, without any work that had to fail.
    ASSERT_TRUE(pump(*fabric.a, [&] { return peersOf("s0") != before[0] && peersOf("s1") != before[1]; }));
    fabric.expectWorks();
}

TEST(VerbsEvents, ACompletionQueueThatFailsIsMadeAnewAndAllOfItsPairsEndForThatCause) {
    for (const bool told : {true, false}) {
        SoftPair pair;
        pair.expectWorks();
        const std::size_t posted = pair.postHeld(50);
        pair.soft->breakQueues("s0", told);
        expectEnded(pair, posted, told ? "its completion queue failed" : "its completion queue cannot be read");
        pair.soft->hold(false);
        pair.expectWorks();
        // One of each node: the old one is closed.
        EXPECT_TRUE(pump(pair.a, [&] { return pair.soft->count("cq") == 2; }));
        EXPECT_EQ(pair.soft->count("channel"), 2u);
    }
}

TEST(VerbsEvents, ASleeperIsWokenByAQueueThatFailsAndByTheNextOne) {
    SoftPair pair;
    pair.expectWorks();
    for (int round = 0; round < 5; ++round) {
        pair.soft->breakQueues("s0", round % 2 == 0);
        ASSERT_EQ(pair.nic().post(pair.path, pair.many(1)), 1u);
        const auto limit = Clock::now() + 60s;
        while (endedIn(pair.a.sweep) == 0 && Clock::now() < limit) {
            pair.nic().poll(Clock::now(), pair.a.sweep);
            if (endedIn(pair.a.sweep) != 0 || !pair.nic().arm()) continue;
            const auto left = std::max(std::min(pair.nic().nextDeadline(), limit) - Clock::now(), Duration::zero());
            pollfd watched{pair.nic().waitFd(), POLLIN, 0};
            const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
            ASSERT_GE(::poll(&watched, 1, static_cast<int>(ms)), 0);
        }
        ASSERT_EQ(endedIn(pair.a.sweep), 1u);
        pair.expectWorks();
    }
}

TEST(VerbsEvents, TheCompletionQueueOfATargetIsMadeAnewToo) {
    SoftPair pair;
    pair.expectWorks();
    pair.soft->breakQueues("s1", true);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->pairsOn("s1") == 0; }));
    pair.expectWorks();
}

TEST(VerbsEvents, ADeviceWithoutAnotherQueueIsOutOfUseAndSaysWhy) {
    SoftPair pair;
    pair.expectWorks();
    const std::size_t posted = pair.postHeld(10);
    pair.soft->fail("createCq", ENOMEM, 1);
    pair.soft->breakQueues("s0", true);
    expectEnded(pair, posted, "out of use until rdma is installed anew");
    pair.soft->hold(false);
    pair.run(pair.many(1));
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    for (const char* part : {"device s0 port 1", "CQ error", "errno 12"})
        EXPECT_NE(pair.a.sweep.failed.front().cause.message().find(part), std::string::npos)
            << pair.a.sweep.failed.front().cause.toString();
    EXPECT_EQ(pair.a.described_anew, 1);
    EXPECT_EQ(gidOf(pair.a), gidText(ibv_gid{}));
}

TEST(VerbsEvents, ADeviceThatFailsIsOutOfUseAndTheOthersGoOn) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2"});
    const CleanEnd clean_end(soft);
    {
        Node a(softConfig("s0,s1"), soft, "a");
        Node b(softConfig("s2"), soft, "b");
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        std::vector<PathId> paths;
        for (const auto& nic : a.nics) {
            paths.push_back(*nic->openPath(b.asPeer()));
            run(a, *nic, paths.back(), {write(local.data(), remote.data(), 64)});
        }
        ASSERT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        a.sweep.clear();
        soft->hold(true);
        ASSERT_EQ(a.nics[0]->post(paths[0], std::vector{write(local.data(), remote.data(), 64)}), 1u);
        a.nics[0]->poll(Clock::now(), a.sweep);
        soft->raise("s0", IBV_EVENT_DEVICE_FATAL);
        ASSERT_TRUE(pump(a, [&] { return a.sweep.failed.size() == 1; }));
        EXPECT_TRUE(a.sweep.failed.front().quiesced && a.sweep.failed.front().retryable);
        EXPECT_NE(a.sweep.failed.front().cause.message().find("device s0 port 1 (GID 1: 10.9.0.1) failed"),
                  std::string::npos)
            << a.sweep.failed.front().cause.toString();
        soft->hold(false);
        // A port of it that comes up brings nothing back.
        soft->raise("s0", IBV_EVENT_PORT_ACTIVE);
        a.sweep.clear();
        run(a, *a.nics[0], paths[0], {write(local.data(), remote.data(), 64)});
        EXPECT_EQ(a.sweep.failed.size(), 1u);
        a.sweep.clear();
        run(a, *a.nics[1], paths[1], {write(local.data(), remote.data(), 4096)});
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_EQ(local, remote);
        // Memory that comes now is registered with the other.
        std::vector<char> more(4096);
        ASSERT_TRUE(a.registerMemory(more.data(), more.size()));
        const auto desc = a.asPeer()->desc;
        ASSERT_EQ(desc->devices.size(), 2u);
        EXPECT_EQ(desc->devices[0].gid, gidText(ibv_gid{}));
        EXPECT_NE(desc->devices[1].gid, gidText(ibv_gid{}));
        EXPECT_EQ(a.described_anew, 1);
        const auto path = b.nics.front()->openPath(a.asPeer());
        ASSERT_TRUE(path);
        run(b, *b.nics.front(), *path, {write(remote.data(), more.data(), 4096)});
        EXPECT_TRUE(b.sweep.failed.empty()) << failuresOf(b.sweep);
        EXPECT_EQ(more, remote);
    }
}

TEST(VerbsEvents, ADeviceThatIsRemovedIsOutOfUseAndIsAskedForNothingMore) {
    for (const bool told : {true, false}) {
        SCOPED_TRACE(told);
        const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2"});
        const CleanEnd clean_end(soft);
        soft->addSecondPort("s0");
        {
            Node a(softConfig("s0,s1"), soft, "a");
            Node b(softConfig("s2"), soft, "b");
            ASSERT_EQ(a.nics.size(), 3u);
            auto local = noise(4096);
            std::vector<char> remote(4096);
            ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
            ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
            const PathId gone = *a.nics[0]->openPath(b.asPeer());
            run(a, *a.nics[0], gone, {write(local.data(), remote.data(), 64)});
            ASSERT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
            a.sweep.clear();
            soft->remove("s0", told);
            ASSERT_TRUE(pump(a, [&] { return soft->pairsOn("s0") == 0 && a.described_anew == 2; }));
            run(a, *a.nics[0], gone, {write(local.data(), remote.data(), 64)});
            ASSERT_EQ(a.sweep.failed.size(), 1u);
            for (const char* part :
                 {"out of use until rdma is installed anew", "device s0 port 1", told ? "fatal" : "removed"})
                EXPECT_NE(a.sweep.failed.front().cause.message().find(part), std::string::npos) << failuresOf(a.sweep);
            a.sweep.clear();
            // The thread has been round once more, for the other device, and does not look at this one any more.
            const auto use_other = [&] {
                const PathId path = *a.nics[2]->openPath(b.asPeer());
                run(a, *a.nics[2], path, {write(local.data(), remote.data(), 64)});
                EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
                a.nics[2]->closePath(path, {Code::Canceled, "closed"});
            };
            use_other();
            const std::size_t asked = soft->eventsAsked("s0");
            for (int i = 0; i < 5; ++i) use_other();
            EXPECT_EQ(soft->eventsAsked("s0"), asked) << "its descriptor wakes the thread for ever";
        }
    }
}

TEST(VerbsEvents, APairThatItsDeviceGivesUpEndsQuiescedAndIsMadeAnew) {
    for (const auto type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
        SoftPair pair;
        pair.expectWorks();
        const std::size_t posted = pair.postHeld(20);
        pair.soft->raiseOnPairs("s0", type);
        expectEnded(pair, posted, ibv_event_type_str(type));
        pair.soft->hold(false);
        pair.expectWorks();
        pair.soft->raiseOnPairs("s1", type);
        ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->pairsOn("s1") == 0; }));
        pair.expectWorks();
    }
}

TEST(VerbsEvents, OfADeviceWithTwoPortsTheRightOneIsMeant) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
    const CleanEnd clean_end(soft);
    soft->addSecondPort("s0");
    soft->addSecondPort("s1");
    {
        Node a(softConfig("s0"), soft, "a");
        Node b(softConfig("s1"), soft, "b");
        ASSERT_EQ(a.nics.size(), 2u);
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        std::vector<PathId> paths;
        for (const auto& nic : a.nics) paths.push_back(*nic->openPath(b.asPeer()));
        for (const std::size_t down : {1u, 0u}) {
            const auto port = static_cast<std::uint8_t>(down + 1);
            for (std::size_t i : {0u, 1u}) run(a, *a.nics[i], paths[i], {write(local.data(), remote.data(), 64)});
            EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
            a.sweep.clear();
            soft->hold(true);
            for (std::size_t i : {0u, 1u})
                ASSERT_EQ(a.nics[i]->post(paths[i], std::vector{read(local.data(), remote.data(), 64, i)}), 1u);
            for (const auto& nic : a.nics) nic->poll(Clock::now(), a.sweep);
            soft->setPort("s0", false, port);
            ASSERT_TRUE(pump(a, [&] { return a.sweep.failed.size() == 1; }));
            EXPECT_EQ(a.sweep.failed.front().request.cookie, down);
            const std::string said = "device s0 port " + std::to_string(port);
            EXPECT_NE(a.sweep.failed.front().cause.message().find(said), std::string::npos)
                << a.sweep.failed.front().cause.toString();
            soft->hold(false);
            ASSERT_TRUE(pump(a, [&] { return completedIn(a.sweep) == 1; }));
            soft->setPort("s0", true, port);
            ASSERT_TRUE(pump(a, [&] { return !a.sweep.paths.empty() && a.sweep.paths.back().usable; }));
            a.sweep.clear();
        }
    }
}

}  // namespace
}  // namespace troupe::verbs
