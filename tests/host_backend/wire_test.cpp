#include "host_backend/wire.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace troupe::host {
namespace {

std::vector<Frame> oneOfEach() {
    return {Hello{Incarnation::random(), Incarnation::random()},
            Welcome{Incarnation::random(), 0x0123456789abcdef, 0x7f0000001000, true},
            Refuse{Code::StaleIncarnation, "not me"},
            Ready{42},
            GrantRequest{1, 0x7f0000000000, 4096, true},
            Grant{1, 7, 0x7f0000000000, 1u << 20, 8192, Grant::Kind::Mapped, false},
            GrantRefused{2, Code::AccessDenied, "no"},
            Revoke{7},
            RevokeAck{7},
            DeviceGrant{
                3, 1ull << 63 | 9, 0x7f0000001000, 4096, device::ShareKind::File, 0x7f0000000000, 1u << 21, {1, 2}}};
}

TEST(HostWire, EveryFrameComesBackAsItWas) {
    for (const Frame& frame : oneOfEach()) {
        const auto decoded = decode(encode(frame).span());
        ASSERT_TRUE(decoded) << decoded.status().toString();
        EXPECT_EQ(*decoded, frame) << frame.index();
    }
}

TEST(HostWire, AWrongLengthIsRefusedWhateverTheFrame) {
    for (const Frame& frame : oneOfEach()) {
        const Packet packet = encode(frame);
        const bool has_text = std::holds_alternative<Refuse>(frame) || std::holds_alternative<GrantRefused>(frame);
        const std::size_t text = has_text ? (std::holds_alternative<Refuse>(frame) ? 6 : 2) : 0;
        for (std::size_t length = 0; length < packet.length - text; ++length)
            EXPECT_FALSE(decode({packet.bytes.data(), length})) << frame.index() << " cut to " << length;
        if (has_text) continue;
        EXPECT_FALSE(decode({packet.bytes.data(), packet.length + 1})) << frame.index();
    }
    const std::vector<std::byte> huge(kMaxFrameBytes + 1);
    EXPECT_FALSE(decode(huge));
}

TEST(HostWire, ALongTextIsCutAndAHostileOneMadePrintable) {
    const auto cut = decode(encode(Refuse{Code::Internal, std::string(5000, 'x')}).span());
    ASSERT_TRUE(cut);
    EXPECT_EQ(std::get<Refuse>(*cut).text, std::string(kMaxTextBytes, 'x'));
    const auto bad = decode(encode(Refuse{Code::Internal, "a\n\x1b[31mb"}).span());
    ASSERT_TRUE(bad);
    EXPECT_EQ(std::get<Refuse>(*bad).text, "a??[31mb");
}

TEST(HostWire, RefusesGrantsThatCannotBe) {
    const auto refused = [](const Grant& grant) { return !decode(encode(grant).span()).isOk(); };
    EXPECT_TRUE(refused({1, 1, 4096, 0, 0, Grant::Kind::Vm, true}));
    EXPECT_TRUE(refused({1, 1, UINT64_MAX - 10, 4096, 0, Grant::Kind::Vm, true}));
    EXPECT_TRUE(refused({1, 1, 4096, 4096, UINT64_MAX - 10, Grant::Kind::Mapped, true}));
    EXPECT_TRUE(refused({1, 1, 4096, 4096, 0, static_cast<Grant::Kind>(2), true}));
    const auto no_device = [](std::uint64_t base, std::uint64_t length, device::ShareKind kind,
                              std::uint64_t allocation, std::uint64_t bytes) {
        return !decode(encode(DeviceGrant{1, 1, base, length, kind, allocation, bytes, {}}).span()).isOk();
    };
    EXPECT_FALSE(no_device(4096, 10, device::ShareKind::Ipc, 4096, 10));
    EXPECT_TRUE(no_device(4096, 0, device::ShareKind::Ipc, 4096, 10));
    EXPECT_TRUE(no_device(4095, 10, device::ShareKind::Ipc, 4096, 10)) << "not all of it in the allocation";
    EXPECT_TRUE(no_device(4096, 11, device::ShareKind::Ipc, 4096, 10));
    EXPECT_TRUE(no_device(UINT64_MAX - 3, 10, device::ShareKind::Ipc, UINT64_MAX - 3, 10));
    EXPECT_FALSE(no_device(4096, 10, device::ShareKind::Fabric, 4096, 10));
    for (const std::uint32_t kind : {0u, 4u})
        EXPECT_TRUE(no_device(4096, 10, static_cast<device::ShareKind>(kind), 4096, 10)) << kind;
    EXPECT_FALSE(decode(encode(Refuse{Code::Ok, "fine"}).span())) << "an error that is none";
    EXPECT_FALSE(decode(encode(Refuse{static_cast<Code>(999), "?"}).span()));
}

TEST(HostWire, AnyBytesAreDecodedOrRefused) {
    std::mt19937 random(1);
    const auto frames = oneOfEach();
    std::size_t accepted = 0;
    for (int round = 0; round < 200000; ++round) {
        Packet packet = encode(frames[random() % frames.size()]);
        for (unsigned flips = 1 + random() % 4; flips > 0; --flips)
            packet.bytes[random() % packet.length] = static_cast<std::byte>(random());
        if (random() % 4 == 0) packet.length = random() % (kMaxFrameBytes + 1);
        const auto decoded = decode(packet.span());
        if (!decoded) {
            EXPECT_EQ(decoded.status().code(), Code::ProtocolError);
            continue;
        }
        ++accepted;
        // What was accepted is a frame: it survives the way back.
        const auto again = decode(encode(*decoded).span());
        ASSERT_TRUE(again);
        EXPECT_EQ(*again, *decoded);
    }
    EXPECT_GT(accepted, 1000u) << "the fuzz must get past the first check";
}

}  // namespace
}  // namespace troupe::host
