#include <sys/mman.h>

#include <algorithm>

#include "tests/tcp_backend/raw_peer.h"
#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {
namespace {

/// Page-aligned memory that can be taken away.
struct Pages {
    explicit Pages(std::size_t bytes)
        : size(bytes),
          data(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
    ~Pages() { munmap(data, size); }
    void forbid() { ASSERT_EQ(mprotect(data, size, PROT_NONE), 0); }
    std::size_t size;
    char* data;
};

std::vector<WorkRequest> sliced(Opcode opcode, char* local, char* remote, std::size_t length, std::size_t slice) {
    std::vector<WorkRequest> requests;
    for (std::size_t i = 0; i < length; i += slice)
        requests.push_back(request(opcode, local + i, remote + i, slice, i));
    return requests;
}

void expectLost(const Sweep& sweep, std::size_t count, Code code, bool retryable) {
    ASSERT_EQ(sweep.failed.size(), count);
    for (const auto& failure : sweep.failed) {
        ASSERT_EQ(failure.cause.code(), code) << failure.cause.toString();
        ASSERT_EQ(failure.retryable, retryable);
        ASSERT_TRUE(failure.quiesced);
    }
}

TEST(TcpFailure, APeerThatDiesInMidWriteFailsAllQuiescedAndRetryable) {
    Pair pair;
    Pages source(8u << 20);
    std::vector<char> target(source.size);
    pair.b.registerMemory(target.data(), target.size());
    // Each larger than what one pass receives, so that some passes end in the middle of one.
    const auto requests = sliced(Opcode::Write, source.data, target.data(), source.size, 4u << 20);
    ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
    const ByteRange range{reinterpret_cast<std::uint64_t>(target.data()), target.size()};
    ASSERT_TRUE(pair.pump([&] { return pair.b.nic->servesPeerIn(range); }));
    pair.b.nic.reset();
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == requests.size(); }));
    source.forbid();
    expectLost(pair.a.sweep, requests.size() - pair.completed(), Code::ConnectionLost, true);
    const std::string& message = pair.a.sweep.failed.front().cause.message();
    EXPECT_NE(message.find("'b'"), std::string::npos) << message;
    EXPECT_NE(message.find("127.0.0.1:"), std::string::npos) << message;
    EXPECT_NE(message.find("tcp0"), std::string::npos) << message;
    for (int i = 0; i < 1000; ++i) pair.a.poll();  // Would fault if anything still used it.
}

/// A write of which a part lies in the target's socket, unread.
struct HalfSent {
    HalfSent() {
        pair.b.registerMemory(target.data(), target.size());
        pair.run({write(source.data(), target.data(), 1)});
        pair.a.sweep.clear();
        target[0] = 0;
        const auto large = write(source.data(), target.data(), source.size());
        EXPECT_EQ(pair.a.nic->post(pair.path, {&large, 1}), 1u);
        for (int i = 0; i < 100; ++i) pair.a.poll();
    }
    /// Polls the initiator only, for a moment.
    void pollInitiator() {
        for (const auto limit = Clock::now() + std::chrono::milliseconds(20); Clock::now() < limit;) pair.a.poll();
    }
    Pair pair;
    std::vector<char> source = std::vector<char>(8u << 20, 'x');
    std::vector<char> target = std::vector<char>(8u << 20);
};

TEST(TcpFailure, AWriteThatWasResetIsGivenBackOnceTheTargetClosedItsEnd) {
    for (const bool close : {false, true}) {
        HalfSent half;
        Pair& pair = half.pair;
        const Status cause(Code::Canceled, "enough");
        if (close)
            pair.a.nic->closePath(pair.path, cause);
        else
            pair.a.nic->resetPath(pair.path, cause);
        half.pollInitiator();
        EXPECT_TRUE(pair.a.sweep.failed.empty()) << "the target may still apply what lies in its socket";
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
        EXPECT_EQ(pair.failure().cause.code(), Code::Canceled);
        EXPECT_TRUE(pair.failure().fenced);
        // From here on the memory is whoever's comes next.
        std::fill(half.target.begin(), half.target.end(), 'n');
        for (int i = 0; i < 1000; ++i) {
            pair.a.poll();
            pair.b.poll();
        }
        EXPECT_EQ(std::count(half.target.begin(), half.target.end(), 'n'),
                  static_cast<std::ptrdiff_t>(half.target.size()));
    }
}

TEST(TcpFailure, AWriteToATargetThatStandsStillIsGivenBackUnfencedAfterABound) {
    HalfSent half;
    Pair& pair = half.pair;
    pair.a.nic->resetPath(pair.path, {Code::Canceled, "enough"});
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (pair.ended() == 0 && Clock::now() < limit) pair.a.poll();
    EXPECT_FALSE(pair.failure().fenced);
    EXPECT_TRUE(pair.failure().quiesced);
    EXPECT_TRUE(pair.failure().retryable) << "by this lane, whose next connection ends the last one first";
    EXPECT_NE(pair.failure().cause.message().find("may still arrive"), std::string::npos);
    // The lane goes on when the target does.
    pair.a.sweep.clear();
    std::vector<char> newer(half.source.size(), 'n');
    pair.run({write(newer.data(), half.target.data(), newer.size())});
    EXPECT_EQ(pair.completed(), 1u);
    EXPECT_EQ(half.target, newer);
}

TEST(TcpFailure, ARefusedConnectionDoesNotProveThatTheTargetIsGone) {
    Pair pair;
    std::vector<char> source(8u << 20, 'x');
    std::vector<char> target(source.size());
    pair.b.registerMemory(target.data(), target.size());
    Proxy proxy(pair.b.asPeer()->desc->lane_ports[0]);
    pair.path = *pair.a.nic->openPath(at(pair.b.asPeer(), proxy.port()));
    const auto large = write(source.data(), target.data(), source.size());
    ASSERT_EQ(pair.a.nic->post(pair.path, {&large, 1}), 1u);
    // The target greets, and then stands still with a part of it in its socket.
    const ByteRange range{reinterpret_cast<std::uint64_t>(target.data()), target.size()};
    ASSERT_TRUE(pair.pump([&] {
        proxy.pump();
        return pair.b.nic->servesPeerIn(range);
    }));
    proxy.reject();
    pair.a.nic->resetPath(pair.path, {Code::Canceled, "enough"});
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (pair.ended() == 0 && Clock::now() < limit) pair.a.poll();
    ASSERT_EQ(pair.ended(), 1u);
    EXPECT_FALSE(pair.failure().fenced);
    EXPECT_NE(pair.failure().cause.message().find("may still arrive"), std::string::npos)
        << pair.failure().cause.toString();
}

TEST(TcpFailure, WhatOneLossTakesIsOneIncidentHoweverLateItIsGivenBack) {
    constexpr std::size_t kCount = 64;  // Of a MiB each: more than the sockets hold.
    Config config;
    config.tcp_window_bytes = 128u << 20;
    Pair pair(config);
    std::vector<char> source(1u << 20, 'x');
    std::vector<char> target(source.size());
    pair.b.registerMemory(target.data(), target.size());
    std::uint64_t last = 0;
    for (int loss = 0; loss < 2; ++loss) {
        pair.run({write(source.data(), target.data(), 1)});
        pair.a.sweep.clear();
        const std::vector<WorkRequest> requests(kCount, write(source.data(), target.data(), source.size()));
        ASSERT_EQ(pair.a.nic->post(pair.path, requests), kCount);
        for (int i = 0; i < 100; ++i) pair.a.poll();
        pair.a.nic->resetPath(pair.path, {Code::ConnectionLost, "cut"});
        pair.a.poll();
        const std::size_t unsent = pair.a.sweep.failed.size();
        EXPECT_GT(unsent, 0u);
        EXPECT_LT(unsent, kCount) << "what was sent is given back later";
        ASSERT_TRUE(pair.pump([&] { return pair.a.sweep.failed.size() == kCount; }));
        const std::uint64_t incident = pair.a.sweep.failed.front().incident;
        EXPECT_NE(incident, 0u);
        EXPECT_NE(incident, last) << "each loss is one of its own";
        for (const Failure& failure : pair.a.sweep.failed) ASSERT_EQ(failure.incident, incident);
        pair.a.sweep.clear();
        last = incident;
    }
}

TEST(TcpFailure, ARefusedConnectFailsWhatIsPosted) {
    Pair pair;
    pair.b.nic.reset();
    char local[8] = {};
    pair.run({write(local, local, 8), read(local, local, 8)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 2u);
    for (const auto& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::ConnectionRefused) << failure.cause.toString();
        EXPECT_TRUE(failure.retryable);
        EXPECT_NE(failure.cause.message().find("errno 111"), std::string::npos) << failure.cause.message();
    }
}

TEST(TcpFailure, RepeatedFailuresBackOffButAlwaysEnd) {
    Pair pair;
    pair.b.nic.reset();
    char local[8] = {};
    const auto start = Clock::now();
    bool waited = false;
    for (int i = 0; i < 6; ++i) {
        const auto one = write(local, local, 8);
        ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
        pair.a.poll();
        if (pair.a.sweep.failed.size() == static_cast<std::size_t>(i)) {
            const auto next = pair.a.nic->nextDeadline();
            EXPECT_NE(next, kForever);
            waited = waited || next > Clock::now();
        }
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == static_cast<std::size_t>(i + 1); }));
    }
    EXPECT_TRUE(waited);
    EXPECT_GT(Clock::now() - start, std::chrono::milliseconds(40));
    expectLost(pair.a.sweep, 6, Code::ConnectionRefused, true);
}

TEST(TcpFailure, APathHealsOnceThePeerIsBack) {
    Pair pair;
    auto source = noise(100000);
    std::vector<char> target(source.size());
    pair.b.registerMemory(target.data(), target.size());
    pair.run({write(source.data(), target.data(), 10)});
    // Not a restart: the same incarnation cuts its connections.
    for (int i = 0; i < 4; ++i) {
        pair.a.sweep.clear();
        const auto one = read(source.data(), target.data(), 8u);
        ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
        pair.a.nic->resetPath(pair.path, {Code::Canceled, "enough"});
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
        expectLost(pair.a.sweep, 1, Code::Canceled, true);
        pair.a.sweep.clear();
        pair.run({write(source.data(), target.data(), source.size())});
        EXPECT_EQ(pair.completed(), 1u);
    }
}

TEST(TcpFailure, AnotherIncarnationIsToldApartAndIsFinal) {
    Pair pair;
    Node c;  // Another process that got the port.
    std::vector<char> target(100, 'x');
    c.registerMemory(target.data(), target.size());
    const auto peer = at(pair.b.asPeer(), c.asPeer()->desc->lane_ports[0]);
    const auto path = pair.a.nic->openPath(peer);
    ASSERT_TRUE(path.isOk());
    std::vector<char> source(100, 'y');
    for (int i = 0; i < 2; ++i) {
        pair.a.sweep.clear();
        const auto one = write(source.data(), target.data(), 100);
        ASSERT_EQ(pair.a.nic->post(*path, {&one, 1}), 1u);
        ASSERT_TRUE(pair.pump([&] {
            c.poll();
            return pair.ended() == 1;
        }));
        expectLost(pair.a.sweep, 1, Code::StaleIncarnation, false);
        EXPECT_NE(pair.failure().cause.message().find(c.incarnation.toString()), std::string::npos);
    }
    EXPECT_EQ(target, std::vector<char>(100, 'x'));
}

TEST(TcpFailure, AListenerThatNeverGreetsTimesOut) {
    Config config;
    config.handshake_timeout = std::chrono::milliseconds(50);
    config.connect_timeout = std::chrono::milliseconds(50);
    Pair pair(config);
    auto silent = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(silent.isOk());
    const auto path = pair.a.nic->openPath(at(pair.b.asPeer(), SocketAddress::local(silent->get())->port()));
    char local = 0;
    const auto one = write(&local, &local, 1);
    ASSERT_EQ(pair.a.nic->post(*path, {&one, 1}), 1u);
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
    expectLost(pair.a.sweep, 1, Code::Timeout, true);
}

TEST(TcpFailure, ResetEndsAReadAndNothingIsReceivedAfterwards) {
    Pair pair;
    Pages local(8u << 20);
    auto remote = noise(local.size);
    pair.b.registerMemory(remote.data(), remote.size());
    const auto requests = sliced(Opcode::Read, local.data, remote.data(), local.size, 1u << 20);
    ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
    ASSERT_TRUE(pair.pump([&] { return local.data[0] == remote[0] && local.data[100] == remote[100]; }));
    pair.a.nic->resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    local.forbid();
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == requests.size(); }));
    expectLost(pair.a.sweep, requests.size() - pair.completed(), Code::Timeout, true);
    EXPECT_EQ(pair.a.sweep.failed.front().cause.message(), "the deadline passed");
    for (int i = 0; i < 1000; ++i) {
        pair.a.poll();
        pair.b.poll();
    }
    // The path connects anew.
    pair.a.sweep.clear();
    char fresh[100];
    pair.run({read(fresh, remote.data(), 100)});
    EXPECT_EQ(std::memcmp(fresh, remote.data(), 100), 0);
}

TEST(TcpFailure, ATransportThatIsInstalledAnewIsNotTakenForAnEarlierOneWhoseEndWasLost) {
    Pair pair;
    std::vector<char> remote(4096);
    std::vector<char> local(4096, 'n');
    pair.b.registerMemory(remote.data(), remote.size());
    // A connection that was made anew a few times.
    for (int i = 0; i < 3; ++i) {
        pair.run({write(local.data(), remote.data(), 4096)});
        pair.a.nic->resetPath(pair.path, {Code::Timeout, "the deadline passed"});
    }
    pair.run({write(local.data(), remote.data(), 4096)});
    // The target hears nothing of its end.
    const auto transport = std::move(pair.a.transport);
    const auto nic = std::move(pair.a.nic);
    pair.a.install();
    pair.a.sweep.clear();
    pair.path = *pair.a.nic->openPath(pair.b.asPeer());
    pair.run({write(local.data(), remote.data(), 4096)});
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << pair.failure().cause.toString();
}

TEST(TcpFailure, ClosingIsFinalAndTheIdIsDead) {
    Pair pair;
    std::vector<char> remote(1u << 20);
    std::vector<char> local(1u << 20);
    pair.b.registerMemory(remote.data(), remote.size());
    const std::vector<WorkRequest> requests(4, write(local.data(), remote.data(), 1u << 20));
    ASSERT_EQ(pair.a.nic->post(pair.path, requests), 4u);
    pair.a.poll();
    pair.a.nic->closePath(pair.path, {Code::PeerDown, "gone"});
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 4; }));
    expectLost(pair.a.sweep, 4, Code::PeerDown, false);
    pair.a.sweep.clear();
    EXPECT_EQ(pair.a.nic->post(pair.path, requests), 4u);
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 4; }));
    expectLost(pair.a.sweep, 4, Code::StaleHandle, false);
    pair.a.nic->closePath(pair.path, {Code::PeerDown, "gone"});
    pair.a.nic->resetPath(pair.path, {Code::PeerDown, "gone"});
    const auto again = pair.a.nic->openPath(pair.b.asPeer());
    ASSERT_TRUE(again.isOk());
    EXPECT_NE(*again, pair.path);
}

TEST(TcpFailure, TheBytesOfAnAbandonedLaneAreNotAppliedOverItsSuccessors) {
    Pair pair;
    std::vector<char> target(4u << 20, 'x');
    std::vector<char> old_bytes(target.size(), 'o');
    std::vector<char> new_bytes(target.size(), 'n');
    pair.b.registerMemory(target.data(), target.size());
    pair.run({write(old_bytes.data(), target.data(), 1)});
    // The target sleeps while the old lane fills its socket; then the path is closed and opened again.
    for (const bool reopen : {false, true}) {
        pair.a.sweep.clear();
        const auto requests = sliced(Opcode::Write, old_bytes.data(), target.data(), target.size(), 64u << 10);
        ASSERT_EQ(pair.a.nic->post(pair.path, requests), requests.size());
        for (int i = 0; i < 100; ++i) pair.a.poll();
        if (reopen) {
            pair.a.nic->closePath(pair.path, {Code::Canceled, "retry"});
            pair.path = *pair.a.nic->openPath(pair.b.asPeer());
        } else {
            pair.a.nic->resetPath(pair.path, {Code::Canceled, "retry"});
        }
        pair.a.poll();
        pair.a.sweep.clear();
        const auto again = sliced(Opcode::Write, new_bytes.data(), target.data(), target.size(), 64u << 10);
        ASSERT_EQ(pair.a.nic->post(pair.path, again), again.size());
        ASSERT_TRUE(pair.pump([&] { return pair.completed() == again.size(); }));
        EXPECT_EQ(target, new_bytes);
        for (int i = 0; i < 1000; ++i) {
            pair.a.poll();
            pair.b.poll();
        }
        EXPECT_EQ(target, new_bytes);
    }
}

TEST(TcpFailure, DamagedBytesAreFoundBothWaysAndTheConnectionLivesOn) {
    Config config;
    config.tcp_crc = true;
    Pair pair(config);
    Proxy proxy(pair.b.asPeer()->desc->lane_ports[0]);
    pair.path = *pair.a.nic->openPath(at(pair.b.asPeer(), proxy.port()));
    auto source = noise(100000);
    std::vector<char> target(source.size());
    std::vector<char> back(source.size());
    pair.b.registerMemory(target.data(), target.size());
    const auto one = [&](const WorkRequest& work) {
        pair.a.sweep.clear();
        ASSERT_EQ(pair.a.nic->post(pair.path, {&work, 1}), 1u);
        ASSERT_TRUE(pair.pump([&] {
            proxy.pump();
            return pair.ended() == 1;
        }));
    };
    std::int64_t sent = kHelloBytes;
    std::int64_t received = kHelloReplyBytes;
    for (const std::size_t at_byte : {std::size_t{0}, std::size_t{5}, std::size_t{99999}}) {
        proxy.damage_sent_at = sent + static_cast<std::int64_t>(kRequestBytes + at_byte);
        one(write(source.data(), target.data(), source.size()));
        expectLost(pair.a.sweep, 1, Code::ChecksumMismatch, true);
        sent += static_cast<std::int64_t>(kRequestBytes + source.size());
        received += static_cast<std::int64_t>(kResponseBytes);
        char text[kMaxMessageBytes];
        received += static_cast<std::int64_t>(refusalText({Code::ChecksumMismatch, 0}, text));

        one(write(source.data(), target.data(), source.size()));
        EXPECT_EQ(pair.completed(), 1u);
        sent += static_cast<std::int64_t>(kRequestBytes + source.size());
        received += static_cast<std::int64_t>(kResponseBytes);

        proxy.damage_received_at = received + static_cast<std::int64_t>(kResponseBytes + at_byte);
        one(read(back.data(), target.data(), back.size()));
        expectLost(pair.a.sweep, 1, Code::ChecksumMismatch, true);
        sent += static_cast<std::int64_t>(kRequestBytes);
        received += static_cast<std::int64_t>(kResponseBytes + back.size());

        one(read(back.data(), target.data(), back.size()));
        EXPECT_EQ(pair.completed(), 1u);
        EXPECT_EQ(source, back);
        sent += static_cast<std::int64_t>(kRequestBytes);
        received += static_cast<std::int64_t>(kResponseBytes + back.size());
    }
}

TEST(TcpFailure, TwoPathsToOnePeerDoNotDisturbEachOther) {
    Pair pair;
    const auto second = pair.a.nic->openPath(pair.b.asPeer());
    ASSERT_TRUE(second.isOk());
    std::vector<char> target(100);
    char source[100] = {};
    pair.b.registerMemory(target.data(), target.size());
    for (int i = 0; i < 50; ++i) {
        const auto one = write(source, target.data(), 100);
        ASSERT_EQ(pair.a.nic->post(i % 2 ? pair.path : *second, {&one, 1}), 1u);
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == static_cast<std::size_t>(i + 1); }));
    }
    EXPECT_EQ(pair.completed(), 50u);
}

}  // namespace
}  // namespace troupe::tcp::testing
