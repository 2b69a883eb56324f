#include "control/fault_asker.h"

#include <utility>

#include "control/control_messages.h"

namespace troupe {

FaultAsker::FaultAsker(Reactor& reactor, Options options) : reactor_(reactor), options_(std::move(options)) {
    const auto address = SocketAddress::fromNumeric(options_.control.host, options_.control.port);
    if (!address) {
        end(address.status());
        return;
    }
    auto stream = reactor_.connect(*address);
    if (!stream) {
        end(stream.status());
        return;
    }
    ControlChannelOptions channel;
    channel.peer = address->toString();
    channel.connecting = true;
    channel.connect_timeout = options_.timeout;
    channel.handshake_timeout = options_.timeout;
    Hello hello;
    hello.incarnation = options_.asking;
    hello.expect = options_.whom;
    greeting_ = std::make_unique<ControlInitiator>(options_.auth, std::move(hello));
    ControlChannelHandlers handlers;
    handlers.onConnected = [this] { static_cast<void>(channel_->send(greeting_->hello())); };
    handlers.onFrame = [this](ControlFrame frame) { onFrame(std::move(frame)); };
    handlers.onClosed = [this](const Status& why) { end(why); };
    channel_ = std::make_unique<ControlChannel>(reactor_, std::move(*stream), std::move(channel), std::move(handlers));
}

FaultAsker::~FaultAsker() {
    reactor_.cancelTimer(keepalive_timer_);
    for (const auto& [id, pending] : pending_) reactor_.cancelTimer(pending.timer);
}

void FaultAsker::ask(const FaultRequest& request, Answered answered) {
    if (!ended_) return answered(ended_);
    const std::uint64_t id = ++asked_;
    Pending& pending = pending_[id];
    pending.answered = std::move(answered);
    pending.timer = reactor_.runAt(saturatedAdd(reactor_.now(), options_.timeout), [this, id] {
        const auto late = pending_.extract(id);
        if (!late.empty())
            late.mapped().answered(Status(Code::Timeout, options_.control.toString() + " did not answer in time"));
    });
    std::string frame = TransportQuestion{id, std::string(kFaultsExchange), request.encode()}.encode();
    if (greeting_)
        waiting_.push_back(std::move(frame));
    else
        static_cast<void>(channel_->send(std::move(frame)));  // An error ends the channel, which ends this.
}

void FaultAsker::onFrame(ControlFrame frame) {
    if (!ended_) return;
    if (greeting_) return onGreeting(frame);
    switch (frame.type) {
        case ControlType::Answer: return onAnswer(frame);
        case ControlType::Pong: return;
        case ControlType::Error: {
            const auto error = ErrorReply::decode(frame);
            return end(error ? error->toStatus(channel_->peer()) : error.status().withContext(channel_->peer()));
        }
        case ControlType::Goodbye: return end(Status(Code::ConnectionLost, channel_->peer() + " said goodbye"));
        default:
            return end(Status(Code::ProtocolError,
                              channel_->peer() + " sent " + controlTypeName(frame.type) + ", which was not asked for"));
    }
}

void FaultAsker::onGreeting(const ControlFrame& frame) {
    auto progress = greeting_->onFrame(frame);
    if (!progress) return end(progress.status().withContext(channel_->peer()));
    if (!progress->send.empty()) static_cast<void>(channel_->send(std::move(progress->send)));
    if (!progress->ack) return;
    if (progress->ack->incarnation != options_.whom)
        return end(Status(Code::StaleIncarnation,
                          channel_->peer() + " is incarnation " + progress->ack->incarnation.toString() + " now"));
    greeting_.reset();
    channel_->handshakeDone();
    keepAlive();
    for (std::string& waiting : std::exchange(waiting_, {})) static_cast<void>(channel_->send(std::move(waiting)));
}

void FaultAsker::onAnswer(const ControlFrame& frame) {
    auto answer = TransportAnswer::decode(frame);
    if (!answer) return end(answer.status().withContext(channel_->peer()));
    // It may have been late.
    const auto asked = pending_.extract(answer->id);
    if (asked.empty()) return;
    reactor_.cancelTimer(asked.mapped().timer);
    if (answer->code != Code::Ok)
        return asked.mapped().answered(Status(answer->code, channel_->peer() + ": " + answer->message));
    asked.mapped().answered(FaultAnswer::decode(answer->bytes));
}

void FaultAsker::keepAlive() {
    static_cast<void>(channel_->send(Ping{++pings_}.encode()));
    keepalive_timer_ = reactor_.runAt(saturatedAdd(reactor_.now(), options_.keepalive), [this] { keepAlive(); });
}

void FaultAsker::end(const Status& why) {
    if (!ended_) return;
    ended_ = why.isOk() ? Status(Code::ConnectionLost, "the connection ended") : why;
    reactor_.cancelTimer(std::exchange(keepalive_timer_, 0));
    waiting_.clear();
    if (channel_) channel_->close(ended_);
    for (auto& [id, pending] : std::exchange(pending_, {})) {
        reactor_.cancelTimer(pending.timer);
        pending.answered(ended_);
    }
}

}  // namespace troupe
