#include "tcp_backend/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "base/wire_code.h"

namespace troupe::tcp {
namespace {

TEST(Wire, AHelloSurvivesTheWire) {
    Hello hello;
    hello.lane = {Incarnation::random(), 3, 0xfffffff0};
    hello.target = Incarnation::random();
    hello.attempt = 0x1122334455667788;
    hello.crc = true;
    std::array<std::byte, kHelloBytes> bytes;
    encodeHello(hello, bytes.data());
    for (std::size_t i = 0; i <= bytes.size(); ++i) EXPECT_TRUE(startsLikeHello(bytes.data(), i));
    const auto decoded = decodeHello(bytes.data());
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_EQ(decoded->lane, hello.lane);
    EXPECT_EQ(decoded->target, hello.target);
    EXPECT_EQ(decoded->attempt, hello.attempt);
    EXPECT_TRUE(decoded->crc);
}

TEST(Wire, AHelloOfAnotherVersionOrWithUnknownPartsIsRefused) {
    Hello hello;
    std::array<std::byte, kHelloBytes> good;
    encodeHello(hello, good.data());
    for (const std::size_t at : {0, 1, 2, 3, 4, 5, 6, 7, 56, 59, 60, 79}) {
        auto bytes = good;
        bytes[at] ^= std::byte{0x40};
        EXPECT_FALSE(decodeHello(bytes.data()).isOk()) << at;
        EXPECT_EQ(startsLikeHello(bytes.data(), bytes.size()), at > 5) << at;
    }
    auto bytes = good;
    bytes[56] = std::byte{kAuthBytes - 1};
    EXPECT_EQ(decodeHello(bytes.data()).status().code(), Code::Unsupported);
    bytes[56] = std::byte{kAuthBytes};
    EXPECT_TRUE(decodeHello(bytes.data())->has_nonce);
}

TEST(Wire, AReplySurvivesTheWire) {
    const HelloReply reply{Incarnation::random(), Code::StaleIncarnation};
    std::array<std::byte, kHelloReplyBytes> bytes;
    encodeHelloReply(reply, bytes.data());
    const auto decoded = decodeHelloReply(bytes.data());
    ASSERT_TRUE(decoded.isOk());
    EXPECT_EQ(decoded->target, reply.target);
    EXPECT_EQ(decoded->code, reply.code);
    bytes[0] ^= std::byte{1};
    EXPECT_EQ(decodeHelloReply(bytes.data()).status().code(), Code::ProtocolError);
}

TEST(Wire, NumbersAreLittleEndian) {
    std::array<std::byte, kRequestBytes> bytes;
    encodeRequest({Op::Write, true, 0x04030201, 0x0807060504030201, 0x1817161514131211, 0x1000}, bytes.data());
    const unsigned char expected[kRequestBytes] = {2,    1,    0, 0,    1, 2,    3,    4,    1,    2,    3,
                                                   4,    5,    6, 7,    8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
                                                   0x17, 0x18, 0, 0x10, 0, 0,    0,    0,    0,    0};
    EXPECT_EQ(std::memcmp(bytes.data(), expected, kRequestBytes), 0);
    RequestHeader header;
    ASSERT_TRUE(decodeRequest(bytes.data(), header));
    EXPECT_EQ(header.crc32c, 0x04030201u);
    EXPECT_EQ(header.id, 0x0807060504030201u);
    EXPECT_EQ(header.addr, 0x1817161514131211u);
    EXPECT_EQ(header.length, 0x1000u);
    EXPECT_TRUE(header.crc);
}

TEST(Wire, ResponsesSurviveTheWire) {
    for (const ResponseHeader& header : {ResponseHeader{ResponseKind::WriteAck, false, 17, 1000, 0},
                                         ResponseHeader{ResponseKind::ReadData, true, 5, 6, 7},
                                         ResponseHeader{ResponseKind::Error, false, 4, 9, 30}}) {
        std::array<std::byte, kResponseBytes> bytes;
        encodeResponse(header, bytes.data());
        ResponseHeader decoded;
        ASSERT_TRUE(decodeResponse(bytes.data(), decoded));
        EXPECT_EQ(decoded.kind, header.kind);
        EXPECT_EQ(decoded.crc, header.crc);
        EXPECT_EQ(decoded.value, header.value);
        EXPECT_EQ(decoded.id, header.id);
        EXPECT_EQ(decoded.length, header.length);
    }
}

TEST(Wire, DecodersTakeAnyBytes) {
    std::mt19937 random(1);
    std::array<std::byte, kHelloBytes> bytes;
    int accepted = 0;
    for (int i = 0; i < 200000; ++i) {
        const unsigned rare = 2 + static_cast<unsigned>(i) % 20;  // Mostly zeros, so that some are close to valid.
        for (auto& byte : bytes) byte = static_cast<std::byte>(random() % rare ? 0 : random() % 4);
        if (i % 2 != 0) bytes[0] = std::byte{1};
        RequestHeader request;
        if (decodeRequest(bytes.data(), request)) {
            ++accepted;
            ASSERT_LE(request.length, kMaxRequestBytes);
        }
        ResponseHeader response;
        if (decodeResponse(bytes.data(), response)) {
            ASSERT_LE(response.length, kMaxRequestBytes);
        }
        static_cast<void>(decodeHello(bytes.data()).isOk());
        static_cast<void>(decodeHelloReply(bytes.data()).isOk());
    }
    EXPECT_GT(accepted, 0);
}

TEST(Wire, RefusalTextsAreBoundedAndRepeatable) {
    char once[kMaxMessageBytes];
    char again[kMaxMessageBytes];
    for (std::uint32_t number = 0; number < 40; ++number)
        for (const std::uint64_t addr : {std::uint64_t{0}, std::uint64_t{1} << 63, UINT64_MAX})
            for (const Denial denial : {Denial::LocalOnly, Denial::ReadOnly, Denial::Untouchable}) {
                const RangeFault fault{codeFromWire(number), addr, denial};
                const auto size = refusalText(fault, once);
                ASSERT_LT(size, kMaxMessageBytes - 1) << "none is cut short";
                ASSERT_EQ(refusalText(fault, again), size);
                ASSERT_EQ(std::memcmp(once, again, size), 0);
            }
}

}  // namespace
}  // namespace troupe::tcp
