#include "control/incarnation_probe.h"

#include <gmock/gmock.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "control/control_messages.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using Verdict = IncarnationProbe::Verdict;

/// A control endpoint that answers a Hello with whatever the test says.
class FakeOwner {
  public:
    using Reply = std::function<std::string(const Hello&)>;

    FakeOwner(TestReactor& reactor, Reply reply) : reactor_(reactor), reply_(std::move(reply)) {
        auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        EXPECT_TRUE(listener);
        listener_ = std::move(*listener);
        reactor_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) {
            ControlChannelHandlers handlers;
            handlers.onFrame = [this](const ControlFrame& frame) {
                const auto hello = Hello::decode(frame);
                ASSERT_TRUE(hello) << hello.status().toString();
                const std::string answer = reply_(*hello);
                if (answer.empty()) return;
                EXPECT_TRUE(channel_->send(answer));
            };
            handlers.onClosed = [](const Status&) {};
            channel_ = std::make_unique<ControlChannel>(
                reactor_, UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
                ControlChannelOptions{}, std::move(handlers));
        });
    }
    ~FakeOwner() { close(); }
    Endpoint at() const { return {"127.0.0.1", SocketAddress::local(listener_.get())->port()}; }
    void close() {
        if (!listener_) return;
        reactor_.unwatch(listener_.get());
        listener_.reset();
    }

  private:
    TestReactor& reactor_;
    Reply reply_;
    UniqueFd listener_;
    std::unique_ptr<ControlChannel> channel_;
};

/// An address of this machine that others could reach; empty: it has none.
std::string ownAddress() {
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return {};
    std::string found;
    for (const ifaddrs* each = all; each != nullptr && found.empty(); each = each->ifa_next) {
        if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
        SocketAddress address;
        std::memcpy(&address.storage, each->ifa_addr, sizeof(sockaddr_in));
        address.length = sizeof(sockaddr_in);
        if (!address.isLoopback()) found = address.host();
    }
    ::freeifaddrs(all);
    return found;
}

class Probing : public testing::Test {
  protected:
    Verdict ask(const Endpoint& control, const std::string& boot_id = readBootId(),
                Duration timeout = std::chrono::milliseconds(500)) {
        std::optional<Verdict> verdict;
        IncarnationProbe probe(reactor_, {control, wanted_, boot_id, Incarnation::random(), timeout},
                               [&](Verdict found, const std::string& why) {
                                   EXPECT_FALSE(verdict) << "answered twice";
                                   verdict = found;
                                   why_ = why;
                               });
        EXPECT_FALSE(verdict) << "answered at once";
        EXPECT_TRUE(reactor_.runUntil([&] { return verdict.has_value(); }));
        EXPECT_FALSE(why_.empty());
        return verdict.value_or(Verdict::Unknown);
    }
    std::string ack(const Incarnation& who) const { return HelloAck{who, "name", 0}.encode(); }

    TestReactor reactor_;
    const Incarnation wanted_ = Incarnation::random();
    std::string why_;
};

TEST_F(Probing, WhoAnswersIsAlive) {
    FakeOwner endpoint(reactor_, [&](const Hello& hello) {
        EXPECT_EQ(hello.expect, wanted_);
        return ack(wanted_);
    });
    EXPECT_EQ(ask(endpoint.at()), Verdict::Alive);
}

TEST_F(Probing, ARefusedConnectionProvesTheEnd) {
    FakeOwner endpoint(reactor_, {});
    const Endpoint at = endpoint.at();
    endpoint.close();
    EXPECT_EQ(ask(at), Verdict::Gone);
    EXPECT_THAT(why_, testing::HasSubstr("refuses"));
}

TEST_F(Probing, AnotherIncarnationAtItsEndpointProvesTheEnd) {
    const Incarnation other = Incarnation::random();
    FakeOwner by_ack(reactor_, [&](const Hello&) { return ack(other); });
    EXPECT_EQ(ask(by_ack.at()), Verdict::Gone);
    EXPECT_THAT(why_, testing::HasSubstr(other.toString()));
    FakeOwner by_refusal(reactor_, [](const Hello&) {
        return ErrorReply::from(Status(Code::StaleIncarnation, "somebody else")).encode();
    });
    EXPECT_EQ(ask(by_refusal.at()), Verdict::Gone);
}

TEST_F(Probing, AnythingElseProvesNothing) {
    FakeOwner silent(reactor_, [](const Hello&) { return std::string(); });
    EXPECT_EQ(ask(silent.at()), Verdict::Unknown);
    FakeOwner refusing(
        reactor_, [](const Hello&) { return ErrorReply::from(Status(Code::CapacityExceeded, "too many")).encode(); });
    EXPECT_EQ(ask(refusing.at()), Verdict::Unknown);
    FakeOwner other_protocol(reactor_, [](const Hello&) { return std::string("HTTP/1.1 400 Bad Request\r\n\r\n"); });
    EXPECT_EQ(ask(other_protocol.at()), Verdict::Unknown);
    EXPECT_EQ(ask({"", 0}), Verdict::Unknown);
}

TEST_F(Probing, WithoutAnyTimeLeftItEndsAllTheSame) {
    FakeOwner silent(reactor_, [](const Hello&) { return std::string(); });
    EXPECT_EQ(ask(silent.at(), readBootId(), Duration::zero()), Verdict::Unknown);
    EXPECT_EQ(ask(silent.at(), readBootId(), -std::chrono::seconds(1)), Verdict::Unknown);
}

#ifndef __SANITIZE_THREAD__  // glibc's getaddrinfo_a starts its threads past ThreadSanitizer, whose runtime crashes in
                             // them.
TEST_F(Probing, AHostThatDoesNotResolveProvesNothing) { EXPECT_EQ(ask({"no.such.host.invalid", 7}), Verdict::Unknown); }
#endif

TEST_F(Probing, TheLoopbackAddressOfAnotherMachineIsNotOurs) {
    FakeOwner endpoint(reactor_, [&](const Hello&) { return ack(Incarnation::random()); });
    EXPECT_EQ(ask(endpoint.at(), "another boot"), Verdict::Unknown);
    EXPECT_EQ(ask(endpoint.at(), ""), Verdict::Unknown);
    EXPECT_EQ(ask({"::1", endpoint.at().port}, "another boot"), Verdict::Unknown);
}

TEST_F(Probing, AnAddressThatThisMachineHasTooProvesNothingOfAnotherMachine) {
    const std::string own = ownAddress();
    if (own.empty()) GTEST_SKIP() << "this machine has loopback addresses only";
    auto listener = listenOn(*SocketAddress::fromNumeric(own, 0));
    ASSERT_TRUE(listener) << listener.status().toString();
    const Endpoint at{own, SocketAddress::local(listener->get())->port()};
    listener->reset();
    EXPECT_EQ(ask(at, "another boot"), Verdict::Unknown);
    EXPECT_THAT(why_, testing::HasSubstr("address of this machine too"));
    EXPECT_EQ(ask(at, ""), Verdict::Unknown);
    EXPECT_EQ(ask(at), Verdict::Gone) << "of this machine: refused is proof";
}

TEST_F(Probing, AnAddressThatOnlyTheOtherMachineHasIsAsked) {
    if (std::ifstream("/proc/sys/net/ipv4/ip_nonlocal_bind").get() == '1')
        GTEST_SKIP() << "any address is this machine's own here";
    // Of documentation (RFC 5737): nobody has it. What comes of it is up to the network.
    ask({"203.0.113.7", 7}, "another boot", std::chrono::milliseconds(50));
    EXPECT_THAT(why_, testing::Not(testing::HasSubstr("address of this machine too")));
}

}  // namespace
}  // namespace troupe::test
