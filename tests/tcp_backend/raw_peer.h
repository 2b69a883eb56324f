#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "tcp_backend/wire.h"
#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {

/// A socket in the hands of an attacker, or of a peer that does as it likes.
class RawSocket {
  public:
    RawSocket() = default;
    explicit RawSocket(UniqueFd fd) : fd_(std::move(fd)) {}
    static RawSocket to(std::uint16_t port) {
        auto fd = startConnect(*SocketAddress::fromNumeric("127.0.0.1", port));
        EXPECT_TRUE(fd.isOk()) << fd.status().toString();
        pollfd wait{fd->get(), POLLOUT, 0};
        ::poll(&wait, 1, 10000);
        return RawSocket(std::move(*fd));
    }

    /// As much as the socket takes; false when it is broken.
    bool send(const void* data, std::size_t size) {
        return ::send(fd_.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
    }
    /// Adds what came to `got`; false once the other side ended the connection.
    bool receive() {
        char buffer[65536];
        for (;;) {
            const ssize_t size = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
            if (size > 0) {
                got.insert(got.end(), buffer, buffer + size);
            } else {
                return size < 0 && errno == EAGAIN;
            }
        }
    }
    const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(got.data()); }
    void close() { fd_.reset(); }
    int fd() const { return fd_.get(); }

    std::vector<char> got;

  private:
    UniqueFd fd_;
};

inline Hello helloTo(const Node& node, std::uint64_t attempt = 1, std::uint32_t lane = 0) {
    static const Incarnation attacker = Incarnation::random();
    Hello hello;
    hello.lane = {attacker, 0, lane};
    hello.target = node.incarnation;
    hello.attempt = attempt;
    return hello;
}

inline std::array<std::byte, kHelloBytes> bytesOf(const Hello& hello) {
    std::array<std::byte, kHelloBytes> bytes{};
    encodeHello(hello, bytes.data());
    return bytes;
}

inline std::array<std::byte, kRequestBytes> bytesOf(const RequestHeader& header) {
    std::array<std::byte, kRequestBytes> bytes{};
    encodeRequest(header, bytes.data());
    return bytes;
}

inline std::array<std::byte, kResponseBytes> bytesOf(const ResponseHeader& header) {
    std::array<std::byte, kResponseBytes> bytes{};
    encodeResponse(header, bytes.data());
    return bytes;
}

/// A target that the test polls, and attackers with sockets that want its memory.
class TargetUnderAttack : public ::testing::Test {
  protected:
    explicit TargetUnderAttack(std::size_t bytes, Config config = {}, std::shared_ptr<const ClusterAuth> auth = nullptr)
        : node(std::move(config), "127.0.0.1", "b", makeSilentLogger(), std::move(auth)), memory(bytes, 'x') {
        node.registerMemory(memory.data(), memory.size());
    }
    std::uint16_t port() const { return node.asPeer()->desc->lane_ports[0]; }
    bool pump(const std::function<bool()>& done) { return test::pumpNodes(done, node); }
    /// Waits until `count` bytes came, or the target ended the connection.
    bool awaitBytes(RawSocket& socket, std::size_t count) {
        return pump([&] { return !socket.receive() || socket.got.size() >= count; });
    }
    /// Waits until the target ended the connection.
    bool isCut(RawSocket& socket) {
        return pump([&] { return !socket.receive(); });
    }

    Node node;
    std::vector<char> memory;
};

/// The bytes between an initiator and a target, forwarded by the test's thread; may damage one byte on the way.
class Proxy {
  public:
    explicit Proxy(std::uint16_t target) : target_(target) {
        auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        EXPECT_TRUE(listener.isOk());
        listener_ = std::move(*listener);
    }
    std::uint16_t port() const { return SocketAddress::local(listener_.get())->port(); }

    /// New connections are refused from now on, as by a firewall; the one that there is stays.
    void reject() { listener_.reset(); }

    void pump() {
        UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (accepted) {
            client_ = std::move(accepted);
            server_ = std::move(*startConnect(*SocketAddress::fromNumeric("127.0.0.1", target_)));
            pollfd wait{server_.get(), POLLOUT, 0};
            ::poll(&wait, 1, 10000);
            sent_ = received_ = 0;
            there_.clear();
            back_.clear();
        }
        if (!client_) return;
        const bool up = forward(client_, server_, there_, sent_, damage_sent_at) &&
                        forward(server_, client_, back_, received_, damage_received_at);
        if (!up) {
            client_.reset();
            server_.reset();
        }
    }

    /// Offsets in the streams of the byte to damage, counted from the start of each connection; -1: none. Used once.
    std::int64_t damage_sent_at = -1;
    std::int64_t damage_received_at = -1;

  private:
    static bool forward(UniqueFd& from, UniqueFd& to, std::vector<char>& held, std::int64_t& count,
                        std::int64_t& damage) {
        char buffer[16384];
        if (held.empty()) {
            const ssize_t size = ::recv(from.get(), buffer, sizeof buffer, MSG_DONTWAIT);
            if (size == 0 || (size < 0 && errno != EAGAIN)) return false;
            if (size > 0) {
                if (damage >= count && damage < count + size) {
                    buffer[damage - count] = static_cast<char>(buffer[damage - count] ^ 0x10);
                    damage = -1;
                }
                count += size;
                held.assign(buffer, buffer + size);
            }
        }
        if (held.empty()) return true;
        const ssize_t sent = ::send(to.get(), held.data(), held.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) return false;
        if (sent > 0) held.erase(held.begin(), held.begin() + sent);
        return true;
    }

    std::uint16_t target_;
    UniqueFd listener_;
    UniqueFd client_;
    UniqueFd server_;
    std::vector<char> there_;
    std::vector<char> back_;
    std::int64_t sent_ = 0;
    std::int64_t received_ = 0;
};

/// `peer`, as if it listened on another port.
inline std::shared_ptr<const Peer> at(const std::shared_ptr<const Peer>& peer, std::uint16_t port) {
    auto desc = std::make_shared<SegmentDesc>(*peer->desc);
    desc->lane_ports = {port};
    auto moved = std::make_shared<Peer>(*peer);
    moved->desc = desc;
    return moved;
}

}  // namespace troupe::tcp::testing
