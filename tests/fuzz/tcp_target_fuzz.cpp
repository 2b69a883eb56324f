// What an initiator sends to a target, in arbitrary splits, before and after the greeting. The target's memory is at a
// fixed address between pages that must not be touched, and one region in the middle of it is not for peers.

#include <sys/socket.h>

#include <array>

#include "base/clock.h"
#include "tcp_backend/server_connection.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;
using namespace troupe::tcp;

namespace {

Incarnation self() {
    Incarnation incarnation;
    incarnation.bytes.fill(7);
    return incarnation;
}

/// Made once: the first and the last page may be used by peers, the second one be read, the third one not at all.
struct Target {
    Target() {
        const auto add = [this](std::size_t page, bool remote, bool writable) {
            Region region;
            region.range = {fuzz::GuardedMemory::kAddress + page * fuzz::GuardedMemory::kPage,
                            fuzz::GuardedMemory::kPage};
            region.remote_accessible = remote;
            region.writable = writable;
            const auto reserved = table.reserve(region);
            fuzz::require(reserved.isOk(), "a region is registered");
            table.commit(reserved->id);
        };
        add(0, true, true);
        add(1, true, false);
        add(2, false, true);
        add(3, true, true);
    }

    fuzz::GuardedMemory memory;
    RegistrationTable table;
};

Target& target() {
    static Target made;
    return made;
}

/// The Nic's part: admits whoever means this incarnation.
void drive(ServerConnection& connection) {
    using State = ServerConnection::State;
    if (connection.state() == State::Greeting) connection.receiveHello(TimePoint{});
    if (connection.state() == State::Greeted)
        connection.answerHello(connection.hello().target == self() ? Code::Ok : Code::StaleIncarnation);
    for (int i = 0; i < 4 && connection.state() == State::Serving && connection.serve(); ++i) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::uint8_t options = input.byte();
    const std::size_t step = 1 + input.byte() % 128;
    Target& here = target();
    // What peers may not write stays as it is.
    std::byte* const fixed = fuzz::GuardedMemory::data() + fuzz::GuardedMemory::kPage;
    std::fill_n(fixed, 2 * fuzz::GuardedMemory::kPage, std::byte{0x5a});

    int ends[2];
    fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    const UniqueFd peer(ends[0]);
    Shared shared(Config{}, here.table, self(), makeSilentLogger(), (options & 1) != 0 ? fuzz::someKey() : nullptr);
    fuzz::require(shared.events.open().isOk(), "epoll");
    {
        ServerConnection connection(shared, UniqueFd(ends[1]), kForever);
        if ((options & 2) != 0 && (options & 1) == 0) {
            // Past the greeting at once: most of the interesting bytes come after it.
            Hello hello;
            hello.lane.initiator.bytes.fill(9);
            hello.target = self();
            std::array<std::byte, kHelloBytes> bytes{};
            encodeHello(hello, bytes.data());
            static_cast<void>(::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
            drive(connection);
        }
        std::array<char, 65536> answers;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by recv.
        while (!input.empty() && connection.state() != ServerConnection::State::Closed) {
            const auto piece = input.take(step);
            static_cast<void>(::send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL));
            drive(connection);
            // One that reads its answers, or one that does not.
            if ((options & 4) == 0)
                while (::recv(peer.get(), answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
                }
        }
        if ((options & 1) != 0)
            fuzz::require(connection.state() != ServerConnection::State::Serving, "nobody is served without the key");
        const ByteRange local_only{fuzz::GuardedMemory::kAddress + 2 * fuzz::GuardedMemory::kPage,
                                   fuzz::GuardedMemory::kPage};
        fuzz::require(!connection.touches(local_only), "memory that is not for peers is not touched");
        if (connection.state() != ServerConnection::State::Closed) connection.close("the input is over");
    }
    fuzz::require(
        std::all_of(fixed, fixed + 2 * fuzz::GuardedMemory::kPage, [](std::byte b) { return b == std::byte{0x5a}; }),
        "what peers may not write is not written");
    return 0;
}
