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
    static_cast<void>(sendPacket(connecting->socket.get(), encode(Hello{plan_.own, plan_.peer})));
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
    auto frame = decode(received.packet.span());
    if (!frame) return frame.status();
    if (const auto* refuse = std::get_if<Refuse>(&*frame))
        return {refuse->code, process_->name() + " refused: " + refuse->text};
    const auto* welcome = std::get_if<Welcome>(&*frame);
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
