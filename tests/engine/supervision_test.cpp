// What becomes of an engine whose actors end by a defect.

#include <gmock/gmock.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "base/fault_injector.h"
#include "control/control_messages.h"
#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

/// Throws at whoever says `what`, the first `times`: a defect of its handler. What derives from std::exception a logger
/// keeps for itself.
class ThrowingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  public:
    ThrowingSink(std::string what, int times) : what_(std::move(what)), left(times) {}

  private:
    const std::string what_;

  public:
    std::atomic<int> left;

  protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        const std::string_view text(message.payload.data(), message.payload.size());
        if (text.find(what_) == std::string_view::npos || left == 0) return;
        --left;
        throw 1;
    }
    void flush_() override {}
};

/// To listen on one's own is allowed, to connect to it is refused at once: a monitor hears of it in its handler.
constexpr const char* kNowhere = "255.255.255.255:5";

EngineOptions optionsThatThrow(const std::shared_ptr<ThrowingSink>& sink) {
    EngineOptions options;
    options.config = EngineSetup().config;
    options.config.open_timeout = std::chrono::milliseconds(kPatience);
    options.config.faults_enabled = true;
    options.log = std::make_shared<spdlog::logger>("throwing", sink);
    options.log->set_level(spdlog::level::info);
    return options;
}

TEST(Supervision, AMonitorThatEndedByADefectIsReplaced) {
    const auto sink = std::make_shared<ThrowingSink>("down: ConnectionLost: peer", 3);
    TransferEngine engine(optionsThatThrow(sink));
    ASSERT_TRUE(engine.init("p2p", "", "127.0.0.1"));
    const auto opened = engine.openSegment(kNowhere);
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.status().code(), Code::Timeout) << opened.status().toString();
    EXPECT_THAT(opened.status().message(), HasSubstr(kNowhere));
    EXPECT_EQ(sink->left, 0);
}

TEST(Supervision, AMonitorThatEndedBeforeItsPeerWasDescribedIsReplacedByWhatTheStoreSays) {
    const auto directory = std::make_shared<InprocDirectory>();
    TestReactor reactor;
    InprocStore publisher(directory);
    ASSERT_TRUE(publisher.start(reactor));
    SegmentDesc record;
    record.name = "the-peer";
    record.incarnation = Incarnation::random();
    record.control = *Endpoint::parse(kNowhere);
    Status published(Code::Internal, "no answer");
    publisher.publish(record, std::chrono::hours(1), [&](const Status& status) { published = status; });
    ASSERT_TRUE(reactor.runUntil([&] { return published.isOk(); }));

    const auto sink = std::make_shared<ThrowingSink>("down: ConnectionLost: peer", 2);
    EngineOptions options = optionsThatThrow(sink);
    options.inproc_store = [&] { return std::make_unique<InprocStore>(directory); };
    TransferEngine engine(std::move(options));
    ASSERT_TRUE(engine.init("inproc://", "self", "127.0.0.1"));
    const auto opened = engine.openSegment("the-peer");
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.status().code(), Code::Timeout) << opened.status().toString();
    EXPECT_THAT(opened.status().message(), HasSubstr(kNowhere));
    EXPECT_EQ(sink->left, 0);
}

/// Somebody who is no engine connects to the control port and says so.
void greetWrongly(std::uint16_t port) {
    const auto fd = startConnect(*SocketAddress::fromNumeric("127.0.0.1", port));
    ASSERT_TRUE(fd);
    pollfd ready{fd->get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
    const std::string hello = Ping{1}.encode();
    ASSERT_EQ(::send(fd->get(), hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
    // Until it is closed.
    char byte = 0;
    ready.events = POLLIN;
    while (::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1 &&
           ::recv(fd->get(), &byte, 1, 0) > 0) {
    }
}

TEST(Supervision, AControlServerThatAClientsFrameEndedIsReplaced) {
    const auto sink = std::make_shared<ThrowingSink>(" refused: ", 3);
    TransferEngine engine(optionsThatThrow(sink));
    ASSERT_TRUE(engine.init("p2p", "", "127.0.0.1"));
    const auto port = Endpoint::parse(engine.localSegmentName())->port;
    while (sink->left > 0 && !testing::Test::HasFailure()) greetWrongly(port);
    const auto other = startEngine();
    const auto opened = other->openSegment(engine.localSegmentName());
    EXPECT_TRUE(opened) << opened.status().toString();
}

TEST(Supervision, AMonitorThatTheEndOfItsConnectionEndedIsReplaced) {
    auto peer = startEngine();
    const std::string name = peer->localSegmentName();
    const auto sink = std::make_shared<ThrowingSink>("suspect: ", 1);
    TransferEngine engine(optionsThatThrow(sink));
    ASSERT_TRUE(engine.init("p2p", "", "127.0.0.1"));
    ASSERT_TRUE(engine.faults()) << "it is to break a connection";
    const auto opened = engine.openSegment(name);
    ASSERT_TRUE(opened) << opened.status().toString();
    FaultRule rule;
    rule.point = FaultPoint::ControlFrame;
    rule.action = FaultAction::Fail;
    rule.nth = 1;
    rule.where = "Ping";
    ASSERT_TRUE((*engine.faults())->add(rule));
    static_cast<void>(engine.probePeerAliveByID(*opened, kPatience));
    const TimePoint limit = Clock::now() + kPatience;
    while (!engine.probePeerAliveByID(*opened) && Clock::now() < limit) {
    }
    EXPECT_TRUE(engine.probePeerAliveByID(*opened));
    EXPECT_EQ(sink->left, 0);
}

}  // namespace
}  // namespace troupe::test
