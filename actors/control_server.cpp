#include "actors/control_server.h"

#include <algorithm>
#include <utility>

#include <caf/behavior.hpp>

#include "base/endpoint.h"
#include "control/control_messages.h"
#include "control/fault_request.h"
#include "messages/control_plane.h"

namespace troupe {

namespace {

// Connections taken per readiness, so that a flood of connects does not hold the loop.
constexpr int kAcceptBurst = 32;

// How long accepting rests after the process ran out of descriptors.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// Of one client, not yet answered.
constexpr unsigned kMostQuestions = 256;

// Addresses that are kept in mind for having spoken something else, each with a line in the log. Those that come when
// there are so many share a ration of lines.
constexpr std::size_t kMostStrangers = 64;

// Beyond one descriptor, room for the small frames of a client.
constexpr std::uint64_t kSmallFramesRoom = 256u << 10;

}  // namespace

ControlServer::ControlServer(caf::actor_config& config, Loop& loop, std::shared_ptr<Listener> listener,
                             Identity identity, const Config& settings, caf::actor directory, Logger log)
    : HostedActor(config, loop, std::move(log)),
      listener_(std::move(listener)),
      identity_(std::move(identity)),
      settings_(settings),
      directory_(std::move(directory)) {}

caf::behavior ControlServer::make_behavior() {
    listener_->watch([this] { acceptAll(); });
    return {
        [this](const Shutdown&) {
            const std::string farewell = Goodbye{"the engine ends"}.encode();
            for (const ClientPtr& client : std::exchange(clients_, {})) {
                static_cast<void>(client->channel->send(farewell));
                forget(*client);
            }
            quit();
        },
    };
}

void ControlServer::atEnd() {
    loop().cancelTimer(silence_timer_);
    loop().cancelTimer(accept_timer_);
    listener_->unwatch();
    listener_.reset();
    for (const ClientPtr& client : clients_) forget(*client);
    clients_.clear();
    directory_ = nullptr;
}

void ControlServer::acceptAll() {
    for (int i = 0; i < kAcceptBurst; ++i) {
        auto accepted = listener_->accept();
        if (!accepted) {
            if (accepted.status().code() == Code::ConnectionLost) continue;
            if (accepted.status().code() == Code::ResourceExhausted) {
                // The listener stays ready; without a rest the loop would spin on it.
                if (const auto more = accept_word_.turn(loop().now()))
                    log_->warn("control port: cannot accept, {}{}", accepted.status().message(), *more);
                listener_->unwatch();
                accept_timer_ =
                    loop().runAt(loop().now() + kAcceptPause, [this] { listener_->watch([this] { acceptAll(); }); });
            }
            break;
        }
        const auto endpoint = Endpoint::parse(accepted->peer);
        const std::string host = endpoint ? endpoint->host : accepted->peer;
        if (!makeRoom(host)) {
            if (const auto more = refused_word_.turn(loop().now()))
                log_->warn("control port: refused {}: {} connections are open (max_control_connections){}",
                           accepted->peer, clients_.size(), *more);
            continue;
        }
        auto client = std::make_shared<Client>();
        client->host = host;
        client->frames_left = settings_.peer_control_frames_per_second;
        client->counted_at = loop().now();
        ControlChannelOptions options;
        options.peer = accepted->peer;
        options.handshake_timeout = settings_.handshake_timeout;
        options.max_queued_bytes = settings_.max_descriptor_bytes + kSmallFramesRoom;
        const std::weak_ptr<Client> weak = client;
        ControlChannelHandlers handlers;
        handlers.onFrame = [this, weak](const ControlFrame& frame) {
            if (const auto self = weak.lock()) onFrame(self, frame);
        };
        handlers.onClosed = [this, weak](const Status& why) {
            const auto self = weak.lock();
            if (!self) return;
            sayEnd(*self, why);
            remove(self);
        };
        client->greeter = std::make_unique<ControlResponder>(identity_.auth, identity_.incarnation);
        client->channel = std::make_unique<ControlChannel>(loop(), std::move(accepted->stream), std::move(options),
                                                           std::move(handlers));
        clients_.push_back(std::move(client));
    }
    if (silence_timer_ == 0 && !clients_.empty()) dropSilent();
}

/// What comes and does not speak as an engine of this version does is worth a word: its own end sees only that the
/// connection was closed. One word for each address, as it will try again, and as anybody may come.
void ControlServer::sayEnd(const Client& client, const Status& why) {
    const std::string text = "control connection from " + client.channel->peer() + " ended: " + why.toString();
    const bool stranger = !client.greeted && why.code() == Code::ProtocolError;
    if (!stranger || strangers_.contains(client.host)) {
        log_->debug("{}", text);
        return;
    }
    const std::string word =
        text + "; it is an engine of another version of Troupe, or none at all (said once of each address)";
    if (strangers_.size() == kMostStrangers) return refusals_.say(log_, loop().now(), word);
    strangers_.insert(client.host);
    log_->warn("{}", word);
}

/// For one more of that address. Those that have not greeted yet give way, the oldest first: they are silent, or about
/// to be told apart from those who are. False: all connections there may be are those of peers.
bool ControlServer::makeRoom(const std::string& host) {
    ClientPtr oldest;
    ClientPtr oldest_of_host;
    std::size_t greetings = 0;
    for (const ClientPtr& client : clients_) {
        if (client->greeted) continue;
        if (!oldest) oldest = client;
        if (client->host != host) continue;
        if (!oldest_of_host) oldest_of_host = client;
        ++greetings;
    }
    if (greetings >= settings_.peer_greetings) {
        turnAway(oldest_of_host, Status(Code::CapacityExceeded, std::to_string(greetings) + " connections of " + host +
                                                                    " wait to greet (peer.greetings)"));
    } else if (clients_.size() >= settings_.max_control_connections) {
        if (!oldest) return false;
        turnAway(
            oldest_of_host ? oldest_of_host : oldest,
            Status(Code::CapacityExceeded, std::to_string(clients_.size()) +
                                               " connections are open (max_control_connections), and others wait"));
    }
    return true;
}

/// At once: whoever is turned away must not stay for the time of a farewell.
void ControlServer::turnAway(const ClientPtr& client, const Status& why) {
    refusals_.say(log_, loop().now(),
                  "control connection from " + client->channel->peer() + " ended: " + why.message());
    static_cast<void>(client->channel->send(ErrorReply::from(why).encode()));
    client->channel->close(why);
    remove(client);
}

/// CapacityExceeded when it sends more than it may.
Status ControlServer::countFrame(Client& client) {
    const TimePoint now = loop().now();
    const double rate = settings_.peer_control_frames_per_second;
    const double passed = std::chrono::duration<double>(now - client.counted_at).count();
    client.counted_at = now;
    client.frames_left = std::min(rate, client.frames_left + passed * rate) - 1;
    if (client.frames_left >= 0) return Status::ok();
    return {Code::CapacityExceeded, "more than " + std::to_string(settings_.peer_control_frames_per_second) +
                                        " frames in a second (peer.control_frames_per_second)"};
}

void ControlServer::remove(const ClientPtr& client) {
    forget(*client);
    clients_.remove(client);
}

/// What transports made for the client goes with its connection.
void ControlServer::forget(const Client& client) {
    if (client.asker != 0) send(directory_, AskerLeft{client.asker});
}

/// A peer pings at its keepalive interval; one that is silent for twice our time-out is gone without a word.
void ControlServer::dropSilent() {
    const TimePoint now = loop().now();
    for (const ClientPtr& client : clients_)
        if (client->greeted && now - client->channel->lastReceived() > 2 * settings_.keepalive_timeout)
            client->channel->close(Status(Code::Timeout, "the peer is silent"));
    silence_timer_ = 0;
    if (!clients_.empty()) silence_timer_ = loop().runAt(now + settings_.keepalive_timeout, [this] { dropSilent(); });
}

void ControlServer::refuse(Client& client, const Status& why) {
    const std::string text = "control connection from " + client.channel->peer() + " refused: " + why.toString();
    if (why.code() == Code::AccessDenied || why.code() == Code::CapacityExceeded)
        refusals_.say(log_, loop().now(), text);
    else
        log_->info("{}", text);
    std::string error = ErrorReply::from(why).encode();
    if (client.greeter) error = client.greeter->seal(std::move(error));
    if (client.channel->send(std::move(error))) client.channel->finish(why);
}

void ControlServer::onFrame(const ClientPtr& client, const ControlFrame& frame) {
    if (!client->greeted) {
        const Status greeted = greet(*client, frame);
        if (!greeted) refuse(*client, greeted);
        return;
    }
    if (const Status counted = countFrame(*client); !counted) return refuse(*client, counted);
    // A client that asks and does not read must not pile up answers.
    if (client->channel->queuedBytes() > kSmallFramesRoom + client->descriptor_bytes)
        return client->channel->close(Status(Code::CapacityExceeded, "the peer asks faster than it reads"));
    switch (frame.type) {
        case ControlType::Ping: {
            const auto ping = Ping::decode(frame);
            if (!ping) return refuse(*client, ping.status());
            static_cast<void>(client->channel->send(Pong{ping->seq}.encode()));
            return;
        }
        case ControlType::DescriptorRequest: return describe(client, frame);
        case ControlType::Question: return answer(client, frame);
        case ControlType::Goodbye: return client->channel->close(Status(Code::ConnectionLost, "the peer said goodbye"));
        default: return refuse(*client, Status(Code::ProtocolError, controlTypeName(frame.type) + " is not a request"));
    }
}

Status ControlServer::greet(Client& client, const ControlFrame& frame) {
    auto progress = client.greeter->onFrame(frame);
    if (!progress) return progress.status();
    if (!progress->send.empty()) return client.channel->send(std::move(progress->send));
    if (!progress->done) return Status::ok();
    const Hello& hello = client.greeter->hello();
    if (!hello.expect.isNull() && hello.expect != identity_.incarnation)
        return Status(Code::StaleIncarnation, "incarnation " + hello.expect.toString() +
                                                  " does not live here any more; this is " +
                                                  identity_.incarnation.toString());
    const auto of_peer = std::count_if(clients_.begin(), clients_.end(), [&](const ClientPtr& other) {
        return other->greeted && other->channel->isOpen() && other->peer == hello.incarnation;
    });
    if (static_cast<std::size_t>(of_peer) >= settings_.peer_control_connections)
        return Status(Code::CapacityExceeded, "the peer has " + std::to_string(of_peer) +
                                                  " control connections already (peer.control_connections)");
    client.peer = hello.incarnation;
    client.greeted = true;
    client.channel->handshakeDone();
    // The version travels with the descriptor; a peer that has one asks with it.
    const auto greeter = std::move(client.greeter);
    return client.channel->send(greeter->seal(HelloAck{identity_.incarnation, identity_.name, 0}.encode()));
}

void ControlServer::answer(const ClientPtr& client, const ControlFrame& frame) {
    auto question = TransportQuestion::decode(frame);
    if (!question) return refuse(*client, question.status());
    const auto say = [id = question->id](Client& to, const Result<std::string>& answer) {
        TransportAnswer message;
        message.id = id;
        message.code = answer.status().code();
        if (answer)
            message.bytes = *answer;
        else
            message.message = answer.status().message();
        static_cast<void>(to.channel->send(message.encode()));
    };
    if (client->asking == kMostQuestions)
        return say(*client, Status(Code::CapacityExceeded, "too many questions before the last were answered"));
    if (client->asker == 0) client->asker = ++askers_;
    ++client->asking;
    // Its end is what mends them, so it must not be one of them.
    if (question->transport == kFaultsExchange && settings_.faults_remote) client->channel->spareFromFaults();
    send(directory_, AnswerPeer{{client->peer, client->asker},
                                client->channel->peer(),
                                std::move(question->transport),
                                std::move(question->bytes),
                                // From any thread, and when the client may be gone, which only the loop can tell.
                                [weak = std::weak_ptr<Client>(client), say, home = home()](Result<std::string> answer) {
                                    home.post([weak, say, answer = std::move(answer)] {
                                        const auto self = weak.lock();
                                        if (!self) return;
                                        --self->asking;
                                        say(*self, answer);
                                    });
                                }});
}

void ControlServer::describe(const ClientPtr& client, const ControlFrame& frame) {
    const auto request = DescriptorRequest::decode(frame);
    if (!request) return refuse(*client, request.status());
    if (client->describing || client->channel->queuedBytes() > kSmallFramesRoom)
        return refuse(*client, Status(Code::CapacityExceeded, "a descriptor request before the last was answered"));
    client->describing = true;
    const std::weak_ptr<Client> weak = client;
    send(directory_,
         DescribeLocal{request->known_version,
                       [this, weak, home = home()](const std::shared_ptr<const std::string>& json, std::uint64_t) {
                           // The directory's handler calls, and is not to end by what is wrong here.
                           home.run([&] {
                               if (const auto self = weak.lock()) sendDescriptor(*self, json);
                           });
                       }});
}

/// `json`: null, it is the one that the client has.
void ControlServer::sendDescriptor(Client& client, const std::shared_ptr<const std::string>& json) {
    client.describing = false;
    auto encoded = Descriptor{json ? *json : std::string()}.encode(settings_.max_descriptor_bytes);
    if (!encoded) return refuse(client, encoded.status());
    client.descriptor_bytes = encoded->size();
    static_cast<void>(client.channel->send(std::move(*encoded)));
}

}  // namespace troupe
