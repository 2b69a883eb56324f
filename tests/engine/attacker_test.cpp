// An attacker with sockets against a whole engine: whatever it asks for, nothing outside what is registered for peers
// is touched. Around each region lie pages that nobody may touch, so that a byte too many would end this program, or
// fail in the kernel and end the connection instead of being refused.

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <thread>

#include "base/byte_range.h"
#include "base/endpoint.h"
#include "control/control_messages.h"
#include "host_backend/socket.h"
#include "tcp_backend/wire.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

constexpr std::size_t kPage = 4096;

/// none | for peers, 2 pages | none | for itself, 2 pages | none | for peers to read | none
class Memory {
  public:
    Memory() {
        void* mapped = ::mmap(nullptr, 10 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<std::byte*>(mapped);
        for (const std::size_t page : {1, 4, 7})
            EXPECT_EQ(::mprotect(base_ + page * kPage, 2 * kPage, PROT_READ | PROT_WRITE), 0);
        std::fill_n(local(), 2 * kPage, std::byte{0x4c});
        std::fill_n(readOnly(), 2 * kPage, std::byte{0x52});
        // What is mapped read-only can be registered, and then not be written by anybody.
        EXPECT_EQ(::mprotect(readOnly(), 2 * kPage, PROT_READ), 0);
    }
    ~Memory() { ::munmap(base_, 10 * kPage); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::byte* peers() const { return base_ + kPage; }
    std::byte* local() const { return base_ + 4 * kPage; }
    std::byte* readOnly() const { return base_ + 7 * kPage; }
    bool localIsAsItWas() const {
        return std::all_of(local(), local() + 2 * kPage, [](std::byte b) { return b == std::byte{0x4c}; });
    }
    bool readOnlyIsAsItWas() const {
        return std::all_of(readOnly(), readOnly() + 2 * kPage, [](std::byte b) { return b == std::byte{0x52}; });
    }

  private:
    std::byte* base_ = nullptr;
};

std::uint64_t at(const void* address, std::int64_t offset = 0) {
    return reinterpret_cast<std::uint64_t>(address) + static_cast<std::uint64_t>(offset);
}

class Attacker : public testing::Test {
  protected:
    static EngineSetup setup() {
        EngineSetup result;
        result.config.host_peers = true;
        result.config.handshake_timeout = std::chrono::milliseconds(700);
        return result;
    }
    Attacker() : engine_(startEngine(setup())) {
        EXPECT_TRUE(engine_->registerLocalMemory(memory_.peers(), 2 * kPage));
        EXPECT_TRUE(engine_->registerLocalMemory(memory_.local(), 2 * kPage, "*", false));
        EXPECT_TRUE(engine_->registerLocalMemory(memory_.readOnly(), 2 * kPage));
    }
    ~Attacker() override {
        EXPECT_TRUE(memory_.localIsAsItWas());
        EXPECT_TRUE(memory_.readOnlyIsAsItWas());
        EXPECT_TRUE(engine_->freeEngine());
    }

    std::shared_ptr<const SegmentDesc> desc() const { return *engine_->getSegmentDescByID(kLocalSegmentID); }

    /// Ranges that nobody may use. Their lengths are those of honest requests, or more.
    std::vector<ByteRange> forged() const {
        const std::byte* const peers = memory_.peers();
        static const std::uint64_t elsewhere = 0x1234567890abcdef;
        return {
            {at(peers, -1), 1},                       // Just before.
            {at(peers, -1), 2},                       // Across its beginning.
            {at(peers, 2 * kPage), 1},                // Just behind.
            {at(peers, 2 * kPage - 1), 2},            // Across its end.
            {at(peers), 2 * kPage + 1},               // All, and a byte.
            {at(peers, -8), 2 * kPage + 16},          // All, and both sides.
            {at(peers), 3 * kPage + 8},               // Through the hole into what is local.
            {at(memory_.local()), 8},                 // Local.
            {at(memory_.local(), 2 * kPage - 8), 8},  // Its end.
            {at(memory_.local(), -8), 16},            // Across its beginning.
            {0, 8},                                   // Null.
            {UINT64_MAX - 7, 8},                      // The end of the address space.
            {UINT64_MAX - 7, 16},                     // Wraps.
            {UINT64_MAX, 1},                          // Its last byte.
            {at(&elsewhere), 8},                      // Of this program, and not registered.
            {at(memory_.readOnly(), 2 * kPage), 8},   // Behind what may be read.
        };
    }

    Memory memory_;
    std::unique_ptr<TransferEngine> engine_;
};

// --- TCP -----------------------------------------------------------------------------------------------------------

class TcpAttack {
  public:
    TcpAttack(const SegmentDesc& desc, std::uint32_t lane) {
        const auto there = SocketAddress::fromNumeric("127.0.0.1", desc.lane_ports[0]);
        fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(fd_.get(), there->get(), there->length), 0);
        const timeval patience{kPatience.count(), 0};
        ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        tcp::Hello hello;
        hello.lane = {Incarnation::random(), 0, lane};
        hello.target = desc.incarnation;
        hello.attempt = 1;
        std::array<std::byte, tcp::kHelloBytes> bytes{};
        tcp::encodeHello(hello, bytes.data());
        send(bytes);
        EXPECT_EQ(receive(tcp::kHelloReplyBytes).size(), tcp::kHelloReplyBytes);
    }
    void send(std::span<const std::byte> bytes) {
        EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    std::string receive(std::size_t size) {
        // Of nothing recv would wait for something.
        if (size == 0) return {};
        std::string bytes(size, '\0');
        const ssize_t got = ::recv(fd_.get(), bytes.data(), size, MSG_WAITALL);
        bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return bytes;
    }
    /// Asks, and gives the code that it is refused with; Ok when it is not.
    Code ask(tcp::Op op, const ByteRange& range) {
        std::array<std::byte, tcp::kRequestBytes> request{};
        tcp::encodeRequest({op, false, 0, next_++, range.addr, range.length}, request.data());
        send(request);
        if (op == tcp::Op::Write) send(std::vector<std::byte>(range.length, std::byte{0xee}));
        const std::string head = receive(tcp::kResponseBytes);
        tcp::ResponseHeader response;
        if (head.size() != tcp::kResponseBytes ||
            !tcp::decodeResponse(reinterpret_cast<const std::byte*>(head.data()), response)) {
            ADD_FAILURE() << "no answer for " << range.toString();
            return Code::Internal;
        }
        EXPECT_EQ(receive(response.length).size(), response.length);
        return response.kind == tcp::ResponseKind::Error ? static_cast<Code>(response.value) : Code::Ok;
    }
    bool isEnded() { return receive(1).empty(); }
    int fd() const { return fd_.get(); }

  private:
    UniqueFd fd_;
    std::uint64_t next_ = 0;
};

TEST_F(Attacker, ForgedRangesAreRefusedOverTcpOneByOne) {
    TcpAttack attack(*desc(), 0);
    for (const ByteRange& range : forged())
        for (const tcp::Op op : {tcp::Op::Read, tcp::Op::Write}) {
            const Code code = attack.ask(op, range);
            EXPECT_TRUE(code == Code::AddressNotRegistered || code == Code::AccessDenied ||
                        code == Code::InvalidArgument)
                << range.toString() << ": " << codeName(code);
        }
    EXPECT_EQ(attack.ask(tcp::Op::Write, {at(memory_.readOnly()), 8}), Code::AccessDenied);
    // The connection that asked for all this is as good as before, and so is what may be used.
    EXPECT_EQ(attack.ask(tcp::Op::Read, {at(memory_.readOnly()), 2 * kPage}), Code::Ok);
    EXPECT_EQ(attack.ask(tcp::Op::Write, {at(memory_.peers()), 2 * kPage}), Code::Ok);
}

TEST_F(Attacker, LengthsBeyondAnyRequestEndTheConnection) {
    for (const std::uint64_t length :
         {tcp::kMaxRequestBytes + 1, UINT64_MAX, UINT64_MAX - at(memory_.peers()) + 1, std::uint64_t{1} << 63}) {
        TcpAttack attack(*desc(), 0);
        std::array<std::byte, tcp::kRequestBytes> request{};
        tcp::encodeRequest({tcp::Op::Write, false, 0, 0, at(memory_.peers()), length}, request.data());
        attack.send(request);
        EXPECT_TRUE(attack.isEnded()) << length;
    }
}

TEST_F(Attacker, AForgedIncarnationGetsNoService) {
    SegmentDesc other = *desc();
    other.incarnation = Incarnation::random();
    TcpAttack attack(other, 0);
    EXPECT_TRUE(attack.isEnded());
}

// --- the host socket -------------------------------------------------------------------------------------------------

class HostAttack {
  public:
    explicit HostAttack(const SegmentDesc& desc) : socket_(std::move(host::connectTo(desc.host_socket)->socket)) {
        say(host::Hello{Incarnation::random(), desc.incarnation});
        if (const auto welcome = hear<host::Welcome>()) say(host::Ready{welcome->nonce});
    }
    void say(const host::Frame& frame) {
        EXPECT_EQ(host::sendPacket(socket_.get(), host::encode(frame)), host::Io::Done);
    }
    /// The next frame, if it is one of these.
    template <class Expected>
    std::optional<Expected> hear() {
        const auto frame = next();
        const auto* expected = frame ? std::get_if<Expected>(&*frame) : nullptr;
        return expected != nullptr ? std::optional<Expected>(*expected) : std::nullopt;
    }
    bool isEnded() {
        static_cast<void>(next());
        return last_ == host::Io::Closed;
    }

  private:
    std::optional<host::Frame> next() {
        const TimePoint limit = Clock::now() + kPatience;
        host::Received received;
        while ((last_ = host::receivePacket(socket_.get(), received)) == host::Io::Again && Clock::now() < limit)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (last_ != host::Io::Done) return std::nullopt;
        auto frame = host::decode(received.packet.span());
        return frame ? std::optional<host::Frame>(*frame) : std::nullopt;
    }

    UniqueFd socket_;
    host::Io last_ = host::Io::Again;
};

TEST_F(Attacker, NothingIsGrantedForForgedRanges) {
    if (desc()->host_socket.empty()) GTEST_SKIP() << "this host has no unix sockets for it";
    HostAttack attack(*desc());
    std::uint64_t id = 1;
    for (ByteRange range : forged()) {
        for (const bool write : {false, true}) {
            attack.say(host::GrantRequest{id, range.addr, range.length, write});
            const auto refused = attack.hear<host::GrantRefused>();
            ASSERT_TRUE(refused) << range.toString();
            EXPECT_EQ(refused->id, id++);
        }
    }
    for (const std::uint64_t length : {std::uint64_t{0}, UINT64_MAX, UINT64_MAX - at(memory_.peers()) + 1}) {
        attack.say(host::GrantRequest{id, at(memory_.peers()), length, false});
        const auto refused = attack.hear<host::GrantRefused>();
        ASSERT_TRUE(refused) << length;
        EXPECT_EQ(refused->id, id++);
    }
    attack.say(host::GrantRequest{id, at(memory_.readOnly()), 8, true});
    EXPECT_TRUE(attack.hear<host::GrantRefused>());
    // And what is granted is the region, not a byte more.
    attack.say(host::GrantRequest{++id, at(memory_.peers(), 8), 8, true});
    const auto grant = attack.hear<host::Grant>();
    ASSERT_TRUE(grant);
    EXPECT_EQ(grant->base, at(memory_.peers()));
    EXPECT_EQ(grant->length, 2 * kPage);
}

TEST_F(Attacker, ForgedRegionsAndGenerationsEndTheConnection) {
    if (desc()->host_socket.empty()) GTEST_SKIP() << "this host has no unix sockets for it";
    for (const std::uint64_t region : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{12345}, UINT64_MAX}) {
        HostAttack attack(*desc());
        // Whatever has that number: nothing of it was revoked here.
        attack.say(host::RevokeAck{region});
        EXPECT_TRUE(attack.isEnded()) << region;
    }
    HostAttack attack(*desc());
    attack.say(host::Grant{1, 1, at(memory_.local()), kPage, 0, host::Grant::Kind::Vm, true});
    EXPECT_TRUE(attack.isEnded());
}

// --- slowness --------------------------------------------------------------------------------------------------------

TEST_F(Attacker, AGreetingThatDripsEndsInTimeAndOthersGoOn) {
    const auto peer = startEngine(setup());
    Buffer buffer(kPage);
    ASSERT_TRUE(peer->registerLocalMemory(buffer.data(), buffer.size()));
    const auto segment = peer->openSegment(engine_->localSegmentName());
    ASSERT_TRUE(segment);

    Hello control;
    control.incarnation = Incarnation::random();
    const std::string control_bytes = control.encode();
    tcp::Hello data;
    data.lane.initiator = control.incarnation;
    data.target = engine_->incarnation();
    std::array<std::byte, tcp::kHelloBytes> data_bytes{};
    tcp::encodeHello(data, data_bytes.data());
    struct Drip {
        UniqueFd fd;
        std::string_view bytes;
        std::size_t sent = 0;
        bool ended = false;
    };
    std::vector<Drip> drips;
    for (int i = 0; i < 10; ++i) {
        const bool to_control = i % 2 == 0;
        const auto there =
            SocketAddress::fromNumeric("127.0.0.1", to_control ? desc()->control.port : desc()->lane_ports[0]);
        Drip drip;
        drip.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(::connect(drip.fd.get(), there->get(), there->length), 0);
        drip.bytes = to_control ? std::string_view(control_bytes)
                                : std::string_view(reinterpret_cast<const char*>(data_bytes.data()), data_bytes.size());
        drips.push_back(std::move(drip));
    }
    // A byte now and then, so that none is ever silent for long, and none gets to its end before the time is over.
    const TimePoint limit = Clock::now() + kPatience;
    std::size_t ended = 0;
    while (ended < drips.size() && Clock::now() < limit) {
        for (Drip& drip : drips) {
            if (drip.ended) continue;
            char byte = 0;
            const ssize_t got = ::recv(drip.fd.get(), &byte, 1, MSG_DONTWAIT);
            const bool closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
            const bool stays_short = drip.sent + 1 < drip.bytes.size();
            if (closed || (stays_short && ::send(drip.fd.get(), &drip.bytes[drip.sent++], 1, MSG_NOSIGNAL) < 0)) {
                drip.ended = true;
                ++ended;
            }
        }
        expectCompleted(
            runBatch(*peer, {makeRequest(Opcode::Write, *segment, buffer.data(), at(memory_.peers()), buffer.size())}),
            buffer.size());
        std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    EXPECT_EQ(ended, drips.size());
}

}  // namespace
}  // namespace troupe::test
