#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {

/// A server on the test's own reactor that answers what a real one never would. Each time bytes come, `answer` gets all
/// that came over that connection so far (to consume) and returns what to send.
class FakeServer {
  public:
    using Answer = std::function<std::string(std::string& received)>;

    FakeServer(TestReactor& reactor, Answer answer)
        : reactor_(reactor),
          answer_(std::move(answer)),
          listener_(std::move(listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0)).value())) {
        reactor_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
    }
    ~FakeServer() {
        reactor_.unwatch(listener_.get());
        dropAll();
    }
    FakeServer(const FakeServer&) = delete;
    FakeServer& operator=(const FakeServer&) = delete;

    std::string uri() const { return "redis://" + SocketAddress::local(listener_.get())->toString(); }
    std::size_t accepted() const { return accepted_; }
    std::size_t open() const { return clients_.size(); }
    void setAnswer(Answer answer) { answer_ = std::move(answer); }
    void dropAll() {
        for (auto& [fd, client] : clients_) reactor_.unwatch(fd);
        clients_.clear();
    }
    /// The same without an orderly end: the next bytes that a client sends meet an error.
    void resetAll() {
        const linger at_once{1, 0};
        for (auto& [fd, client] : clients_) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        dropAll();
    }
    /// To every connection, unasked.
    void say(const std::string& bytes) {
        for (auto& [fd, client] : clients_) push(fd, bytes);
    }

    /// Takes one command off `received`; empty when it is not whole yet.
    static std::vector<std::string> take(std::string& received) {
        std::size_t at = 0;
        const auto number = [&](char kind) -> long {
            const std::size_t end = received.find("\r\n", at);
            if (end == std::string::npos || received[at] != kind) return -1;
            const long value = std::atol(received.c_str() + at + 1);
            at = end + 2;
            return value;
        };
        std::vector<std::string> arguments;
        const long count = number('*');
        for (long i = 0; i < count; ++i) {
            const long length = number('$');
            if (length < 0 || received.size() < at + static_cast<std::size_t>(length) + 2) return {};
            arguments.push_back(received.substr(at, static_cast<std::size_t>(length)));
            at += static_cast<std::size_t>(length) + 2;
        }
        if (count > 0) received.erase(0, at);
        return arguments;
    }

    /// Answers the greeting as Redis does, and every other command with `other(arguments)`.
    static Answer greeting(std::function<std::string(const std::vector<std::string>&)> other) {
        return [other = std::move(other)](std::string& received) {
            std::string reply;
            for (auto command = take(received); !command.empty(); command = take(received)) {
                if (command[0] == "PING")
                    reply += "+PONG\r\n";
                else if (command[0] == "AUTH" || command[0] == "SELECT")
                    reply += "+OK\r\n";
                else
                    reply += other(command);
            }
            return reply;
        };
    }

  private:
    struct Client {
        UniqueFd fd;
        std::string received;
    };

    void accept() {
        UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd) return;
        ++accepted_;
        const int number = fd.get();
        clients_[number].fd = std::move(fd);
        reactor_.watch(number, EPOLLIN, [this, number](std::uint32_t) { receive(number); });
    }
    void receive(int fd) {
        std::array<char, 65536> bytes;
        const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
        if (got <= 0) {
            reactor_.unwatch(fd);
            clients_.erase(fd);
            return;
        }
        auto& client = clients_[fd];
        client.received.append(bytes.data(), static_cast<std::size_t>(got));
        const std::string reply = answer_(client.received);
        if (clients_.count(fd) != 0) push(fd, reply);
    }
    static void push(int fd, const std::string& bytes) {
        // What does not fit is dropped: enough for what tests say.
        if (!bytes.empty()) static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }

    TestReactor& reactor_;
    Answer answer_;
    UniqueFd listener_;
    std::map<int, Client> clients_;
    std::size_t accepted_ = 0;
};

}  // namespace troupe::test
