#include "host_backend/host_transport.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(HostTransport, ReachesItsOwnIncarnationOnly) {
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
        EXPECT_EQ(nics[i].nic->waitFd(), -1);
        EXPECT_TRUE(nics[i].nic->arm());
    }
}

TEST(HostTransport, RefusesMemoryThatAProcessorCannotCopy) {
    HostTransport transport;
    EXPECT_TRUE(transport.registerMemory({1, {4096, 4096}, "cpu:1", true}).isOk());
    EXPECT_TRUE(transport.registerMemory({1, {4096, 4096}, "*", true}).isOk());
    EXPECT_EQ(transport.registerMemory({1, {4096, 4096}, "cuda:0", true}).code(), Code::Unsupported);
}

}  // namespace
}  // namespace troupe
