#include <spdlog/sinks/ostream_sink.h>
#include <sys/mman.h>

#include <sstream>

#include "base/wire_code.h"
#include "tests/support/descriptor_limit.h"
#include "tests/tcp_backend/raw_peer.h"
#include "tests/tcp_backend/tcp_pair.h"
#include "transports/device.h"

namespace troupe::tcp::testing {
namespace {

class TcpHostile : public TargetUnderAttack {
  protected:
    explicit TcpHostile(const Config& config = quick()) : TargetUnderAttack(1u << 20, config) {}
    static Config quick() {
        Config config;
        // Longer than a busy machine takes to poll a greeting that is there.
        config.handshake_timeout = std::chrono::milliseconds(500);
        config.tcp_max_connections = 4;
        return config;
    }

    std::uint64_t addr() const { return reinterpret_cast<std::uint64_t>(memory.data()); }
    /// A connection that has said a proper hello.
    RawSocket greeted(std::uint64_t attempt = 1, std::uint32_t lane = 0) {
        RawSocket socket = RawSocket::to(port());
        const auto hello = bytesOf(helloTo(node, attempt, lane));
        EXPECT_TRUE(socket.send(hello.data(), hello.size()));
        EXPECT_TRUE(awaitBytes(socket, kHelloReplyBytes));
        return socket;
    }
    ResponseHeader nextResponse(RawSocket& socket, std::size_t offset) {
        EXPECT_TRUE(awaitBytes(socket, offset + kResponseBytes));
        ResponseHeader header;
        if (socket.got.size() < offset + kResponseBytes) {
            ADD_FAILURE() << "no response";
            return header;
        }
        EXPECT_TRUE(decodeResponse(socket.bytes() + offset, header));
        return header;
    }
};

/// There is nothing that a GPU would have to give: the answer must not wait for it, and what follows must not either.
TEST_F(TcpHostile, AReadOfNothingFromAGpuIsAnswered) {
    Region region;
    region.range = {0x10000, 4096};
    region.location = "cuda:0";
    region.remote_accessible = true;
    device::PlacedMemory place;
    place.memory.device = 0;
    region.place = std::make_shared<const device::PlacedMemory>(std::move(place));
    const auto reserved = node.table.reserve(region);
    ASSERT_TRUE(reserved);
    node.table.commit(reserved->id);
    RawSocket socket = greeted();
    for (const RequestHeader& request :
         {RequestHeader{Op::Read, false, 0, 0, 0x10000, 0}, RequestHeader{Op::Read, false, 0, 1, addr(), 8}}) {
        const auto bytes = bytesOf(request);
        ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    }
    const ResponseHeader nothing = nextResponse(socket, kHelloReplyBytes);
    EXPECT_EQ(nothing.kind, ResponseKind::ReadData);
    EXPECT_EQ(nothing.length, 0u);
    const ResponseHeader some = nextResponse(socket, kHelloReplyBytes + kResponseBytes);
    EXPECT_EQ(some.kind, ResponseKind::ReadData);
    EXPECT_EQ(some.id, 1u);
    EXPECT_EQ(some.length, 8u);
}

TEST_F(TcpHostile, GarbageIsClosedAtOnce) {
    for (const std::string garbage : {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02", "T", "TTRQ"}) {
        RawSocket socket = RawSocket::to(port());
        ASSERT_TRUE(socket.send(garbage.data(), garbage.size()));
        if (garbage != "T") {
            EXPECT_TRUE(isCut(socket)) << garbage;
            EXPECT_TRUE(socket.got.empty());
        }
    }
}

TEST_F(TcpHostile, HalfAHelloThenSilenceIsClosedInTime) {
    const auto hello = bytesOf(helloTo(node));
    RawSocket silent = RawSocket::to(port());
    RawSocket half = RawSocket::to(port());
    ASSERT_TRUE(half.send(hello.data(), hello.size() - 1));
    EXPECT_TRUE(isCut(silent));
    EXPECT_TRUE(isCut(half));
}

TEST_F(TcpHostile, AHelloMayComeByteByByte) {
    const auto hello = bytesOf(helloTo(node));
    RawSocket socket = RawSocket::to(port());
    for (const std::byte byte : hello) {
        ASSERT_TRUE(socket.send(&byte, 1));
        for (int i = 0; i < 3; ++i) node.poll();
    }
    ASSERT_TRUE(awaitBytes(socket, kHelloReplyBytes));
    const auto reply = decodeHelloReply(socket.bytes());
    ASSERT_TRUE(reply.isOk());
    EXPECT_EQ(reply->code, Code::Ok);
    EXPECT_EQ(reply->target, node.incarnation);
}

TEST_F(TcpHostile, AHelloForAnotherIncarnationIsAnsweredAndClosed) {
    Hello hello = helloTo(node);
    hello.target = Incarnation::random();
    const auto bytes = bytesOf(hello);
    RawSocket socket = RawSocket::to(port());
    ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    ASSERT_TRUE(isCut(socket));
    ASSERT_EQ(socket.got.size(), kHelloReplyBytes);
    EXPECT_EQ(decodeHelloReply(socket.bytes())->code, Code::StaleIncarnation);
    EXPECT_EQ(decodeHelloReply(socket.bytes())->target, node.incarnation);
}

TEST_F(TcpHostile, ANewHelloOfTheSameLaneEndsTheOldConnectionAndAnOlderOneIsRefused) {
    RawSocket first = greeted(5);
    RawSocket other = greeted(5, 1);
    RawSocket second = greeted(6);
    EXPECT_FALSE(first.receive());  // Already, when the second has its answer.
    RawSocket late = greeted(4);
    EXPECT_EQ(decodeHelloReply(late.bytes())->code, Code::StaleHandle);
    EXPECT_TRUE(isCut(late));
    EXPECT_TRUE(second.receive());
    EXPECT_TRUE(other.receive());
}

TEST_F(TcpHostile, ConnectionsAreBounded) {
    std::vector<RawSocket> sockets;
    for (std::uint32_t i = 0; i < 4; ++i) sockets.push_back(greeted(1, i));
    RawSocket fifth = RawSocket::to(port());
    EXPECT_TRUE(isCut(fifth));
    sockets.pop_back();
    for (int i = 0; i < 200; ++i) node.poll();
    RawSocket again = greeted(1, 9);
    EXPECT_EQ(again.got.size(), kHelloReplyBytes);
}

TEST_F(TcpHostile, WithoutADescriptorToAcceptWithItSaysSoOnce) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    std::ostringstream said;
    const auto log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
    Node short_of({}, "127.0.0.1", "b", log);
    RawSocket waiting = RawSocket::to(short_of.asPeer()->desc->lane_ports[0]);
    const auto hello = bytesOf(helloTo(short_of));
    ASSERT_TRUE(waiting.send(hello.data(), hello.size()));
    {
        const test::DescriptorLimit limit(0);
        // A few tries, 100 ms apart.
        const auto until = Clock::now() + std::chrono::milliseconds(450);
        while (Clock::now() < until) short_of.poll();
    }
    const auto isAnswered = [&] { return waiting.receive() && waiting.got.size() == kHelloReplyBytes; };
    EXPECT_TRUE(test::pumpNodes(isAnswered, short_of)) << "it listens again";
    const std::string text = said.str();
    const std::size_t first = text.find("have to wait");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("have to wait", first + 1), std::string::npos) << text;
}

TEST_F(TcpHostile, ForgedHeadersEndTheConnection) {
    const RequestHeader good{Op::Read, false, 0, 1, addr(), 8};
    const auto with = [&](std::size_t at_byte, int value) {
        auto bytes = bytesOf(good);
        bytes[at_byte] = static_cast<std::byte>(value);
        return bytes;
    };
    RequestHeader huge = good;
    huge.length = kMaxRequestBytes + 1;
    RequestHeader checked = good;
    checked.crc = true;
    checked.length = kMaxCheckedBytes + 1;
    RequestHeader wrapping{Op::Write, false, 0, 1, addr(), UINT64_MAX};
    for (const auto& bytes : {with(0, 0), with(0, 3), with(0, 255), with(1, 2), with(1, 255), with(2, 1), with(3, 255),
                              bytesOf(huge), bytesOf(checked), bytesOf(wrapping)}) {
        RawSocket socket = greeted();
        ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
        EXPECT_TRUE(isCut(socket));
        EXPECT_EQ(socket.got.size(), kHelloReplyBytes);
    }
}

TEST_F(TcpHostile, LengthsThatOverflowTheRangeAreRefused) {
    RawSocket socket = greeted();
    const auto bytes = bytesOf(RequestHeader{Op::Read, false, 0, 7, UINT64_MAX - 7, 64});
    ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    const auto response = nextResponse(socket, kHelloReplyBytes);
    EXPECT_EQ(response.kind, ResponseKind::Error);
    EXPECT_EQ(response.id, 7u);
    EXPECT_EQ(codeFromWire(response.value), Code::InvalidArgument);
    EXPECT_LE(response.length, kMaxMessageBytes);
}

TEST_F(TcpHostile, ARefusedWriteIsDiscardedHoweverLong) {
    RawSocket socket = greeted();
    const std::size_t length = 10u << 20;
    const auto bad = bytesOf(RequestHeader{Op::Write, false, 0, 1, 4096, length});
    const auto good = bytesOf(RequestHeader{Op::Write, false, 0, 2, addr() + 10, 4});
    ASSERT_TRUE(socket.send(bad.data(), bad.size()));
    std::vector<char> junk(length, 'j');
    std::size_t sent = 0;
    ASSERT_TRUE(pump([&] {
        const ssize_t size = ::send(socket.fd(), junk.data() + sent, length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size > 0) sent += static_cast<std::size_t>(size);
        return sent == length;
    }));
    ASSERT_TRUE(socket.send(good.data(), good.size()));
    ASSERT_TRUE(socket.send("good", 4));
    const auto error = nextResponse(socket, kHelloReplyBytes);
    EXPECT_EQ(codeFromWire(error.value), Code::AddressNotRegistered);
    const auto ack = nextResponse(socket, kHelloReplyBytes + kResponseBytes + error.length);
    EXPECT_EQ(ack.kind, ResponseKind::WriteAck);
    EXPECT_EQ(ack.id, 2u);
    EXPECT_EQ(std::string(memory.data() + 9, 6), "xgoodx");
}

TEST_F(TcpHostile, AHalfReceivedWriteIsFinishedWhileItsRegionIsBeingUnregistered) {
    RawSocket socket = greeted();
    const auto request = bytesOf(RequestHeader{Op::Write, false, 0, 1, addr(), 8});
    ASSERT_TRUE(socket.send(request.data(), request.size()));
    ASSERT_TRUE(socket.send("half", 4));
    ASSERT_TRUE(pump([&] { return std::string(memory.data(), 4) == "half"; }));
    ASSERT_TRUE(node.table.beginRemoval(addr()).isOk());
    const ByteRange range{addr(), memory.size()};
    EXPECT_TRUE(node.nic->servesPeerIn(range)) << "so unregister waits";
    // The rest, and a new request, which comes too late.
    ASSERT_TRUE(socket.send("done", 4));
    const auto late = bytesOf(RequestHeader{Op::Write, false, 0, 2, addr() + 8, 4});
    ASSERT_TRUE(socket.send(late.data(), late.size()));
    ASSERT_TRUE(socket.send("late", 4));
    const auto ack = nextResponse(socket, kHelloReplyBytes);
    EXPECT_EQ(ack.kind, ResponseKind::WriteAck);
    EXPECT_EQ(ack.id, 1u);
    const auto error = nextResponse(socket, kHelloReplyBytes + kResponseBytes);
    EXPECT_EQ(error.kind, ResponseKind::Error);
    EXPECT_EQ(codeFromWire(error.value), Code::AddressNotRegistered);
    EXPECT_EQ(std::string(memory.data(), 12), "halfdonexxxx");
    EXPECT_FALSE(node.nic->servesPeerIn(range));
}

TEST_F(TcpHostile, AReaderThatNeverReadsIsHeldAtABound) {
    RawSocket socket = greeted();
    // Error answers take more room than the requests: the worst case for the queue.
    std::vector<std::array<std::byte, kRequestBytes>> requests;
    for (std::uint64_t id = 0; id < 20000; ++id)
        requests.push_back(bytesOf(RequestHeader{Op::Read, false, 0, id, id % 2 ? 4096 : addr(), 1000}));
    const auto* bytes = reinterpret_cast<const char*>(requests.data());
    const std::size_t total = requests.size() * kRequestBytes;
    std::size_t sent = 0;
    for (int quiet = 0; quiet < 2000; ++quiet) {  // Until the target takes no more.
        const ssize_t size =
            ::send(socket.fd(), bytes + sent % total, total - sent % total, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size > 0) {
            sent += static_cast<std::size_t>(size);
            quiet = 0;
        }
        ASSERT_LT(sent, 200u << 20) << "it takes everything";
        node.poll();
    }
    // A timer may be due once; a target that is busy with it would never be quiet.
    EXPECT_TRUE(pump([&] { return !node.poll(); }));
    // Another peer is served all the same, and this one too once it reads.
    RawSocket other = greeted(1, 1);
    const auto one = bytesOf(RequestHeader{Op::Read, false, 0, 1, addr(), 8});
    ASSERT_TRUE(other.send(one.data(), one.size()));
    EXPECT_EQ(nextResponse(other, kHelloReplyBytes).length, 8u);
    const std::size_t before = socket.got.size();
    ASSERT_TRUE(pump([&] {
        socket.receive();
        return socket.got.size() > before + (8u << 20);
    }));
}

TEST_F(TcpHostile, BytesInTinyPiecesMakeTheSameFrames) {
    RawSocket socket = greeted();
    std::vector<char> stream;
    for (std::uint64_t id = 0; id < 20; ++id) {
        const std::size_t length = id == 10 ? 20000 : id * 7;
        const auto header = bytesOf(RequestHeader{Op::Write, false, 0, id, addr() + id * 100, length});
        stream.insert(stream.end(), reinterpret_cast<const char*>(header.data()),
                      reinterpret_cast<const char*>(header.data()) + header.size());
        stream.insert(stream.end(), length, static_cast<char>('a' + id));
    }
    std::size_t at_byte = 0;
    std::mt19937 random(3);
    while (at_byte < stream.size()) {
        const std::size_t size = std::min<std::size_t>(1 + random() % 50, stream.size() - at_byte);
        ASSERT_TRUE(socket.send(stream.data() + at_byte, size));
        at_byte += size;
        node.poll();
    }
    std::uint64_t acked = 0;
    std::size_t offset = kHelloReplyBytes;
    while (acked < 20) {
        const auto ack = nextResponse(socket, offset);
        ASSERT_EQ(ack.kind, ResponseKind::WriteAck);
        ASSERT_EQ(ack.id, acked);
        acked += ack.value;
        offset += kResponseBytes;
    }
    EXPECT_EQ(memory[19 * 100], 'a' + 19);
    EXPECT_EQ(memory[10 * 100 + 19999], 'a' + 10);
}

TEST_F(TcpHostile, RandomBytesAfterTheHelloHarmNothing) {
    std::mt19937 random(11);
    for (int round = 0; round < 200; ++round) {
        RawSocket socket = greeted();
        std::vector<unsigned char> bytes(1 + random() % 400);
        for (auto& byte : bytes) byte = static_cast<unsigned char>(random() % 4 ? random() % 4 : random());
        socket.send(bytes.data(), bytes.size());
        for (int i = 0; i < 5; ++i) node.poll();
        socket.close();
    }
    EXPECT_EQ(memory, std::vector<char>(memory.size(), 'x'));
}

/// An initiator whose peer answers what it likes.
class TcpLyingTarget : public ::testing::Test {
  protected:
    TcpLyingTarget() : pair(), listener(std::move(*listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0)))) {
        path = *pair.a.nic->openPath(at(pair.b.asPeer(), SocketAddress::local(listener.get())->port()));
    }
    void accept() {
        ASSERT_TRUE(pair.pump([&] {
            UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (fd) socket = RawSocket(std::move(fd));
            return socket.fd() >= 0;
        }));
    }
    void greet() {
        socket = {};
        accept();
        std::array<std::byte, kHelloReplyBytes> reply;
        encodeHelloReply({pair.b.incarnation, Code::Ok}, reply.data());
        ASSERT_TRUE(socket.send(reply.data(), reply.size()));
    }
    Pair pair;
    UniqueFd listener;
    RawSocket socket;
    PathId path = 0;
    std::vector<char> local = std::vector<char>(4096, 'l');
};

TEST_F(TcpLyingTarget, AnswersThatFitNoRequestEndTheConnection) {
    const std::vector<ResponseHeader> lies = {
        {ResponseKind::WriteAck, false, 2, 0, 0},  // More than there are.
        {ResponseKind::WriteAck, false, 1, 1, 0},  // Not the oldest.
        {ResponseKind::WriteAck, false, 0, 0, 0},       {ResponseKind::WriteAck, false, UINT32_MAX, 0, 0},
        {ResponseKind::ReadData, false, 0, 0, 8},  // It was a write.
        {ResponseKind::Error, false, 0, 0, 0},          {ResponseKind::Error, false, 4, 0, kMaxMessageBytes + 1},
        {static_cast<ResponseKind>(9), false, 1, 0, 0},
    };
    std::uint64_t id = 0;
    for (auto lie : lies) {
        pair.a.sweep.clear();
        const auto one = write(local.data(), local.data(), 8);
        ASSERT_EQ(pair.a.nic->post(path, {&one, 1}), 1u);
        greet();
        ASSERT_TRUE(
            pair.pump([&] { return !socket.receive() || socket.got.size() == kHelloBytes + kRequestBytes + 8; }));
        lie.id += id;
        const auto bytes = bytesOf(lie);
        ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
        EXPECT_EQ(pair.failure().cause.code(), Code::ProtocolError) << pair.failure().cause.toString();
        EXPECT_TRUE(pair.failure().retryable);
        ++id;
    }
}

TEST_F(TcpLyingTarget, AReadIsNeverFilledPastItsEnd) {
    for (const std::uint64_t length : {7, 9, 4096}) {
        pair.a.sweep.clear();
        const auto one = read(local.data(), local.data(), 8);
        ASSERT_EQ(pair.a.nic->post(path, {&one, 1}), 1u);
        greet();
        ASSERT_TRUE(pair.pump([&] { return !socket.receive() || socket.got.size() == kHelloBytes + kRequestBytes; }));
        RequestHeader asked;
        ASSERT_TRUE(decodeRequest(socket.bytes() + kHelloBytes, asked));
        const auto bytes = bytesOf({ResponseKind::ReadData, false, 0, asked.id, length});
        ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
        ASSERT_TRUE(socket.send(std::string(length, '!').data(), length));
        ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
        EXPECT_EQ(pair.failure().cause.code(), Code::ProtocolError);
        EXPECT_EQ(local, std::vector<char>(4096, 'l'));
    }
}

TEST_F(TcpLyingTarget, AnAnswerToNothingEndsTheConnection) {
    greet();
    const auto bytes = bytesOf({ResponseKind::WriteAck, false, 1, 0, 0});
    ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    EXPECT_TRUE(pair.pump([&] { return !socket.receive(); }));
}

TEST_F(TcpLyingTarget, AnErrorIsReportedWithItsCodeAndText) {
    const auto one = write(local.data(), local.data(), 8);
    ASSERT_EQ(pair.a.nic->post(path, {&one, 1}), 1u);
    greet();
    ASSERT_TRUE(pair.pump([&] { return !socket.receive() || socket.got.size() == kHelloBytes + kRequestBytes + 8; }));
    const std::string text = "flames\n\x1b[2J\xff";
    const auto bytes = bytesOf({ResponseKind::Error, false, 9999, 0, text.size()});
    ASSERT_TRUE(socket.send(bytes.data(), bytes.size()));
    ASSERT_TRUE(socket.send(text.data(), text.size()));
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
    EXPECT_EQ(pair.failure().cause.code(), Code::Internal);
    EXPECT_NE(pair.failure().cause.message().find("flames??[2J?"), std::string::npos) << "and no terminal obeys it";
    EXPECT_FALSE(pair.failure().retryable);
}

TEST_F(TcpLyingTarget, AWrongGreetingIsAProtocolError) {
    const auto one = write(local.data(), local.data(), 8);
    ASSERT_EQ(pair.a.nic->post(path, {&one, 1}), 1u);
    accept();
    ASSERT_TRUE(socket.send("HTTP/1.1 400 Bad Request\r\n\r\n.........", 37));
    ASSERT_TRUE(pair.pump([&] { return pair.ended() == 1; }));
    EXPECT_EQ(pair.failure().cause.code(), Code::ProtocolError);
}

}  // namespace
}  // namespace troupe::tcp::testing
