#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/verbs_backend/soft_verbs.h"
#include "tests/verbs_backend/verbs_pair.h"

namespace troupe::verbs::testing {

using namespace std::chrono_literals;

inline Config softConfig(const std::string& devices) {
    Config config;
    config.rdma_devices = devices;
    config.rdma_drain_timeout = 50ms;
    config.connect_timeout = 2000ms;
    return config;
}

/// An initiator on s0 and a target on s1 with memory on both sides. What is left over, or was done against the rules,
/// is a failure.
struct SoftPair {
    explicit SoftPair(Config base = softConfig("s0"))
        : soft(std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"})),
          a(base, soft, "a"),
          b(softConfig("s1"), soft, "b") {
        EXPECT_TRUE(a.registerMemory(local.data(), local.size()));
        EXPECT_TRUE(b.registerMemory(remote.data(), remote.size()));
        const auto opened = nic().openPath(b.asPeer());
        EXPECT_TRUE(opened) << opened.status().toString();
        path = *opened;
    }
    ~SoftPair() {
        a.end();
        b.end();
    }

    Nic& nic() { return *a.nics.front(); }
    void run(const std::vector<WorkRequest>& requests) { testing::run(a, nic(), path, requests); }
    /// Many writes of 64 bytes each.
    std::vector<WorkRequest> many(std::size_t count, Opcode opcode = Opcode::Write) const {
        std::vector<WorkRequest> requests;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t at = i * 64 % local.size();
            requests.push_back(request(opcode, local.data() + at, remote.data() + at, 64, i));
        }
        return requests;
    }
    /// Posts that many requests, which stay where they are until hold(false). How many the Nic took.
    std::size_t postHeld(std::size_t count) {
        soft->hold(true);
        const std::size_t posted = nic().post(path, many(count));
        nic().poll(Clock::now(), a.sweep);
        return posted;
    }
    void expectWorks() {
        const auto limit = Clock::now() + 30s;
        do {
            a.sweep.clear();
            std::fill(remote.begin(), remote.end(), 'x');
            run({write(local.data(), remote.data(), local.size())});
        } while (!a.sweep.failed.empty() && Clock::now() < limit);
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_TRUE(local == remote);
        a.sweep.clear();
    }

    std::vector<char> local = noise(65536);
    std::vector<char> remote = std::vector<char>(65536);
    std::shared_ptr<SoftVerbs> soft;
    CleanEnd clean_end{soft};
    Node a;
    Node b;
    PathId path = 0;
};

}  // namespace troupe::verbs::testing
