// What one peer may take: at each limit it hears why, and nobody else is hurt.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "base/endpoint.h"
#include "control/control_messages.h"
#include "tcp_backend/wire.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

/// A socket of somebody at an address of his own. Blocking, with a time-out.
class Intruder {
  public:
    Intruder(std::uint16_t port, const std::string& from) {
        const auto own = SocketAddress::fromNumeric(from, 0);
        const auto there = SocketAddress::fromNumeric("127.0.0.1", port);
        fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(fd_.get(), own->get(), own->length), 0);
        EXPECT_EQ(::connect(fd_.get(), there->get(), there->length), 0);
        const timeval patience{kPatience.count(), 0};
        ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
    bool send(const void* bytes, std::size_t size) {
        return ::send(fd_.get(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
    }
    bool send(const std::string& bytes) { return send(bytes.data(), bytes.size()); }
    /// All that comes until the other end closes.
    std::string drain() {
        std::string all;
        char bytes[4096];
        for (;;) {
            const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
            if (got <= 0) return all;
            all.append(bytes, static_cast<std::size_t>(got));
        }
    }
    /// What there is, at least a byte; empty at the end.
    std::string some() {
        char bytes[4096];
        const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
        return std::string(bytes, got > 0 ? static_cast<std::size_t>(got) : 0);
    }
    std::string receive(std::size_t size) {
        std::string all(size, '\0');
        const ssize_t got = ::recv(fd_.get(), all.data(), size, MSG_WAITALL);
        all.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return all;
    }
    bool isClosed() const {
        pollfd entry{fd_.get(), POLLIN, 0};
        char byte;
        return ::poll(&entry, 1, 0) > 0 && ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
    }

  private:
    UniqueFd fd_;
};

constexpr const char* kElsewhere = "127.0.0.2";

class Limits : public testing::Test {
  protected:
    static EngineSetup setup() {
        EngineSetup result;
        // So that nothing but the limit ends a silent connection.
        result.config.handshake_timeout = kPatience;
        result.config.peer_greetings = 8;
        result.config.peer_control_connections = 3;
        result.config.peer_control_frames_per_second = 200;
        result.config.peer_tcp_connections = 2;
        result.config.peer_tcp_bytes = 1u << 20;
        result.config.tcp_window_bytes = 1u << 20;
        result.config.max_control_connections = 16;
        result.config.tcp_max_connections = 16;
        return result;
    }
    std::uint16_t controlPort() const { return (*pair_.b->getSegmentDescByID(kLocalSegmentID))->control.port; }
    std::uint16_t dataPort() const { return (*pair_.b->getSegmentDescByID(kLocalSegmentID))->lane_ports[0]; }
    std::string controlHello(const Incarnation& who) const {
        Hello hello;
        hello.incarnation = who;
        return hello.encode();
    }
    std::array<std::byte, tcp::kHelloBytes> dataHello(const Incarnation& who, std::uint32_t lane) const {
        tcp::Hello hello;
        hello.lane = {who, 0, lane};
        hello.target = pair_.b->incarnation();
        hello.attempt = 1;
        std::array<std::byte, tcp::kHelloBytes> bytes{};
        tcp::encodeHello(hello, bytes.data());
        return bytes;
    }
    /// The peer that does as it should goes on, on the connections it has and on new ones.
    void expectOthersUnharmed() {
        expectCompleted(pair_.write(0, 0, 65536), 65536);
        EXPECT_TRUE(pair_.a->probePeerAliveByID(pair_.segment, kPatience));
        expectNewcomerWrites(pair_, setup());
    }
    static ErrorReply errorIn(const std::string& bytes) {
        ControlFrameReader reader;
        std::vector<ControlFrame> frames;
        EXPECT_TRUE(reader.feed(std::as_bytes(std::span(bytes.data(), bytes.size())), frames));
        for (const ControlFrame& frame : frames)
            if (frame.type == ControlType::Error) return *ErrorReply::decode(frame);
        ADD_FAILURE() << "no error in " << frames.size() << " frames";
        return {};
    }

    EnginePair pair_{setup()};
};

TEST_F(Limits, SilentConnectionsOfOneAddressGiveWayToEachOther) {
    for (const std::uint16_t port : {controlPort(), dataPort()}) {
        std::vector<std::unique_ptr<Intruder>> silent;
        for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Intruder>(port, kElsewhere));
        // The eight last may stay; the others hear nothing of a time-out, and are gone.
        for (std::size_t i = 0; i + 8 < silent.size(); ++i) silent[i]->drain();
        expectOthersUnharmed();
        EXPECT_FALSE(silent.back()->isClosed());
    }
}

TEST_F(Limits, SilentConnectionsOfManyAddressesGiveWayToPeers) {
    for (const std::uint16_t port : {controlPort(), dataPort()}) {
        std::vector<std::unique_ptr<Intruder>> silent;
        for (int i = 0; i < 40; ++i)
            silent.push_back(std::make_unique<Intruder>(port, "127.0.1." + std::to_string(1 + i)));
        for (std::size_t i = 0; i < 20; ++i) silent[i]->drain();
        expectOthersUnharmed();
    }
}

TEST_F(Limits, OnePeerHasSoManyControlConnectionsAndHearsWhy) {
    const Incarnation peer = Incarnation::random();
    std::vector<std::unique_ptr<Intruder>> taken;
    for (int i = 0; i < 3; ++i) {
        taken.push_back(std::make_unique<Intruder>(controlPort(), kElsewhere));
        ASSERT_TRUE(taken.back()->send(controlHello(peer)));
        ASSERT_EQ(taken.back()->receive(kControlHeaderBytes).size(), kControlHeaderBytes);
    }
    Intruder one_more(controlPort(), kElsewhere);
    ASSERT_TRUE(one_more.send(controlHello(peer)));
    const ErrorReply error = errorIn(one_more.drain());
    EXPECT_EQ(error.code, Code::CapacityExceeded);
    EXPECT_THAT(error.message, HasSubstr("peer.control_connections"));
    expectOthersUnharmed();
    // There is room again when one ends.
    taken.pop_back();
    const TimePoint limit = Clock::now() + kPatience;
    bool in = false;
    while (!in && Clock::now() < limit) {
        Intruder again(controlPort(), kElsewhere);
        ASSERT_TRUE(again.send(controlHello(peer)));
        const std::string head = again.receive(kControlHeaderBytes);
        in = head.size() == kControlHeaderBytes && head[6] == static_cast<char>(ControlType::HelloAck);
    }
    EXPECT_TRUE(in);
}

TEST_F(Limits, AFloodOfFramesEndsItsConnectionWithTheReasonAndNoOther) {
    Intruder flood(controlPort(), kElsewhere);
    ASSERT_TRUE(flood.send(controlHello(Incarnation::random())));
    std::string pings;
    for (std::uint64_t i = 0; i < 2000; ++i) pings += Ping{i}.encode();
    static_cast<void>(flood.send(pings));
    const ErrorReply error = errorIn(flood.drain());
    EXPECT_EQ(error.code, Code::CapacityExceeded);
    EXPECT_THAT(error.message, HasSubstr("peer.control_frames_per_second"));
    expectOthersUnharmed();
}

TEST_F(Limits, WhoKeepsToTheRateIsNotEnded) {
    Intruder steady(controlPort(), kElsewhere);
    ASSERT_TRUE(steady.send(controlHello(Incarnation::random())));
    // Of the 200 that may come at once 150, and 60 more after a while in which 120 are added.
    for (std::uint64_t i = 0; i < 150; ++i) ASSERT_TRUE(steady.send(Ping{i}.encode()));
    ControlFrameReader reader;
    std::vector<ControlFrame> frames;
    const auto readUntil = [&](std::size_t count) {
        while (frames.size() < count) {
            const std::string bytes = steady.some();
            ASSERT_FALSE(bytes.empty()) << "ended after " << frames.size() << " frames";
            ASSERT_TRUE(reader.feed(std::as_bytes(std::span(bytes.data(), bytes.size())), frames));
        }
    };
    // The engine has taken them, and its time for the others begins; it may have been held up.
    ASSERT_NO_FATAL_FAILURE(readUntil(151));
    // What is counted is the engine's time.
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    for (std::uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(steady.send(Ping{i}.encode()));
    // The answer to the hello, and 210 pongs; no error.
    ASSERT_NO_FATAL_FAILURE(readUntil(211));
    for (std::size_t i = 1; i < frames.size(); ++i) ASSERT_EQ(frames[i].type, ControlType::Pong) << i;
}

TEST_F(Limits, OnePeerHasSoManyDataConnectionsAndHearsWhy) {
    const Incarnation peer = Incarnation::random();
    std::vector<std::unique_ptr<Intruder>> taken;
    const auto greet = [&](std::uint32_t lane) {
        taken.push_back(std::make_unique<Intruder>(dataPort(), kElsewhere));
        const auto hello = dataHello(peer, lane);
        EXPECT_TRUE(taken.back()->send(hello.data(), hello.size()));
        const std::string reply = taken.back()->receive(tcp::kHelloReplyBytes);
        EXPECT_EQ(reply.size(), tcp::kHelloReplyBytes);
        const auto decoded = tcp::decodeHelloReply(reinterpret_cast<const std::byte*>(reply.data()));
        return decoded ? decoded->code : Code::Internal;
    };
    EXPECT_EQ(greet(0), Code::Ok);
    EXPECT_EQ(greet(1), Code::Ok);
    EXPECT_EQ(greet(2), Code::CapacityExceeded);
    expectOthersUnharmed();
}

TEST_F(Limits, WhatOnePeerAsksForAndDoesNotTakeIsBoundedAcrossItsConnections) {
    const Incarnation peer = Incarnation::random();
    std::vector<std::unique_ptr<Intruder>> greedy;
    for (std::uint32_t lane = 0; lane < 2; ++lane) {
        greedy.push_back(std::make_unique<Intruder>(dataPort(), kElsewhere));
        const auto hello = dataHello(peer, lane);
        ASSERT_TRUE(greedy.back()->send(hello.data(), hello.size()));
        ASSERT_EQ(greedy.back()->receive(tcp::kHelloReplyBytes).size(), tcp::kHelloReplyBytes);
        std::string requests;
        // 64 MiB in all, of which the first MiB is owed and the sockets hold some more.
        for (std::uint64_t id = 0; id < 32; ++id) {
            std::array<std::byte, tcp::kRequestBytes> request{};
            tcp::encodeRequest({tcp::Op::Read, false, 0, id, pair_.remote.address(), pair_.remote.size()},
                               request.data());
            requests.append(reinterpret_cast<const char*>(request.data()), request.size());
        }
        ASSERT_TRUE(greedy.back()->send(requests));
    }
    expectOthersUnharmed();
    // Of what was asked for at once most is refused, each with the reason, and the connection lives on.
    std::size_t refused = 0;
    for (std::uint64_t id = 0; id < 32; ++id) {
        const std::string bytes = greedy[0]->receive(tcp::kResponseBytes);
        ASSERT_EQ(bytes.size(), tcp::kResponseBytes);
        tcp::ResponseHeader response;
        ASSERT_TRUE(tcp::decodeResponse(reinterpret_cast<const std::byte*>(bytes.data()), response));
        const std::string payload = greedy[0]->receive(response.length);
        ASSERT_EQ(payload.size(), response.length);
        if (response.kind != tcp::ResponseKind::Error) continue;
        EXPECT_EQ(response.value, static_cast<std::uint32_t>(Code::CapacityExceeded));
        EXPECT_THAT(payload, HasSubstr("peer.tcp_bytes"));
        ++refused;
    }
    EXPECT_GE(refused, 16u);
    EXPECT_FALSE(greedy[0]->isClosed());
}

}  // namespace
}  // namespace troupe::test
