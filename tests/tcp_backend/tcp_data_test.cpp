#include <poll.h>

#include <algorithm>
#include <numeric>

#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {
namespace {

/// Writes and reads back `length` bytes at an odd place and checks what lies around it.
void roundTrip(Pair& pair, std::size_t length, std::size_t shift) {
    const std::size_t margin = 64;
    auto source = noise(length + 128, static_cast<unsigned>(length + shift));
    std::vector<char> target(length + shift + 2 * margin, 'x');
    std::vector<char> back(length + shift + 2 * margin, 'y');
    const auto id = pair.b.registerMemory(target.data(), target.size());
    char* at = target.data() + margin + shift;
    pair.run({write(source.data() + 1, at, length)});
    ASSERT_TRUE(pair.a.sweep.failed.empty()) << pair.failure().cause.toString();
    EXPECT_EQ(std::memcmp(source.data() + 1, at, length), 0);
    EXPECT_TRUE(std::all_of(target.data(), at, [](char c) { return c == 'x'; }));
    EXPECT_TRUE(std::all_of(at + length, target.data() + target.size(), [](char c) { return c == 'x'; }));
    char* home = back.data() + margin + shift;
    pair.run({read(home, at, length)});
    ASSERT_TRUE(pair.a.sweep.failed.empty()) << pair.failure().cause.toString();
    EXPECT_EQ(std::memcmp(source.data() + 1, home, length), 0);
    EXPECT_TRUE(std::all_of(back.data(), home, [](char c) { return c == 'y'; }));
    EXPECT_TRUE(std::all_of(home + length, back.data() + back.size(), [](char c) { return c == 'y'; }));
    ASSERT_TRUE(pair.b.table.beginRemoval(reinterpret_cast<std::uint64_t>(target.data())).isOk());
    pair.b.table.remove(id);
}

TEST(TcpBackend, CarriesEveryLengthAtEveryAlignment) {
    Pair pair;
    for (const std::size_t length :
         {0,     1,     7,     8,     31,     32,     33,     4095,    4096,    4097,   16383,
          16384, 16385, 65536, 65537, 262143, 262144, 262145, 1048576, 1048577, 5000001})
        for (const std::size_t shift : {0, 1, 3}) roundTrip(pair, length, shift);
    roundTrip(pair, 64u << 20, 5);
}

TEST(TcpBackend, ChecksumsPassUndamagedBytes) {
    Config config;
    config.tcp_crc = true;
    Pair pair(config);
    for (const std::size_t length : {0, 1, 4097, 16385, 262145, 1048577, 5000001}) roundTrip(pair, length, 1);
}

TEST(TcpBackend, SpeaksIpv6) {
    if (!listenOn(*SocketAddress::fromNumeric("::1", 0)).isOk()) GTEST_SKIP() << "no IPv6 here";
    Pair pair({}, "::1");
    roundTrip(pair, 100001, 1);
}

TEST(TcpBackend, AZeroLengthRequestCompletesAnywhere) {
    Pair pair;
    char local = 0;
    pair.run({write(&local, nullptr, 0, 5), read(&local, nullptr, 0, 5)});
    EXPECT_EQ(pair.completed(), 2u);
}

TEST(TcpBackend, AWriteIsAppliedBeforeItIsCompleted) {
    Pair pair;
    auto source = noise(8u << 20);
    std::vector<char> target(source.size());
    pair.b.registerMemory(target.data(), target.size());
    const std::size_t slice = 100000;
    std::vector<WorkRequest> requests;
    for (std::size_t at = 0; at < source.size(); at += slice)
        requests.push_back(
            write(source.data() + at, target.data() + at, std::min(slice, source.size() - at), requests.size()));
    std::size_t posted = 0;
    std::size_t checked = 0;
    ASSERT_TRUE(pair.pump([&] {
        posted += pair.a.nic->post(pair.path, std::span(requests).subspan(posted));
        for (; checked < pair.a.sweep.completed.size(); ++checked) {
            const auto at = pair.a.sweep.completed[checked].cookie * slice;
            const auto length = std::min(slice, source.size() - at);
            EXPECT_EQ(std::memcmp(source.data() + at, target.data() + at, length), 0) << at;
        }
        return checked == requests.size();
    }));
}

/// Many requests of mixed sizes and both directions at once, over `lanes` connections.
void mixed(Config config) {
    Pair pair(config);
    const std::size_t area = 4u << 20;
    auto source = noise(area, 3);
    auto pool = noise(area, 4);  // Read from.
    std::vector<char> target(area, 'x');
    std::vector<char> back(area, 'y');
    pair.b.registerMemory(target.data(), target.size());
    pair.b.registerMemory(pool.data(), pool.size());
    std::vector<WorkRequest> requests;
    std::mt19937 random(9);
    const std::size_t sizes[] = {1, 8, 100, 4096, 5000, 16000, 16384, 40000, 300000};
    for (std::size_t at = 0; at < area;) {
        const std::size_t length = std::min<std::size_t>(sizes[random() % 9], area - at);
        requests.push_back(write(source.data() + at, target.data() + at, length, random() % 3));
        requests.push_back(read(back.data() + at, pool.data() + at, length, random() % 3));
        at += length;
    }
    std::shuffle(requests.begin(), requests.end(), random);
    std::uint64_t expected = 0;
    for (const auto& one : requests) expected += one.length;
    pair.run(requests);
    ASSERT_TRUE(pair.a.sweep.failed.empty()) << pair.failure().cause.toString();
    EXPECT_EQ(pair.completed(), requests.size());
    std::uint64_t bytes = 0;
    for (const auto& completion : pair.a.sweep.completed) bytes += completion.bytes;
    EXPECT_EQ(bytes, expected);
    EXPECT_EQ(source, target);
    EXPECT_EQ(pool, back);
}

TEST(TcpBackend, KeepsManyMixedRequestsApart) { mixed({}); }

TEST(TcpBackend, StripesRequestsOverLanes) {
    Config config;
    config.tcp_lanes = 3;
    mixed(config);
}

TEST(TcpBackend, KeepsThemApartWithChecksumsAndTightSocketBuffers) {
    Config config;
    config.tcp_lanes = 2;
    config.tcp_crc = true;
    config.tcp_socket_buffer = 128u << 10;  // Below two loopback segments TCP itself crawls.
    mixed(config);
}

TEST(TcpBackend, ManyPeersAreServedFairly) {
    // More connections than are tried directly: the epoll set leads.
    Node target;
    std::vector<char> memory(20 * 65536, 'x');
    target.registerMemory(memory.data(), memory.size());
    std::vector<std::unique_ptr<Node>> initiators;
    std::vector<std::vector<char>> sources;
    for (unsigned i = 0; i < 20; ++i) {
        initiators.push_back(std::make_unique<Node>(Config{}, "127.0.0.1", "a"));
        sources.push_back(noise(65536, i));
        const auto path = initiators[i]->nic->openPath(target.asPeer());
        ASSERT_TRUE(path.isOk());
        const auto one = write(sources[i].data(), memory.data() + i * 65536, 65536);
        ASSERT_EQ(initiators[i]->nic->post(*path, {&one, 1}), 1u);
    }
    const auto limit = Clock::now() + std::chrono::seconds(60);
    const auto done = [&] {
        return std::all_of(initiators.begin(), initiators.end(), [](auto& n) { return !n->sweep.completed.empty(); });
    };
    while (!done() && Clock::now() < limit) {
        for (auto& node : initiators) node->poll();
        target.poll();
    }
    for (unsigned i = 0; i < 20; ++i) {
        ASSERT_FALSE(initiators[i]->sweep.completed.empty()) << i;
        EXPECT_EQ(std::memcmp(sources[i].data(), memory.data() + i * 65536, 65536), 0);
    }
}

TEST(TcpBackend, OneInitiatorDrivesManyPaths) {
    Config config;
    config.tcp_lanes = 2;
    Node initiator(config, "127.0.0.1", "a");
    std::vector<std::unique_ptr<Node>> targets;
    std::vector<std::vector<char>> memories;
    auto source = noise(500000);
    for (unsigned i = 0; i < 12; ++i) {
        targets.push_back(std::make_unique<Node>(config));
        memories.emplace_back(source.size());
        targets[i]->registerMemory(memories[i].data(), memories[i].size());
        const auto path = initiator.nic->openPath(targets[i]->asPeer());
        ASSERT_TRUE(path.isOk());
        for (std::size_t at = 0; at < source.size(); at += 5000) {
            const auto one = write(source.data() + at, memories[i].data() + at, 5000, i);
            ASSERT_EQ(initiator.nic->post(*path, {&one, 1}), 1u);
        }
    }
    const auto limit = Clock::now() + std::chrono::seconds(60);
    std::size_t done = 0;
    while (done < 12 * 100 && Clock::now() < limit) {
        initiator.poll();
        for (auto& node : targets) node->poll();
        done = 0;
        for (const auto& completion : initiator.sweep.completed) done += completion.requests;
    }
    EXPECT_TRUE(initiator.sweep.failed.empty());
    for (const auto& memory : memories) EXPECT_EQ(memory, source);
}

TEST(TcpBackend, ThePostTakesWhatTheWindowHolds) {
    Config config;
    config.tcp_window_requests = 10;
    config.tcp_window_bytes = 1u << 20;
    Pair pair(config);
    std::vector<char> memory(4u << 20);
    pair.b.registerMemory(memory.data(), memory.size());
    std::vector<char> local(4u << 20);
    EXPECT_EQ(pair.a.nic->info().window_requests, 10u);
    std::vector<WorkRequest> small(20, read(local.data(), memory.data(), 8));
    EXPECT_EQ(pair.a.nic->post(pair.path, small), 10u);
    EXPECT_EQ(pair.a.nic->post(pair.path, small), 0u);
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 10; }));
    std::vector<WorkRequest> large(5, read(local.data(), memory.data(), 400000));
    EXPECT_EQ(pair.a.nic->post(pair.path, large), 2u);
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 12; }));
    // A request larger than the window goes alone.
    const auto huge = read(local.data(), memory.data(), 4u << 20);
    EXPECT_EQ(pair.a.nic->post(pair.path, {&huge, 1}), 1u);
    EXPECT_EQ(pair.a.nic->post(pair.path, {&huge, 1}), 0u);
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 13; }));
}

TEST(TcpBackend, NothingIsSentBeforeThePoll) {
    Pair pair;
    std::vector<char> target(8, 'x');
    std::vector<char> source(8, 'y');
    pair.b.registerMemory(target.data(), target.size());
    pair.run({read(source.data(), target.data(), 0)});  // Up.
    source.assign(8, 'y');
    const auto one = write(source.data(), target.data(), 8);
    ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
    for (int i = 0; i < 100; ++i) pair.b.poll();
    EXPECT_EQ(target[0], 'x');
    source.assign(8, 'z');  // Ours until the poll.
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 2; }));
    EXPECT_EQ(target[0], 'z');
}

TEST(TcpBackend, BackPressureHoldsWhileTheTargetSleeps) {
    Config config;
    config.tcp_window_bytes = 64u << 20;
    Pair pair(config);
    auto source = noise(64u << 20);
    std::vector<char> target(source.size());
    pair.b.registerMemory(target.data(), target.size());
    pair.run({write(source.data(), target.data(), 1)});
    std::vector<WorkRequest> requests;
    for (std::size_t at = 0; at < source.size(); at += 1u << 20)
        requests.push_back(write(source.data() + at, target.data() + at, 1u << 20));
    ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
    for (int i = 0; i < 2000; ++i) pair.a.poll();
    EXPECT_FALSE(pair.a.poll());  // The socket is full, and it says so.
    EXPECT_EQ(pair.completed(), 1u);
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 1 + requests.size(); }));
    EXPECT_EQ(source, target);
}

TEST(TcpBackend, ReadsWaitWhileTheInitiatorSleeps) {
    Config config;
    config.tcp_window_bytes = 64u << 20;
    Pair pair(config);
    auto source = noise(64u << 20);
    std::vector<char> local(source.size());
    pair.b.registerMemory(source.data(), source.size());
    pair.run({read(local.data(), source.data(), 1)});
    std::vector<WorkRequest> requests;
    for (std::size_t at = 0; at < source.size(); at += 1u << 20)
        requests.push_back(read(local.data() + at, source.data() + at, 1u << 20));
    ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
    pair.a.poll();
    for (int i = 0; i < 2000; ++i) pair.b.poll();
    EXPECT_FALSE(pair.b.poll());
    EXPECT_TRUE(pair.b.nic->servesPeerIn({reinterpret_cast<std::uint64_t>(source.data() + source.size() - 1), 1}));
    ASSERT_TRUE(pair.pump([&] { return pair.completed() == 1 + requests.size(); }));
    EXPECT_EQ(source, local);
    EXPECT_FALSE(pair.b.nic->servesPeerIn({reinterpret_cast<std::uint64_t>(source.data()), source.size()}));
}

/// Sleeps as a loop does: arm, then wait for the descriptor or the deadline.
void sleepUntilReady(Node& node, Node& other) {
    if (!node.nic->arm() || !other.nic->arm()) return;
    pollfd waits[2] = {{node.nic->waitFd(), POLLIN, 0}, {other.nic->waitFd(), POLLIN, 0}};
    const auto next = std::min(node.nic->nextDeadline(), other.nic->nextDeadline());
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(std::min<Duration>(
        next == kForever ? std::chrono::seconds(20) : next - Clock::now(), std::chrono::seconds(20)));
    EXPECT_NE(::poll(waits, 2, std::max(0, static_cast<int>(left.count()) + 1)), 0) << "slept through";
}

TEST(TcpBackend, ALoopThatSleepsBetweenPassesMissesNothing) {
    Config config;
    config.tcp_socket_buffer = 128u << 10;  // So that writability matters.
    Pair pair(config);
    auto source = noise(3u << 20);
    std::vector<char> target(source.size());
    std::vector<char> back(source.size());
    pair.b.registerMemory(target.data(), target.size());
    for (int round = 0; round < 2; ++round) {
        const std::size_t before = pair.completed();
        std::vector<WorkRequest> requests;
        for (std::size_t at = 0; at < source.size(); at += 256u << 10)
            requests.push_back(request(round ? Opcode::Read : Opcode::Write, (round ? back : source).data() + at,
                                       target.data() + at, 256u << 10));
        ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
        const auto limit = Clock::now() + std::chrono::seconds(60);
        while (pair.completed() - before < requests.size() && Clock::now() < limit) {
            const bool moved_a = pair.a.poll();
            const bool moved_b = pair.b.poll();
            if (!moved_a && !moved_b) sleepUntilReady(pair.a, pair.b);
        }
        ASSERT_EQ(pair.completed() - before, requests.size());
    }
    EXPECT_EQ(source, target);
    EXPECT_EQ(source, back);
}

TEST(TcpBackend, AnIdlePairSleepsForGood) {
    Pair pair;
    char local = 0;
    pair.run({read(&local, &local, 0)});
    for (int i = 0; i < 1000; ++i) {
        pair.a.poll();
        pair.b.poll();
    }
    EXPECT_FALSE(pair.a.poll());
    EXPECT_FALSE(pair.b.poll());
    ASSERT_TRUE(pair.a.nic->arm());
    ASSERT_TRUE(pair.b.nic->arm());
    pollfd waits[2] = {{pair.a.nic->waitFd(), POLLIN, 0}, {pair.b.nic->waitFd(), POLLIN, 0}};
    EXPECT_EQ(::poll(waits, 2, 50), 0);
    // Half a handshake time-out may still be noted; nothing else is.
    pair.a.nic->poll(Clock::now() + std::chrono::hours(1), pair.a.sweep);
    pair.b.nic->poll(Clock::now() + std::chrono::hours(1), pair.b.sweep);
    EXPECT_EQ(pair.a.nic->nextDeadline(), kForever);
    EXPECT_EQ(pair.b.nic->nextDeadline(), kForever);
}

}  // namespace
}  // namespace troupe::tcp::testing
