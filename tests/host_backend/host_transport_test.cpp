#include "host_backend/host_transport.h"

#include <gmock/gmock.h>

namespace troupe {
namespace {

TEST(HostTransport, ReachesItsOwnIncarnationAndWhatTheDescriptorDoesNotExclude) {
    const Config config;
    const RegistrationTable regions;
    const TransportContext context{config, regions, Incarnation::random(), "127.0.0.1", 3, makeSilentLogger()};
    HostTransport transport;
    ASSERT_TRUE(transport.install(context).isOk());
    EXPECT_EQ(transport.install(context).code(), Code::AlreadyExists);
    SegmentDesc peer;
    peer.name = "x";
    EXPECT_EQ(transport.reaches(peer).code(), Code::TransportMissing) << "a null incarnation is nobody";
    peer.incarnation = Incarnation::random();
    EXPECT_EQ(transport.reaches(peer).code(), Code::TransportMissing);
    peer.incarnation = context.incarnation;
    EXPECT_TRUE(transport.reaches(peer).isOk());

    SegmentDesc own;
    transport.describe(own);
    EXPECT_EQ(own.host_socket, "troupe/" + context.incarnation.toString());
    peer.incarnation = Incarnation::random();
    peer.host_socket = own.host_socket;
    EXPECT_EQ(transport.reaches(peer).code(), Code::TransportMissing) << "no boot id is no host";
    peer.boot_id = "another";
    EXPECT_THAT(transport.reaches(peer).message(), testing::HasSubstr("another host"));
    peer.boot_id = readBootId();
    EXPECT_TRUE(transport.reaches(peer).isOk()) << "only a probe can tell";
    peer.host_socket.clear();
    EXPECT_THAT(transport.reaches(peer).message(), testing::HasSubstr("serves no other process"));
}

TEST(HostTransport, KeepsToItselfWhenPeersAreOff) {
    Config config;
    config.host_peers = false;
    const RegistrationTable regions;
    const TransportContext context{config, regions, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()};
    HostTransport transport;
    ASSERT_TRUE(transport.install(context).isOk());
    SegmentDesc peer;
    transport.describe(peer);
    EXPECT_EQ(peer.host_socket, "");
    peer.incarnation = Incarnation::random();
    peer.boot_id = readBootId();
    peer.host_socket = "troupe/x";
    EXPECT_THAT(transport.reaches(peer).message(), testing::HasSubstr("host.peers is off here"));
}

TEST(HostTransport, GivesOneNicPerLoop) {
    const Config config;
    const RegistrationTable regions;
    HostTransport transport;
    ASSERT_TRUE(transport.install({config, regions, Incarnation::random(), "127.0.0.1", 3, makeSilentLogger()}).isOk());
    const auto nics = transport.takeNics();
    ASSERT_EQ(nics.size(), 3u);
    for (unsigned i = 0; i < 3; ++i) {
        EXPECT_EQ(nics[i].loop, i);
        EXPECT_EQ(nics[i].nic->info().name, "host" + std::to_string(i));
        EXPECT_GE(nics[i].nic->waitFd(), 0);
        EXPECT_TRUE(nics[i].nic->arm());
    }
}

TEST(HostTransport, RefusesMemoryThatAProcessorCannotCopyWhereNothingIsThereToStageIt) {
    HostTransport transport;
    EXPECT_TRUE(transport.registerMemory({.id = 1, .range = {4096, 4096}, .location = "cpu:1"}).isOk());
    EXPECT_TRUE(transport.registerMemory({.id = 1, .range = {4096, 4096}}).isOk());
    Region region{.id = 1, .range = {4096, 4096}, .location = "cuda:0"};
    region.place = std::make_shared<const device::PlacedMemory>();
    EXPECT_EQ(transport.registerMemory(region).code(), Code::Unsupported);
}

}  // namespace
}  // namespace troupe
