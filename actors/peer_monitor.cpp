#include "actors/peer_monitor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <caf/behavior.hpp>

namespace troupe {

namespace {

// The first attempt after a loss comes at once; then the pause doubles from here, plus or minus a quarter.
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(500);

// Failures in a row after which a peer that was up is down. The first of them is the loss itself.
constexpr std::uint32_t kFailuresUntilDown = 2;

// What may be wrong when a connection is taken and no greeting follows.
constexpr const char* kStranger =
    "; is it a Troupe engine that listens there? (of its ports the control port, which its segment's name has; and of "
    "this version: its log says when it is not)";

// Probes that wait for an answer at once.
constexpr std::size_t kMaxPings = 1024;
// The peer answers no more at once.
constexpr std::size_t kMaxQuestions = 256;

}  // namespace

PeerMonitor::PeerMonitor(caf::actor_config& config, Loop& loop, Target target, const Config& settings,
                         caf::actor directory, Logger log)
    : HostedActor(config, loop, std::move(log)),
      target_(std::move(target)),
      settings_(settings),
      directory_(std::move(directory)),
      resolver_(loop),
      jitter_state_(0) {
    std::memcpy(&jitter_state_, target_.own.bytes.data(), sizeof jitter_state_);
    jitter_state_ += target_.index;
}

caf::behavior PeerMonitor::make_behavior() {
    return {
        [this](const ConnectPeer&) {
            if (channel_) return;
            loop().cancelTimer(retry_timer_);
            retry_timer_ = 0;
            connect();
        },
        [this](const FetchDescriptor&) {
            if (state_ == PeerState::Up)
                requestDescriptor();
            else if (!channel_)
                connect();
        },
        [this](const PingPeer& request) { ping(request.reply, request.deadline); },
        [this](const AskPeer& request) { ask(request); },
        [this](const Shutdown&) {
            if (channel_ && state_ == PeerState::Up)
                static_cast<void>(channel_->send(Goodbye{"the segment was closed"}.encode()));
            quit();
        },
    };
}

void PeerMonitor::atEnd() {
    loop().cancelTimer(retry_timer_);
    loop().cancelTimer(tick_timer_);
    channel_.reset();
    answerAll(Status(Code::Canceled, "the segment was closed"));
    directory_ = nullptr;
}

// --- connecting --------------------------------------------------------------------------------------------------

void PeerMonitor::connect() {
    loop().cancelTimer(std::exchange(retry_timer_, 0));
    if (std::exchange(resolving_, true)) return;
    if (state_ == PeerState::Unknown) state_ = PeerState::Connecting;
    resolver_.resolve(target_.control.host, loop().now() + settings_.connect_timeout, [this](Result<std::string> host) {
        resolving_ = false;
        if (channel_) return;
        if (host)
            connectTo(*host);
        else
            trouble(host.status());
    });
}

void PeerMonitor::connectTo(const std::string& host) {
    const auto address = SocketAddress::fromNumeric(host, target_.control.port);
    if (!address) return trouble(address.status());
    auto stream = loop().connect(*address);
    if (!stream) return trouble(stream.status());
    host_ = host;
    ControlChannelOptions options;
    options.peer = address->toString();
    options.connecting = true;
    options.connect_timeout = settings_.connect_timeout;
    options.handshake_timeout = settings_.handshake_timeout;
    options.max_descriptor_bytes = settings_.max_descriptor_bytes;
    ControlChannelHandlers handlers;
    greeting_ = false;
    Hello hello;
    hello.incarnation = target_.own;
    hello.name = target_.own_name;
    hello.expect = target_.expect;
    greeter_ = std::make_unique<ControlInitiator>(target_.auth, std::move(hello));
    handlers.onConnected = [this] {
        greeting_ = true;
        if (state_ == PeerState::Down) {
            state_ = PeerState::Connecting;
            send(directory_, PeerConnecting{target_.index});
        }
        static_cast<void>(channel_->send(greeter_->hello()));
    };
    handlers.onFrame = [this](ControlFrame frame) {
        if (frame.type == ControlType::Descriptor)
            onDescriptor(std::move(frame));
        else
            onFrame(frame);
    };
    handlers.onClosed = [this](const Status& why) { trouble(why); };
    channel_ = std::make_unique<ControlChannel>(loop(), std::move(*stream), std::move(options), std::move(handlers));
}

void PeerMonitor::onFrame(const ControlFrame& frame) {
    switch (frame.type) {
        case ControlType::HelloAck:
        case ControlType::Challenge:
        case ControlType::KeyProof: return onGreeting(frame);
        case ControlType::Pong: {
            const auto pong = Pong::decode(frame);
            if (!pong) return channel_->close(pong.status());
            return answerPing(pong->seq, Status::ok());
        }
        case ControlType::Answer: {
            auto answer = TransportAnswer::decode(frame);
            if (!answer) return channel_->close(answer.status());
            if (answer->code == Code::Ok) return answerQuestion(answer->id, std::move(answer->bytes));
            return answerQuestion(answer->id, Status(answer->code, channel_->peer() + ": " + answer->message));
        }
        case ControlType::Error: {
            if (greeting_) return onGreeting(frame);
            const auto error = ErrorReply::decode(frame);
            return channel_->close(error ? error->toStatus(channel_->peer()) : error.status());
        }
        case ControlType::Goodbye: return channel_->close(Status(Code::PeerDown, channel_->peer() + " said goodbye"));
        default:
            return channel_->close(
                Status(Code::ProtocolError, channel_->peer() + " sent an unexpected " + controlTypeName(frame.type)));
    }
}

void PeerMonitor::onGreeting(const ControlFrame& frame) {
    if (!greeting_)
        return channel_->close(
            Status(Code::ProtocolError, channel_->peer() + " greeted twice: " + controlTypeName(frame.type)));
    auto progress = greeter_->onFrame(frame);
    if (!progress) return channel_->close(progress.status().withContext(channel_->peer()));
    if (!progress->send.empty()) static_cast<void>(channel_->send(std::move(progress->send)));
    if (progress->ack) onHelloAck(*progress->ack);
}

void PeerMonitor::onHelloAck(const HelloAck& ack) {
    if (!target_.expect.isNull() && ack.incarnation != target_.expect)
        return channel_->close(Status(Code::StaleIncarnation, channel_->peer() + " is now incarnation " +
                                                                  ack.incarnation.toString() + ", not " +
                                                                  target_.expect.toString()));
    if (ack.incarnation != answering_) desc_ = nullptr;
    answering_ = ack.incarnation;
    peer_name_ = ack.name;
    failures_ = 0;
    greeting_ = false;
    state_ = PeerState::Up;
    channel_->handshakeDone();
    // Those that came while it was connecting.
    while (!pings_.empty()) answerPing(pings_.front().seq, Status::ok());
    fetching_ = false;
    requestDescriptor();
    pinged_at_ = loop().now();
    scheduleTick();
    for (AskPeer& request : std::exchange(held_, {})) ask(std::move(request));
}

// --- descriptor --------------------------------------------------------------------------------------------------

void PeerMonitor::requestDescriptor() {
    if (std::exchange(fetching_, true)) {
        fetch_again_ = true;
        return;
    }
    fetch_again_ = false;
    fetching_since_ = loop().now();
    static_cast<void>(channel_->send(DescriptorRequest{desc_ ? desc_->version : 0}.encode()));
}

void PeerMonitor::onDescriptor(ControlFrame frame) {
    if (!fetching_)
        return channel_->close(Status(Code::ProtocolError, channel_->peer() + " sent an unasked descriptor"));
    fetching_ = false;
    auto message = Descriptor::decode(std::move(frame));
    if (!message) return channel_->close(message.status());
    if (!message->unchanged()) {
        auto desc = decodeSegmentDesc(message->json);
        if (!desc) return channel_->close(desc.status().withContext("descriptor of " + channel_->peer()));
        if (desc->incarnation != answering_)
            return channel_->close(Status(Code::ProtocolError, channel_->peer() + " described another incarnation"));
        desc_ = std::make_shared<const SegmentDesc>(std::move(*desc));
    } else if (!desc_) {
        return channel_->close(Status(Code::ProtocolError, channel_->peer() + " left its descriptor out"));
    }
    send(directory_, PeerDescribed{target_.index, host_, peer_name_, desc_, fetch_again_});
    if (fetch_again_) requestDescriptor();
}

// --- trouble -----------------------------------------------------------------------------------------------------

/// A connection attempt failed, or the connection ended.
void PeerMonitor::trouble(const Status& why) {
    channel_.reset();
    fetching_ = false;
    fetch_again_ = false;
    ++failures_;
    // The channel's own words name the same address: "connect to HOST:PORT: connect: Connection refused".
    const std::string at = target_.control.toString();
    const std::string named = "connect to " + at + ": ";
    Status cause(why.code(),
                 "peer " + at + ": " +
                     (why.message().rfind(named, 0) == 0 ? why.message().substr(named.size()) : why.message()));
    // Somebody took the connection and did not greet as an engine does: a web server, say, or a database. A peer that
    // once did is stopped or ill instead.
    const bool odd =
        why.code() == Code::ProtocolError || why.code() == Code::ConnectionLost || why.code() == Code::Timeout;
    if (std::exchange(greeting_, false) && answering_.isNull() && odd)
        cause = Status(cause.code(), cause.message() + kStranger);
    trouble_ = cause.code() == Code::StaleIncarnation ? cause : cause.withCode(Code::PeerDown);
    answerAll(trouble_);
    const bool was_up = state_ == PeerState::Up || state_ == PeerState::Suspect;
    const bool ended = why.code() == Code::PeerDown || why.code() == Code::StaleIncarnation;
    state_ = was_up && !ended && failures_ < kFailuresUntilDown ? PeerState::Suspect : PeerState::Down;
    log_->info("{}: {}", state_ == PeerState::Suspect ? "suspect" : "down", cause.toString());
    send(directory_, PeerTrouble{target_.index, state_, cause});
    scheduleRetry();
}

void PeerMonitor::scheduleRetry() {
    if (retry_timer_ != 0) return;
    Duration pause{};
    if (failures_ > 1) {
        pause = std::min<Duration>(kFirstPause * (1 << std::min(failures_ - 2, 10u)), kLongestPause);
        // xorshift64: spreads the peers of a restarted process over time; nothing depends on its quality.
        jitter_state_ ^= jitter_state_ << 13;
        jitter_state_ ^= jitter_state_ >> 7;
        jitter_state_ ^= jitter_state_ << 17;
        pause = pause * 3 / 4 + pause * static_cast<Duration::rep>(jitter_state_ % 1024) / 2048;
    }
    retry_timer_ = loop().runAt(loop().now() + pause, [this] { connect(); });
}

// --- keepalive ---------------------------------------------------------------------------------------------------

void PeerMonitor::scheduleTick() {
    loop().cancelTimer(tick_timer_);
    const TimePoint next = std::min({pinged_at_ + settings_.keepalive_interval, silentAt(), overdueAt()});
    tick_timer_ = loop().runAt(next, [this] { keepAlive(); });
}

TimePoint PeerMonitor::silentAt() const { return channel_->lastReceived() + settings_.keepalive_timeout; }

TimePoint PeerMonitor::overdueAt() const {
    if (!fetching_) return kForever;
    // A long one on a slow line takes its time: while its bytes come nothing else does, and silentAt looks after them.
    return channel_->isMidFrame() ? kForever : fetching_since_ + settings_.keepalive_timeout;
}

void PeerMonitor::keepAlive() {
    tick_timer_ = 0;
    const TimePoint now = loop().now();
    if (state_ != PeerState::Up || !channel_) return;
    // Down at once, and not suspect: another connection to a host that is silent would only take longer to say so.
    if (now >= silentAt()) return channel_->close(Status(Code::PeerDown, "silent for longer than keepalive_timeout"));
    // Pongs come, so the peer lives, and does not answer this: another connection may.
    if (now >= overdueAt())
        return channel_->close(Status(Code::Timeout,
                                      "asked for its descriptor, it did not answer for longer than "
                                      "keepalive_timeout"));
    if (now >= pinged_at_ + settings_.keepalive_interval) {
        pinged_at_ = now;
        // The answer is as good a sign of life as a Pong, and tells what the peer has installed or registered since:
        // without a store nobody else does.
        if (fetching_)
            static_cast<void>(channel_->send(Ping{next_seq_++}.encode()));
        else
            requestDescriptor();
    }
    scheduleTick();
}

void PeerMonitor::ping(std::function<void(Status)> reply, TimePoint deadline) {
    if (state_ == PeerState::Down) return reply(trouble_);
    if (pings_.size() >= kMaxPings) return reply(Status(Code::CapacityExceeded, "too many probes wait for this peer"));
    const std::uint64_t seq = next_seq_++;
    const auto expire = [this, seq] {
        answerPing(seq, Status(Code::Timeout, target_.control.toString() + " did not answer a probe in time"));
    };
    pings_.push_back({seq, loop().runAt(deadline, expire), std::move(reply)});
    // While it connects the answer is the greeting's.
    if (state_ == PeerState::Up) static_cast<void>(channel_->send(Ping{seq}.encode()));
}

void PeerMonitor::answerPing(std::uint64_t seq, const Status& status) {
    const auto found =
        std::find_if(pings_.begin(), pings_.end(), [seq](const PendingPing& entry) { return entry.seq == seq; });
    if (found == pings_.end()) return;
    loop().cancelTimer(found->timer);
    const auto reply = std::move(found->reply);
    pings_.erase(found);
    reply(status);
}

void PeerMonitor::ask(AskPeer request) {
    const auto refuse = [&](Code code, const std::string& why) { request.answered(Status(code, why)); };
    // What was made over the connection that was lost is asked for anew at once, and must not fail for the moment that
    // the next one takes.
    if (state_ == PeerState::Suspect && held_.size() < kMaxQuestions) return held_.push_back(std::move(request));
    if (state_ != PeerState::Up || !channel_)
        return refuse(Code::PeerDown, "no control connection to " + target_.control.toString());
    if (answering_ != request.whom)
        return refuse(Code::StaleIncarnation, "incarnation " + answering_.toString() + " answers at " +
                                                  target_.control.toString() + ", not " + request.whom.toString());
    if (questions_.size() >= kMaxQuestions) return refuse(Code::CapacityExceeded, "too many questions to this peer");
    const std::uint64_t id = next_seq_++;
    const auto expire = [this, id] {
        answerQuestion(id, Status(Code::Timeout, target_.control.toString() + " did not answer in time"));
    };
    questions_.push_back({id, loop().runAt(request.deadline, expire), std::move(request.answered)});
    static_cast<void>(
        channel_->send(TransportQuestion{id, std::move(request.transport), std::move(request.question)}.encode()));
}

void PeerMonitor::answerQuestion(std::uint64_t id, Result<std::string> answer) {
    const auto found =
        std::find_if(questions_.begin(), questions_.end(), [id](const auto& entry) { return entry.id == id; });
    if (found == questions_.end()) return;
    loop().cancelTimer(found->timer);
    const auto answered = std::move(found->answered);
    questions_.erase(found);
    answered(std::move(answer));
}

void PeerMonitor::answerAll(const Status& status) {
    for (const AskPeer& request : std::exchange(held_, {})) request.answered(status);
    for (auto& entry : std::exchange(questions_, {})) {
        loop().cancelTimer(entry.timer);
        entry.answered(status);
    }
    for (auto& entry : std::exchange(pings_, {})) {
        loop().cancelTimer(entry.timer);
        entry.reply(status);
    }
}

}  // namespace troupe
