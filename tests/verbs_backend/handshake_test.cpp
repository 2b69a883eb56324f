#include "verbs_backend/handshake.h"

#include <gtest/gtest.h>

#include <random>

namespace troupe::verbs {
namespace {

Greeting sample() {
    Greeting greeting;
    greeting.initiator = Incarnation::random();
    greeting.target = Incarnation::random();
    greeting.nic = 3;
    greeting.lane = 70000;
    greeting.attempt = 0x123456789abcdef0;
    return greeting;
}

TEST(VerbsHandshake, AGreetingAndAnAnswerComeThroughAsTheyAre) {
    const Greeting greeting = sample();
    const auto decoded = decodeGreeting(encode(greeting));
    ASSERT_TRUE(decoded) << decoded.status().toString();
    EXPECT_TRUE(decoded->sameLane(greeting));
    EXPECT_EQ(decoded->target, greeting.target);
    EXPECT_EQ(decoded->attempt, greeting.attempt);
    EXPECT_FALSE(decoded->fence);
    Greeting fence = greeting;
    fence.fence = true;
    EXPECT_TRUE(decodeGreeting(encode(fence))->fence);

    const Answer answer{Code::StaleIncarnation, Incarnation::random(), 2048, std::string(kMaxDeviceName, 'x')};
    const auto back = decodeAnswer(encode(answer));
    ASSERT_TRUE(back) << back.status().toString();
    EXPECT_EQ(back->code, answer.code);
    EXPECT_EQ(back->target, answer.target);
    EXPECT_EQ(back->mtu, 2048u);
    EXPECT_EQ(back->device, answer.device);
}

TEST(VerbsHandshake, FitsWhatRdmaCmCarries) {
    // rdma_connect(3), rdma_reject(3): 56 bytes in a request, 148 in a rejection, 196 in an acceptance.
    EXPECT_LE(kGreetingBytes, 56u);
    EXPECT_LE(kAnswerBytes, 148u);
}

TEST(VerbsHandshake, PaddingBehindItIsIgnored) {
    const auto bytes = encode(sample());
    std::vector<std::byte> padded(bytes.begin(), bytes.end());
    padded.resize(200);
    EXPECT_TRUE(decodeGreeting(padded));
}

TEST(VerbsHandshake, HostileBytesAreRefused) {
    auto bytes = encode(sample());
    EXPECT_EQ(decodeGreeting(std::span(bytes).first(bytes.size() - 1)).status().code(), Code::ProtocolError);
    EXPECT_EQ(decodeGreeting({}).status().code(), Code::ProtocolError);
    const auto with = [&](std::size_t at, std::byte value) {
        auto changed = bytes;
        changed[at] = value;
        return decodeGreeting(changed).status();
    };
    EXPECT_EQ(with(0, std::byte{0}).code(), Code::ProtocolError);
    EXPECT_NE(with(4, std::byte{9}).message().find("version 9"), std::string::npos);
    EXPECT_EQ(with(6, std::byte{16}).code(), Code::ProtocolError);
    EXPECT_EQ(with(7, std::byte{1}).code(), Code::ProtocolError);
    Greeting nobody = sample();
    nobody.initiator = {};
    EXPECT_EQ(decodeGreeting(encode(nobody)).status().code(), Code::ProtocolError);

    auto answer = encode(Answer{Code::Ok, Incarnation::random(), 1024, "mlx5_0"});
    answer[32] = std::byte{'\n'};
    EXPECT_EQ(decodeAnswer(answer).status().code(), Code::ProtocolError);
}

TEST(VerbsHandshake, RandomBytesNeverPassForMore) {
    std::mt19937 random(1);
    for (int round = 0; round < 20000; ++round) {
        std::vector<std::byte> bytes(random() % 80);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        EXPECT_FALSE(decodeGreeting(bytes));
        EXPECT_FALSE(decodeAnswer(bytes));
    }
}

}  // namespace
}  // namespace troupe::verbs
