#include "base/endpoint.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>

namespace troupe {
namespace {

Endpoint parsed(std::string_view text) {
    const auto result = Endpoint::parse(text);
    EXPECT_TRUE(result.isOk()) << text << ": " << result.status().toString();
    return result.isOk() ? *result : Endpoint{};
}

TEST(Endpoint, ParsesHostsWithAndWithoutPorts) {
    EXPECT_EQ(parsed("node7"), (Endpoint{"node7", 0}));
    EXPECT_EQ(parsed("node7:7000"), (Endpoint{"node7", 7000}));
    EXPECT_EQ(parsed("10.0.0.1:65535"), (Endpoint{"10.0.0.1", 65535}));
    EXPECT_EQ(parsed("[::1]"), (Endpoint{"::1", 0}));
    EXPECT_EQ(parsed("[::1]:80"), (Endpoint{"::1", 80}));
    EXPECT_EQ(parsed("[fe80::1%eth0]:7000"), (Endpoint{"fe80::1%eth0", 7000}));
}

TEST(Endpoint, TakesABareIpv6AddressWhole) {
    EXPECT_EQ(parsed("::1"), (Endpoint{"::1", 0}));
    EXPECT_EQ(parsed("fe80::1:7000"), (Endpoint{"fe80::1:7000", 0}));
}

TEST(Endpoint, RefusesWhatIsNoEndpointAndNamesIt) {
    for (const char* text : {"", ":80", "[]:80", "[]", "host:", "host:65536", "host:-1", "host:+1", "host:8o", "[::1",
                             "[::1]80", "[::1]:", "::1]", "ho[st", "[[::1]]:1", "host: 80", "host:000080"}) {
        const auto result = Endpoint::parse(text);
        ASSERT_FALSE(result.isOk()) << text;
        EXPECT_EQ(result.status().code(), Code::InvalidArgument);
        EXPECT_NE(result.status().message().find("'" + std::string(text) + "'"), std::string::npos);
    }
}

TEST(Endpoint, PrintsWhatItParses) {
    for (const char* text : {"node7:7000", "[::1]:80", "[fe80::1%eth0]:7000", "1.2.3.4:0"})
        EXPECT_EQ(parsed(text).toString(), text);
}

TEST(SocketAddress, TakesNumericHostsOnly) {
    EXPECT_EQ(SocketAddress::fromNumeric("127.0.0.1", 5)->toString(), "127.0.0.1:5");
    EXPECT_EQ(SocketAddress::fromNumeric("::1", 5)->toString(), "[::1]:5");
    EXPECT_EQ(SocketAddress::fromNumeric("::1", 5)->host(), "::1");
    EXPECT_EQ(SocketAddress::fromNumeric("::1", 5)->port(), 5);
    for (const std::string host : {"localhost", "", "127.1", "1", "::g", "[::1]", "1.2.3.4.5"})
        EXPECT_EQ(SocketAddress::fromNumeric(host, 5).status().code(), Code::InvalidArgument) << host;
    EXPECT_FALSE(SocketAddress::fromNumeric(std::string("127.0.0.1\0x", 11), 5).isOk());
}

TEST(Sockets, ConnectReachesAListenerAndBothEndsKnowTheirAddresses) {
    for (const char* host : {"127.0.0.1", "::1"}) {
        auto listener = listenOn(*SocketAddress::fromNumeric(host, 0));
        if (!listener.isOk() && std::string(host) == "::1") continue;  // A machine without IPv6.
        ASSERT_TRUE(listener.isOk()) << listener.status().toString();
        const auto address = SocketAddress::local(listener->get());
        ASSERT_TRUE(address.isOk());
        EXPECT_NE(address->port(), 0);
        auto client = startConnect(*address);
        ASSERT_TRUE(client.isOk()) << client.status().toString();
        pollfd wait{client->get(), POLLOUT, 0};
        ASSERT_EQ(poll(&wait, 1, 10000), 1);
        EXPECT_TRUE(connectOutcome(client->get()).isOk());
        EXPECT_EQ(SocketAddress::remote(client->get())->toString(), address->toString());
    }
}

TEST(Sockets, ARefusedConnectSaysSo) {
    std::uint16_t port = 0;
    {
        auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        ASSERT_TRUE(listener.isOk());
        port = SocketAddress::local(listener->get())->port();
    }
    auto client = startConnect(*SocketAddress::fromNumeric("127.0.0.1", port));
    Status outcome = client.status();
    if (client.isOk()) {
        pollfd wait{client->get(), POLLOUT, 0};
        ASSERT_EQ(poll(&wait, 1, 10000), 1);
        outcome = connectOutcome(client->get());
    }
    EXPECT_EQ(outcome.code(), Code::ConnectionRefused) << outcome.toString();
}

TEST(Sockets, TwoListenersNeverShareAPort) {
    auto first = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(first.isOk());
    const auto second = listenOn(*SocketAddress::local(first->get()));
    ASSERT_FALSE(second.isOk());
    EXPECT_EQ(second.status().code(), Code::AlreadyExists) << second.status().toString();
}

TEST(Sockets, AnErrnoIsNamedWithItsNumber) {
    EXPECT_NE(errnoStatus(Code::Unsupported, "memfd_create", ENOSYS).message().find("this kernel has no such call"),
              std::string::npos);
    const Status status = errnoStatus(Code::ConnectionRefused, "connect 10.0.0.1:7000", ECONNREFUSED);
    EXPECT_EQ(status.toString(), "ConnectionRefused: connect 10.0.0.1:7000: Connection refused (errno 111)");
}

}  // namespace
}  // namespace troupe
