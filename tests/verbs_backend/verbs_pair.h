#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/verbs_backend/switchboard.h"
#include "verbs_backend/verbs_transport.h"

namespace troupe::verbs::testing {

/// Everything an engine would give an RDMA transport, with Nics that the test polls itself.
struct Node {
    Node(Config configuration, std::shared_ptr<VerbsApi> verbs_api, const std::string& segment,
         Logger logger = makeSilentLogger(), std::shared_ptr<Switchboard> switchboard = nullptr,
         std::shared_ptr<MemoryExporter> exporter = nullptr, std::shared_ptr<const ClusterAuth> its_auth = nullptr)
        : config(std::move(configuration)),
          api(std::move(verbs_api)),
          incarnation(Incarnation::random()),
          name(segment),
          log(std::move(logger)),
          board(std::move(switchboard)),
          device_memory(std::move(exporter)),
          auth(std::move(its_auth)) {
        install();
    }
    ~Node() { end(); }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void install() {
        transport = std::make_unique<VerbsTransport>(api);
        if (board) line = board->join(incarnation);
        installed = transport->install({config, table, incarnation, "127.0.0.1", 1, log, auth, line.get(),
                                        device_memory, nullptr, [this] { ++described_anew; }});
        ASSERT_TRUE(installed.isOk()) << installed.toString();
        if (board) board->serve(incarnation, *transport);
        for (auto& placed : transport->takeNics()) nics.push_back(std::move(placed.nic));
    }
    /// As an engine that is destroyed and started anew.
    void restart() {
        end();
        incarnation = Incarnation::random();
        install();
    }
    void end() {
        if (board) board->leave(incarnation);
        nics.clear();
        for (const Region& region : regions) {
            if (transport) {
                EXPECT_TRUE(transport->unregisterMemory(region).isOk());
            }
            static_cast<void>(table.beginRemoval(region.range.addr));
            table.remove(region.id);
        }
        regions.clear();
        transport.reset();
        line.reset();
    }

    /// This node as others see it.
    std::shared_ptr<const Peer> asPeer() const {
        auto desc = std::make_shared<SegmentDesc>();
        desc->name = name;
        desc->incarnation = incarnation;
        for (const Region& region : table.regions().load()->all()) {
            BufferDesc buffer;
            buffer.addr = region.range.addr;
            buffer.length = region.range.length;
            buffer.location = region.location;
            buffer.remote_accessible = region.remote_accessible;
            desc->buffers.push_back(buffer);
        }
        transport->describe(*desc);
        auto peer = std::make_shared<Peer>();
        peer->name = name;
        peer->host = "127.0.0.1";
        peer->desc = desc;
        return peer;
    }

    Status registerMemory(const void* data, std::size_t length, bool remote = true, const std::string& location = "*") {
        Region region;
        region.location = location;
        region.range = {reinterpret_cast<std::uint64_t>(data), length};
        region.remote_accessible = remote;
        const auto reserved = table.reserve(region);
        if (!reserved) return reserved.status();
        const Status taken = transport->registerMemory(*reserved);
        if (!taken) {
            table.remove(reserved->id);
            return taken;
        }
        table.commit(reserved->id);
        regions.push_back(*reserved);
        return {};
    }
    /// Unregisters what starts at `data`.
    void unregisterMemory(const void* data) {
        const auto region = table.beginRemoval(reinterpret_cast<std::uint64_t>(data));
        ASSERT_TRUE(region) << region.status().toString();
        const Status gone = transport->unregisterMemory(*region);
        ASSERT_TRUE(gone) << gone.toString();
        table.remove(region->id);
        std::erase_if(regions, [&](const Region& known) { return known.id == region->id; });
    }

    Config config;
    std::shared_ptr<VerbsApi> api;
    RegistrationTable table;
    Incarnation incarnation;
    std::string name;
    Logger log;
    std::shared_ptr<Switchboard> board;
    std::shared_ptr<MemoryExporter> device_memory;
    std::unique_ptr<ControlExchange> line;
    std::shared_ptr<const ClusterAuth> auth;
    Status installed;
    std::unique_ptr<VerbsTransport> transport;
    std::vector<std::unique_ptr<Nic>> nics;
    std::vector<Region> regions;
    std::atomic<int> described_anew{0};  ///< How often the transport said so.
    Sweep sweep;
};

/// Polls `a`'s Nics until `done`, sleeping on their descriptors when nothing moves; false after a long time.
inline bool pump(Node& node, const std::function<bool()>& done,
                 std::chrono::seconds patience = std::chrono::seconds(60)) {
    const auto limit = Clock::now() + patience;
    while (!done()) {
        if (Clock::now() > limit) return false;
        bool moved = false;
        for (const auto& nic : node.nics) moved = nic->poll(Clock::now(), node.sweep) || moved;
        // The software device and Soft-RoCE have threads of their own, which may share this core.
        if (!moved) std::this_thread::yield();
    }
    return true;
}

inline WorkRequest request(Opcode opcode, const void* local, const void* remote, std::uint64_t length,
                           std::uint64_t cookie = 1) {
    WorkRequest result;
    result.local = static_cast<std::byte*>(const_cast<void*>(local));
    result.remote = reinterpret_cast<std::uint64_t>(remote);
    result.length = length;
    result.cookie = cookie;
    result.opcode = opcode;
    return result;
}
inline WorkRequest write(const void* local, const void* remote, std::uint64_t length, std::uint64_t cookie = 1) {
    return request(Opcode::Write, local, remote, length, cookie);
}
inline WorkRequest read(const void* local, const void* remote, std::uint64_t length, std::uint64_t cookie = 1) {
    return request(Opcode::Read, local, remote, length, cookie);
}

inline std::size_t completedIn(const Sweep& sweep) {
    std::size_t count = 0;
    for (const auto& completion : sweep.completed) count += completion.requests;
    return count;
}
inline std::size_t endedIn(const Sweep& sweep) { return completedIn(sweep) + sweep.failed.size(); }

/// Posts everything on one path, as its window allows, and waits until each request ended.
inline void run(Node& node, Nic& nic, PathId path, const std::vector<WorkRequest>& requests) {
    std::size_t posted = 0;
    const std::size_t before = endedIn(node.sweep);
    ASSERT_TRUE(pump(node,
                     [&] {
                         if (posted < requests.size()) posted += nic.post(path, std::span(requests).subspan(posted));
                         return endedIn(node.sweep) - before == requests.size();
                     }))
        << "only " << endedIn(node.sweep) - before << " of " << requests.size() << " ended";
}

inline std::vector<char> noise(std::size_t size, unsigned seed = 1) {
    std::vector<char> data(size);
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i + 8 <= size; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(data.data() + i, &word, 8);
    }
    for (std::size_t i = size & ~std::size_t{7}; i < size; ++i) data[i] = static_cast<char>(random());
    return data;
}

/// "failed: ..." of all failures, for messages.
inline std::string failuresOf(const Sweep& sweep) {
    std::string text;
    for (const Failure& failure : sweep.failed) text += failure.cause.toString() + "\n";
    return text;
}

}  // namespace troupe::verbs::testing
