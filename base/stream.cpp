#include "base/stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/reactor.h"

namespace troupe {

namespace {

class SocketStream final : public Stream {
  public:
    SocketStream(Reactor& reactor, UniqueFd fd) : reactor_(reactor), fd_(std::move(fd)) {}
    ~SocketStream() override { reactor_.unwatch(fd_.get()); }

    void watch(std::uint32_t events, std::function<void(std::uint32_t)> ready) override {
        reactor_.watch(fd_.get(), events, std::move(ready));
    }
    Status connectOutcome() override { return troupe::connectOutcome(fd_.get()); }
    ssize_t send(std::span<iovec> parts) override {
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = parts.size();
        const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        return sent < 0 ? -errno : sent;
    }
    ssize_t receive(std::span<std::byte> room) override {
        const ssize_t got = ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT);
        return got < 0 ? -errno : got;
    }
    void endOutput() override { ::shutdown(fd_.get(), SHUT_WR); }

  private:
    Reactor& reactor_;
    UniqueFd fd_;
};

class SocketListener final : public Listener {
  public:
    SocketListener(Reactor& reactor, UniqueFd fd) : reactor_(reactor), fd_(std::move(fd)) {}
    ~SocketListener() override { unwatch(); }

    void watch(std::function<void()> ready) override {
        reactor_.watch(fd_.get(), EPOLLIN, [ready = std::move(ready)](std::uint32_t) { ready(); });
    }
    void unwatch() override { reactor_.unwatch(fd_.get()); }
    Result<Accepted> accept() override {
        UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd) {
            const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            return errnoStatus(exhausted ? Code::ResourceExhausted : Code::NotFound, "accept", errno);
        }
        const auto remote = SocketAddress::remote(fd.get());
        if (!remote) return Status(Code::ConnectionLost, remote.status().message());
        return Accepted{makeStream(reactor_, std::move(fd)), remote->toString()};
    }

  private:
    Reactor& reactor_;
    UniqueFd fd_;
};

}  // namespace

std::unique_ptr<Stream> makeStream(Reactor& reactor, UniqueFd fd) {
    return std::make_unique<SocketStream>(reactor, std::move(fd));
}

std::unique_ptr<Listener> makeListener(Reactor& reactor, UniqueFd fd) {
    return std::make_unique<SocketListener>(reactor, std::move(fd));
}

Result<std::unique_ptr<Stream>> Reactor::connect(const SocketAddress& address) {
    auto fd = startConnect(address);
    if (!fd) return fd.status();
    return makeStream(*this, std::move(*fd));
}

}  // namespace troupe
