#include "verbs_backend/device_settings.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <cerrno>
#include <sstream>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;

DeviceSettings parsed(const Config& config) {
    auto settings = DeviceSettings::parse(config);
    EXPECT_TRUE(settings) << settings.status().toString();
    return settings ? *settings : DeviceSettings();
}

TEST(DeviceSettings, APortsOwnWinOverItsDevicesAndThoseOverAll) {
    Config config;
    config.rdma_traffic_class = 8;
    config.rdma_per_device =
        " mlx5_0 gid_index=3  mtu=1024;mlx5_0:2 gid_index=5 service_level=15 ; mlx5_1 pkey_index=7;";
    const DeviceSettings settings = parsed(config);
    EXPECT_EQ(settings.of("mlx5_0", 1), (PortSettings{3, 0, 0, 8, 1024}));
    EXPECT_EQ(settings.of("mlx5_0", 2), (PortSettings{5, 0, 15, 8, 1024}));
    EXPECT_EQ(settings.of("mlx5_1", 1), (PortSettings{256, 7, 0, 8, 4096}));
    EXPECT_EQ(settings.of("mlx5_2", 1), (PortSettings{256, 0, 0, 8, 4096}));
}

TEST(DeviceSettings, WhatIsNoSettingIsQuotedWithWhatIsDue) {
    for (const char* text : {"mlx5_0", "gid_index=3", "mlx5_0 gid=3", "mlx5_0 gid_index", "mlx5_0 gid_index=",
                             "mlx5_0 gid_index=-1", "mlx5_0 gid_index=257", "mlx5_0 mtu=128", "mlx5_0 mtu=1024x",
                             "mlx5_0 service_level=16", "mlx5_0 mtu=1024 mtu=2048", "a mtu=512; a mtu=512"}) {
        Config config;
        config.rdma_per_device = text;
        const auto settings = DeviceSettings::parse(config);
        ASSERT_FALSE(settings) << text;
        EXPECT_EQ(settings.status().code(), Code::InvalidArgument);
        EXPECT_NE(settings.status().message().find("rdma.per_device: '"), std::string::npos)
            << settings.status().message();
    }
}

TEST(DeviceSettings, ListsTakePatternsAndTheBlackOneWins) {
    Config config;
    config.rdma_devices = "mlx5_*, bnxt0";
    config.rdma_exclude = "mlx5_[89], mlx5_bond?";
    const DeviceSettings settings = parsed(config);
    for (const char* name : {"mlx5_0", "mlx5_10", "bnxt0", "mlx5_bond"}) EXPECT_EQ(settings.whyNot(name), "") << name;
    EXPECT_EQ(settings.whyNot("mlx5_8"), "rdma.exclude names it");
    EXPECT_EQ(settings.whyNot("mlx5_bond0"), "rdma.exclude names it");
    EXPECT_EQ(settings.whyNot("bnxt1"), "rdma.devices does not name it");
    EXPECT_EQ(settings.named(), std::vector<std::string>{"bnxt0"});
    EXPECT_EQ(parsed(Config()).whyNot("any"), "");
}

/// What an install without any device to use says.
Status refusalOf(const std::shared_ptr<SoftVerbs>& soft, const Config& config) {
    RegistrationTable table;
    VerbsTransport transport(soft);
    const Status refused =
        transport.install({config, table, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()});
    EXPECT_EQ(refused.code(), Code::TransportMissing) << refused.toString();
    EXPECT_EQ(soft->leftovers(), "");
    return refused;
}

// apps/support/remedy.cpp looks for these words.
TEST(RdmaDevices, WhereNoneIsLeftEachHasItsReason) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
    Config config;
    const auto expectSaid = [&](const std::string& text) {
        const Status refused = refusalOf(soft, config);
        EXPECT_NE(refused.message().find(text), std::string::npos) << refused.toString();
    };
    config.rdma_exclude = "s*";
    expectSaid("no usable RDMA device; s0: rdma.exclude names it; s1: rdma.exclude names it");
    config.rdma_exclude = "s1";
    config.rdma_devices = "s2";
    expectSaid("; s0: rdma.devices does not name it; s1: rdma.exclude names it; s2: rdma.devices names it, but");
    config = Config();
    soft->setPort("s0", false);
    soft->setPort("s1", false);
    expectSaid("; s0 port 1: the port is down; s1 port 1: the port is down");
    soft->fail("openDevice", EACCES, 2);
    expectSaid("; s0: open: no access to its /dev/infiniband/uverbs file");
    soft->fail("openDevices", ENOSYS);
    expectSaid("no usable RDMA device: the kernel's support for them is not there (module ib_uverbs is not loaded)");
    soft->fail("openDevices", EPERM);
    expectSaid("no list of RDMA devices: Operation not permitted");
    const Status none = refusalOf(std::make_shared<SoftVerbs>(std::vector<std::string>{}), Config());
    EXPECT_EQ(none.message(), "no usable RDMA device: this machine has none");
}

TEST(RdmaDevices, APortThatComesUpLaterIsUsedOnceTheTransportIsInstalledAnew) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "t0"});
    soft->setPort("s1", false);
    Node a(softConfig("s*"), soft, "a");
    Node b(softConfig("t0"), soft, "b");
    ASSERT_EQ(a.nics.size(), 1u);
    soft->setPort("s1", true);
    // What is there goes on, and nobody is told of the other port.
    auto local = noise(4096);
    std::vector<char> remote(4096);
    ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
    ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
    const auto path = a.nics[0]->openPath(b.asPeer());
    ASSERT_TRUE(path);
    run(a, *a.nics[0], *path, {write(local.data(), remote.data(), 4096)});
    EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
    EXPECT_EQ(a.asPeer()->desc->devices.size(), 1u);
    a.restart();
    EXPECT_EQ(a.nics.size(), 2u);
    EXPECT_EQ(a.asPeer()->desc->devices.size(), 2u);
}

TEST(RdmaDevices, APortThatASettingNamesAndNoDeviceHasIsSaid) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"});
    std::ostringstream said;
    const auto log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
    Config config = softConfig("s0");
    config.rdma_per_device = "s0:1 mtu=1024; s0:2 mtu=1024; s1:2 mtu=1024; s3 mtu=1024";
    const Node a(config, soft, "a", log);
    EXPECT_NE(said.str().find("rdma.per_device names s0:2, but that device has 1 port(s)"), std::string::npos);
    EXPECT_NE(said.str().find("rdma.per_device names s3, but there is none"), std::string::npos);
    EXPECT_EQ(said.str().find("names s0:1"), std::string::npos) << said.str();
    // Not used, so not asked how many it has.
    EXPECT_EQ(said.str().find("names s1:2"), std::string::npos) << said.str();
}

TEST(DeviceSettings, BothEndsKeepToTheSmallerPacketsAndTheFewerReads) {
    for (const bool small_initiator : {true, false}) {
        for (const char* connect : {"cm", "exchange"}) {
            SCOPED_TRACE(std::string(connect) + (small_initiator ? ", small initiator" : ", small target"));
            const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "t0"});
            soft->setReads(small_initiator ? "s0" : "t0", 4);
            Config own = softConfig("s0");
            Config peers = softConfig("t0");
            own.rdma_connect = peers.rdma_connect = connect;
            (small_initiator ? own : peers).rdma_mtu = 1024;
            const auto board = std::make_shared<Switchboard>();
            Node a(own, soft, "a", makeSilentLogger(), board);
            Node b(peers, soft, "b", makeSilentLogger(), board);
            auto local = noise(4096);
            std::vector<char> remote(4096);
            ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
            ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
            const auto path = a.nics[0]->openPath(b.asPeer());
            ASSERT_TRUE(path);
            run(a, *a.nics[0], *path, {write(local.data(), remote.data(), 4096)});
            EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
            EXPECT_EQ(remote, local);
            EXPECT_EQ(soft->lastRoute("s0").path_mtu, IBV_MTU_1024);
            EXPECT_EQ(soft->lastRoute("t0").path_mtu, IBV_MTU_1024);
            EXPECT_EQ(soft->lastReady("s0").max_rd_atomic, 4);
            EXPECT_EQ(soft->lastRoute("t0").max_dest_rd_atomic, 4);
            // Nobody reads from the initiator.
            EXPECT_EQ(soft->lastReady("t0").max_rd_atomic, 0);
            EXPECT_EQ(soft->lastRoute("s0").max_dest_rd_atomic, 0);
            // More than both at once.
            const auto fresh = noise(4096, 2);
            std::copy(fresh.begin(), fresh.end(), remote.begin());
            std::vector<WorkRequest> reads;
            for (std::size_t i = 0; i < 64; ++i)
                reads.push_back(read(local.data() + i * 64, remote.data() + i * 64, 64));
            soft->hold(true);
            ASSERT_EQ(a.nics[0]->post(*path, reads), reads.size());
            ASSERT_TRUE(pump(a, [&] { return soft->held() == reads.size(); }));
            a.sweep.clear();
            soft->hold(false);
            ASSERT_TRUE(pump(a, [&] { return endedIn(a.sweep) == reads.size(); }));
            EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
            EXPECT_EQ(local, fresh);
            EXPECT_TRUE(soft->violations().empty()) << soft->violations().front();
        }
    }
}

TEST(DeviceSettings, TheDevicesWorkWithWhatIsSetForEach) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2", "t0"});
    Config config = softConfig("s*");
    config.rdma_exclude = "s2";
    config.rdma_per_device = "s0 traffic_class=106 service_level=3 pkey_index=1 mtu=1024";
    {
        Node a(config, soft, "a");
        ASSERT_EQ(a.nics.size(), 2u);
        Node b(softConfig("t0"), soft, "b");
        auto local = noise(4096);
        std::vector<char> remote(4096);
        ASSERT_TRUE(a.registerMemory(local.data(), local.size()));
        ASSERT_TRUE(b.registerMemory(remote.data(), remote.size()));
        for (const auto& nic : a.nics) {
            const auto path = nic->openPath(b.asPeer());
            ASSERT_TRUE(path);
            run(a, *nic, *path, {write(local.data(), remote.data(), 4096)});
        }
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_EQ(soft->lastRoute("s0").path_mtu, IBV_MTU_1024);
        EXPECT_TRUE(soft->violations().empty()) << soft->violations().front();
        EXPECT_EQ(soft->lastRoute("s0").ah_attr.grh.traffic_class, 106);
        EXPECT_EQ(soft->lastRoute("s0").ah_attr.sl, 3);
        EXPECT_EQ(soft->lastRoute("s1").path_mtu, IBV_MTU_4096);
        EXPECT_EQ(soft->lastRoute("s1").ah_attr.grh.traffic_class, 0);
    }
    EXPECT_EQ(soft->leftovers(), "");
    // An entry that the port's table does not have, and one that nobody could reach.
    config.rdma_exclude = "s1, s2";
    RegistrationTable table;
    for (const auto& [setting, said] :
         {std::pair{"s0 gid_index=7", "no GID of index 7"}, std::pair{"s0 gid_index=0", "no GID with an address"},
          std::pair{"s0 gid_indx=0", "rdma.per_device"}}) {
        config.rdma_per_device = setting;
        VerbsTransport transport(soft);
        const Status refused =
            transport.install({config, table, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()});
        EXPECT_NE(refused.message().find(said), std::string::npos) << refused.toString();
        EXPECT_EQ(soft->leftovers(), "") << setting;
    }
}

}  // namespace
}  // namespace troupe::verbs
