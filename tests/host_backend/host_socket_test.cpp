// The unix socket of an owner, and an owner that lies, spoken to frame by frame.

#include <fcntl.h>
#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "host_backend/probe.h"
#include "tests/host_backend/nic_pair.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using namespace host;

std::size_t openDescriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

/// An initiator made by hand.
class Raw {
  public:
    explicit Raw(const HostNode& node) : socket_(std::move(connectTo(node.shared->socket)->socket)) {}

    void say(const Frame& frame) { EXPECT_EQ(sendPacket(socket_.get(), encode(frame)), Io::Done); }
    void sayBytes(const std::vector<std::byte>& bytes) {
        EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    Io hear() { return receivePacket(socket_.get(), received); }
    template <class Expected>
    Expected heard() {
        const auto frame = decode(received.packet.span());
        EXPECT_TRUE(frame) << frame.status().toString();
        const auto* expected = frame ? std::get_if<Expected>(&*frame) : nullptr;
        EXPECT_NE(expected, nullptr);
        return expected ? *expected : Expected{};
    }
    int fd() const { return socket_.get(); }
    void hangUp() { socket_.reset(); }

    Received received;

  private:
    UniqueFd socket_;
};

class HostSocket : public testing::Test {
  protected:
    bool pump(const std::function<bool()>& done) { return pumpNodes(done, node_); }
    /// Waits for the next packet.
    Io hear(Raw& raw) {
        Io io = Io::Again;
        EXPECT_TRUE(pump([&] { return (io = raw.hear()) != Io::Again; }));
        return io;
    }
    void greet(Raw& raw) {
        raw.say(Hello{Incarnation::random(), node_.shared->incarnation});
        ASSERT_EQ(hear(raw), Io::Done);
        const auto welcome = raw.heard<Welcome>();
        EXPECT_EQ(welcome.owner, node_.shared->incarnation);
        raw.say(Ready{welcome.nonce});
    }

    HostNode node_;
};

TEST_F(HostSocket, NothingIsGrantedBeforeTheGreetingIsOver) {
    Buffer memory(4096);
    node_.add(memory.data(), memory.size());
    {
        Raw early(node_);
        early.say(GrantRequest{1, memory.address(), 4096, true});
        EXPECT_EQ(hear(early), Io::Closed);
    }
    Raw forger(node_);
    forger.say(Hello{Incarnation::random(), node_.shared->incarnation});
    ASSERT_EQ(hear(forger), Io::Done);
    // A Ready that does not answer this Welcome proves nothing.
    forger.say(Ready{forger.heard<Welcome>().nonce + 1});
    EXPECT_EQ(hear(forger), Io::Closed);
    EXPECT_EQ(node_.nic->server()->grants(), 0u);
}

TEST_F(HostSocket, AHelloToAnotherIncarnationIsRefusedWithTheReason) {
    Raw raw(node_);
    raw.say(Hello{Incarnation::random(), Incarnation::random()});
    ASSERT_EQ(hear(raw), Io::Done);
    EXPECT_EQ(raw.heard<Refuse>().code, Code::StaleIncarnation);
    EXPECT_EQ(hear(raw), Io::Closed);
}

TEST_F(HostSocket, HostileBytesEndTheConnectionAndNothingElse) {
    Buffer memory(4096);
    node_.add(memory.data(), memory.size());
    Raw good(node_);
    greet(good);
    std::mt19937 random(5);
    for (int round = 0; round < 300; ++round) {
        Raw bad(node_);
        if (round % 2 == 1) greet(bad);
        std::vector<std::byte> bytes(1 + random() % 2000);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        bad.sayBytes(bytes);
        ASSERT_EQ(hear(bad), Io::Closed) << round;
    }
    good.say(GrantRequest{9, memory.address(), 4096, true});
    ASSERT_EQ(hear(good), Io::Done);
    EXPECT_EQ(good.heard<Grant>().id, 9u);
}

TEST_F(HostSocket, DescriptorsThatNobodyAskedForAreClosed) {
    const std::size_t before = openDescriptors();
    for (int round = 0; round < 20; ++round) {
        Raw bad(node_);
        greet(bad);
        ASSERT_EQ(sendPacket(bad.fd(), encode(GrantRequest{1, 4096, 4096, true}), STDIN_FILENO), Io::Done);
        ASSERT_EQ(hear(bad), Io::Closed);
    }
    EXPECT_TRUE(pump([&] { return node_.nic->server()->connections() == 0; }));
    EXPECT_EQ(openDescriptors(), before);
}

TEST_F(HostSocket, OneThatBreaksTheRulesHoldsItsGrantsUntilItHangsUp) {
    Buffer memory(4096);
    node_.add(memory.data(), memory.size());
    Raw bad(node_);
    greet(bad);
    bad.say(GrantRequest{1, memory.address(), 4096, true});
    ASSERT_EQ(hear(bad), Io::Done);
    bad.say(RevokeAck{12345});
    ASSERT_EQ(hear(bad), Io::Closed);
    // It may still be copying, for all its owner knows.
    const ByteRange range{memory.address(), 4096};
    EXPECT_TRUE(node_.nic->servesPeerIn(range));
    EXPECT_THAT(node_.nic->heldIn(range).message(), testing::HasSubstr("process " + std::to_string(::getpid())));
    bad.hangUp();
    EXPECT_TRUE(pump([&] { return !node_.nic->servesPeerIn(range); }));
}

TEST_F(HostSocket, OfManyThatBreakTheRulesOneIsSaidInTheLog) {
    std::ostringstream said;
    const auto log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
    HostNode node(std::chrono::milliseconds(kPatience), log);
    Buffer memory(4096);
    node.add(memory.data(), memory.size());
    const auto hear = [&](Raw& raw) {
        Io io = Io::Again;
        for (const TimePoint limit = Clock::now() + kPatience; io == Io::Again && Clock::now() < limit;) {
            node.poll();
            io = raw.hear();
        }
        return io;
    };
    constexpr int kBad = 20;
    for (int i = 0; i < kBad; ++i) {
        Raw bad(node);
        bad.say(Hello{Incarnation::random(), node.shared->incarnation});
        ASSERT_EQ(hear(bad), Io::Done);
        bad.say(Ready{bad.heard<Welcome>().nonce});
        bad.say(GrantRequest{1, memory.address(), 4096, true});
        ASSERT_EQ(hear(bad), Io::Done);
        bad.say(RevokeAck{12345});
        ASSERT_EQ(hear(bad), Io::Closed);
    }
    const std::string text = said.str();
    std::size_t times = 0;
    for (std::size_t at = 0; (at = text.find("[warning]", at)) != std::string::npos; ++at) ++times;
    // One in ten seconds; this test does not last that long even on a loaded machine, or then not for each.
    EXPECT_GE(times, 1u) << text;
    EXPECT_LE(times, kBad / 2) << text;
}

TEST_F(HostSocket, WithoutADescriptorForAConnectionItRefusesForNow) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    Raw raw(node_);
    Io io = Io::Again;
    {
        // For the connection, and none for its process.
        const DescriptorLimit limit(1);
        io = hear(raw);
    }
    ASSERT_EQ(io, Io::Done);
    EXPECT_EQ(raw.heard<Refuse>().code, Code::ResourceExhausted);
}

TEST_F(HostSocket, WithoutADescriptorToAcceptWithItSaysSoOnce) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    std::ostringstream said;
    const auto log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
    HostNode node(std::chrono::milliseconds(kPatience), log);
    Raw waiting(node);
    waiting.say(Hello{Incarnation::random(), node.shared->incarnation});
    {
        const DescriptorLimit limit(0);
        // A few tries, 100 ms apart.
        const TimePoint until = Clock::now() + std::chrono::milliseconds(450);
        while (Clock::now() < until) node.poll();
    }
    EXPECT_TRUE(pumpNodes([&] { return waiting.hear() == Io::Done; }, node)) << "it listens again";
    waiting.heard<Welcome>();
    const std::string text = said.str();
    const std::size_t first = text.find("have to wait");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("have to wait", first + 1), std::string::npos) << text;
}

TEST_F(HostSocket, OneThatAsksAndDoesNotReadKeepsNoLoopAwake) {
    Raw deaf(node_);
    greet(deaf);
    // Until neither side's socket takes any more.
    const auto isReady = [&] {
        pollfd entry{node_.nic->waitFd(), POLLIN, 0};
        return ::poll(&entry, 1, 0) == 1;
    };
    std::uint64_t asked = 0;
    const auto ask = [&] {
        bool any = false;
        while (sendPacket(deaf.fd(), encode(GrantRequest{asked + 1, 4096, 4096, true})) == Io::Done) {
            ++asked;
            any = true;
        }
        return any;
    };
    EXPECT_TRUE(pump([&] { return !ask() && !isReady(); })) << "its loop would never sleep";
    EXPECT_GT(asked, 64u);
    EXPECT_EQ(node_.nic->server()->connections(), 1u);
    // Nothing is lost of it.
    std::uint64_t answered = 0;
    EXPECT_TRUE(pump([&] {
        while (deaf.hear() == Io::Done) {
            if (deaf.heard<GrantRefused>().id == answered + 1) ++answered;
        }
        return answered == asked;
    })) << answered
        << " of " << asked;
}

TEST_F(HostSocket, SilentConnectionsKeepNobodyOut) {
    std::vector<Raw> silent;
    for (int i = 0; i < 100; ++i) {
        silent.emplace_back(node_);
        node_.poll();
    }
    Raw good(node_);
    greet(good);
    EXPECT_LE(node_.nic->server()->connections(), 70u);
}

TEST(HostSocketTime, AGreetingThatDoesNotComeEndsTheConnection) {
    HostNode node(std::chrono::milliseconds(20));
    Raw silent(node);
    const TimePoint limit = Clock::now() + kPatience;
    while (silent.hear() != Io::Closed && Clock::now() < limit) node.poll();
    EXPECT_EQ(silent.hear(), Io::Closed);
    EXPECT_EQ(node.nic->server()->connections(), 0u);
}

TEST_F(HostSocket, AThousandConnectionsAndMappingsLeaveNoDescriptorBehind) {
    auto memory = MemoryFile::create(1u << 20, false);
    ASSERT_TRUE(memory);
    node_.add((*memory)->data(), 1u << 20, true, (*memory)->fd());
    HostNode initiator;
    Buffer local(4096);
    const auto once = [&] {
        const PathId path = *initiator.nic->openPath(node_.asPeer());
        const WorkRequest work{local.data(), reinterpret_cast<std::uint64_t>((*memory)->data()), 4096, 1,
                               Opcode::Write};
        initiator.sweep.clear();
        EXPECT_EQ(initiator.nic->post(path, {&work, 1}), 1u);
        EXPECT_TRUE(pump([&] {
            initiator.poll();
            return initiator.ended();
        }));
        EXPECT_TRUE(initiator.sweep.failed.empty());
        initiator.nic->closePath(path, Status(Code::Canceled, "closed"));
        EXPECT_TRUE(pump([&] { return node_.nic->server()->connections() == 0; }));
    };
    const auto mappings = [] {
        std::ifstream maps("/proc/self/maps");
        return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
    };
    once();
    const std::size_t before = openDescriptors();
    const auto mapped = mappings();
    for (int i = 0; i < 1000; ++i) once();
    EXPECT_EQ(openDescriptors(), before);
    EXPECT_LE(mappings(), mapped + 8) << "the allocator may have taken some";
}

// --- an owner that lies --------------------------------------------------------------------------------------------

/// Listens where an owner would and answers a greeting as one does; the rest is up to the test.
class Liar {
  public:
    Liar() : listener_(std::move(*listenAt(name_, 4))) {}

    std::shared_ptr<const Peer> asPeer() const {
        auto desc = std::make_shared<SegmentDesc>();
        desc->incarnation = incarnation_;
        desc->host_socket = name_;
        return std::make_shared<const Peer>(Peer{2, "liar", "127.0.0.1", desc});
    }
    /// Until the initiator has said all that is expected of it. Polls `node` meanwhile.
    bool acceptAndGreet(HostNode& node) {
        for (const TimePoint limit = Clock::now() + kPatience; Clock::now() < limit && !socket_;) {
            node.poll();
            socket_ = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        }
        next<Hello>(node);
        say(Welcome{incarnation_, 1, reinterpret_cast<std::uint64_t>(incarnation_.bytes.data()), false});
        next<Ready>(node);
        return static_cast<bool>(socket_);
    }
    template <class Expected>
    Expected next(HostNode& node) {
        Received received;
        for (const TimePoint limit = Clock::now() + kPatience; Clock::now() < limit;) {
            node.poll();
            if (receivePacket(socket_.get(), received) != Io::Done) continue;
            const auto frame = decode(received.packet.span());
            const auto* expected = frame ? std::get_if<Expected>(&*frame) : nullptr;
            EXPECT_NE(expected, nullptr);
            return expected ? *expected : Expected{};
        }
        ADD_FAILURE() << "nothing came";
        return {};
    }
    void say(const Frame& frame, int descriptor = -1) {
        EXPECT_EQ(sendPacket(socket_.get(), encode(frame), descriptor), Io::Done);
    }

  private:
    const Incarnation incarnation_ = Incarnation::random();
    const std::string name_ = "troupe/test/" + incarnation_.toString();
    UniqueFd listener_;
    UniqueFd socket_;
};

class LyingOwner : public testing::Test {
  protected:
    LyingOwner() {
        const PathId path = *node_.nic->openPath(liar_.asPeer());
        const WorkRequest work{local_.data(), kRemote, 8192, 1, Opcode::Read};
        EXPECT_EQ(node_.nic->post(path, {&work, 1}), 1u);
        node_.poll();
        EXPECT_TRUE(liar_.acceptAndGreet(node_));
        ask_ = liar_.next<GrantRequest>(node_);
    }
    Status outcome() {
        const TimePoint limit = Clock::now() + kPatience;
        while (!node_.ended() && Clock::now() < limit) node_.poll();
        EXPECT_EQ(node_.sweep.failed.size(), 1u);
        return node_.sweep.failed.empty() ? Status::ok() : node_.sweep.failed[0].cause;
    }
    Grant grant(std::uint64_t length = 1u << 20) const {
        return {ask_.id, 1, kRemote, length, 0, Grant::Kind::Mapped, true};
    }

    static constexpr std::uint64_t kRemote = 0x10000000;
    HostNode node_;
    Liar liar_;
    Buffer local_{8192};
    GrantRequest ask_;
};

TEST_F(LyingOwner, AFileThatCouldShrinkIsNotMapped) {
    UniqueFd file(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(file.get(), 1u << 20), 0);
    liar_.say(grant(), file.get());
    const Status status = outcome();
    EXPECT_EQ(status.code(), Code::ProtocolError);
    EXPECT_THAT(status.message(), testing::HasSubstr("not sealed against shrinking"));
}

TEST_F(LyingOwner, AFileThatIsTooShortIsNotMapped) {
    UniqueFd file(::memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
    ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    liar_.say(grant(), file.get());
    EXPECT_THAT(outcome().message(), testing::HasSubstr("has 4096 bytes"));
}

TEST_F(LyingOwner, WhatIsNoMemoryFileIsNotMapped) {
    UniqueFd file(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    liar_.say(grant(), file.get());
    EXPECT_THAT(outcome().message(), testing::HasSubstr("is no memory file"));
}

TEST_F(LyingOwner, AMappedGrantWithoutItsDescriptorIsRefused) {
    liar_.say(grant());
    EXPECT_EQ(outcome().code(), Code::ProtocolError);
}

TEST_F(LyingOwner, AGrantOfSomethingElseIsRefused) {
    Grant elsewhere = grant();
    elsewhere.kind = Grant::Kind::Vm;
    elsewhere.base = kRemote + (1u << 20);
    liar_.say(elsewhere);
    EXPECT_EQ(outcome().code(), Code::ProtocolError);
}

TEST_F(LyingOwner, AGrantThatNobodyAskedForIsRefused) {
    Grant unasked = grant();
    unasked.id += 1;
    liar_.say(unasked);
    EXPECT_EQ(outcome().code(), Code::ProtocolError);
}

// --- the probe -----------------------------------------------------------------------------------------------------

class HostProbe : public testing::Test {
  protected:
    /// Runs a probe to its end; `meanwhile` is called again and again.
    Status probe(const std::string& socket, const Incarnation& peer, const std::function<void()>& meanwhile,
                 std::chrono::milliseconds longest = kPatience) {
        std::optional<Status> outcome;
        Probe probe(reactor_, {socket, Incarnation::random(), peer, "a hint"}, longest,
                    [&](const Status& status) { outcome = status; });
        probe.start();
        EXPECT_TRUE(reactor_.runUntil(
            [&] {
                meanwhile();
                return outcome.has_value();
            },
            kPatience));
        EXPECT_EQ(reactor_.watchedCount(), 0u);
        EXPECT_EQ(reactor_.timerCount(), 0u);
        return outcome.value_or(Status(Code::Internal, "no answer"));
    }
    TestReactor reactor_;
    HostNode node_;
};

TEST_F(HostProbe, ComesThroughToTheProcessOfThatIncarnation) {
    EXPECT_TRUE(probe(node_.shared->socket, node_.shared->incarnation, [&] { node_.poll(); }));
    EXPECT_EQ(probe(node_.shared->socket, Incarnation::random(), [&] { node_.poll(); }).code(), Code::StaleIncarnation);
}

TEST_F(HostProbe, SaysThatNobodyListens) {
    const Status status = probe("troupe/nobody", Incarnation::random(), [] {});
    EXPECT_EQ(status.code(), Code::ConnectionRefused);
    EXPECT_THAT(status.message(), testing::HasSubstr("another network namespace"));
}

TEST_F(HostProbe, WithoutADescriptorLeftItFoundNothingOut) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    // For the socket, and none for the peer's process. TransportMissing would be taken for the last word.
    const DescriptorLimit limit(1);
    const Status status = probe(node_.shared->socket, node_.shared->incarnation, [&] { node_.poll(); });
    EXPECT_EQ(status.code(), Code::ResourceExhausted) << status.toString();
}

TEST_F(HostProbe, EndsInTimeAgainstOneThatDoesNotAnswer) {
    EXPECT_EQ(probe(
                  node_.shared->socket, node_.shared->incarnation, [] {}, std::chrono::milliseconds(30))
                  .code(),
              Code::Timeout);
}

TEST_F(HostProbe, AProcessThatHoldsAnotherIncarnationIsNotTheOne) {
    // The socket says the right thing, but the memory of the process behind it does not: a number used again.
    const Incarnation claimed = Incarnation::random();
    const std::string name = "troupe/test/" + claimed.toString();
    const UniqueFd listener = std::move(*listenAt(name, 4));
    UniqueFd socket;
    const Incarnation other = Incarnation::random();
    const Status status = probe(name, claimed, [&] {
        if (!socket) {
            socket = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (socket)
                sendPacket(socket.get(),
                           encode(Welcome{claimed, 1, reinterpret_cast<std::uint64_t>(other.bytes.data()), false}));
        }
    });
    EXPECT_EQ(status.code(), Code::StaleIncarnation);
    EXPECT_THAT(status.message(), testing::HasSubstr("does not hold incarnation"));
}

TEST_F(HostProbe, DestroyingItEndsIt) {
    bool called = false;
    {
        Probe probe(reactor_, {node_.shared->socket, Incarnation::random(), node_.shared->incarnation, ""}, kPatience,
                    [&](const Status&) { called = true; });
        probe.start();
        EXPECT_EQ(reactor_.watchedCount(), 1u);
    }
    EXPECT_EQ(reactor_.watchedCount(), 0u);
    EXPECT_EQ(reactor_.timerCount(), 0u);
    EXPECT_FALSE(called);
}

}  // namespace
}  // namespace troupe::test
