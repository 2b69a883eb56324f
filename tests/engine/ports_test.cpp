// The ports of the data connections, chosen by settings: what a firewall has to let through.

#include <gmock/gmock.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/endpoint.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

constexpr std::uint16_t kLoops = 2;

EngineSetup withPort(std::uint32_t tcp_port) {
    EngineSetup setup;
    setup.config.data_loops = kLoops;
    setup.config.tcp_port = tcp_port;
    setup.tcp = false;
    return setup;
}

bool isFree(std::uint16_t port) { return listenOn(*SocketAddress::fromNumeric("127.0.0.1", port)).isOk(); }

/// Three ports in a row that nobody has now, the first of them; 0 when there are none. Below those that the kernel
/// gives out by itself, and begun elsewhere by each test process: others of this machine look for some, too.
std::uint16_t threeFreePorts() {
    const auto begin = static_cast<unsigned>(::getpid()) * 7;
    for (unsigned i = 0; i < 1000; ++i) {
        const auto port = static_cast<std::uint16_t>(20000 + (begin + i * 3) % 10000);
        if (isFree(port) && isFree(port + 1) && isFree(port + 2)) return port;
    }
    return 0;
}

TEST(Ports, OfTcpAreTheOneThatWasAskedForAndThoseThatFollowIt) {
    const std::uint16_t port = threeFreePorts();
    ASSERT_NE(port, 0);
    const auto target = startEngine(withPort(port));
    const auto installed = target->installTransport("tcp");
    ASSERT_TRUE(installed) << installed.status().toString();
    const auto desc = target->getSegmentDescByID(kLocalSegmentID);
    ASSERT_TRUE(desc);
    EXPECT_EQ((*desc)->lane_ports, (std::vector<std::uint16_t>{port, static_cast<std::uint16_t>(port + 1)}));

    Buffer remote(65536);
    Buffer local(65536);
    local.fillPattern(1);
    ASSERT_TRUE(target->registerLocalMemory(remote.data(), remote.size()));
    const auto initiator = startEngine();
    ASSERT_TRUE(initiator->registerLocalMemory(local.data(), local.size()));
    const auto segment = initiator->openSegment(target->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    expectCompleted(
        runBatch(*initiator, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), local.size())}),
        local.size());
    EXPECT_TRUE(remote.holdsPattern(1));
}

TEST(Ports, OfTcpThatAreTakenAreRefusedByTheNameOfTheSetting) {
    const std::uint16_t port = threeFreePorts();
    ASSERT_NE(port, 0);
    const auto first = startEngine(withPort(port + 1));
    ASSERT_TRUE(first->installTransport("tcp"));

    const auto same = startEngine(withPort(port + 1));
    const Status refused = same->installTransport("tcp").status();
    expectCode(refused, Code::AlreadyExists);
    EXPECT_THAT(refused.message(), HasSubstr("tcp.port " + std::to_string(port + 1) + ", data loop 0"));
    EXPECT_EQ(same->getTransport("tcp"), nullptr);

    // The second of its ports is the first one's.
    const auto overlapping = startEngine(withPort(port));
    const Status in_part = overlapping->installTransport("tcp").status();
    expectCode(in_part, Code::AlreadyExists);
    EXPECT_THAT(in_part.message(), HasSubstr("tcp.port " + std::to_string(port) + ", data loop 1"));
    EXPECT_TRUE(isFree(port)) << "a refused install left a listener";
}

TEST(Ports, OfTcpMustEndWithTheLastThereIs) {
    EngineOptions options;
    options.config = withPort(65535).config;
    TransferEngine engine(options);
    const Status refused = engine.init("p2p", "");
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("tcp.port 65535: 2 data loops (data_loops 2) need a port each"));
}

}  // namespace
}  // namespace troupe::test
