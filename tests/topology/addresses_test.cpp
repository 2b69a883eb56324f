#include "topology/addresses.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

NetworkInterface nic(std::string name, std::vector<std::string> addresses, bool up = true, std::uint32_t speed = 0) {
    NetworkInterface interface;
    interface.name = std::move(name);
    interface.addresses = std::move(addresses);
    interface.up = up;
    interface.speed_mbps = speed;
    return interface;
}

const NetworkInterface kLoopback = nic("lo", {"127.0.0.1", "::1"});

TEST(AddressScope, KnowsTheRanges) {
    const std::pair<const char*, AddressScope> cases[] = {
        {"8.8.8.8", AddressScope::GlobalV4},
        {"172.32.0.1", AddressScope::GlobalV4},
        {"2001:db8::1", AddressScope::GlobalV6},
        {"10.1.2.3", AddressScope::Private},
        {"172.16.0.1", AddressScope::Private},
        {"172.31.255.255", AddressScope::Private},
        {"192.168.1.1", AddressScope::Private},
        {"100.64.0.1", AddressScope::Private},
        {"fd00::1", AddressScope::Private},
        {"169.254.1.1", AddressScope::LinkLocal},
        {"fe80::1%eth0", AddressScope::LinkLocal},
        {"fe80::1", AddressScope::Unusable},
        {"fe80::1%", AddressScope::Unusable},
        {"127.0.0.1", AddressScope::Loopback},
        {"127.9.9.9", AddressScope::Loopback},
        {"::1", AddressScope::Loopback},
        {"0.0.0.0", AddressScope::Unusable},
        {"::", AddressScope::Unusable},
        {"224.0.0.1", AddressScope::Unusable},
        {"255.255.255.255", AddressScope::Unusable},
        {"ff02::1", AddressScope::Unusable},
        {"node7", AddressScope::Unusable},
        {"", AddressScope::Unusable},
        {"1.2.3", AddressScope::Unusable},
    };
    for (const auto& [address, scope] : cases) EXPECT_EQ(scopeOf(address), scope) << address;
}

TEST(AdvertisedAddress, TheWidestScopeComesFirst) {
    std::vector<NetworkInterface> interfaces = {kLoopback,
                                                nic("eth0", {"fe80::1%eth0", "10.0.0.1", "2001:db8::1", "8.8.4.4"})};
    for (const auto* expected : {"8.8.4.4", "2001:db8::1", "10.0.0.1", "fe80::1%eth0"}) {
        EXPECT_EQ(*pickAdvertisedAddress(interfaces, ""), expected);
        std::erase(interfaces[1].addresses, expected);
    }
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, ""), "127.0.0.1");
}

TEST(AdvertisedAddress, ContainerBridgesComeAfterRealInterfaces) {
    for (const auto* bridge : {"docker0", "veth12ab", "br-7f3c"}) {
        const std::vector<NetworkInterface> interfaces = {kLoopback, nic(bridge, {"8.8.8.8"}),
                                                          nic("eth0", {"10.0.0.1"})};
        EXPECT_EQ(*pickAdvertisedAddress(interfaces, ""), "10.0.0.1");
        EXPECT_EQ(*pickAdvertisedAddress({kLoopback, nic(bridge, {"172.17.0.1"})}, ""), "172.17.0.1");
    }
}

TEST(AdvertisedAddress, AnInterfaceThatIsDownIsNeverChosen) {
    const std::vector<NetworkInterface> interfaces = {nic("eth0", {"8.8.8.8"}, false), nic("eth1", {"10.0.0.1"})};
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, ""), "10.0.0.1");
    EXPECT_EQ(pickAdvertisedAddress({interfaces[0]}, "").status().code(), Code::NotFound);
    EXPECT_EQ(pickAdvertisedAddress(interfaces, "eth0").status().code(), Code::InvalidArgument);
}

TEST(AdvertisedAddress, ALinkLocalAddressWithoutScopeIsNeverChosen) {
    EXPECT_EQ(pickAdvertisedAddress({nic("eth0", {"fe80::1"})}, "").status().code(), Code::NotFound);
    EXPECT_EQ(pickAdvertisedAddress({nic("eth0", {"fe80::1"})}, "fe80::1").status().code(), Code::InvalidArgument);
}

TEST(AdvertisedAddress, AmongEqualsTheFastestThenTheFirst) {
    EXPECT_EQ(
        *pickAdvertisedAddress({nic("eth0", {"10.0.0.1"}, true, 1000), nic("eth1", {"10.0.0.2"}, true, 100000)}, ""),
        "10.0.0.2");
    EXPECT_EQ(*pickAdvertisedAddress({nic("eth0", {"10.0.0.1"}), nic("eth1", {"10.0.0.2"})}, ""), "10.0.0.1");
}

TEST(AdvertisedAddress, WhatTheUserSaysBeatsTheHeuristics) {
    const std::vector<NetworkInterface> interfaces = {kLoopback, nic("eth0", {"8.8.8.8"}),
                                                      nic("docker0", {"172.17.0.1"})};
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, "docker0"), "172.17.0.1");
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, "lo"), "127.0.0.1");
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, "127.0.0.1"), "127.0.0.1");
    EXPECT_EQ(*pickAdvertisedAddress(interfaces, "203.0.113.9"), "203.0.113.9") << "behind a translator it is not ours";
}

TEST(AdvertisedAddress, AnUnknownNameListsTheInterfaces) {
    const auto picked = pickAdvertisedAddress({kLoopback, nic("eth0", {"8.8.8.8"})}, "eth7");
    EXPECT_EQ(picked.status().code(), Code::InvalidArgument);
    EXPECT_NE(picked.status().message().find("eth0 8.8.8.8"), std::string::npos) << picked.status().message();
    EXPECT_EQ(pickAdvertisedAddress({}, "0.0.0.0").status().code(), Code::InvalidArgument);
}

TEST(InterfaceAddresses, OfThisMachineHaveLoopback) {
    auto interfaces = discoverTopology().interfaces;
    ASSERT_TRUE(addInterfaceAddresses(interfaces).isOk());
    EXPECT_TRUE(isLocalAddress(interfaces, "127.0.0.1"));
    EXPECT_FALSE(isLocalAddress(interfaces, "192.0.2.77"));
    EXPECT_TRUE(pickAdvertisedAddress(interfaces, "").isOk());
}

TEST(InterfaceAddresses, TheSpellingOfAnAddressDoesNotMatter) {
    EXPECT_TRUE(isLocalAddress({nic("eth0", {"2001:db8::1"})}, "2001:0DB8:0:0:0:0:0:1"));
}

}  // namespace
}  // namespace troupe
