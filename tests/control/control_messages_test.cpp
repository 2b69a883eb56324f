#include "control/control_messages.h"

#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

/// Sends an encoded frame through the reader, as the other end would.
ControlFrame received(const std::string& bytes) {
    ControlFrameReader reader(1u << 20);
    std::vector<ControlFrame> frames;
    const auto status = reader.feed({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, frames);
    EXPECT_TRUE(status.isOk()) << status.toString();
    EXPECT_EQ(frames.size(), 1u);
    return frames.empty() ? ControlFrame{} : std::move(frames.front());
}

template <class Message>
void expectRoundTrip(const Message& message) {
    const auto decoded = Message::decode(received(message.encode()));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == message);
}

const Incarnation kSomeone = *Incarnation::parse("00112233445566778899aabbccddeeff");
const Incarnation kOther = *Incarnation::parse("ffeeddccbbaa99887766554433221100");

TEST(ControlMessages, SurviveARoundTrip) {
    expectRoundTrip(Hello{1, kSomeone, "node7:7000", kOther, ""});
    expectRoundTrip(Hello{65535, kSomeone, "", Incarnation{}, "reserved"});
    expectRoundTrip(Hello{1, kSomeone, "quote \" back \\ line \n null \u0001 \u00fc", {}, ""});
    expectRoundTrip(HelloAck{kSomeone, "node8:7000", UINT64_MAX});
    expectRoundTrip(DescriptorRequest{0});
    expectRoundTrip(DescriptorRequest{UINT64_MAX});
    expectRoundTrip(Ping{17});
    expectRoundTrip(Pong{UINT64_MAX});
    expectRoundTrip(Goodbye{"freeEngine"});
    expectRoundTrip(ErrorReply{Code::StaleIncarnation, "I am someone else"});
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    expectRoundTrip(TransportQuestion{UINT64_MAX, "rdma", bytes});
    expectRoundTrip(TransportQuestion{1, "rdma", std::string(kMaxControlBytes, '\xff')});
    expectRoundTrip(TransportAnswer{9, Code::Ok, "", bytes});
    expectRoundTrip(TransportAnswer{9, Code::TransportMissing, "no rdma here", ""});
}

TEST(ControlMessages, AnAnswersCodeIsNoneThatOnlyThisSideSaysOfItself) {
    for (const Code claimed : {Code::PathReset, Code::Canceled, Code::Timeout, static_cast<Code>(4711)}) {
        const auto answer = TransportAnswer::decode(received(TransportAnswer{9, claimed, "believe me", ""}.encode()));
        ASSERT_TRUE(answer) << answer.status().toString();
        EXPECT_EQ(answer->code, Code::Internal) << codeName(claimed);
    }
}

TEST(ControlMessages, TextsForPeopleComeOutPrintable) {
    const std::string text = "gone\n\x1b[31m 2026 all is well \u00fc";
    const std::string shown = "gone??[31m 2026 all is well \u00fc";
    EXPECT_EQ(Goodbye::decode(received(Goodbye{text}.encode()))->reason, shown);
    EXPECT_EQ(ErrorReply::decode(received(ErrorReply{Code::Internal, text}.encode()))->message, shown);
    EXPECT_EQ(TransportAnswer::decode(received(TransportAnswer{1, Code::Internal, text, ""}.encode()))->message, shown);
    const std::string twice = R"({"\u001b":1,"\u001b":2})";
    EXPECT_NE(Ping::decode({ControlType::Ping, twice}).status().message().find("field '?' stands twice"),
              std::string::npos);
}

TEST(ControlMessages, BytesThatAreNoHexadecimalOrTooManyAreRefused) {
    const auto refused = [](const std::string& bytes) {
        return TransportQuestion::decode(
                   {ControlType::Question, R"({"id":1,"transport":"rdma","bytes":")" + bytes + "\"}"})
            .status()
            .message();
    };
    for (const char* bytes : {"0", "0g", "zz", "A0", "000", " 00"})
        EXPECT_NE(refused(bytes).find("hexadecimal"), std::string::npos) << bytes;
    EXPECT_NE(refused(std::string(2 * kMaxControlBytes + 2, '0')).find("at most"), std::string::npos);
}

TEST(ControlMessages, ANullExpectationMeansWhoeverAnswers) {
    const auto hello = Hello::decode(received(Hello{1, kSomeone, "a", {}, ""}.encode()));
    ASSERT_TRUE(hello.isOk());
    EXPECT_TRUE(hello->expect.isNull());
}

TEST(ControlMessages, ADescriptorTravelsAsItIsOrAsUnchanged) {
    const Descriptor full{R"({"name":"a"})"};
    const auto decoded = Descriptor::decode(received(*full.encode(1000)));
    ASSERT_TRUE(decoded.isOk());
    EXPECT_EQ(decoded->json, full.json);
    const auto unchanged = Descriptor::decode(received(*Descriptor{}.encode(1000)));
    ASSERT_TRUE(unchanged.isOk());
    EXPECT_TRUE(unchanged->unchanged());
}

TEST(ControlMessages, ATooLongDescriptorIsRefusedByItsSender) {
    EXPECT_EQ(Descriptor{"{" + std::string(100, ' ') + "}"}.encode(100).status().code(), Code::CapacityExceeded);
}

TEST(ControlMessages, ADescriptorThatIsNoObjectIsRefused) {
    for (const auto* body : {"", "\"same\"", "[]", "null", " {}"})
        EXPECT_EQ(Descriptor::decode({ControlType::Descriptor, body}).status().code(), Code::ProtocolError) << body;
}

TEST(ControlMessages, AnotherTypeIsRefused) {
    EXPECT_EQ(Hello::decode({ControlType::Ping, R"({"seq":1})"}).status().code(), Code::ProtocolError);
    EXPECT_EQ(Descriptor::decode({ControlType::Ping, "{}"}).status().code(), Code::ProtocolError);
}

TEST(ControlMessages, WhatIsWrongIsNamed) {
    struct Case {
        std::string body;
        std::string names;
    };
    const std::string id = R"("incarnation":"00112233445566778899aabbccddeeff")";
    const Case cases[] = {
        {"", "not JSON"},
        {"[1]", "not a JSON object"},
        {"7", "not a JSON object"},
        {"{}trailing", "not JSON"},
        {R"({"version":1,)" + id + R"(,"name":"a","expect":null,"auth":""})" + std::string("\0 ", 2),
         "not JSON at byte"},
        {R"({"version":1,)" + id + R"(,"name":"a","expect":null,"auth":"")", "not JSON"},
        {R"({"version":1,)" + id + R"(,"name":"a","expect":null})", "'auth' is missing"},
        {R"({"version":1,)" + id + R"(,"name":"a","auth":""})", "'expect' is missing"},
        {R"({"version":1,"name":"a","expect":null,"auth":""})", "'incarnation' is missing"},
        {R"({"version":65536,)" + id + R"(,"name":"a","expect":null,"auth":""})", "'version'"},
        {R"({"version":-1,)" + id + R"(,"name":"a","expect":null,"auth":""})", "'version'"},
        {R"({"version":1.0,)" + id + R"(,"name":"a","expect":null,"auth":""})", "'version'"},
        {R"({"version":"1",)" + id + R"(,"name":"a","expect":null,"auth":""})", "'version'"},
        {R"({"version":1,"incarnation":"00","name":"a","expect":null,"auth":""})", "'incarnation'"},
        {R"({"version":1,"incarnation":null,"name":"a","expect":null,"auth":""})", "'incarnation'"},
        {R"({"version":1,"incarnation":"00000000000000000000000000000000","name":"","expect":null,"auth":""})",
         "'incarnation'"},
        {R"({"version":1,)" + id + R"(,"name":5,"expect":null,"auth":""})", "'name' is not a string"},
        {R"({"version":1,)" + id + R"(,"name":")" + std::string(1025, 'n') + R"(","expect":null,"auth":""})", "1025"},
        {R"({"version":1,)" + id + R"(,"name":"a","expect":"zz","auth":""})", "'expect'"},
        {R"({"version":1,)" + id + R"(,"name":"a","name":"b","expect":null,"auth":""})", "'name' stands twice"},
        {"{\"name\":\"\xff\xfe\"}", "not JSON"},
    };
    for (const auto& each : cases) {
        const auto decoded = Hello::decode({ControlType::Hello, each.body});
        EXPECT_EQ(decoded.status().code(), Code::ProtocolError) << each.body;
        EXPECT_NE(decoded.status().message().find(each.names), std::string::npos)
            << each.body << " -> " << decoded.status().toString();
    }
}

TEST(ControlMessages, UnknownFieldsOfAnyKindAreIgnored) {
    const auto ping =
        Ping::decode({ControlType::Ping, R"({"x":{"seq":9,"y":[1,{"z":"t"}]},"seq":7,"f":-1.5,"n":null,"b":true})"});
    ASSERT_TRUE(ping.isOk()) << ping.status().toString();
    EXPECT_EQ(ping->seq, 7u);
}

TEST(ControlMessages, DepthAndFieldCountAreBounded) {
    std::string deep = R"({"seq":1,"x":)" + std::string(30000, '[') + std::string(30000, ']') + "}";
    EXPECT_NE(Ping::decode({ControlType::Ping, deep}).status().message().find("deep"), std::string::npos);
    std::string wide = R"({"seq":1)";
    for (int i = 0; i < 5000; ++i) wide += ",\"f" + std::to_string(i) + "\":0";
    wide += "}";
    EXPECT_NE(Ping::decode({ControlType::Ping, wide}).status().message().find("fields"), std::string::npos);
}

TEST(ControlMessages, TextsTooLongOrNotUtf8AreMadeSendable) {
    const auto goodbye = Goodbye::decode(received(Goodbye{std::string(100000, '\xff')}.encode()));
    ASSERT_TRUE(goodbye.isOk()) << goodbye.status().toString();
    EXPECT_LE(goodbye->reason.size(), kMaxControlText);
    const auto error = ErrorReply::decode(received(ErrorReply{Code::Timeout, std::string(100000, 'x')}.encode()));
    ASSERT_TRUE(error.isOk());
}

TEST(ControlMessages, AnErrorCodeOfALaterVersionIsAnInternalError) {
    for (const auto* code : {"0", "999", "2147483647"}) {
        const auto error =
            ErrorReply::decode({ControlType::Error, std::string(R"({"code":)") + code + R"(,"message":"m"})"});
        ASSERT_TRUE(error.isOk());
        EXPECT_EQ(error->code, Code::Internal);
    }
    const Status status = ErrorReply::from(Status(Code::PeerDown, "gone")).toStatus("10.0.0.1:1 says");
    EXPECT_EQ(status.toString(), "PeerDown: 10.0.0.1:1 says: gone");
}

TEST(ControlMessages, SurviveDamagedBodies) {
    std::mt19937_64 random(7);
    const std::string good = received(Hello{1, kSomeone, "node7:7000", kOther, ""}.encode()).body;
    for (int round = 0; round < 20000; ++round) {
        std::string body = good;
        for (std::uint64_t i = 0; i <= random() % 3; ++i) {
            const auto at = random() % body.size();
            switch (random() % 3) {
                case 0: body[at] = static_cast<char>(random()); break;
                case 1: body.erase(at, 1 + random() % 5); break;
                default: body.insert(at, std::string(1 + random() % 3, "{}[]\",:0"[random() % 8])); break;
            }
            if (body.empty()) body = " ";
        }
        const auto decoded = Hello::decode({ControlType::Hello, body});
        EXPECT_TRUE(decoded.isOk() || decoded.status().code() == Code::ProtocolError);
    }
}

}  // namespace
}  // namespace troupe
