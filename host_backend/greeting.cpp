#include "host_backend/greeting.h"

#include <unistd.h>

#include <utility>

namespace troupe::host {

Result<bool> Greeting::start() {
    auto connecting = connectTo(plan_.socket);
    if (!connecting) return connecting.status();
    if (connecting->again) return false;
    auto process = ProcessHandle::ofPeer(connecting->socket.get());
    if (!process) return process.status();
    if (auto status = checkUsers(::geteuid(), process->uid()); !status) return status;
    // The pidfd is open by now: what answers this is the process that it means (see ProcessHandle).
    // An owner that refuses at once has closed already; what it said is read by `advance`.
    Hello hello{plan_.own, plan_.peer};
    if (hasKey(plan_.auth)) hello.nonce = randomNonce();
    hello_ = encode(hello);
    static_cast<void>(sendPacket(connecting->socket.get(), hello_));
    socket_ = std::move(connecting->socket);
    process_ = std::make_unique<ProcessHandle>(std::move(*process));
    return true;
}

Result<bool> Greeting::advance() {
    Received received;
    switch (receivePacket(socket_.get(), received)) {
        case Io::Again: return false;
        case Io::Closed: return {Code::ConnectionLost, process_->name() + " closed its host socket"};
        case Io::Done: break;
    }
    const auto frame = decode(received.packet.span());
    if (!frame) return frame.status();
    return hasKey(plan_.auth) ? onFrame(*frame, received.packet) : onAnswer(*frame);
}

/// With a cluster key nothing is believed that is not proven, but that the owner will not talk.
Result<bool> Greeting::onFrame(const Frame& frame, const Packet& packet) {
    const ClusterAuth& auth = *plan_.auth;
    if (std::holds_alternative<Challenge>(frame) && challenge_.length == 0) {
        challenge_ = packet;
        const Proof proof = auth.prove(AuthRole::Initiator, kAuthProtocol, {hello_.span(), challenge_.span()});
        if (sendPacket(socket_.get(), encode(KeyProof{proof})) != Io::Done)
            return {Code::ConnectionLost, process_->name() + " closed its host socket"};
        return false;
    }
    if (const auto* proof = std::get_if<KeyProof>(&frame); proof != nullptr && answer_.length != 0) {
        if (!auth.accepts(AuthRole::Responder, kAuthProtocol, {hello_.span(), challenge_.span(), answer_.span()},
                          proof->proof)) {
            auth.count(AuthRefusal::WrongProof);
            return otherKey("this engine");
        }
        auth.countAccepted();
        const auto answer = decode(answer_.span());
        return answer ? onAnswer(*answer) : answer.status();
    }
    const auto* refuse = std::get_if<Refuse>(&frame);
    if (refuse != nullptr && (refuse->code != Code::StaleIncarnation || challenge_.length == 0)) {
        const Code code = refuse->code == Code::StaleIncarnation ? Code::AccessDenied : refuse->code;
        if (code == Code::AccessDenied) auth.count(AuthRefusal::NoProof);
        return {code, process_->name() + " refused: " + refuse->text};
    }
    if (refuse == nullptr && !std::holds_alternative<Welcome>(frame))
        return {Code::ProtocolError, process_->name() + " answered a greeting with something else"};
    if (challenge_.length == 0) {
        auth.count(AuthRefusal::NoProof);
        return {Code::AccessDenied, process_->name() +
                                        " answers without a proof of the cluster key; is auth.key_file "
                                        "set there? (docs/security.md)"};
    }
    answer_ = packet;
    return false;
}

Result<bool> Greeting::onAnswer(const Frame& frame) {
    if (const auto* refuse = std::get_if<Refuse>(&frame))
        return {refuse->code, process_->name() + " refused: " + refuse->text};
    const auto* welcome = std::get_if<Welcome>(&frame);
    if (welcome == nullptr) return {Code::ProtocolError, process_->name() + " answered a greeting with something else"};
    if (welcome->owner != plan_.peer)
        return {Code::StaleIncarnation,
                process_->name() + " is incarnation " + welcome->owner.toString() + ", not " + plan_.peer.toString()};
    vm_ = checkAccess(*process_, welcome->word, plan_.peer, plan_.hint);
    // Mapping asks no leave of the kernel. What a look into its memory would prove of the peer, its word over the
    // socket must then; that is as good as that of any process of the same user.
    const bool may_map = vm_.code() == Code::TransportMissing && process_->uid() == ::geteuid();
    if (may_map && !welcome->all_mapped)
        return {vm_.code(), vm_.message() + "; not all of its memory is the engine's own, which could be mapped"};
    if (!vm_ && !may_map) return vm_;
    if (sendPacket(socket_.get(), encode(Ready{welcome->nonce})) != Io::Done)
        return {Code::ConnectionLost, process_->name() + " closed its host socket"};
    return true;
}

}  // namespace troupe::host
