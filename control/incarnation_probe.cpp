#include "control/incarnation_probe.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/unique_fd.h"
#include "control/control_messages.h"

namespace troupe {

namespace {

/// One of the addresses that this machine has, as far as this network namespace shows; true as well when the kernel
/// cannot be asked, or is told to take any address for its own (net.ipv4.ip_nonlocal_bind).
bool isOwn(SocketAddress address) {
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd) return errno != EAFNOSUPPORT;
    // Any port will do; it is at the same place in both families.
    static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
    return ::bind(fd.get(), address.get(), address.length) == 0 || errno != EADDRNOTAVAIL;
}

}  // namespace

IncarnationProbe::IncarnationProbe(Reactor& reactor, Question question, Answer answer)
    : reactor_(reactor),
      question_(std::move(question)),
      answer_(std::move(answer)),
      deadline_(saturatedAdd(reactor.now(), question_.timeout)),
      resolver_(reactor) {
    // One for all that happens on the way: what a step leaves of the time for the next may be nothing.
    deadline_timer_ = reactor_.runAt(deadline_, [this] {
        deadline_timer_ = 0;
        conclude(Verdict::Unknown, question_.control.toString() + " did not answer in time");
    });
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

IncarnationProbe::~IncarnationProbe() {
    reactor_.cancelTimer(start_timer_);
    reactor_.cancelTimer(deadline_timer_);
}

void IncarnationProbe::connect(const std::string& host) {
    if (!answer_) return;
    const auto address = SocketAddress::fromNumeric(host, question_.control.port);
    if (!address) return conclude(Verdict::Unknown, address.status().message());
    // 127.0.0.1 of another machine is not ours, whoever listens there or does not; neither is 172.17.0.1, which every
    // machine with a container bridge has.
    const bool elsewhere = question_.boot_id.empty() || question_.boot_id != readBootId();
    if (elsewhere && address->isLoopback())
        return conclude(Verdict::Unknown, address->toString() + " is a loopback address of another machine (or boot)");
    if (elsewhere && isOwn(*address))
        return conclude(
            Verdict::Unknown,
            address->toString() + " is an address of this machine too, but the record is of another machine (or boot)");
    auto stream = reactor_.connect(*address);
    if (!stream) return ended(stream.status());
    ControlChannelOptions options;
    options.peer = address->toString();
    options.connecting = true;
    ControlChannelHandlers handlers;
    Hello hello;
    hello.incarnation = question_.asking;
    hello.expect = question_.incarnation;
    greeting_ = std::make_unique<ControlInitiator>(question_.auth, std::move(hello));
    handlers.onConnected = [this] { static_cast<void>(channel_->send(greeting_->hello())); };
    handlers.onFrame = [this](const ControlFrame& frame) { onFrame(frame); };
    handlers.onClosed = [this](const Status& why) { ended(why); };
    channel_ = std::make_unique<ControlChannel>(reactor_, std::move(*stream), std::move(options), std::move(handlers));
}

void IncarnationProbe::onFrame(const ControlFrame& frame) {
    const std::string peer = channel_->peer();
    auto progress = greeting_->onFrame(frame);
    if (!progress) {
        const Status status = progress.status().withContext(peer);
        // The other end has looked whom we mean, and it is somebody else.
        const bool other = frame.type != ControlType::HelloAck && status.code() == Code::StaleIncarnation;
        return conclude(other ? Verdict::Gone : Verdict::Unknown, status.message());
    }
    if (!progress->send.empty()) static_cast<void>(channel_->send(std::move(progress->send)));
    if (!progress->ack) return;
    const Incarnation& answering = progress->ack->incarnation;
    if (answering == question_.incarnation) return conclude(Verdict::Alive, "it answers at " + peer);
    conclude(Verdict::Gone, peer + " is incarnation " + answering.toString() + " now");
}

void IncarnationProbe::ended(const Status& why) {
    const bool refused = why.code() == Code::ConnectionRefused;
    conclude(refused ? Verdict::Gone : Verdict::Unknown,
             refused ? question_.control.toString() + " refuses connections" : why.message());
}

void IncarnationProbe::conclude(Verdict verdict, const std::string& why) {
    reactor_.cancelTimer(std::exchange(deadline_timer_, 0));
    // The one who is told may destroy this; nothing is touched afterwards.
    const auto answer = std::exchange(answer_, {});
    if (answer) answer(verdict, std::string(why));
}

}  // namespace troupe
