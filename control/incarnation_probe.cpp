#include "control/incarnation_probe.h"

#include <netinet/in.h>

#include <utility>

#include "control/control_messages.h"

namespace troupe {

namespace {

bool isLoopback(const SocketAddress& address) {
    if (address.family() == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(address.get());
        return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    }
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.get());
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

}  // namespace

IncarnationProbe::IncarnationProbe(Reactor& reactor, Question question, Answer answer)
    : reactor_(reactor),
      question_(std::move(question)),
      answer_(std::move(answer)),
      deadline_(saturatedAdd(reactor.now(), question_.timeout)),
      resolver_(reactor) {
    start_timer_ = reactor_.runAt(reactor_.now(), [this] {
        start_timer_ = 0;
        if (question_.control.host.empty() || question_.control.port == 0)
            return conclude(Verdict::Unknown, "its record names no control endpoint");
        resolver_.resolve(question_.control.host, deadline_, [this](const Result<std::string>& host) {
            if (!host) return conclude(Verdict::Unknown, host.status().message());
            connect(*host);
        });
    });
}

IncarnationProbe::~IncarnationProbe() { reactor_.cancelTimer(start_timer_); }

void IncarnationProbe::connect(const std::string& host) {
    const auto address = SocketAddress::fromNumeric(host, question_.control.port);
    if (!address) return conclude(Verdict::Unknown, address.status().message());
    // 127.0.0.1 of another machine is not ours, whoever listens there or does not.
    if (isLoopback(*address) && (question_.boot_id.empty() || question_.boot_id != readBootId()))
        return conclude(Verdict::Unknown, address->toString() + " is a loopback address of another machine (or boot)");
    auto stream = reactor_.connect(*address);
    if (!stream) return ended(stream.status());
    ControlChannelOptions options;
    options.peer = address->toString();
    options.connecting = true;
    options.connect_timeout = deadline_ - reactor_.now();
    options.handshake_timeout = deadline_ - reactor_.now();
    ControlChannelHandlers handlers;
    handlers.onConnected = [this] {
        Hello hello;
        hello.incarnation = question_.asking;
        hello.expect = question_.incarnation;
        static_cast<void>(channel_->send(hello.encode()));
    };
    handlers.onFrame = [this](const ControlFrame& frame) { onFrame(frame); };
    handlers.onClosed = [this](const Status& why) { ended(why); };
    channel_ = std::make_unique<ControlChannel>(reactor_, std::move(*stream), std::move(options), std::move(handlers));
}

void IncarnationProbe::onFrame(const ControlFrame& frame) {
    const std::string peer = channel_->peer();
    if (frame.type == ControlType::HelloAck) {
        const auto ack = HelloAck::decode(frame);
        if (!ack) return conclude(Verdict::Unknown, ack.status().message());
        if (ack->incarnation == question_.incarnation) return conclude(Verdict::Alive, "it answers at " + peer);
        return conclude(Verdict::Gone, peer + " is incarnation " + ack->incarnation.toString() + " now");
    }
    if (frame.type == ControlType::Error) {
        const auto error = ErrorReply::decode(frame);
        const Status status = error ? error->toStatus(peer) : error.status();
        // The other end has looked whom we mean, and it is somebody else.
        return conclude(status.code() == Code::StaleIncarnation ? Verdict::Gone : Verdict::Unknown, status.message());
    }
    conclude(Verdict::Unknown, peer + " sent " + controlTypeName(frame.type) + " where an answer was due");
}

void IncarnationProbe::ended(const Status& why) {
    const bool refused = why.code() == Code::ConnectionRefused;
    conclude(refused ? Verdict::Gone : Verdict::Unknown,
             refused ? question_.control.toString() + " refuses connections" : why.message());
}

void IncarnationProbe::conclude(Verdict verdict, const std::string& why) {
    // The one who is told may destroy this; nothing is touched afterwards.
    const auto answer = std::exchange(answer_, {});
    if (answer) answer(verdict, std::string(why));
}

}  // namespace troupe
