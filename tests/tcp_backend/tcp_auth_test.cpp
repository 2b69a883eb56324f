// The cluster key on data connections.

#include <gmock/gmock.h>

#include "tests/security/auth_keys.h"
#include "tests/tcp_backend/raw_peer.h"
#include "tests/tcp_backend/tcp_pair.h"

namespace troupe::tcp::testing {
namespace {

using test::authOf;
using ::testing::HasSubstr;

/// Writes some bytes from `a` to `b` and gives back how that ended.
Status writeBetween(Pair& pair) {
    std::vector<char> from = noise(4096);
    std::vector<char> to(from.size(), 0);
    pair.b.registerMemory(to.data(), to.size());
    pair.run({write(from.data(), to.data(), from.size())});
    if (!pair.a.sweep.failed.empty()) return pair.failure().cause;
    EXPECT_EQ(from, to);
    return {};
}

TEST(TcpAuth, TransfersWorkBetweenEnginesOfOneKey) {
    for (const auto& [a, b] : {std::pair("k", "k"), std::pair("ok", "ko"), std::pair("ko", "o k")}) {
        std::string keys_b(b);
        std::erase(keys_b, ' ');
        Pair pair({}, "127.0.0.1", authOf(a), authOf(keys_b));
        EXPECT_TRUE(writeBetween(pair));
        EXPECT_EQ(pair.a.auth->counts().accepted, 1u);
        EXPECT_EQ(pair.b.auth->counts().accepted, 1u);
    }
}

TEST(TcpAuth, OtherOrMissingKeysAreRefusedAtBothEndsAndCounted) {
    {
        Pair pair({}, "127.0.0.1", authOf("a"), authOf("b"));
        const Status status = writeBetween(pair);
        EXPECT_EQ(status.code(), Code::AccessDenied);
        EXPECT_THAT(status.message(), HasSubstr("the cluster keys differ"));
        EXPECT_FALSE(pair.failure().retryable);
        EXPECT_EQ(pair.b.auth->counts().of(AuthRefusal::WrongProof), 1u);
    }
    {
        Pair pair({}, "127.0.0.1", authOf(""), authOf("b"));
        const Status status = writeBetween(pair);
        EXPECT_EQ(status.code(), Code::AccessDenied);
        EXPECT_THAT(status.message(), HasSubstr("the peer asks for the cluster key"));
        EXPECT_EQ(pair.b.auth->counts().of(AuthRefusal::NoProof), 1u);
    }
    {
        Pair pair({}, "127.0.0.1", authOf("a"), authOf(""));
        const Status status = writeBetween(pair);
        EXPECT_EQ(status.code(), Code::AccessDenied);
        EXPECT_THAT(status.message(), HasSubstr("the peer uses no cluster key"));
        EXPECT_EQ(pair.b.auth->counts().of(AuthRefusal::UnusedKey), 1u);
        EXPECT_EQ(pair.a.auth->counts().of(AuthRefusal::NoProof), 1u);
    }
}

TEST(TcpAuth, ARestartedPeerIsToldApartByAProvenAnswer) {
    Pair pair({}, "127.0.0.1", authOf("k"), authOf("k"));
    std::vector<char> bytes(64, 1);
    const auto old = pair.b.asPeer();
    auto stale = std::make_shared<SegmentDesc>(*old->desc);
    stale->incarnation = Incarnation::random();
    auto peer = std::make_shared<Peer>(*old);
    peer->desc = stale;
    const auto path = pair.a.nic->openPath(peer);
    ASSERT_TRUE(path);
    ASSERT_EQ(pair.a.nic->post(*path, std::vector{write(bytes.data(), bytes.data(), 64)}), 1u);
    ASSERT_TRUE(pair.pump([&] { return !pair.a.sweep.failed.empty(); }));
    EXPECT_EQ(pair.failure().cause.code(), Code::StaleIncarnation);
}

/// A target with a key, and attackers without it that can do anything with bytes.
class TcpAuthHostile : public TargetUnderAttack {
  protected:
    TcpAuthHostile() : TargetUnderAttack(4096, {}, authOf("k")) {}
    static std::vector<std::byte> helloBytes(Hello hello, const Nonce& nonce) {
        hello.has_nonce = true;
        const auto fixed = bytesOf(hello);
        std::vector<std::byte> bytes(fixed.begin(), fixed.end());
        bytes.insert(bytes.end(), nonce.begin(), nonce.end());
        return bytes;
    }
    /// Says a hello and gets the challenge.
    std::vector<std::byte> challenge(RawSocket& socket, const std::vector<std::byte>& hello) {
        EXPECT_TRUE(socket.send(hello.data(), hello.size()));
        EXPECT_TRUE(awaitBytes(socket, kHelloReplyBytes + kAuthBytes));
        std::vector<std::byte> bytes(socket.bytes(), socket.bytes() + socket.got.size());
        socket.got.clear();
        return bytes;
    }
    Proof proofFor(const std::vector<std::byte>& hello, const std::vector<std::byte>& challenge) const {
        return node.auth->prove(AuthRole::Initiator, kAuthProtocol, {hello, challenge});
    }
    HelloReply reply(RawSocket& socket) {
        EXPECT_TRUE(awaitBytes(socket, kHelloReplyBytes));
        const auto decoded = decodeHelloReply(socket.bytes());
        EXPECT_TRUE(decoded.isOk());
        return decoded.isOk() ? *decoded : HelloReply{};
    }
};

TEST_F(TcpAuthHostile, WhoKnowsTheKeyGetsIn) {
    RawSocket socket = RawSocket::to(port());
    const auto hello = helloBytes(helloTo(node), randomNonce());
    const auto asked = challenge(socket, hello);
    const Proof proof = proofFor(hello, asked);
    ASSERT_TRUE(socket.send(proof.data(), proof.size()));
    const HelloReply answer = reply(socket);
    EXPECT_EQ(answer.code, Code::Ok);
    EXPECT_TRUE(answer.has_auth);
}

TEST_F(TcpAuthHostile, ARecordedConversationIsRefused) {
    const auto hello = helloBytes(helloTo(node), randomNonce());
    Proof recorded;
    {
        RawSocket real = RawSocket::to(port());
        recorded = proofFor(hello, challenge(real, hello));
        ASSERT_TRUE(real.send(recorded.data(), recorded.size()));
        EXPECT_EQ(reply(real).code, Code::Ok);
    }
    RawSocket attacker = RawSocket::to(port());
    challenge(attacker, hello);
    ASSERT_TRUE(attacker.send(recorded.data(), recorded.size()));
    const HelloReply answer = reply(attacker);
    EXPECT_EQ(answer.code, Code::AccessDenied);
    EXPECT_FALSE(answer.has_auth);
    EXPECT_TRUE(isCut(attacker));
    EXPECT_EQ(node.auth->counts().of(AuthRefusal::WrongProof), 1u);
}

TEST_F(TcpAuthHostile, AReflectedProofIsRefused) {
    const auto hello = helloBytes(helloTo(node), randomNonce());
    RawSocket socket = RawSocket::to(port());
    const auto asked = challenge(socket, hello);
    const Proof as_responder = node.auth->prove(AuthRole::Responder, kAuthProtocol, {hello, asked});
    ASSERT_TRUE(socket.send(as_responder.data(), as_responder.size()));
    EXPECT_EQ(reply(socket).code, Code::AccessDenied);
}

TEST_F(TcpAuthHostile, ARequestBehindAnUnprovenHelloTouchesNothing) {
    RawSocket plain = RawSocket::to(port());
    const auto hello = bytesOf(helloTo(node));
    ASSERT_TRUE(plain.send(hello.data(), hello.size()));
    const auto request =
        bytesOf(RequestHeader{Op::Write, false, 0, 0, reinterpret_cast<std::uint64_t>(memory.data()), 4});
    static_cast<void>(plain.send(request.data(), request.size()));
    static_cast<void>(plain.send("evil", 4));
    EXPECT_TRUE(isCut(plain));

    RawSocket keyed = RawSocket::to(port());
    const auto asked = challenge(keyed, helloBytes(helloTo(node), randomNonce()));
    // The request in the place of the proof, and more behind it.
    static_cast<void>(keyed.send(request.data(), request.size()));
    static_cast<void>(keyed.send("evil", 4));
    EXPECT_TRUE(isCut(keyed));
    EXPECT_EQ(memory, std::vector<char>(memory.size(), 'x'));
    EXPECT_EQ(node.auth->counts().accepted, 0u);
}

TEST_F(TcpAuthHostile, AnUnprovenSuccessorDoesNotEndALane) {
    RawSocket real = RawSocket::to(port());
    const auto hello = helloBytes(helloTo(node, 1), randomNonce());
    const Proof proof = proofFor(hello, challenge(real, hello));
    ASSERT_TRUE(real.send(proof.data(), proof.size()));
    EXPECT_EQ(reply(real).code, Code::Ok);

    RawSocket attacker = RawSocket::to(port());
    const auto successor = helloBytes(helloTo(node, 2), randomNonce());
    challenge(attacker, successor);
    const Proof forged{};
    ASSERT_TRUE(attacker.send(forged.data(), forged.size()));
    EXPECT_TRUE(isCut(attacker));
    EXPECT_TRUE(real.receive());
}

TEST_F(TcpAuthHostile, AGreetingMayComeByteByByteAndHaveNoEnd) {
    const auto hello = helloBytes(helloTo(node), randomNonce());
    RawSocket slow = RawSocket::to(port());
    for (const std::byte byte : hello) {
        ASSERT_TRUE(slow.send(&byte, 1));
        for (int i = 0; i < 3; ++i) node.poll();
    }
    const auto asked = challenge(slow, {});
    const Proof proof = proofFor(hello, asked);
    for (const std::byte byte : proof) {
        ASSERT_TRUE(slow.send(&byte, 1));
        for (int i = 0; i < 3; ++i) node.poll();
    }
    EXPECT_EQ(reply(slow).code, Code::Ok);
}

TEST(TcpAuthTime, AProofThatDoesNotComeEndsTheConnection) {
    Config config;
    config.handshake_timeout = std::chrono::milliseconds(50);
    Node node(config, "127.0.0.1", "b", makeSilentLogger(), authOf("k"));
    RawSocket socket = RawSocket::to(node.asPeer()->desc->lane_ports[0]);
    Hello hello = helloTo(node);
    hello.has_nonce = true;
    const auto bytes = bytesOf(hello);
    const Nonce nonce = randomNonce();
    ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    ASSERT_TRUE(socket.send(nonce.data(), nonce.size()));
    const auto limit = Clock::now() + std::chrono::seconds(60);
    bool open = true;
    while (open && Clock::now() < limit) {
        node.poll();
        open = socket.receive();
    }
    EXPECT_FALSE(open);
    EXPECT_EQ(socket.got.size(), kHelloReplyBytes + kAuthBytes);
}

/// A target that lies to an initiator with a key.
class TcpAuthLiar : public ::testing::Test {
  protected:
    TcpAuthLiar()
        : a({}, "127.0.0.1", "a", makeSilentLogger(), authOf("k")),
          b({}, "127.0.0.1", "b", makeSilentLogger(), authOf("k")),
          data(64, 'd') {
        auto listening = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        listener = std::move(*listening);
        const auto opened = a.nic->openPath(at(b.asPeer(), SocketAddress::local(listener.get())->port()));
        EXPECT_TRUE(opened);
        EXPECT_EQ(a.nic->post(*opened, std::vector{write(data.data(), data.data(), data.size())}), 1u);
    }
    bool pump(const std::function<bool()>& done) { return test::pumpNodes(done, a); }
    RawSocket accept() {
        UniqueFd fd;
        EXPECT_TRUE(pump([&] {
            fd = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            return bool(fd);
        }));
        RawSocket socket(std::move(fd));
        EXPECT_TRUE(pump([&] { return !socket.receive() || socket.got.size() >= kHelloBytes + kAuthBytes; }));
        return socket;
    }
    void answer(RawSocket& socket, Code code, bool has_auth, const Proof& bytes = {}) {
        std::array<std::byte, kHelloReplyBytes> reply{};
        encodeHelloReply({b.incarnation, code, has_auth}, reply.data());
        ASSERT_TRUE(socket.send(reply.data(), reply.size()));
        if (has_auth) {
            ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
        }
    }
    Status failure() {
        EXPECT_TRUE(pump([&] { return !a.sweep.failed.empty(); }));
        return a.sweep.failed.empty() ? Status() : a.sweep.failed.front().cause;
    }

    Node a;
    Node b;
    std::vector<char> data;
    UniqueFd listener;
};

TEST_F(TcpAuthLiar, ThatAsksForNoProofIsRefused) {
    RawSocket socket = accept();
    answer(socket, Code::Ok, false);
    const Status status = failure();
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), HasSubstr("without a proof"));
    EXPECT_EQ(a.auth->counts().of(AuthRefusal::NoProof), 1u);
}

TEST_F(TcpAuthLiar, WithAWrongProofIsRefusedAndGetsNoPayload) {
    RawSocket socket = accept();
    answer(socket, Code::Ok, true, randomNonce());
    ASSERT_TRUE(pump([&] { return !socket.receive() || socket.got.size() >= kHelloBytes + 2 * kAuthBytes; }));
    answer(socket, Code::Ok, true, randomNonce());
    EXPECT_EQ(failure().code(), Code::AccessDenied);
    ASSERT_TRUE(pump([&] { return !socket.receive(); }));
    EXPECT_EQ(socket.got.size(), kHelloBytes + 2 * kAuthBytes);
    EXPECT_EQ(a.auth->counts().of(AuthRefusal::WrongProof), 1u);
}

TEST_F(TcpAuthLiar, ThatReflectsTheProofIsRefused) {
    RawSocket socket = accept();
    answer(socket, Code::Ok, true, randomNonce());
    ASSERT_TRUE(pump([&] { return !socket.receive() || socket.got.size() >= kHelloBytes + 2 * kAuthBytes; }));
    Proof reflected;
    std::copy_n(socket.bytes() + kHelloBytes + kAuthBytes, kAuthBytes, reflected.begin());
    answer(socket, Code::Ok, true, reflected);
    EXPECT_EQ(failure().code(), Code::AccessDenied);
}

TEST_F(TcpAuthLiar, WhoClaimsARestartWithoutProofIsNotBelieved) {
    RawSocket socket = accept();
    answer(socket, Code::StaleIncarnation, false);
    EXPECT_EQ(failure().code(), Code::AccessDenied);
}

}  // namespace
}  // namespace troupe::tcp::testing
