// What a Nic that loses its device gives back, so that another may go on with it: on the strict software device.

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;
using namespace std::chrono_literals;

/// An initiator with the devices s0 and s1 (or s0 alone), a target with s2 and s3.
struct Rails {
    explicit Rails(const std::string& own = "s0,s1", std::uint32_t lanes = 1, std::chrono::milliseconds lifetime = 60s)
        : Rails(config(own, lanes, lifetime), nullptr) {}
    /// With a control connection, unless `switchboard` is null. `arrange` is shown the devices before they are used.
    Rails(const Config& base, std::shared_ptr<Switchboard> switchboard,
          const std::function<void(SoftVerbs&)>& arrange = {})
        : board(std::move(switchboard)),
          soft([&] {
              auto made = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2", "s3"});
              if (arrange) arrange(*made);
              return made;
          }()),
          a(base, soft, "a", makeSilentLogger(), board),
          b(config("s2,s3", 1, base.rdma_packet_lifetime), soft, "b", makeSilentLogger(), board) {
        EXPECT_TRUE(a.registerMemory(local.data(), local.size()));
        EXPECT_TRUE(b.registerMemory(remote.data(), remote.size()));
        for (const auto& nic : a.nics) {
            const auto opened = nic->openPath(b.asPeer());
            EXPECT_TRUE(opened) << opened.status().toString();
            paths.push_back(*opened);
            // On every lane.
            run(a, *nic, paths.back(), many(16, Opcode::Write));
        }
        a.sweep.clear();
    }
    ~Rails() {
        a.end();
        b.end();
    }
    static Config config(const std::string& devices, std::uint32_t lanes, std::chrono::milliseconds lifetime) {
        Config result;
        result.rdma_devices = devices;
        result.rdma_lanes = lanes;
        result.rdma_drain_timeout = 50ms;
        result.rdma_packet_lifetime = lifetime;
        result.connect_timeout = 2000ms;
        return result;
    }
    std::vector<WorkRequest> many(std::size_t count, Opcode opcode) const {
        std::vector<WorkRequest> requests;
        for (std::size_t i = 0; i < count; ++i)
            requests.push_back(request(opcode, local.data() + i * 64, remote.data() + i * 64, 64, i));
        return requests;
    }
    /// Posts on the first Nic work that stays with the device.
    std::size_t holdOnFirst(std::size_t count, Opcode opcode) {
        soft->hold(true);
        const std::size_t posted = a.nics[0]->post(paths[0], many(count, opcode));
        a.nics[0]->poll(Clock::now(), a.sweep);
        return posted;
    }
    /// Whether the last that was said of the first Nic's path is that it can be used.
    std::optional<bool> saidUsable() const {
        std::optional<bool> said;
        for (const PathChange& change : a.sweep.paths)
            if (change.path == paths[0]) said = change.usable;
        return said;
    }

    std::vector<char> local = noise(65536);
    std::vector<char> remote = std::vector<char>(65536);
    std::shared_ptr<Switchboard> board;
    std::shared_ptr<SoftVerbs> soft;
    CleanEnd clean_end{soft};
    Node a;
    Node b;
    std::vector<PathId> paths;
};

TEST(VerbsFailover, LostWritesComeBackOnlyWhenThePeerHasEndedItsSide) {
    Rails rails;
    // Two lanes, a pair at each end.
    ASSERT_EQ(rails.soft->count("qp"), 4u);
    const std::size_t posted = rails.holdOnFirst(100, Opcode::Write);
    rails.soft->setPort("s0", false);
    // What was never sent comes back at once; the rest once it is fenced.
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    // Nothing through s0 can have told the peer; the fence through s1 has. The own pair may take a moment more.
    EXPECT_TRUE(pump(rails.a, [&] { return rails.soft->count("qp") == 2; }));
    for (const Failure& failure : rails.a.sweep.failed) {
        EXPECT_TRUE(failure.fenced && failure.retryable && failure.quiesced) << failure.cause.toString();
        EXPECT_NE(failure.cause.message().find("went down"), std::string::npos) << failure.cause.toString();
        EXPECT_EQ(failure.incident, rails.a.sweep.failed.front().incident);
        EXPECT_NE(failure.incident, 0u);
    }
    EXPECT_EQ(rails.saidUsable(), false);
    rails.soft->hold(false);
    rails.a.sweep.clear();
    run(rails.a, *rails.a.nics[1], rails.paths[1], rails.many(100, Opcode::Write));
    EXPECT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
    // It connects by itself when the port is back.
    rails.soft->setPort("s0", true);
    EXPECT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == true; }));
}

TEST(VerbsFailover, LostReadsComeBackWithoutAFence) {
    Rails rails;
    const std::size_t posted = rails.holdOnFirst(50, Opcode::Read);
    rails.soft->fail("cmCreate", EMFILE, 1000);
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(failure.retryable && failure.quiesced);
    rails.soft->fail("cmCreate", 0, 0);
    rails.soft->hold(false);
}

TEST(VerbsFailover, WhatWasNotPostedIsFencedAtOnce) {
    Rails rails;
    rails.soft->setPort("s0", false);
    // The pair follows the port, and takes what is posted until then.
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false && rails.soft->pairsOn("s0") == 0; }));
    rails.soft->fail("cmCreate", EMFILE, 1000);
    run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(10, Opcode::Write));
    ASSERT_EQ(rails.a.sweep.failed.size(), 10u);
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(failure.fenced && failure.retryable);
    rails.soft->fail("cmCreate", 0, 0);
}

TEST(VerbsFailover, WithoutAnotherDeviceLostWritesComeBackWhenNoPacketOfThemLives) {
    Rails rails("s0", 1, 300ms);
    const std::size_t posted = rails.holdOnFirst(100, Opcode::Write);
    const auto began = Clock::now();
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    EXPECT_GE(Clock::now() - began, 300ms);
    for (const Failure& failure : rails.a.sweep.failed)
        EXPECT_TRUE(failure.fenced && failure.retryable && failure.quiesced) << failure.cause.toString();
    rails.soft->hold(false);
}

TEST(VerbsFailover, ALostWriteComesBackWhenItsLaneIsConnectedAnew) {
    Rails rails("s0");
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false; }));
    EXPECT_EQ(endedIn(rails.a.sweep), 0u);
    rails.soft->setPort("s0", true);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    EXPECT_EQ(rails.saidUsable(), true);
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(failure.fenced);
    rails.soft->hold(false);
}

TEST(VerbsFailover, ARequestThatIsRefusedIsNoLossOfThePath) {
    Rails rails;
    run(rails.a, *rails.a.nics[0], rails.paths[0],
        {request(Opcode::Write, rails.local.data(), rails.remote.data(), 64, 1)});
    rails.b.unregisterMemory(rails.remote.data());
    run(rails.a, *rails.a.nics[0], rails.paths[0],
        {request(Opcode::Write, rails.local.data(), rails.remote.data(), 64, 2)});
    ASSERT_EQ(rails.a.sweep.failed.size(), 1u);
    EXPECT_EQ(rails.a.sweep.failed[0].cause.code(), Code::AccessDenied) << rails.a.sweep.failed[0].cause.toString();
    EXPECT_EQ(rails.saidUsable(), std::nullopt);
}

TEST(VerbsFailover, WhenTheFenceFailsLostWritesComeBackWhenNoPacketOfThemLives) {
    for (const char* call : {"cmCreate", "cmResolveAddress", "cmResolveRoute", "createQp", "cmConnect"}) {
        Rails rails("s0,s1", 1, 300ms);
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        const auto began = Clock::now();
        rails.soft->fail(call, EMFILE, 1000);
        rails.soft->setPort("s0", false);
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; })) << call;
        for (const Failure& failure : rails.a.sweep.failed)
            EXPECT_TRUE(failure.fenced && failure.retryable && failure.quiesced) << call;
        EXPECT_GE(Clock::now() - began, 300ms) << call;
        rails.soft->fail(call, 0, 0);
        rails.soft->hold(false);
    }
}

TEST(VerbsFailover, NothingOfAWriteThatWasResetIsAppliedOverWhatWasWrittenAfterItsEnd) {
    // Another device, the control connection and the lane's next connection: each of them tells the peer.
    for (const std::string tells : {"device", "control", "successor"}) {
        SCOPED_TRACE(tells);
        Rails rails(Rails::config(tells == "device" ? "s0,s1" : "s0", 2, 60s),
                    tells == "control" ? std::make_shared<Switchboard>() : nullptr);
        rails.soft->linger();
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        ASSERT_NE(rails.soft->held(), 0u);
        if (tells == "control") rails.soft->fail("cmCreate", EMFILE, 1000);
        rails.a.nics[0]->resetPath(rails.paths[0], {Code::Canceled, "no longer wanted"});
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        for (const Failure& failure : rails.a.sweep.failed)
            EXPECT_TRUE(failure.fenced && failure.retryable && failure.quiesced) << failure.cause.toString();
        rails.soft->fail("cmCreate", 0, 0);
        rails.soft->hold(false);
        // By whatever lane; what could not connect a moment ago is tried again.
        std::fill(rails.local.begin(), rails.local.end(), 'n');
        do {
            rails.a.sweep.clear();
            run(rails.a, *rails.a.nics.back(), rails.paths.back(), rails.many(20, Opcode::Write));
        } while (!rails.a.sweep.failed.empty() && rails.a.sweep.failed.front().retryable);
        ASSERT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
        EXPECT_EQ(rails.soft->deliver(), 0u);
        EXPECT_EQ(std::count(rails.remote.begin(), rails.remote.begin() + 20 * 64, 'n'), 20 * 64);
    }
}

TEST(VerbsFailover, AWriteOfAClosedPathEndsWhenThePeerHasEndedItsSideUnlessThatIsGone) {
    for (const Code code : {Code::Canceled, Code::PeerDown}) {
        SCOPED_TRACE(Status(code, "closed").toString());
        Rails rails(Rails::config("s0", 2, 60s), std::make_shared<Switchboard>());
        rails.soft->linger();
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        ASSERT_NE(rails.soft->held(), 0u);
        rails.a.nics[0]->closePath(rails.paths[0], {code, "closed"});
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        const auto is_fenced = [](const Failure& failure) { return failure.fenced; };
        const auto& failed = rails.a.sweep.failed;
        EXPECT_EQ(std::all_of(failed.begin(), failed.end(), is_fenced), code == Code::Canceled);
        for (const Failure& failure : failed) EXPECT_TRUE(failure.quiesced && !failure.retryable);
        if (code == Code::Canceled) {
            EXPECT_EQ(rails.soft->deliver(), 0u);
        }
        rails.soft->hold(false);
        // Its successor is not disturbed.
        rails.paths[0] = *rails.a.nics[0]->openPath(rails.b.asPeer());
        rails.a.sweep.clear();
        run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(20, Opcode::Write));
        EXPECT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
    }
}

TEST(VerbsFailover, AResetOfWhatIsBeingFencedTakesItsCause) {
    Rails rails(Rails::config("s0", 1, 60s), std::make_shared<Switchboard>());
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    // The first answers are lost.
    rails.board->tapReplies([](std::string&) { return false; });
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false && rails.soft->pairsOn("s0") == 0; }));
    rails.a.nics[0]->resetPath(rails.paths[0], {Code::Timeout, "the deadline passed"});
    rails.soft->hold(false);
    rails.board->tapReplies(nullptr);
    rails.soft->setPort("s0", true);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_EQ(failure.cause.code(), Code::Timeout);
}

TEST(VerbsFailover, AResetWaitsForAPeerThatDoesNotAnswerButNotForEver) {
    // What was not fenced is for its own lane alone, whose next connection ends the last one.
    for (const std::uint32_t lanes : {1u, 2u}) {
        Rails rails("s0,s1", lanes);
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        rails.soft->setPort("s2", false);
        rails.soft->setPort("s3", false);
        const auto began = Clock::now();
        rails.a.nics[0]->resetPath(rails.paths[0], {Code::Timeout, "the deadline passed"});
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        EXPECT_GE(Clock::now() - began, 1s);
        std::size_t unfenced = 0;
        for (const Failure& failure : rails.a.sweep.failed) {
            EXPECT_TRUE(failure.quiesced);
            if (failure.fenced) continue;  // Was not sent.
            ++unfenced;
            EXPECT_EQ(failure.retryable, lanes == 1);
            EXPECT_NE(failure.cause.message().find("may still arrive"), std::string::npos) << failure.cause.toString();
        }
        EXPECT_NE(unfenced, 0u);
        rails.soft->hold(false);
    }
}

TEST(VerbsFailover, AResetOfALostPathWaitsForThePeerButNotForEver) {
    Rails rails;
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    // Nobody answers, neither to the fence nor to a new connection.
    rails.soft->setPort("s2", false);
    rails.soft->setPort("s3", false);
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false; }));
    EXPECT_EQ(endedIn(rails.a.sweep), 0u);
    rails.a.nics[0]->resetPath(rails.paths[0], {Code::Timeout, "the deadline passed"});
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(!failure.fenced && failure.quiesced);
    rails.soft->hold(false);
}

TEST(VerbsFailover, WithoutAnotherDeviceThePeerIsAskedOverTheControlConnectionHoweverThePairWasMade) {
    for (const char* connect : {"auto", "cm", "exchange"}) {
        SCOPED_TRACE(connect);
        Config config = Rails::config("s0", 1, 60s);
        config.rdma_connect = connect;
        Rails rails(config, std::make_shared<Switchboard>());
        ASSERT_EQ(rails.soft->count("qp"), 2u);
        // Few enough that all of them are sent: what is not comes back at once.
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        rails.soft->setPort("s0", false);
        ASSERT_TRUE(pump(rails.a, [&] { return !rails.a.sweep.failed.empty(); }));
        EXPECT_EQ(rails.soft->pairsOn("s2") + rails.soft->pairsOn("s3"), 0u)
            << "they came back before it was over there";
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        for (const Failure& failure : rails.a.sweep.failed)
            EXPECT_TRUE(failure.fenced && failure.retryable && failure.quiesced) << failure.cause.toString();
        EXPECT_EQ(rails.saidUsable(), false);
        rails.soft->hold(false);
        rails.soft->setPort("s0", true);
        EXPECT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == true; }));
    }
}

TEST(VerbsFailover, ADeviceWithoutAnAnswerLeavesTheFenceToTheControlConnection) {
    Rails rails(Rails::config("s0,s1", 1, 60s), std::make_shared<Switchboard>());
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    rails.soft->fail("cmConnect", EOPNOTSUPP, 1000);
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(failure.fenced) << failure.cause.toString();
    EXPECT_EQ(rails.soft->pairsOn("s2") + rails.soft->pairsOn("s3"), 1u);
    rails.soft->fail("cmConnect", 0, 0);
    rails.soft->hold(false);
}

TEST(VerbsFailover, AFenceThatIsNotGrantedOverTheControlConnectionWaitsUntilNoPacketLives) {
    for (const bool is_lost : {true, false}) {
        Rails rails(Rails::config("s0", 1, 300ms), std::make_shared<Switchboard>());
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        rails.board->tapReplies([is_lost](std::string& reply) { return reply.assign("what?"), !is_lost; });
        const auto began = Clock::now();
        rails.soft->setPort("s0", false);
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        EXPECT_GE(Clock::now() - began, 300ms);
        for (const Failure& failure : rails.a.sweep.failed) EXPECT_TRUE(failure.fenced) << failure.cause.toString();
        rails.soft->hold(false);
    }
}

TEST(VerbsFailover, AFenceIsNotGrantedWhileThePeersDeviceHoldsOnToItsPair) {
    Rails rails(Rails::config("s0", 1, 60s), std::make_shared<Switchboard>());
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    for (const char* call : {"destroyQp s2", "destroyQp s3"}) rails.soft->fail(call, EBUSY, 1000000);
    rails.soft->fail("cmCreate", EMFILE, 1000000);
    rails.a.nics[0]->resetPath(rails.paths[0], {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    EXPECT_TRUE(std::any_of(rails.a.sweep.failed.begin(), rails.a.sweep.failed.end(),
                            [](const Failure& failure) { return !failure.fenced; }));
    // That pair is in the error state, so the lane's next one is welcome.
    rails.soft->fail("cmCreate", 0, 0);
    rails.soft->hold(false);
    EXPECT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == true; }));
    for (const char* call : {"destroyQp s2", "destroyQp s3"}) rails.soft->fail(call, 0, 0);
}

TEST(VerbsFailover, NeitherAFenceNorASuccessorIsGrantedWhileThePeersPairTakesAnything) {
    Rails rails(Rails::config("s0", 1, 60s), std::make_shared<Switchboard>());
    rails.soft->linger();
    const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
    for (const char* device : {"s2", "s3"})
        for (const char* call : {"destroyQp ", "modifyQpToError "})
            rails.soft->fail(std::string(call) + device, EBUSY, 1000000);
    rails.a.nics[0]->resetPath(rails.paths[0], {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
    EXPECT_TRUE(std::any_of(rails.a.sweep.failed.begin(), rails.a.sweep.failed.end(), [](const Failure& failure) {
        return !failure.fenced;
    })) << "something of them can still be applied there";
    EXPECT_NE(rails.soft->deliver(), 0u);
    // It works again once the device has let go.
    for (const char* device : {"s2", "s3"})
        for (const char* call : {"destroyQp ", "modifyQpToError "}) rails.soft->fail(std::string(call) + device, 0, 0);
    rails.soft->hold(false);
    do {
        rails.a.sweep.clear();
        run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(20, Opcode::Write));
    } while (!rails.a.sweep.failed.empty() && rails.a.sweep.failed.front().retryable);
    EXPECT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
}

TEST(VerbsFailover, TheWayThatWorkedIsTriedFirst) {
    Rails rails(Rails::config("s0", 1, 60s), nullptr);
    const auto lose = [&] {
        rails.a.sweep.clear();
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        rails.a.nics[0]->resetPath(rails.paths[0], {Code::Canceled, "no longer wanted"});
        EXPECT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        rails.soft->hold(false);
    };
    const auto work = [&] {
        do {
            rails.a.sweep.clear();
            run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(20, Opcode::Write));
        } while (!rails.a.sweep.failed.empty());
    };
    // Nobody answers at the likeliest device.
    rails.soft->setPortUntold("s2", false);
    lose();
    work();
    ASSERT_EQ(rails.soft->pairsOn("s3"), 1u);
    const std::size_t asked = rails.soft->requestsTo("s2");
    lose();
    work();
    EXPECT_EQ(rails.soft->requestsTo("s2"), asked);
    // But it is not clung to.
    rails.soft->setPortUntold("s3", false);
    rails.soft->setPortUntold("s2", true);
    lose();
    work();
    EXPECT_EQ(rails.soft->pairsOn("s2"), 1u);
}

TEST(VerbsFailover, ADeafPortIsConnectedByExchange) {
    // Whichever end it is.
    for (const char* deaf : {"s0", "s2"}) {
        SCOPED_TRACE(deaf);
        Rails rails(Rails::config("s0", 1, 60s), std::make_shared<Switchboard>());
        rails.soft->deafen(deaf);
        const std::size_t posted = rails.holdOnFirst(20, Opcode::Write);
        rails.a.nics[0]->resetPath(rails.paths[0], {Code::Canceled, "no longer wanted"});
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        rails.soft->hold(false);
        rails.a.sweep.clear();
        run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(20, Opcode::Write));
        EXPECT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
        // From then on nobody waits for rdma_cm first, whichever attempt it is.
        const std::size_t asked = rails.soft->requestsTo("s2");
        for (const int refusals : {0, 1}) {
            int left = refusals;
            rails.board->tapReplies([left](std::string& reply) mutable {
                if (left-- > 0) reply.assign("what?");
                return true;
            });
            rails.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL);
            ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false; }));
            ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == true; }));
            rails.a.sweep.clear();
        }
        EXPECT_EQ(rails.soft->requestsTo("s2"), asked);
        rails.board->tapReplies(nullptr);
    }
}

TEST(VerbsFailover, WhereTheKernelOfThePeerHasNoRouteBackPairsAreMadeByExchange) {
    Rails rails(Rails::config("s0", 1, 60s), std::make_shared<Switchboard>(), [](SoftVerbs& soft) {
        soft.loseWayBack("s2");
        soft.loseWayBack("s3");
    });
    run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(20, Opcode::Write));
    EXPECT_TRUE(rails.a.sweep.failed.empty()) << failuresOf(rails.a.sweep);
}

/// As to a device of another rail, which hears the control connection and no packet.
TEST(VerbsFailover, AWayThatConnectsAndCarriesNothingIsNotTakenForTheOneThatWorks) {
    Rails rails(Rails::config("s0", 1, 10ms), std::make_shared<Switchboard>());
    const auto work = [&] {
        rails.a.sweep.clear();
        run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(1, Opcode::Write));
        return rails.a.sweep.failed.empty();
    };
    ASSERT_TRUE(work());
    const bool first = rails.soft->pairsOn("s2") != 0;
    const std::string good = first ? "s2" : "s3";
    const std::string barren = first ? "s3" : "s2";
    rails.soft->loseData(barren, true);
    rails.soft->cutOff(good, true);
    rails.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.soft->pairsOn(barren) != 0; }));
    for (int round = 0; round < 3; ++round) EXPECT_FALSE(work());
    rails.soft->cutOff(good, false);
    const auto limit = Clock::now() + 60s;
    while (!work() && Clock::now() < limit) {
    }
    EXPECT_EQ(rails.soft->pairsOn(good), 1u);
    EXPECT_EQ(rails.soft->pairsOn(barren), 0u);
}

TEST(VerbsFailover, APathWithALaneLeftIsOnTrialAndUsable) {
    Rails rails("s0,s1", 2);
    rails.soft->hold(true);
    ASSERT_EQ(rails.a.nics[0]->post(rails.paths[0], rails.many(1, Opcode::Write)), 1u);
    rails.a.nics[0]->poll(Clock::now(), rails.a.sweep);
    // The next post fails, and with it one of the two pairs.
    rails.soft->fail("postSend", EIO, 1);
    ASSERT_EQ(rails.a.nics[0]->post(rails.paths[0], rails.many(1, Opcode::Write)), 1u);
    ASSERT_TRUE(pump(rails.a, [&] { return !rails.a.sweep.failed.empty(); }));
    // Lost and there again: whoever sends tries it with one request before the rest.
    ASSERT_EQ(rails.a.sweep.paths.size(), 2u);
    EXPECT_FALSE(rails.a.sweep.paths[0].usable);
    EXPECT_TRUE(rails.a.sweep.paths[1].usable);
    rails.soft->hold(false);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == 2; }));
    EXPECT_EQ(rails.saidUsable(), true);
}

TEST(VerbsFailover, ALaneThatCannotConnectLosesNoPathThatAnotherOneCarries) {
    SoftPair pair([] {
        Config config = softConfig("s0");
        config.rdma_lanes = 2;
        return config;
    }());
    // One of the two, for as long as the test likes.
    pair.soft->fail("cmConnect", ECONNREFUSED, 1 << 30, 1);
    for (int round = 0; round < 20; ++round) pair.run(pair.many(20));
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    EXPECT_TRUE(pair.a.sweep.paths.empty()) << "a path that carries was said to be lost";
    // It is made without any work for it once that is possible, and carries its share.
    pair.soft->fail("cmConnect", 0, 0);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->connectionsOf("s0") == 2; }));
    const auto limit = Clock::now() + 30s;
    for (std::size_t busy = 0; busy != 2;) {
        ASSERT_LT(Clock::now(), limit) << "the second lane gets no work";
        pair.a.sweep.clear();
        const std::size_t posted = pair.postHeld(2);
        busy = pair.soft->busyPairs();
        pair.soft->hold(false);
        ASSERT_TRUE(pump(pair.a, [&] { return completedIn(pair.a.sweep) == posted; })) << failuresOf(pair.a.sweep);
    }
}

TEST(VerbsFailover, WithNoLaneLeftThePathIsLostAndOneThatIsBackBringsItBack) {
    Rails rails("s0,s1", 2);
    rails.soft->fail("cmConnect", ECONNREFUSED, 1 << 30);
    rails.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false; }));
    rails.soft->fail("cmConnect", 0, 0);
    EXPECT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == true; }));
}

/// Their incident, which is one and none of `before`, and is among those then.
void expectOneIncident(const Sweep& sweep, std::set<std::uint64_t>& before) {
    ASSERT_FALSE(sweep.failed.empty());
    const std::uint64_t incident = sweep.failed.front().incident;
    for (const Failure& failure : sweep.failed) EXPECT_EQ(failure.incident, incident) << failure.cause.toString();
    EXPECT_NE(incident, 0u);
    EXPECT_TRUE(before.insert(incident).second) << "what is lost each time would be tried for ever";
}

TEST(VerbsFailover, LanesThatBreakOneAfterTheOtherAreOneIncident) {
    Rails rails("s0,s1", 4);
    std::set<std::uint64_t> before;
    for (int round = 0; round < 3; ++round) {
        rails.a.sweep.clear();
        const std::size_t posted = rails.holdOnFirst(40, Opcode::Read);
        ASSERT_EQ(rails.soft->busyPairs(), 4u);
        // Each has an event of its own, as each queue pair has a retry counter of its own.
        rails.soft->raiseOnPairs("s0", IBV_EVENT_QP_FATAL);
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == posted; }));
        EXPECT_EQ(rails.a.sweep.failed.size(), posted);
        expectOneIncident(rails.a.sweep, before);
        rails.soft->hold(false);
        // Until all four are there again and on trial no more.
        do {
            rails.a.sweep.clear();
            run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(40, Opcode::Read));
        } while (!rails.a.sweep.failed.empty() || rails.soft->connectionsOf("s0") != 4);
    }
}

TEST(VerbsFailover, LanesThatCannotConnectAreOneIncident) {
    Rails rails("s0,s1", 4);
    std::set<std::uint64_t> before;
    rails.soft->fail("cmConnect", ECONNREFUSED, 1 << 30);
    for (int round = 0; round < 3; ++round) {
        rails.a.sweep.clear();
        const auto path = rails.a.nics[0]->openPath(rails.b.asPeer());
        ASSERT_TRUE(path);
        run(rails.a, *rails.a.nics[0], *path, rails.many(40, Opcode::Read));
        expectOneIncident(rails.a.sweep, before);
    }
    rails.soft->fail("cmConnect", 0, 0);
}

TEST(VerbsFailover, LanesOfAPortThatIsDownAreOneIncidentEachTime) {
    Rails rails("s0,s1", 4);
    std::set<std::uint64_t> before;
    rails.soft->setPort("s0", false);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.saidUsable() == false; }));
    for (int round = 0; round < 3; ++round) {
        rails.a.sweep.clear();
        run(rails.a, *rails.a.nics[0], rails.paths[0], rails.many(40, Opcode::Read));
        expectOneIncident(rails.a.sweep, before);
    }
}

TEST(VerbsFailover, AnAddressOfOneDeviceOfThePeerThatChangesEndsThePairsThereAloneAndCostsNothing) {
    for (const char* change : {"address", "one more device"}) {
        SCOPED_TRACE(change);
        // s0 has the likeliest way to s2, and s1 to s3.
        Rails rails(Rails::config("s0,s1", 1, 60s), nullptr, [](SoftVerbs& soft) {
            soft.setGids("s1", {SoftVerbs::gid("::ffff:10.8.0.1", 1)});
            soft.setGids("s3", {SoftVerbs::gid("::ffff:10.8.0.2", 1)});
        });
        rails.soft->hold(true);
        for (const std::size_t i : {0u, 1u})
            ASSERT_EQ(rails.a.nics[i]->post(rails.paths[i], rails.many(20, Opcode::Write)), 20u);
        for (const auto& nic : rails.a.nics) nic->poll(Clock::now(), rails.a.sweep);
        ASSERT_EQ(rails.soft->busyPairs(), 2u);
        ASSERT_EQ(rails.soft->held(), 40u);
        auto desc = std::make_shared<SegmentDesc>(*rails.b.asPeer()->desc);
        ASSERT_EQ(desc->devices.at(0).name, "s2");
        if (change == std::string("address")) {
            desc->devices[0].gid = gidText(SoftVerbs::gid("::ffff:10.9.7.3", 1).gid);
        } else {
            desc->devices.push_back({"s9", 0, gidText(SoftVerbs::gid("::ffff:10.9.7.3", 1).gid)});
            for (auto& buffer : desc->buffers) buffer.rkeys.push_back(4711);
        }
        auto peer = std::make_shared<Peer>(*rails.b.asPeer());
        peer->desc = desc;
        for (const std::size_t i : {0u, 1u}) rails.a.nics[i]->updatePeer(rails.paths[i], peer);
        const std::size_t ended = change == std::string("address") ? 20 : 0;
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == ended; }));
        for (const Failure& failure : rails.a.sweep.failed) {
            EXPECT_EQ(failure.cause.code(), Code::PathReset) << failure.cause.toString();
            EXPECT_TRUE(failure.quiesced && failure.retryable && failure.fenced);
            EXPECT_NE(failure.cause.message().find("through s0"), std::string::npos) << failure.cause.toString();
        }
        // At the new address is nobody, so that the first path may have been found to be lost by now.
        if (ended == 0) {
            EXPECT_TRUE(rails.a.sweep.paths.empty()) << "nothing was lost";
        }
        rails.soft->hold(false);
        ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == 40; }));
        EXPECT_EQ(completedIn(rails.a.sweep), 40 - ended) << failuresOf(rails.a.sweep);
    }
}

TEST(VerbsFailover, WhatWaitsWhenThePeersDevicesChangePlacesGoesByTheNextPair) {
    Rails rails("s0");
    rails.soft->hold(true);
    // One is posted on each pair that is new, the rest waits.
    const auto path = rails.a.nics[0]->openPath(rails.b.asPeer());
    ASSERT_TRUE(path);
    ASSERT_EQ(rails.a.nics[0]->post(*path, rails.many(10, Opcode::Write)), 10u);
    ASSERT_TRUE(pump(rails.a, [&] { return rails.soft->held() == 1; }));
    auto desc = std::make_shared<SegmentDesc>(*rails.b.asPeer()->desc);
    std::swap(desc->devices[0], desc->devices[1]);
    for (auto& buffer : desc->buffers) std::swap(buffer.rkeys[0], buffer.rkeys[1]);
    auto peer = std::make_shared<Peer>(*rails.b.asPeer());
    peer->desc = desc;
    rails.a.nics[0]->updatePeer(*path, peer);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == 1; }));
    rails.soft->hold(false);
    ASSERT_TRUE(pump(rails.a, [&] { return endedIn(rails.a.sweep) == 10; }));
    ASSERT_EQ(rails.a.sweep.failed.size(), 1u) << failuresOf(rails.a.sweep);
    EXPECT_EQ(rails.a.sweep.failed.front().cause.code(), Code::PathReset);
}

}  // namespace
}  // namespace troupe::verbs
