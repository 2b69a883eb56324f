#include <sys/mman.h>

#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {
namespace {

class TcpRefusal : public ::testing::Test {
  protected:
    TcpRefusal() : memory(3 * kPiece, 'x'), local(noise(64u << 10)) {
        base = memory.data();
        pair.b.registerMemory(base, kPiece);
        pair.b.registerMemory(base + kPiece, kPiece);
    }

    void refused(const WorkRequest& one, Code code) {
        pair.a.sweep.clear();
        pair.run({one});
        const Failure& failure = pair.failure();
        EXPECT_EQ(failure.cause.code(), code) << failure.cause.toString();
        EXPECT_FALSE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
        EXPECT_EQ(failure.request.remote, one.remote);
        EXPECT_NE(failure.cause.message().find("'b'"), std::string::npos) << failure.cause.message();
        EXPECT_NE(failure.cause.message().find("tcp0"), std::string::npos) << failure.cause.message();
        // The connection lives on, and the next request is understood.
        pair.a.sweep.clear();
        pair.run({write(local.data(), base, 100), read(local.data() + 1000, base, 100)});
        EXPECT_EQ(pair.completed(), 2u);
    }
    void accepted(const WorkRequest& one) {
        pair.a.sweep.clear();
        pair.run({one});
        EXPECT_EQ(pair.completed(), 1u) << pair.failure().cause.toString();
    }

    static constexpr std::size_t kPiece = 64u << 10;
    Pair pair;
    std::vector<char> memory;
    std::vector<char> local;
    char* base = nullptr;
};

TEST_F(TcpRefusal, UnregisteredMemoryIsNotTouched) {
    char* outside = base + 2 * kPiece;
    for (const std::size_t length : {1, 100, 16384, 65536}) {
        refused(write(local.data(), outside, length), Code::AddressNotRegistered);
        refused(read(local.data(), outside, length), Code::AddressNotRegistered);
    }
    EXPECT_EQ(memory[2 * kPiece], 'x');
    refused(read(local.data(), nullptr, 8), Code::AddressNotRegistered);
}

TEST_F(TcpRefusal, TouchingRegionsCountAsOne) {
    accepted(write(local.data(), base + kPiece - 10, 20));
    EXPECT_EQ(std::memcmp(local.data(), base + kPiece - 10, 20), 0);
    accepted(read(local.data(), base + 100, kPiece));
}

TEST_F(TcpRefusal, EveryEdgeIsExact) {
    accepted(write(local.data(), base, 1));
    accepted(write(local.data(), base + 2 * kPiece - 1, 1));
    accepted(read(local.data(), base + kPiece, kPiece));
    refused(write(local.data(), base + 2 * kPiece - 1, 2), Code::AddressNotRegistered);
    refused(read(local.data(), base + 2 * kPiece, 1), Code::AddressNotRegistered);
    refused(write(local.data(), base - 1, 1), Code::AddressNotRegistered);
    refused(read(local.data(), base - 1, 2), Code::AddressNotRegistered);
    refused(write(local.data(), base + kPiece + 1, kPiece), Code::AddressNotRegistered);
    EXPECT_EQ(memory[2 * kPiece], 'x');
}

TEST_F(TcpRefusal, LocalOnlyMemoryIsNotRemote) {
    std::vector<char> secret(4096, 's');
    pair.b.registerMemory(secret.data(), secret.size(), false);
    refused(write(local.data(), secret.data(), 8), Code::AccessDenied);
    refused(read(local.data(), secret.data() + 1000, 8), Code::AccessDenied);
    EXPECT_EQ(secret, std::vector<char>(4096, 's'));
}

TEST_F(TcpRefusal, ARangeThatWrapsIsInvalid) {
    refused(read(local.data(), reinterpret_cast<void*>(UINT64_MAX - 3), 8), Code::InvalidArgument);
    refused(write(local.data(), reinterpret_cast<void*>(UINT64_MAX), 60000), Code::InvalidArgument);
}

TEST_F(TcpRefusal, AnOversizedRequestFailsAtThePost) {
    pair.a.sweep.clear();
    pair.run({read(local.data(), base, kMaxRequestBytes + 1)});
    EXPECT_EQ(pair.failure().cause.code(), Code::InvalidArgument);
    EXPECT_FALSE(pair.failure().retryable);
    pair.a.sweep.clear();
    pair.run({write(local.data(), base, UINT64_MAX)});
    EXPECT_EQ(pair.failure().cause.code(), Code::InvalidArgument);
}

TEST_F(TcpRefusal, RefusalsAmongGoodRequestsHitOnlyThemselves) {
    std::vector<WorkRequest> requests;
    for (std::uint64_t i = 0; i < 300; ++i) {
        char* at = i % 3 == 1 ? base + 2 * kPiece : base + i * 100;
        requests.push_back(request(i % 2 ? Opcode::Read : Opcode::Write, local.data() + i * 100, at, 100, i));
    }
    pair.run(requests);
    EXPECT_EQ(pair.completed(), 200u);
    ASSERT_EQ(pair.a.sweep.failed.size(), 100u);
    for (const auto& failure : pair.a.sweep.failed) EXPECT_EQ(failure.request.cookie % 3, 1u);
}

TEST_F(TcpRefusal, AWriteUnderWayWhenItsRegionGoesIsFinishedAndLaterOnesAreRefused) {
    std::vector<char> target(8u << 20, 'x');
    auto source = noise(target.size());
    pair.b.registerMemory(target.data(), target.size());
    const ByteRange range{reinterpret_cast<std::uint64_t>(target.data()), target.size()};
    const auto one = write(source.data(), target.data(), source.size());
    ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
    ASSERT_TRUE(pair.pump([&] { return pair.b.nic->servesPeerIn(range); }));
    const auto closing = pair.b.table.beginRemoval(range.addr);
    ASSERT_TRUE(closing.isOk());
    // Whoever unregisters waits for this.
    ASSERT_TRUE(pair.pump([&] { return !pair.b.nic->servesPeerIn(range); }));
    EXPECT_EQ(target, source);
    pair.b.table.remove(closing->id);
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
    EXPECT_EQ(pair.completed(), 1u);
    refused(write(local.data(), target.data(), 100), Code::AddressNotRegistered);
    EXPECT_EQ(target, source);
}

TEST_F(TcpRefusal, AnotherRegionsChangeDoesNotDisturbAWrite) {
    std::vector<char> target(8u << 20, 'x');
    auto source = noise(target.size());
    pair.b.registerMemory(target.data(), target.size());
    const ByteRange range{reinterpret_cast<std::uint64_t>(target.data()), target.size()};
    const auto one = write(source.data(), target.data(), source.size());
    ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
    ASSERT_TRUE(pair.pump([&] { return pair.b.nic->servesPeerIn(range); }));
    std::vector<char> other(100);
    pair.b.registerMemory(other.data(), other.size());
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
    EXPECT_EQ(pair.completed(), 1u);
    EXPECT_EQ(source, target);
}

TEST_F(TcpRefusal, CuttingEndsWorkInARangeAndOnlyThere) {
    std::vector<char> target(8u << 20, 'x');
    auto source = noise(target.size());
    pair.b.registerMemory(target.data(), target.size());
    const ByteRange range{reinterpret_cast<std::uint64_t>(target.data()), target.size()};
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        pair.a.sweep.clear();
        const auto one = request(opcode, source.data(), target.data(), source.size());
        ASSERT_EQ(pair.a.nic->post(pair.path, {&one, 1}), 1u);
        ASSERT_TRUE(pair.pump([&] { return pair.b.nic->servesPeerIn(range); }));
        EXPECT_FALSE(pair.b.nic->servesPeerIn({range.end(), 100}));
        EXPECT_FALSE(pair.b.nic->servesPeerIn({reinterpret_cast<std::uint64_t>(base), kPiece}));
        pair.b.nic->cutPeersIn({reinterpret_cast<std::uint64_t>(base), kPiece});
        EXPECT_TRUE(pair.b.nic->servesPeerIn(range));
        pair.b.nic->cutPeersIn({range.addr + 5, 1});
        EXPECT_FALSE(pair.b.nic->servesPeerIn(range));
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
        EXPECT_EQ(pair.failure().cause.code(), Code::ConnectionLost) << pair.failure().cause.toString();
        EXPECT_TRUE(pair.failure().retryable);
        EXPECT_TRUE(pair.failure().quiesced);
        accepted(write(local.data(), base, 100));
    }
}

TEST_F(TcpRefusal, AnUnreadableSourceFailsOnlyItsRequestForGood) {
    void* bad = mmap(nullptr, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(bad, MAP_FAILED);
    pair.run({write(bad, base, 65536, 7), write(local.data(), base, 100, 8)});
    bool seen = false;
    for (const auto& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.retryable, failure.request.cookie == 8) << failure.cause.toString();
        seen = seen || failure.request.cookie == 7;
    }
    EXPECT_TRUE(seen);
    accepted(write(local.data(), base, 100));
    munmap(bad, 65536);
}

TEST_F(TcpRefusal, AnUnreadableSourceBehindGoodOnesIsTheOneThatFailsForGood) {
    // Small enough that the kernel takes them together, or none of them.
    char* const bad = static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(bad, MAP_FAILED);
    std::vector<WorkRequest> requests;
    for (std::uint64_t i = 0; i < 8; ++i)
        requests.push_back(write(i == 5 ? bad : local.data(), base + i * 4096, 4096, i));
    pair.run(requests);
    ASSERT_FALSE(pair.a.sweep.failed.empty());
    for (const auto& failure : pair.a.sweep.failed)
        EXPECT_EQ(failure.retryable, failure.request.cookie != 5) << failure.cause.toString();
    munmap(bad, 4096);
}

/// Memory of the target that loses rights after it was registered.
class ProtectedLater : public TcpRefusal {
  protected:
    ProtectedLater()
        : target(
              static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        local.resize(kBytes);
        pair.b.registerMemory(target, kBytes);
    }
    ~ProtectedLater() override { munmap(target, kBytes); }
    void protect(std::size_t offset) { ASSERT_EQ(mprotect(target + offset, 4096, PROT_NONE), 0); }
    /// The kernel tells where a READ met it, and of a WRITE only that it did.
    void expectDenied(const Failure& failure, std::optional<std::size_t> offset) {
        EXPECT_EQ(failure.cause.code(), Code::AccessDenied) << failure.cause.toString();
        EXPECT_FALSE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
        const std::string where =
            offset ? hexAddress(reinterpret_cast<std::uint64_t>(target + *offset)) : std::string("it");
        const std::string why = where + " is registered, but its owner may not touch " + (offset ? "it" : "all of it") +
                                ": protected, or its file cut short";
        EXPECT_TRUE(failure.cause.message().ends_with(": " + why)) << failure.cause.message();
    }

    static constexpr std::size_t kBytes = 8u << 20;
    char* target;
};

TEST_F(ProtectedLater, OneReadOfItFailsAndItsNeighboursDoNot) {
    protect(4u << 20);
    for (int round = 0; round < 3; ++round) {
        std::vector<WorkRequest> requests;
        for (std::uint64_t i = 0; i < 65; ++i)
            requests.push_back(read(local.data() + i * 65536, target + (i == 32 ? 4u << 20 : i * 40000), 4096, i));
        pair.a.sweep.clear();
        pair.run(requests);
        EXPECT_EQ(pair.completed(), 64u);
        EXPECT_EQ(pair.failure().request.cookie, 32u);
        expectDenied(pair.failure(), 4u << 20);
    }
}

TEST_F(ProtectedLater, ALongReadOfItEndsTheConnectionOnceAndIsThenRefused) {
    protect(7u << 20);
    pair.run({read(local.data(), target, kBytes, 1), read(local.data(), base, 100, 2)});
    ASSERT_FALSE(pair.a.sweep.failed.empty());
    for (const auto& failure : pair.a.sweep.failed) EXPECT_TRUE(failure.retryable) << failure.cause.toString();
    for (int round = 0; round < 2; ++round) {
        pair.a.sweep.clear();
        pair.run({read(local.data(), target, kBytes, 1), read(local.data(), base, 100, 2)});
        EXPECT_EQ(pair.completed(), 1u);
        expectDenied(pair.failure(), 7u << 20);
    }
    // It may be given back.
    ASSERT_EQ(mprotect(target, kBytes, PROT_READ | PROT_WRITE), 0);
    accepted(read(local.data(), target, kBytes));
}

TEST_F(ProtectedLater, ALargeWriteToItFailsAndItsNeighboursDoNot) {
    // Behind what may have come with the header, which is copied by the processor.
    protect(512u << 10);
    pair.run({write(local.data(), base, 100, 1), write(local.data(), target, 1u << 20, 2),
              write(local.data(), target + (1u << 20), 64u << 10, 3), read(local.data(), base, 100, 4)});
    EXPECT_EQ(pair.completed(), 3u);
    EXPECT_EQ(pair.failure().request.cookie, 2u);
    expectDenied(pair.failure(), std::nullopt);
}

TEST(ProtectedLaterLimit, AReadThatBecameAnErrorIsNotCountedAsOneThatWaits) {
    Config config;
    config.peer_tcp_bytes = 64u << 10;
    Pair pair(config);
    void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    char* const target = static_cast<char*>(mapped);
    pair.b.registerMemory(target, 8192);
    ASSERT_EQ(mprotect(target, 4096, PROT_NONE), 0);
    std::vector<char> local(4096);
    // Together more than a peer may ask for.
    for (int round = 0; round < 40; ++round) {
        pair.a.sweep.clear();
        pair.run({read(local.data(), target, 4096)});
        ASSERT_EQ(pair.failure().cause.code(), Code::AccessDenied) << pair.failure().cause.toString();
    }
    pair.a.sweep.clear();
    pair.run({read(local.data(), target + 4096, 4096)});
    EXPECT_EQ(pair.completed(), 1u);
    munmap(mapped, 8192);
}

}  // namespace
}  // namespace troupe::tcp::testing
