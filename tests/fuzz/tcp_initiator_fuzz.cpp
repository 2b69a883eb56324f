// What a target answers to an initiator with work for it, in arbitrary splits. The initiator's buffers are between
// pages that must not be touched; each request ends once, and a READ never writes beside its buffer.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include "base/endpoint.h"
#include "tcp_backend/tcp_transport.h"
#include "tcp_backend/wire.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;
using namespace troupe::tcp;

namespace {

constexpr std::size_t kRequests = 4;
constexpr std::size_t kRequestLength = 64;

Incarnation incarnationOf(std::uint8_t value) {
    Incarnation incarnation;
    incarnation.bytes.fill(value);
    return incarnation;
}

/// A listener of the test's, and an initiator with or without a key; made once.
struct Rig {
    explicit Rig(std::shared_ptr<const ClusterAuth> auth) {
        auto listening = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        fuzz::require(listening.isOk(), "listen");
        listener = std::move(*listening);
        auto desc = std::make_shared<SegmentDesc>();
        desc->name = "target";
        desc->incarnation = incarnationOf(7);
        desc->lane_ports = {SocketAddress::local(listener.get())->port()};
        auto made = std::make_shared<Peer>();
        made->name = desc->name;
        made->host = "127.0.0.1";
        made->desc = desc;
        peer = made;
        const Status installed =
            transport.install({config, table, incarnationOf(9), "127.0.0.1", 1, makeSilentLogger(), std::move(auth)});
        fuzz::require(installed.isOk(), "install");
        nic = std::move(transport.takeNics().front().nic);
    }

    Config config;
    RegistrationTable table;
    UniqueFd listener;
    std::shared_ptr<const Peer> peer;
    TcpTransport transport;
    std::unique_ptr<Nic> nic;
};

struct Counts {
    std::size_t completed = 0;
    std::size_t ended = 0;
};

Counts countsOf(const Sweep& sweep) {
    Counts counts;
    for (const Completion& completion : sweep.completed) counts.completed += completion.requests;
    counts.ended = counts.completed + sweep.failed.size();
    return counts;
}

UniqueFd accept(Rig& rig, Sweep& sweep) {
    for (int i = 0; i < 1000; ++i) {
        rig.nic->poll(Clock::now(), sweep);
        UniqueFd socket(::accept4(rig.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (socket) return socket;
    }
    return {};
}

/// So that what was said has come through before the next piece.
void settle(Rig& rig, Sweep& sweep) {
    for (int i = 0; i < 4; ++i) rig.nic->poll(Clock::now(), sweep);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const fuzz::GuardedMemory memory;
    static Rig plain(nullptr);
    static Rig keyed(fuzz::someKey());
    fuzz::Input input(data, size);
    const std::uint8_t options = input.byte();
    const std::size_t step = 1 + input.byte() % 128;
    Rig& rig = (options & 1) != 0 ? keyed : plain;
    const bool greets = (options & 2) != 0 && (options & 1) == 0;

    // The buffers end with the memory, where the guard begins; before them lies what must not change.
    std::byte* const buffers = fuzz::GuardedMemory::data() + fuzz::GuardedMemory::kBytes - kRequests * kRequestLength;
    std::fill(fuzz::GuardedMemory::data(), buffers, std::byte{0x5a});
    Sweep sweep;
    const auto path = rig.nic->openPath(rig.peer);
    fuzz::require(path.isOk(), "a path is opened");
    std::vector<WorkRequest> requests;
    for (std::size_t i = 0; i < kRequests; ++i) {
        WorkRequest request;
        request.local = buffers + i * kRequestLength;
        request.remote = 0x1000 * (i + 1);
        request.length = kRequestLength;
        request.cookie = i + 1;
        request.opcode = (options >> (2 + i) & 1) != 0 ? Opcode::Write : Opcode::Read;
        requests.push_back(request);
    }
    fuzz::require(rig.nic->post(*path, requests) == kRequests, "work is taken");
    {
        const UniqueFd socket = accept(rig, sweep);
        if (socket && greets) {
            std::array<std::byte, kHelloReplyBytes> reply{};
            encodeHelloReply({incarnationOf(7), Code::Ok}, reply.data());
            static_cast<void>(::send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL));
            settle(rig, sweep);
        }
        while (socket && !input.empty() && countsOf(sweep).ended < kRequests) {
            const auto piece = input.take(step);
            if (::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
            settle(rig, sweep);
        }
    }
    rig.nic->closePath(*path, Status(Code::PeerDown, "the input is over"));
    settle(rig, sweep);
    // What it connected to once more, to fence, is not the next input's.
    while (UniqueFd(::accept4(rig.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))) {
    }
    const Counts counts = countsOf(sweep);
    fuzz::require(counts.ended == kRequests, "every request ends once");
    fuzz::require((options & 1) == 0 || counts.completed == 0, "nobody is believed without the key");
    fuzz::require(std::all_of(fuzz::GuardedMemory::data(), buffers, [](std::byte b) { return b == std::byte{0x5a}; }),
                  "nothing beside the buffers is written");
    return 0;
}
