// Ports that go down and come back, with what Soft-RoCE makes of it: on the strict software device.

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;

Config quickConfig() {
    Config config = softConfig("s0");
    config.rdma_packet_lifetime = 100ms;
    return config;
}

/// Posts a write that is lost with the link.
void loseOne(SoftPair& pair) {
    pair.run({write(pair.local.data(), pair.remote.data(), 64)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    pair.a.sweep.clear();
}

TEST(VerbsPorts, NoGoodbyeIsSaidForAPairThatBreaksWithItsLink) {
    SoftPair pair(quickConfig());
    pair.soft->deafens();
    pair.expectWorks();
    // However long the port takes to know of it.
    pair.soft->setPortUntold("s0", false, 2);
    loseOne(pair);
    pair.soft->setPort("s0", true);
    pair.expectWorks();
}

TEST(VerbsPorts, APortThatSaysWhatWasIsAskedAgainBeforeAGoodbye) {
    SoftPair pair(quickConfig());
    pair.soft->deafens();
    pair.expectWorks();
    pair.soft->setPortUntold("s0", false, 1);
    const std::size_t posted = pair.postHeld(10);
    pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    pair.soft->hold(false);
    pair.soft->setPort("s0", true);
    pair.expectWorks();
}

TEST(VerbsPorts, APortIsUsedAgainThoughNobodySaidThatItIsActive) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    pair.soft->setPort("s0", false);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
    pair.soft->setPortUntold("s0", true);
    pair.expectWorks();
}

TEST(VerbsPorts, ALinkThatFlapsLeavesNoPortDeafAndNothingBehind) {
    SoftPair pair(quickConfig());
    pair.soft->deafens();
    for (int i = 0; i < 20; ++i) {
        pair.expectWorks();
        pair.soft->setPort("s0", false);
        pair.soft->setPort("s0", true);
    }
    pair.expectWorks();
    // Of ids one at each end, and the listeners, once what was not said is said.
    EXPECT_TRUE(pump(pair.a, [&] { return pair.soft->count("id") == 4; })) << pair.soft->count("id");
}

TEST(VerbsPorts, WhatFailsWhileTheLinkIsDownNamesBothDevices) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    pair.soft->setPort("s0", false);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
    pair.run(pair.many(1));
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    const std::string message = pair.a.sweep.failed.front().cause.message();
    EXPECT_EQ(message.rfind("segment 'b' device s1 through s0: ", 0), 0u) << message;
    pair.soft->setPort("s0", true);
    pair.expectWorks();
}

TEST(VerbsPorts, APathThatIsOpenedWhileThePortIsDownIsSaidToBeLostAndComesBackWithIt) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    pair.soft->setPort("s0", false);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
    pair.a.sweep.clear();
    const auto late = pair.nic().openPath(pair.b.asPeer());
    ASSERT_TRUE(late) << late.status().toString();
    const auto said = [&](bool usable) {
        return std::any_of(pair.a.sweep.paths.begin(), pair.a.sweep.paths.end(),
                           [&](const PathChange& change) { return change.path == *late && change.usable == usable; });
    };
    // Without any work for it: whoever has other paths is not to try this one first.
    EXPECT_TRUE(pump(
        pair.a, [&] { return said(false); }, 10s));
    const std::size_t changes = pair.a.sweep.paths.size();
    for (int i = 0; i < 1000; ++i) pair.nic().poll(Clock::now(), pair.a.sweep);
    EXPECT_EQ(pair.a.sweep.paths.size(), changes) << "it says so again and again";
    // Work that comes all the same may be of somebody who began to use it since.
    run(pair.a, pair.nic(), *late, {write(pair.local.data(), pair.remote.data(), 64)});
    EXPECT_GT(pair.a.sweep.paths.size(), changes);
    pair.a.sweep.clear();
    pair.soft->setPort("s0", true);
    EXPECT_TRUE(pump(pair.a, [&] { return said(true); }));
}

TEST(VerbsPorts, APathOfADeviceThatIsOutOfUseIsSaidToBeLost) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    pair.soft->raise("s0", IBV_EVENT_DEVICE_FATAL);
    ASSERT_TRUE(pump(pair.a, [&] { return !pair.a.sweep.paths.empty(); }));
    pair.a.sweep.clear();
    const auto late = pair.nic().openPath(pair.b.asPeer());
    ASSERT_TRUE(late) << late.status().toString();
    EXPECT_TRUE(pump(
        pair.a, [&] { return !pair.a.sweep.paths.empty(); }, 10s));
    ASSERT_FALSE(pair.a.sweep.paths.empty());
    EXPECT_EQ(pair.a.sweep.paths.front().path, *late);
    EXPECT_FALSE(pair.a.sweep.paths.front().usable);
}

TEST(VerbsPorts, ADeviceThatFailedWakesNobody) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    // There is no other completion queue to be had.
    pair.soft->fail("createCq", ENODEV, 1000);
    pair.soft->breakQueues("s0", true);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->pairsOn("s0") == 0; }));
    while (pair.nic().poll(Clock::now(), pair.a.sweep) || !pair.nic().arm()) {
    }
    pollfd wait{pair.nic().waitFd(), POLLIN, 0};
    EXPECT_EQ(::poll(&wait, 1, 0), 0);
    pair.soft->fail("createCq", 0, 0);
}

TEST(VerbsPorts, WhatIsLeftOfADeviceThatFailsWhileItsPortIsDownIsLetGoOf) {
    SoftPair pair(quickConfig());
    pair.expectWorks();
    pair.soft->setPort("s0", false);
    ASSERT_TRUE(pump(pair.a, [&] { return pair.soft->pairsOn("s0") == 0; }));
    const std::size_t ids = pair.soft->count("id");
    pair.soft->raise("s0", IBV_EVENT_DEVICE_FATAL);
    EXPECT_TRUE(pump(pair.a, [&] { return pair.soft->count("id") < ids; }));
}

}  // namespace
}  // namespace troupe::verbs
