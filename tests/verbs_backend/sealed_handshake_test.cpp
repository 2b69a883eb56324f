// The cluster key in the private data of connection requests, and on the software device.

#include "verbs_backend/sealed_handshake.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/security/auth_keys.h"
#include "tests/verbs_backend/soft_verbs.h"
#include "tests/verbs_backend/verbs_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;
using test::authOf;
using ::testing::HasSubstr;

Greeting sample() {
    Greeting greeting;
    greeting.initiator = Incarnation::random();
    greeting.target = Incarnation::random();
    greeting.nic = 3;
    greeting.lane = 65535;
    greeting.attempt = 0x123456789abc;
    greeting.candidate = 0x1ef0;
    greeting.mtu = 1024;
    return greeting;
}

TEST(SealedHandshake, AGreetingComesThroughToWhoHasTheKey) {
    const Greeting greeting = sample();
    const auto sealed = sealGreeting(greeting, authOf("k"));
    ASSERT_TRUE(sealed);
    std::vector<std::byte> padded(sealed->begin(), sealed->end());
    padded.resize(100);
    const auto opened = openGreeting(padded, authOf("ok"));
    ASSERT_TRUE(opened) << opened.status().toString();
    EXPECT_TRUE(opened->sameLane(greeting));
    EXPECT_EQ(opened->target, greeting.target);
    EXPECT_EQ(opened->attempt, greeting.attempt);
    EXPECT_EQ(opened->candidate, greeting.candidate);
    EXPECT_EQ(opened->mtu, greeting.mtu);
    EXPECT_FALSE(opened->fence);
    Greeting fence = greeting;
    fence.fence = true;
    const auto opened_fence = openGreeting(*sealGreeting(fence, authOf("k")), authOf("k"));
    ASSERT_TRUE(opened_fence) << opened_fence.status().toString();
    EXPECT_TRUE(opened_fence->fence);
    EXPECT_EQ(opened_fence->attempt, greeting.attempt);
    Greeting late = greeting;
    late.attempt = std::uint64_t{1} << 48;
    EXPECT_EQ(sealGreeting(late, authOf("k")).status().code(), Code::InvalidArgument);
    Greeting large = greeting;
    large.lane = 65536;
    EXPECT_EQ(sealGreeting(large, authOf("k")).status().code(), Code::InvalidArgument);
    EXPECT_TRUE(sealGreeting(large, nullptr));
}

TEST(SealedHandshake, EveryBitOfAGreetingIsProven) {
    const auto auth = authOf("k");
    const auto sealed = sealGreeting(sample(), auth);
    for (std::size_t bit = 0; bit < 8 * sealed->size(); ++bit) {
        auto changed = *sealed;
        changed[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        EXPECT_FALSE(openGreeting(changed, auth)) << bit;
    }
    for (std::size_t length = 0; length < sealed->size(); ++length)
        EXPECT_FALSE(openGreeting(std::span(*sealed).first(length), auth)) << length;
}

TEST(SealedHandshake, OtherAndMissingKeysAreRefusedAndCounted) {
    const auto target = authOf("a");
    EXPECT_EQ(openGreeting(*sealGreeting(sample(), authOf("b")), target).status().code(), Code::AccessDenied);
    EXPECT_EQ(target->counts().of(AuthRefusal::WrongProof), 1u);
    EXPECT_EQ(openGreeting(*sealGreeting(sample(), nullptr), target).status().code(), Code::AccessDenied);
    EXPECT_EQ(target->counts().of(AuthRefusal::NoProof), 1u);
    const auto keyless = authOf("");
    EXPECT_EQ(openGreeting(*sealGreeting(sample(), target), keyless).status().code(), Code::AccessDenied);
    EXPECT_EQ(keyless->counts().of(AuthRefusal::UnusedKey), 1u);
    EXPECT_EQ(openGreeting({}, target).status().code(), Code::ProtocolError);
}

TEST(SealedHandshake, AnAnswerIsForItsGreetingOnly) {
    const auto auth = authOf("k");
    const auto greeting = *sealGreeting(sample(), auth);
    const Answer answer{Code::Ok, Incarnation::random(), 1024, "mlx5_0"};
    auto bytes = sealAnswer(answer, greeting, true, auth);
    EXPECT_LE(bytes.size(), 148u);
    bytes.resize(196);
    const auto opened = openAnswer(bytes, greeting, auth);
    ASSERT_TRUE(opened) << opened.status().toString();
    EXPECT_EQ(opened->target, answer.target);
    EXPECT_EQ(openAnswer(bytes, *sealGreeting(sample(), auth), auth).status().code(), Code::AccessDenied);
    EXPECT_EQ(openAnswer(bytes, greeting, authOf("o")).status().code(), Code::AccessDenied);
    auto changed = bytes;
    changed[24] ^= std::byte{1};
    EXPECT_EQ(openAnswer(changed, greeting, auth).status().code(), Code::AccessDenied);
    // Without a proof only a refusal for the key's sake is believed.
    const auto plain = sealAnswer(Answer{Code::StaleIncarnation, answer.target, 0, ""}, greeting, false, auth);
    EXPECT_EQ(openAnswer(plain, greeting, auth).status().code(), Code::AccessDenied);
    EXPECT_EQ(openAnswer(plain, greeting, nullptr)->code, Code::StaleIncarnation);
}

TEST(SealedHandshake, AGreetingIsNewOnce) {
    SeenGreetings seen(100);
    Greeting greeting = sample();
    EXPECT_TRUE(seen.isNew(greeting));
    EXPECT_FALSE(seen.isNew(greeting));
    greeting.attempt += 2;
    EXPECT_TRUE(seen.isNew(greeting));
    greeting.attempt -= 1;
    EXPECT_FALSE(seen.isNew(greeting));
    greeting.attempt += 1;
    EXPECT_FALSE(seen.isNew(greeting));
    greeting.candidate += 1;
    EXPECT_TRUE(seen.isNew(greeting));
    greeting.attempt += 1;
    greeting.candidate = 0;
    EXPECT_TRUE(seen.isNew(greeting));
    Greeting lane = greeting;
    lane.lane = 1;
    EXPECT_TRUE(seen.isNew(lane));
    // The one not heard of for longest goes first: not the one that comes again and again.
    for (int i = 0; i < 1000; ++i) {
        EXPECT_TRUE(seen.isNew(sample()));
        lane.attempt += 1;
        EXPECT_TRUE(seen.isNew(lane));
        EXPECT_FALSE(seen.isNew(lane));
    }
}

TEST(SealedHandshake, ARefusalSaysWhyAndTheProofCoversIt) {
    const std::string why = "it has 512 of them already (peer.rdma_connections)";
    for (const auto& auth : {authOf("k"), std::shared_ptr<const ClusterAuth>()}) {
        const auto greeting = *sealGreeting(sample(), auth);
        Answer answer{Code::CapacityExceeded, sample().target, 0, "", why};
        auto bytes = sealAnswer(answer, greeting, true, auth);
        ASSERT_LE(bytes.size(), 148u);
        bytes.resize(148);
        auto opened = openAnswer(bytes, greeting, auth);
        ASSERT_TRUE(opened) << opened.status().toString();
        EXPECT_EQ(opened->text, why);
        answer.text = std::string(1000, 'x');
        EXPECT_EQ(openAnswer(sealAnswer(answer, greeting, true, auth), greeting, auth)->text.size(), kMaxAnswerText);
        if (auth) {
            bytes[kAnswerBytes + kProofBytes + 3] ^= std::byte{1};
            EXPECT_EQ(openAnswer(bytes, greeting, auth).status().code(), Code::AccessDenied);
        } else {
            bytes[kAnswerBytes] = std::byte{7};
            EXPECT_EQ(openAnswer(bytes, greeting, auth)->text.front(), '?');
        }
    }
}

TEST(SealedHandshake, RandomBytesNeverPass) {
    const auto auth = authOf("k");
    std::mt19937 random(1);
    for (int round = 0; round < 5000; ++round) {
        std::vector<std::byte> bytes(random() % 120);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        EXPECT_FALSE(openGreeting(bytes, auth));
        EXPECT_FALSE(openAnswer(bytes, bytes, auth));
    }
}

// --- whole connections ---------------------------------------------------------------------------------------------

Config configOf(const std::string& device) {
    Config config;
    config.rdma_devices = device;
    config.rdma_drain_timeout = std::chrono::milliseconds(50);
    return config;
}

/// Writes between two nodes with these keys; how it ended, and what the target counted.
struct Between {
    Between(const std::string& keys_a, const std::string& keys_b)
        : soft(std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1"})),
          a(configOf("s0"), soft, "a", makeSilentLogger(), nullptr, nullptr, authOf(keys_a)),
          b(configOf("s1"), soft, "b", makeSilentLogger(), nullptr, nullptr, authOf(keys_b)) {
        EXPECT_TRUE(a.registerMemory(from.data(), from.size()));
        EXPECT_TRUE(b.registerMemory(to.data(), to.size()));
        Nic& nic = *a.nics.front();
        const auto path = nic.openPath(b.asPeer());
        EXPECT_TRUE(path) << path.status().toString();
        run(a, nic, *path, {write(from.data(), to.data(), from.size())});
        if (!a.sweep.failed.empty()) status = a.sweep.failed.front().cause;
    }
    ~Between() {
        a.end();
        b.end();
        EXPECT_EQ(soft->leftovers(), "");
    }

    std::vector<char> from = noise(4096);
    std::vector<char> to = std::vector<char>(4096);
    std::shared_ptr<SoftVerbs> soft;
    Node a;
    Node b;
    Status status;
};

TEST(SealedConnection, OneKeyAtBothEndsWorks) {
    const Between between("k", "k");
    EXPECT_TRUE(between.status) << between.status.toString();
    EXPECT_EQ(between.from, between.to);
    EXPECT_EQ(between.a.auth->counts().accepted, 1u);
    EXPECT_EQ(between.b.auth->counts().accepted, 1u);
}

TEST(SealedConnection, OtherAndMissingKeysAreRefusedAtBothEnds) {
    for (const auto& [a, b, why] :
         {std::tuple("a", "b", AuthRefusal::WrongProof), std::tuple("", "b", AuthRefusal::NoProof),
          std::tuple("a", "", AuthRefusal::UnusedKey)}) {
        const Between between(a, b);
        EXPECT_EQ(between.status.code(), Code::AccessDenied) << between.status.toString();
        EXPECT_THAT(between.status.message(), HasSubstr("cluster key"));
        EXPECT_GE(between.b.auth->counts().of(why), 1u);
        EXPECT_NE(between.from, between.to);
    }
}

TEST(SealedConnection, ATransportThatIsInstalledAnewIsLetInAtOnce) {
    // The peer remembers what it has seen of the incarnation; without a key it is a pair whose end it did not hear of.
    for (const char* key : {"k", ""}) {
        SCOPED_TRACE(key);
        Between between(key, key);
        ASSERT_TRUE(between.status) << between.status.toString();
        between.soft->loseGoodbyes();
        Node& a = between.a;
        a.end();
        a.install();
        ASSERT_TRUE(a.registerMemory(between.from.data(), between.from.size()));
        std::fill(between.to.begin(), between.to.end(), 'x');
        a.sweep.clear();
        const auto path = a.nics.front()->openPath(between.b.asPeer());
        ASSERT_TRUE(path) << path.status().toString();
        run(a, *a.nics.front(), *path, {write(between.from.data(), between.to.data(), between.from.size())});
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_EQ(between.from, between.to);
    }
}

TEST(SealedConnection, AFenceThroughAnotherDeviceIsProvenToo) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "s2", "s3"});
    std::vector<char> from = noise(4096);
    std::vector<char> to(from.size());
    {
        Config config = configOf("s0,s1");
        // Only a fence gives writes back in time.
        config.rdma_packet_lifetime = std::chrono::hours(1);
        Node a(config, soft, "a", makeSilentLogger(), nullptr, nullptr, authOf("k"));
        Node b(configOf("s2,s3"), soft, "b", makeSilentLogger(), nullptr, nullptr, authOf("k"));
        ASSERT_TRUE(a.registerMemory(from.data(), from.size()));
        ASSERT_TRUE(b.registerMemory(to.data(), to.size()));
        Nic& nic = *a.nics.front();
        const auto path = nic.openPath(b.asPeer());
        ASSERT_TRUE(path) << path.status().toString();
        const std::vector<WorkRequest> one{write(from.data(), to.data(), from.size())};
        run(a, nic, *path, one);
        a.sweep.clear();
        soft->hold(true);
        ASSERT_EQ(nic.post(*path, one), 1u);
        nic.poll(Clock::now(), a.sweep);
        soft->setPort("s0", false);
        ASSERT_TRUE(pump(a, [&] { return !a.sweep.failed.empty(); }));
        EXPECT_TRUE(a.sweep.failed.front().fenced) << a.sweep.failed.front().cause.toString();
        // Nothing but the fence can have told the peer. The own pair may take a moment more.
        EXPECT_TRUE(pump(a, [&] { return soft->count("qp") == 0; }));
        EXPECT_EQ(a.auth->counts().accepted, 2u) << "the pair and the fence";
        EXPECT_EQ(b.auth->counts().accepted, 2u);
        soft->hold(false);
    }
    EXPECT_EQ(soft->leftovers(), "");
}

}  // namespace
}  // namespace troupe::verbs
