#include "control/control_channel.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <optional>

#include "base/endpoint.h"
#include "control/control_messages.h"
#include "tests/support/test_reactor.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::TestReactor;

/// One end of a connection and what happened on it.
struct End {
    std::unique_ptr<ControlChannel> channel;
    std::vector<ControlFrame> frames;
    std::optional<Status> closed;
    bool connected = false;

    ControlChannelHandlers handlers() {
        return {[this] { connected = true; }, [this](ControlFrame frame) { frames.push_back(std::move(frame)); },
                [this](const Status& status) {
                    EXPECT_FALSE(closed.has_value()) << "closed twice";
                    closed = status;
                }};
    }
    void open(TestReactor& reactor, UniqueFd fd, ControlChannelOptions options = {}) {
        if (options.peer.empty()) options.peer = "peer";
        channel = std::make_unique<ControlChannel>(reactor, std::move(fd), options, handlers());
    }
};

class ControlChannelTest : public testing::Test {
  protected:
    void SetUp() override {
        int fds[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        near_fd_ = UniqueFd(fds[0]);
        far_fd_ = UniqueFd(fds[1]);
    }
    void openBoth(ControlChannelOptions near_options = {}, ControlChannelOptions far_options = {}) {
        near_.open(reactor_, std::move(near_fd_), std::move(near_options));
        far_.open(reactor_, std::move(far_fd_), std::move(far_options));
    }
    /// Writes raw bytes as a hostile peer.
    void rawSend(std::string_view bytes) {
        ASSERT_EQ(::send(far_fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }

    TestReactor reactor_;
    UniqueFd near_fd_;
    UniqueFd far_fd_;
    End near_;
    End far_;
};

TEST_F(ControlChannelTest, CarriesFramesInOrderBothWays) {
    openBoth();
    for (std::uint64_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(near_.channel->send(Ping{i}.encode()).isOk());
        ASSERT_TRUE(far_.channel->send(Pong{i}.encode()).isOk());
    }
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.frames.size() == 100 && far_.frames.size() == 100; }));
    for (std::uint64_t i = 0; i < 100; ++i) {
        EXPECT_EQ(Ping::decode(far_.frames[i])->seq, i);
        EXPECT_EQ(Pong::decode(near_.frames[i])->seq, i);
    }
}

TEST_F(ControlChannelTest, ALargeDescriptorCrossesInPiecesAndWritabilityIsWatchedOnlyMeanwhile) {
    const int fd = near_fd_.get();
    ControlChannelOptions sender;
    sender.max_queued_bytes = 32u << 20;
    ControlChannelOptions receiver;
    receiver.max_descriptor_bytes = 16u << 20;
    openBoth(sender, receiver);
    EXPECT_EQ(reactor_.watchedEvents(fd), static_cast<std::uint32_t>(EPOLLIN));
    const Descriptor descriptor{"{" + std::string(10u << 20, ' ') + "}"};
    ASSERT_TRUE(near_.channel->send(std::make_shared<const std::string>(*descriptor.encode(16u << 20))).isOk());
    EXPECT_EQ(reactor_.watchedEvents(fd), static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT));
    ASSERT_TRUE(near_.channel->send(Ping{1}.encode()).isOk());
    ASSERT_TRUE(reactor_.runUntil([&] { return far_.frames.size() == 2; }));
    EXPECT_EQ(far_.frames[0].body, descriptor.json);
    EXPECT_EQ(near_.channel->queuedBytes(), 0u);
    EXPECT_EQ(reactor_.watchedEvents(fd), static_cast<std::uint32_t>(EPOLLIN));
}

TEST_F(ControlChannelTest, APeerThatDoesNotReadIsCutAtTheBound) {
    ControlChannelOptions options;
    options.max_queued_bytes = 100000;
    near_.open(reactor_, std::move(near_fd_), options);
    Status status;
    for (int i = 0; i < 1'000'000 && status.isOk(); ++i) {
        status = near_.channel->send(Ping{1}.encode());
        EXPECT_LE(near_.channel->queuedBytes(), 100000u);
    }
    EXPECT_EQ(status.code(), Code::CapacityExceeded);
    EXPECT_FALSE(near_.channel->isOpen());
    EXPECT_FALSE(near_.closed.has_value()) << "told in the middle of send";
    EXPECT_EQ(near_.channel->send(Ping{1}.encode()).code(), Code::CapacityExceeded);
    reactor_.runIdle();
    ASSERT_TRUE(near_.closed.has_value());
    EXPECT_EQ(near_.closed->code(), Code::CapacityExceeded);
    EXPECT_EQ(reactor_.watchedCount(), 0u);
}

TEST_F(ControlChannelTest, TheEndOfThePeerIsConnectionLost) {
    openBoth();
    far_.channel.reset();
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->code(), Code::ConnectionLost);
    EXPECT_EQ(near_.channel->send(Ping{1}.encode()).code(), Code::ConnectionLost);
    EXPECT_FALSE(far_.closed.has_value()) << "a destroyed channel calls nobody";
}

TEST_F(ControlChannelTest, AnEndInTheMiddleOfAFrameIsSaid) {
    near_.open(reactor_, std::move(near_fd_));
    rawSend(Ping{1}.encode().substr(0, 10));
    far_fd_.reset();
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_NE(near_.closed->message().find("middle of a frame"), std::string::npos);
}

TEST_F(ControlChannelTest, BytesThatAreNoFrameEndTheChannelAfterTheFramesBefore) {
    near_.open(reactor_, std::move(near_fd_));
    rawSend(Ping{1}.encode() + "GET / HTTP/1.1\r\n\r\n");
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->code(), Code::ProtocolError);
    EXPECT_EQ(near_.frames.size(), 1u);
}

TEST_F(ControlChannelTest, CloseIsReportedOnceAndNotFromWithin) {
    openBoth();
    near_.channel->close(Status(Code::Canceled, "enough"));
    near_.channel->close(Status(Code::Internal, "again"));
    EXPECT_FALSE(near_.closed.has_value());
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value() && far_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->toString(), "Canceled: enough");
    EXPECT_EQ(far_.closed->code(), Code::ConnectionLost);
}

TEST_F(ControlChannelTest, NothingIsCalledAfterTheChannelIsDestroyed) {
    openBoth();
    near_.channel->close(Status(Code::Canceled, "enough"));
    near_.channel.reset();
    reactor_.runIdle();
    EXPECT_FALSE(near_.closed.has_value());
}

TEST_F(ControlChannelTest, AHandlerMayDestroyTheChannel) {
    int frames = 0;
    auto handlers = near_.handlers();
    // The capture is large enough to live on the heap, so that a use after its destruction is seen by a sanitizer.
    handlers.onFrame = [&, marker = std::string(100, 'm')](const ControlFrame&) {
        ++frames;
        near_.channel.reset();
        EXPECT_EQ(marker, std::string(100, 'm'));
    };
    near_.channel = std::make_unique<ControlChannel>(reactor_, std::move(near_fd_), ControlChannelOptions{}, handlers);
    handlers = {};
    rawSend(Ping{1}.encode() + Ping{2}.encode() + Ping{3}.encode());
    ASSERT_TRUE(reactor_.runUntil([&] { return frames > 0; }));
    reactor_.runIdle();
    EXPECT_EQ(frames, 1);
    EXPECT_FALSE(near_.closed.has_value());
    EXPECT_EQ(reactor_.watchedCount(), 0u);
}

TEST_F(ControlChannelTest, AHandlerMayCloseTheChannelAndHearsNoFurtherFrame) {
    int frames = 0;
    auto handlers = near_.handlers();
    handlers.onFrame = [&](const ControlFrame&) {
        ++frames;
        near_.channel->close(Status(Code::StaleIncarnation, "not you"));
    };
    near_.channel = std::make_unique<ControlChannel>(reactor_, std::move(near_fd_), ControlChannelOptions{}, handlers);
    rawSend(Ping{1}.encode() + Ping{2}.encode());
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(frames, 1);
    EXPECT_EQ(near_.closed->code(), Code::StaleIncarnation);
}

TEST_F(ControlChannelTest, AHandlerMayDestroyTheChannelFromOnClosed) {
    auto handlers = near_.handlers();
    handlers.onClosed = [&](const Status& status) {
        EXPECT_EQ(status.code(), Code::ConnectionLost);
        near_.closed = status;
        near_.channel.reset();
    };
    near_.channel = std::make_unique<ControlChannel>(reactor_, std::move(near_fd_), ControlChannelOptions{}, handlers);
    far_fd_.reset();
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    reactor_.runIdle();
    EXPECT_FALSE(near_.channel);
}

TEST_F(ControlChannelTest, FinishDeliversTheLastFrameAndThenEnds) {
    openBoth();
    ASSERT_TRUE(near_.channel->send(ErrorReply{Code::StaleIncarnation, "not you"}.encode()).isOk());
    near_.channel->finish(Status(Code::StaleIncarnation, "not you"));
    EXPECT_FALSE(near_.channel->isOpen());
    EXPECT_EQ(near_.channel->send(Ping{1}.encode()).code(), Code::StaleIncarnation);
    ASSERT_TRUE(reactor_.runUntil([&] { return far_.closed.has_value(); }));
    ASSERT_EQ(far_.frames.size(), 1u);
    EXPECT_EQ(ErrorReply::decode(far_.frames[0])->code, Code::StaleIncarnation);
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->code(), Code::StaleIncarnation);
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(ControlChannelTest, FinishIsBoundedWhenThePeerNeitherReadsNorCloses) {
    ControlChannelOptions options;
    options.linger_timeout = 20ms;
    near_.open(reactor_, std::move(near_fd_), options);
    while (near_.channel->queuedBytes() < 100000) ASSERT_TRUE(near_.channel->send(Ping{1}.encode()).isOk());
    near_.channel->finish(Status(Code::Canceled, "bye"));
    rawSend(Ping{1}.encode());
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->code(), Code::Canceled);
    EXPECT_TRUE(near_.frames.empty());
}

TEST_F(ControlChannelTest, AHandshakeThatNeverEndsTimesOut) {
    ControlChannelOptions options;
    options.handshake_timeout = 20ms;
    near_.open(reactor_, std::move(near_fd_), options);
    // A peer that keeps sending is no better than a silent one.
    rawSend(Ping{1}.encode().substr(0, 9));
    ASSERT_TRUE(reactor_.runUntil([&] { return near_.closed.has_value(); }));
    EXPECT_EQ(near_.closed->code(), Code::Timeout);
}

TEST_F(ControlChannelTest, AHandshakeThatIsDoneDoesNot) {
    ControlChannelOptions options;
    options.handshake_timeout = 1h;
    near_.open(reactor_, std::move(near_fd_), options);
    EXPECT_EQ(reactor_.timerCount(), 1u);
    near_.channel->handshakeDone();
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(ControlChannelTest, BytesFromThePeerMoveLastReceived) {
    near_.open(reactor_, std::move(near_fd_));
    const TimePoint before = near_.channel->lastReceived();
    rawSend(Ping{1}.encode());
    ASSERT_TRUE(reactor_.runUntil([&] { return !near_.frames.empty(); }));
    EXPECT_GT(near_.channel->lastReceived(), before);
}

TEST(ControlChannelConnect, SendsWhatWasQueuedWhileConnecting) {
    TestReactor reactor;
    auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(listener.isOk()) << listener.status().toString();
    auto fd = startConnect(*SocketAddress::local(listener->get()));
    ASSERT_TRUE(fd.isOk()) << fd.status().toString();
    End client;
    ControlChannelOptions options;
    options.connecting = true;
    options.connect_timeout = 10s;
    options.handshake_timeout = 1h;
    client.open(reactor, std::move(*fd), options);
    ASSERT_TRUE(client.channel->send(Ping{5}.encode()).isOk());
    ASSERT_TRUE(reactor.runUntil([&] { return client.connected; }));
    EXPECT_EQ(reactor.timerCount(), 1u) << "the handshake timer replaces the connect timer";
    End server;
    server.open(reactor, UniqueFd(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
    ASSERT_TRUE(reactor.runUntil([&] { return server.frames.size() == 1; }));
    EXPECT_EQ(Ping::decode(server.frames[0])->seq, 5u);
}

TEST(ControlChannelConnect, ARefusedConnectIsToldAsSuch) {
    TestReactor reactor;
    auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(listener.isOk());
    const auto address = *SocketAddress::local(listener->get());
    listener->reset();
    auto fd = startConnect(address);
    if (!fd.isOk()) {
        EXPECT_EQ(fd.status().code(), Code::ConnectionRefused);
        return;
    }
    End client;
    ControlChannelOptions options;
    options.connecting = true;
    client.open(reactor, std::move(*fd), options);
    ASSERT_TRUE(reactor.runUntil([&] { return client.closed.has_value(); }));
    EXPECT_EQ(client.closed->code(), Code::ConnectionRefused);
    EXPECT_FALSE(client.connected);
}

TEST(ControlChannelConnect, AResetWithBytesUnreadDoesNotHurt) {
    TestReactor reactor;
    auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(listener.isOk());
    auto fd = startConnect(*SocketAddress::local(listener->get()));
    ASSERT_TRUE(fd.isOk());
    End client;
    ControlChannelOptions options;
    options.connecting = true;
    client.open(reactor, std::move(*fd), options);
    ASSERT_TRUE(reactor.runUntil([&] { return client.connected; }));
    UniqueFd accepted(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    ASSERT_TRUE(client.channel->send(Ping{1}.encode()).isOk());
    const linger at_once{1, 0};
    ::setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    accepted.reset();
    ASSERT_TRUE(reactor.runUntil([&] { return client.closed.has_value(); }));
    EXPECT_EQ(client.closed->code(), Code::ConnectionLost);
}

}  // namespace
}  // namespace troupe
