// The cluster key on host connections.

#include <sys/socket.h>

#include <optional>

#include "host_backend/probe.h"
#include "tests/host_backend/nic_pair.h"
#include "tests/security/auth_keys.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using namespace host;
using testing::HasSubstr;

class HostAuth : public testing::Test {
  protected:
    Status probe(HostNode& node, const std::shared_ptr<const ClusterAuth>& auth) {
        std::optional<Status> outcome;
        Probe probe(reactor_, {node.shared->socket, Incarnation::random(), node.shared->incarnation, "a hint", auth},
                    kPatience, [&](const Status& status) { outcome = status; });
        probe.start();
        EXPECT_TRUE(reactor_.runUntil(
            [&] {
                node.poll();
                return outcome.has_value();
            },
            kPatience));
        return outcome.value_or(Status(Code::Internal, "no answer"));
    }
    static std::unique_ptr<HostNode> nodeWith(const std::string& keys) {
        return std::make_unique<HostNode>(std::chrono::milliseconds(kPatience), makeSilentLogger(), authOf(keys));
    }
    TestReactor reactor_;
};

TEST_F(HostAuth, OneKeyAtBothEndsComesThrough) {
    const auto node = nodeWith("k");
    const auto auth = authOf("k");
    const Status status = probe(*node, auth);
    EXPECT_TRUE(status) << status.toString();
    EXPECT_EQ(auth->counts().accepted, 1u);
    EXPECT_EQ(node->shared->auth->counts().accepted, 1u);
    EXPECT_TRUE(probe(*nodeWith("on"), authOf("no")));
}

TEST_F(HostAuth, OtherOrMissingKeysAreRefusedWithTheReason) {
    const auto keyed = nodeWith("k");
    Status status = probe(*keyed, nullptr);
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), HasSubstr("asks for the cluster key"));
    EXPECT_EQ(keyed->shared->auth->counts().of(AuthRefusal::NoProof), 1u);

    status = probe(*keyed, authOf("o"));
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), HasSubstr("the cluster keys differ"));
    EXPECT_EQ(keyed->shared->auth->counts().of(AuthRefusal::WrongProof), 1u);

    const auto keyless = nodeWith("");
    status = probe(*keyless, authOf("k"));
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), HasSubstr("uses no cluster key"));
    EXPECT_EQ(keyless->shared->auth->counts().of(AuthRefusal::UnusedKey), 1u);
}

TEST_F(HostAuth, CopiesGoOnAsBefore) {
    const auto a = nodeWith("k");
    const auto b = nodeWith("k");
    Buffer from(64 << 10);
    Buffer to(64 << 10);
    from.fillPattern(3);
    b->add(to.data(), to.size());
    const auto path = a->nic->openPath(b->asPeer());
    ASSERT_TRUE(path);
    WorkRequest request;
    request.local = from.data();
    request.remote = to.address();
    request.length = from.size();
    request.opcode = Opcode::Write;
    ASSERT_EQ(a->nic->post(*path, std::vector{request}), 1u);
    ASSERT_TRUE(pumpNodes([&] { return a->completed() + a->sweep.failed.size() == 1; }, *a, *b));
    ASSERT_TRUE(a->sweep.failed.empty()) << a->sweep.failed.front().cause.toString();
    EXPECT_TRUE(to.holdsPattern(3));
}

/// Frames by hand.
class HostAuthRaw : public HostAuth {
  protected:
    HostAuthRaw() : node_(nodeWith("k")), socket_(std::move(connectTo(node_->shared->socket)->socket)) {}
    void say(const Packet& packet) { EXPECT_EQ(sendPacket(socket_.get(), packet), Io::Done); }
    Io hear() {
        Io io = Io::Again;
        EXPECT_TRUE(pumpNodes([&] { return (io = receivePacket(socket_.get(), received_)) != Io::Again; }, *node_));
        return io;
    }
    template <class Expected>
    void expectFrame() {
        ASSERT_EQ(hear(), Io::Done);
        const auto frame = decode(received_.packet.span());
        ASSERT_TRUE(frame) << frame.status().toString();
        EXPECT_TRUE(std::holds_alternative<Expected>(*frame)) << frame->index();
    }

    std::unique_ptr<HostNode> node_;
    UniqueFd socket_;
    Received received_;
};

TEST_F(HostAuthRaw, NothingIsGrantedToWhoHasProvenNothing) {
    Buffer memory(4096);
    node_->add(memory.data(), memory.size());
    say(encode(Hello{Incarnation::random(), node_->shared->incarnation, randomNonce()}));
    expectFrame<Challenge>();
    say(encode(GrantRequest{1, memory.address(), 4096, true}));
    EXPECT_EQ(hear(), Io::Closed);
    EXPECT_EQ(node_->nic->server()->grants(), 0u);
}

TEST_F(HostAuthRaw, AReflectedProofIsRefused) {
    const Packet hello = encode(Hello{Incarnation::random(), node_->shared->incarnation, randomNonce()});
    say(hello);
    expectFrame<Challenge>();
    const Proof reflected =
        node_->shared->auth->prove(AuthRole::Responder, kAuthProtocol, {hello.span(), received_.packet.span()});
    say(encode(KeyProof{reflected}));
    expectFrame<Refuse>();
    EXPECT_EQ(hear(), Io::Closed);
}

TEST_F(HostAuthRaw, AProofIsGoodForOneChallenge) {
    const Packet hello = encode(Hello{Incarnation::random(), node_->shared->incarnation, randomNonce()});
    say(hello);
    expectFrame<Challenge>();
    const Packet proof = encode(KeyProof{
        node_->shared->auth->prove(AuthRole::Initiator, kAuthProtocol, {hello.span(), received_.packet.span()})});
    say(proof);
    expectFrame<Welcome>();
    expectFrame<KeyProof>();
    socket_ = std::move(connectTo(node_->shared->socket)->socket);
    say(hello);
    expectFrame<Challenge>();
    say(proof);
    expectFrame<Refuse>();
    EXPECT_EQ(node_->shared->auth->counts().of(AuthRefusal::WrongProof), 1u);
}

TEST_F(HostAuth, AnOwnerThatLeavesTheChallengeOutIsNotBelieved) {
    const Incarnation claimed = Incarnation::random();
    const std::string name = "troupe/test/" + claimed.toString();
    const UniqueFd listener = std::move(*listenAt(name, 4));
    UniqueFd socket;
    std::optional<Status> outcome;
    const auto auth = authOf("k");
    Probe probe(reactor_, {name, Incarnation::random(), claimed, "", auth}, kPatience,
                [&](const Status& status) { outcome = status; });
    probe.start();
    EXPECT_TRUE(reactor_.runUntil(
        [&] {
            if (!socket) {
                socket = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
                const auto word = reinterpret_cast<std::uint64_t>(claimed.bytes.data());
                if (socket) sendPacket(socket.get(), encode(Welcome{claimed, 1, word, false}));
            }
            return outcome.has_value();
        },
        kPatience));
    EXPECT_EQ(outcome->code(), Code::AccessDenied);
    EXPECT_EQ(auth->counts().of(AuthRefusal::NoProof), 1u);
}

}  // namespace
}  // namespace troupe::test
