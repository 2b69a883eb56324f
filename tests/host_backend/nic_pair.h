#pragma once

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host_backend/host_nic.h"
#include "host_backend/socket.h"
#include "tests/support/engine_pair.h"
#include "tests/support/pump.h"
#include "transports/memory_file.h"

namespace troupe::test {

/// What an engine would have around one HostNic. Two of them in one process are two processes to each other: they
/// differ in incarnation, and process_vm calls work on the own process as on any other.
struct HostNode {
    explicit HostNode(std::chrono::milliseconds handshake = std::chrono::milliseconds(kPatience),
                      Logger log = makeSilentLogger(), std::shared_ptr<const ClusterAuth> auth = nullptr) {
        config.host_chunk_bytes = 64u << 10;
        config.handshake_timeout = handshake;
        auto made = std::make_shared<host::HostShared>(
            host::HostShared{config, table, Incarnation::random(), std::move(log), {}, {}, std::move(auth)});
        made->socket = "troupe/" + made->incarnation.toString();
        auto listener = host::listenAt(made->socket, 16);
        EXPECT_TRUE(listener) << listener.status().toString();
        shared = made;
        NicInfo info;
        info.name = "host0";
        info.window_bytes = 64u << 20;
        info.window_requests = 4096;
        nic = std::make_unique<HostNic>(info, shared, listener ? std::move(*listener) : UniqueFd());
    }

    std::shared_ptr<const Peer> asPeer() const {
        auto desc = std::make_shared<SegmentDesc>();
        desc->incarnation = shared->incarnation;
        desc->host_socket = shared->socket;
        return std::make_shared<const Peer>(Peer{2, "peer", "127.0.0.1", desc});
    }
    std::uint64_t add(void* addr, std::size_t length, bool remote = true, int file = -1) {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(addr), length};
        region.remote_accessible = remote;
        region.file = file;
        const auto reserved = table.reserve(region);
        EXPECT_TRUE(reserved) << reserved.status().toString();
        table.commit(reserved->id);
        return reserved->id;
    }
    void poll() { nic->poll(Clock::now(), sweep); }
    std::size_t completed() const {
        std::size_t count = 0;
        for (const Completion& done : sweep.completed) count += done.requests;
        return count;
    }

    Config config;
    RegistrationTable table;
    std::shared_ptr<const host::HostShared> shared;
    std::unique_ptr<HostNic> nic;
    Sweep sweep;
    /// A request has; the sweep may only tell of a path.
    bool ended() const { return !sweep.completed.empty() || !sweep.failed.empty(); }
};

/// Memory of an owner: of a kind, with its region.
struct OwnerMemory {
    OwnerMemory(HostNode& node, bool mapped, std::size_t bytes) : plain(mapped ? 4096 : bytes) {
        if (mapped) {
            auto made = MemoryFile::create(bytes, false);
            EXPECT_TRUE(made) << made.status().toString();
            file = std::move(*made);
        }
        data = mapped ? file->data() : plain.data();
        id = node.add(data, bytes, true, mapped ? file->fd() : -1);
    }
    std::uint64_t at(std::size_t offset = 0) const { return reinterpret_cast<std::uint64_t>(data) + offset; }

    Buffer plain;
    std::unique_ptr<MemoryFile> file;
    std::byte* data = nullptr;
    std::uint64_t id = 0;
};

}  // namespace troupe::test
