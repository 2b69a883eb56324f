#include "security/cluster_auth.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/security/auth_keys.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::span<const std::byte> bytesOf(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

TEST(ClusterAuth, AProofIsAcceptedByWhoHasTheKeyAndNobodyElse) {
    const auto one = authOf("a");
    const Proof proof = one->prove(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge")});
    EXPECT_TRUE(authOf("a")->accepts(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge")}, proof));
    EXPECT_FALSE(authOf("b")->accepts(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge")}, proof));
    EXPECT_FALSE(authOf("")->accepts(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge")}, proof));
}

TEST(ClusterAuth, AProofIsGoodForItsRoleProtocolAndTranscriptOnly) {
    const auto auth = authOf("a");
    const Proof proof = auth->prove(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge")});
    EXPECT_FALSE(auth->accepts(AuthRole::Responder, "tcp", {bytesOf("hello"), bytesOf("challenge")}, proof));
    EXPECT_FALSE(auth->accepts(AuthRole::Initiator, "control", {bytesOf("hello"), bytesOf("challenge")}, proof));
    EXPECT_FALSE(auth->accepts(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challengf")}, proof));
    // The same bytes, cut otherwise.
    EXPECT_FALSE(auth->accepts(AuthRole::Initiator, "tcp", {bytesOf("helloc"), bytesOf("hallenge")}, proof));
    EXPECT_FALSE(auth->accepts(AuthRole::Initiator, "tcp", {bytesOf("hellochallenge")}, proof));
    EXPECT_FALSE(auth->accepts(AuthRole::Initiator, "tcp", {bytesOf("hello"), bytesOf("challenge"), {}}, proof));
}

TEST(ClusterAuth, EveryBitOfAProofCounts) {
    const auto auth = authOf("a");
    const Proof proof = auth->prove(AuthRole::Record, "x", {});
    for (std::size_t bit = 0; bit < 8 * proof.size(); ++bit) {
        Proof damaged = proof;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        EXPECT_FALSE(auth->accepts(AuthRole::Record, "x", {}, damaged)) << bit;
    }
    EXPECT_TRUE(auth->accepts(AuthRole::Record, "x", {}, std::span(proof).first(8)));
    EXPECT_FALSE(auth->accepts(AuthRole::Record, "x", {}, std::span(proof).first(7)));
    EXPECT_FALSE(auth->accepts(AuthRole::Record, "x", {}, {}));
}

TEST(ClusterAuth, IsHmacSha256) {
    // hmac(b"a"*32, b"".join(len(p).to_bytes(8,"little")+p for p in [b"troupe-auth-1",b"tcp",b"I",b"hello"]), "sha256")
    // of Python's hmac module.
    const Proof proof = authOf("a")->prove(AuthRole::Initiator, "tcp", {bytesOf("hello")});
    EXPECT_EQ(toHex(proof), "ba11dab10ced77b2dd123985f3aeb93bb49d552ef14b8315546a008e7fc9045b");
}

TEST(ClusterAuth, OfTwoKeysTheFirstProvesAndBothAreAccepted) {
    // The steps of a change of key: every pair of neighbours in this list understands each other, both ways.
    const std::vector<std::string> steps = {"o", "on", "no", "n"};
    for (std::size_t i = 0; i + 1 < steps.size(); ++i)
        for (const auto& [from, to] : {std::pair(steps[i], steps[i + 1]), std::pair(steps[i + 1], steps[i])}) {
            const Proof proof = authOf(from)->prove(AuthRole::Initiator, "tcp", {});
            EXPECT_TRUE(authOf(to)->accepts(AuthRole::Initiator, "tcp", {}, proof)) << from << " to " << to;
        }
    EXPECT_FALSE(
        authOf("n")->accepts(AuthRole::Initiator, "tcp", {}, authOf("o")->prove(AuthRole::Initiator, "tcp", {})));
}

TEST(ClusterAuth, NoncesDiffer) {
    std::set<std::string> seen;
    for (int i = 0; i < 1000; ++i) seen.insert(toHex(randomNonce()));
    EXPECT_EQ(seen.size(), 1000u);
}

TEST(ClusterAuth, HexadecimalTakesExactlyThirtyTwoBytes) {
    const Nonce nonce = randomNonce();
    EXPECT_EQ(bytesFromHex(toHex(nonce)), nonce);
    EXPECT_FALSE(bytesFromHex(toHex(nonce).substr(1)));
    EXPECT_FALSE(bytesFromHex(toHex(nonce) + "0"));
    EXPECT_FALSE(bytesFromHex(std::string(64, 'g')));
    EXPECT_FALSE(bytesFromHex(std::string(64, 'A')));
    EXPECT_FALSE(bytesFromHex(""));
}

TEST(ClusterAuth, CountsWhatCameOfIt) {
    const auto auth = authOf("a");
    auth->countAccepted();
    countRefusal(auth, AuthRefusal::WrongProof);
    countRefusal(auth, AuthRefusal::WrongProof);
    countRefusal(nullptr, AuthRefusal::WrongProof);
    EXPECT_EQ(auth->counts().accepted, 1u);
    EXPECT_EQ(auth->counts().of(AuthRefusal::WrongProof), 2u);
    EXPECT_EQ(auth->counts().of(AuthRefusal::NoProof), 0u);
}

TEST(ClusterAuthConfig, WithoutSettingsThereIsNoKey) {
    const auto auth = ClusterAuth::load(Config{});
    ASSERT_TRUE(auth);
    EXPECT_FALSE((*auth)->hasKey());
}

TEST(ClusterAuthConfig, WhatCannotBeAKeyIsRefusedWithoutShowingIt) {
    Config config;
    config.auth_key = "too short to be one";
    EXPECT_THAT(ClusterAuth::load(config).status().toString(),
                testing::AllOf(HasSubstr("InvalidArgument"), HasSubstr("auth.key has 19 bytes"),
                               HasSubstr("openssl rand -hex 32"), Not(HasSubstr("too short"))));
    config.auth_key = std::string(32, 'k');
    EXPECT_TRUE(ClusterAuth::load(config));
    config.auth_key_file = "/tmp/both";
    EXPECT_THAT(ClusterAuth::load(config).status().message(), HasSubstr("auth.key and auth.key_file are both set"));
    config = {};
    config.auth_accept_key = std::string(32, 'k');
    EXPECT_THAT(ClusterAuth::load(config).status().message(), HasSubstr("auth.key is not"));
    config.auth_key = std::string(32, 'j');
    config.auth_accept_key = "short";
    EXPECT_THAT(ClusterAuth::load(config).status().message(), HasSubstr("auth.accept_key has 5 bytes"));
}

}  // namespace
}  // namespace troupe::test
