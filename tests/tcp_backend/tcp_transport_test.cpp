#include "tcp_backend/tcp_transport.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {
namespace {

TEST(TcpTransport, OpensOnePortForEachLoopAndSaysSo) {
    Config config;
    RegistrationTable table;
    TcpTransport transport;
    const auto incarnation = Incarnation::random();
    ASSERT_TRUE(transport.install({config, table, incarnation, "127.0.0.1", 3, makeSilentLogger()}).isOk());
    auto nics = transport.takeNics();
    ASSERT_EQ(nics.size(), 3u);
    std::set<std::string> names;
    for (unsigned i = 0; i < 3; ++i) {
        EXPECT_EQ(nics[i].loop, i);
        EXPECT_GE(nics[i].nic->waitFd(), 0);
        EXPECT_EQ(nics[i].nic->info().transport, "tcp");
        names.insert(nics[i].nic->info().name);
    }
    EXPECT_EQ(names, (std::set<std::string>{"tcp0", "tcp1", "tcp2"}));
    SegmentDesc desc;
    transport.describe(desc);
    ASSERT_EQ(desc.lane_ports.size(), 3u);
    EXPECT_EQ(std::set<std::uint16_t>(desc.lane_ports.begin(), desc.lane_ports.end()).size(), 3u);
    EXPECT_EQ(desc.tcp_data_port, desc.lane_ports[0]);
    EXPECT_EQ(desc.transports, std::vector<std::string>{"tcp"});
    EXPECT_TRUE(transport.reaches(desc).isOk());
}

TEST(TcpTransport, SaysWhyAPeerIsOutOfReach) {
    TcpTransport transport;
    SegmentDesc desc;
    desc.name = "far";
    EXPECT_EQ(transport.reaches(desc).code(), Code::TransportMissing);
    EXPECT_NE(transport.reaches(desc).message().find("far"), std::string::npos);
    desc.transports = {"host", "tcp"};
    EXPECT_EQ(transport.reaches(desc).code(), Code::TransportMissing);
    desc.tcp_data_port = 7000;
    EXPECT_TRUE(transport.reaches(desc).isOk());
}

TEST(TcpTransport, AnAddressThatIsNotOursFailsTheInstall) {
    Config config;
    RegistrationTable table;
    for (const char* host : {"localhost", "", "203.0.113.7"}) {
        TcpTransport transport;
        const auto status = transport.install({config, table, Incarnation::random(), host, 1, makeSilentLogger()});
        EXPECT_EQ(status.code(), Code::InvalidArgument) << host << ": " << status.toString();
        EXPECT_TRUE(transport.takeNics().empty());
    }
}

TEST(TcpTransport, PortsPastTheLastThereIsFailTheInstall) {
    Config config;
    config.tcp_port = 65535;
    RegistrationTable table;
    TcpTransport transport;
    const auto status = transport.install({config, table, Incarnation::random(), "127.0.0.1", 2, makeSilentLogger()});
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    EXPECT_NE(status.message().find("tcp.port 65535: 2 data loops"), std::string::npos) << status.toString();
}

TEST(TcpTransport, APathNeedsAnIncarnationAPortAndANumericHost) {
    Node a;
    Node b;
    const auto peer = b.asPeer();
    Peer broken = *peer;
    broken.host = "localhost";
    EXPECT_EQ(a.nic->openPath(std::make_shared<Peer>(broken)).status().code(), Code::InvalidArgument);
    auto desc = std::make_shared<SegmentDesc>(*peer->desc);
    desc->lane_ports.clear();
    broken = *peer;
    broken.desc = desc;
    EXPECT_TRUE(a.nic->openPath(std::make_shared<Peer>(broken)).isOk());  // By tcp_data_port.
    desc->tcp_data_port = 0;
    EXPECT_EQ(a.nic->openPath(std::make_shared<Peer>(broken)).status().code(), Code::TransportMissing);
    desc->tcp_data_port = 1;
    desc->incarnation = {};
    EXPECT_EQ(a.nic->openPath(std::make_shared<Peer>(broken)).status().code(), Code::TransportMissing);
    EXPECT_FALSE(a.nic->openPath(nullptr).isOk());
}

TEST(TcpTransport, MemoryNeedsNoPreparation) {
    TcpTransport transport;
    EXPECT_TRUE(transport.registerMemory({}).isOk());
    EXPECT_TRUE(transport.unregisterMemory({}).isOk());
}

}  // namespace
}  // namespace troupe::tcp::testing
