#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tcp_backend/tcp_transport.h"
#include "tests/support/pump.h"

namespace troupe::tcp::testing {

/// Everything an engine would give a TCP transport, with one Nic that the test polls itself.
struct Node {
    explicit Node(Config configuration = {}, const std::string& host = "127.0.0.1", const std::string& segment = "b",
                  Logger logger = makeSilentLogger(), std::shared_ptr<const ClusterAuth> its_auth = nullptr)
        : config(std::move(configuration)),
          incarnation(Incarnation::random()),
          bind_host(host),
          name(segment),
          log(std::move(logger)),
          auth(std::move(its_auth)) {
        install();
    }

    void install() {
        transport = std::make_unique<TcpTransport>();
        TransportContext context{config, table, incarnation, bind_host, 1, log, auth};
        context.installation = ++installations;
        const Status status = transport->install(context);
        ASSERT_TRUE(status.isOk()) << status.toString();
        nic = std::move(transport->takeNics().front().nic);
    }

    /// This node as others see it.
    std::shared_ptr<const Peer> asPeer() const {
        auto desc = std::make_shared<SegmentDesc>();
        desc->name = name;
        desc->incarnation = incarnation;
        transport->describe(*desc);
        auto peer = std::make_shared<Peer>();
        peer->name = name;
        peer->host = bind_host;
        peer->desc = desc;
        return peer;
    }

    std::uint64_t registerMemory(const void* data, std::size_t length, bool remote = true) {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(data), length};
        region.remote_accessible = remote;
        const auto reserved = table.reserve(region);
        EXPECT_TRUE(reserved.isOk()) << reserved.status().toString();
        table.commit(reserved->id);
        return reserved->id;
    }

    bool poll() { return nic && nic->poll(Clock::now(), sweep); }

    Config config;
    RegistrationTable table;
    Incarnation incarnation;
    std::string bind_host;
    std::string name;
    Logger log;
    std::shared_ptr<const ClusterAuth> auth;
    std::unique_ptr<TcpTransport> transport;
    std::unique_ptr<Nic> nic;
    Sweep sweep;
    std::uint32_t installations = 0;
};

/// An initiator `a` with a path to a target `b`.
struct Pair {
    explicit Pair(Config config = {}, const std::string& host = "127.0.0.1") : Pair(config, host, nullptr, nullptr) {}
    Pair(const Config& config, const std::string& host, std::shared_ptr<const ClusterAuth> of_a,
         std::shared_ptr<const ClusterAuth> of_b)
        : a(config, host, "a", makeSilentLogger(), std::move(of_a)),
          b(config, host, "b", makeSilentLogger(), std::move(of_b)) {
        const auto opened = a.nic->openPath(b.asPeer());
        EXPECT_TRUE(opened.isOk()) << opened.status().toString();
        path = *opened;
    }

    /// Polls both until `done`, or for a long time.
    bool pump(const std::function<bool()>& done) { return test::pumpNodes(done, a, b); }

    /// Posts everything, as the window allows, and waits until each request ended.
    void run(std::vector<WorkRequest> requests) {
        std::size_t posted = 0;
        const std::size_t before = ended();
        ASSERT_TRUE(pump([&] {
            if (posted < requests.size()) posted += a.nic->post(path, std::span(requests).subspan(posted));
            return ended() - before == requests.size();
        })) << "only "
            << ended() - before << " of " << requests.size() << " ended";
    }
    std::size_t completed() const {
        std::size_t count = 0;
        for (const auto& completion : a.sweep.completed) count += completion.requests;
        return count;
    }
    std::size_t ended() const { return completed() + a.sweep.failed.size(); }
    /// The one failure there is.
    const Failure& failure() const {
        static const Failure none{};
        EXPECT_EQ(a.sweep.failed.size(), 1u);
        return a.sweep.failed.empty() ? none : a.sweep.failed.front();
    }

    Node a;
    Node b;
    PathId path = 0;
};

inline WorkRequest request(Opcode opcode, void* local, const void* remote, std::uint64_t length,
                           std::uint64_t cookie = 1) {
    WorkRequest result;
    result.local = static_cast<std::byte*>(local);
    result.remote = reinterpret_cast<std::uint64_t>(remote);
    result.length = length;
    result.cookie = cookie;
    result.opcode = opcode;
    return result;
}
inline WorkRequest write(void* local, const void* remote, std::uint64_t length, std::uint64_t cookie = 1) {
    return request(Opcode::Write, local, remote, length, cookie);
}
inline WorkRequest read(void* local, const void* remote, std::uint64_t length, std::uint64_t cookie = 1) {
    return request(Opcode::Read, local, remote, length, cookie);
}

inline std::vector<char> noise(std::size_t size, unsigned seed = 1) {
    std::vector<char> data(size);
    std::mt19937_64 random(seed);
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(data.data() + i, &word, 8);
    }
    for (; i < size; ++i) data[i] = static_cast<char>(random());
    return data;
}

}  // namespace troupe::tcp::testing
