// Peers that greet as they should and then describe themselves in ways that no engine would: whoever opens them hears
// what is wrong, and nobody else notices.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "control/control_messages.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kMuch = 10u << 20;

/// A control endpoint that greets, answers pings, and gives out whatever text as its descriptor.
class Liar {
  public:
    Liar() {
        const auto any = SocketAddress::fromNumeric("127.0.0.1", 0);
        auto listener = listenOn(*any);
        EXPECT_TRUE(listener) << listener.status().toString();
        listener_ = std::move(*listener);
        thread_ = std::thread([this] { serve(); });
    }
    ~Liar() { end(); }
    Liar(const Liar&) = delete;
    Liar& operator=(const Liar&) = delete;

    std::string name() const { return "127.0.0.1:" + std::to_string(SocketAddress::local(listener_.get())->port()); }
    /// Nobody listens there any more.
    void end() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
        listener_.reset();
    }
    /// What an honest peer in its place would say. A later one has a greater version.
    json honest() {
        SegmentDesc desc;
        desc.name = name();
        desc.incarnation = incarnation_;
        desc.boot_id = "a boot";
        desc.control = *Endpoint::parse(name());
        desc.transports = {"tcp"};
        desc.lane_ports = {SocketAddress::local(listener_.get())->port()};
        desc.buffers = {{"cpu:0", 0x10000, 4096, {}, 1, true}, {"*", 0x20000, 4096, {}, 2, true}};
        desc.version = ++version_;
        return json::parse(encodeSegmentDesc(desc));
    }
    void describeAs(std::string text) {
        const std::lock_guard lock(mutex_);
        text_ = std::move(text);
    }

  private:
    /// One connection after the other: an engine has one at a time.
    void serve() {
        while (!stop_) {
            pollfd entry{listener_.get(), POLLIN, 0};
            if (::poll(&entry, 1, 20) <= 0) continue;
            const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (client) converse(client.get());
        }
    }
    void converse(int fd) {
        const timeval patience{kPatience.count(), 0};
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        ControlFrameReader reader;
        while (!stop_) {
            pollfd entry{fd, POLLIN, 0};
            if (::poll(&entry, 1, 20) <= 0) continue;
            char bytes[4096];
            const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
            std::vector<ControlFrame> frames;
            if (got <= 0 || !reader.feed(std::as_bytes(std::span(bytes, static_cast<std::size_t>(got))), frames))
                return;
            for (const ControlFrame& frame : frames)
                if (!answer(fd, frame)) return;
        }
    }
    bool answer(int fd, const ControlFrame& frame) {
        switch (frame.type) {
            case ControlType::Hello: return say(fd, HelloAck{incarnation_, name(), 1}.encode());
            case ControlType::Ping: return say(fd, Pong{Ping::decode(frame)->seq}.encode());
            case ControlType::DescriptorRequest: {
                const std::lock_guard lock(mutex_);
                return say(fd, encodeControlFrame(ControlType::Descriptor, text_));
            }
            default: return false;
        }
    }
    static bool say(int fd, const std::string& bytes) {
        std::size_t sent = 0;
        while (sent < bytes.size()) {
            const ssize_t size = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
            if (size <= 0) return false;
            sent += static_cast<std::size_t>(size);
        }
        return true;
    }

    const Incarnation incarnation_ = Incarnation::random();
    std::uint64_t version_ = 0;
    UniqueFd listener_;
    std::mutex mutex_;
    std::string text_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

/// What of a descriptor is wrong, and what the error says of it.
struct Lie {
    std::string text;
    std::string why;
};

/// `desc` with the value at `pointer` replaced, or without it.
std::string with(json desc, const std::string& pointer, const json& value) {
    desc[json::json_pointer(pointer)] = value;
    return desc.dump();
}
std::string without(json desc, const std::string& pointer) {
    const json::json_pointer where(pointer);
    desc[where.parent_pointer()].erase(where.back());
    return desc.dump();
}

std::vector<Lie> lies(const json& honest) {
    std::string members = "{";
    for (int i = 0; members.size() < kMuch; ++i) members += "\"m" + std::to_string(i) + "\":[{}],";
    json other = honest;
    other["troupe"]["incarnation"] = Incarnation::random().toString();
    return {
        {"", "neither a JSON object nor"},
        {"nonsense", "neither a JSON object nor"},
        {"[]", "neither a JSON object nor"},
        {"{\"name\":", "not JSON at byte"},
        // Wrong types.
        {with(honest, "/name", 7), "name is a number"},
        {with(honest, "/buffers", "many"), "buffers is a string"},
        {with(honest, "/buffers/1/addr", "0x20000"), "buffers[1].addr is a string"},
        {with(honest, "/troupe/lane_ports", json::object()), "troupe.lane_ports is an object"},
        {with(honest, "/troupe/version", -1), "troupe.version is negative"},
        // Missing.
        {without(honest, "/buffers"), "buffers is missing"},
        {without(honest, "/buffers/0/length"), "buffers[0].length is missing"},
        {without(honest, "/troupe/incarnation"), "troupe.incarnation is missing"},
        {without(honest, "/troupe"), "described another incarnation"},
        {other.dump(), "described another incarnation"},
        // Absurd.
        {with(honest, "/buffers/0/length", 0), "buffers[0].length is 0"},
        {with(honest, "/buffers/0/length", UINT64_MAX), "wrap around the address space"},
        {with(honest, "/buffers/1/addr", 1e30), "buffers[1].addr is not an integer"},
        {with(honest, "/troupe/lane_ports/0", 65536), "troupe.lane_ports is 65536"},
        {with(honest, "/troupe/buffers", json::array()), "troupe.buffers has 0 entries for 2 buffers"},
        {with(honest, "/name", std::string(2000, 'n')), "name has 2000 bytes"},
        // Large.
        {with(honest, "/name", std::string(kMuch, 'n')), "name has 10485760 bytes"},
        {with(honest, "/unknown", std::string(kMuch, 'u')), "for what it says of 2 buffers and 0 devices"},
        {members + honest.dump().substr(1), "for what it says of 2 buffers and 0 devices"},
        {with(honest, "/troupe/transports", std::vector<std::string>(100'000, "tcp")), "more than 64 entries"},
        {std::string(kMuch, '{'), "not JSON"},
        {std::string(16u << 20, ' '), "are accepted"},
    };
}

class BadDescriptor : public testing::Test {
  protected:
    static EngineSetup setup() {
        EngineSetup result;
        result.config.open_timeout = std::chrono::milliseconds(kPatience);
        result.config.max_descriptor_bytes = 12u << 20;
        return result;
    }
    void expectOthersUnharmed() {
        expectCompleted(pair_.write(0, 0, 65536), 65536);
        expectCompleted(pair_.read(65536, 65536, 65536), 65536);
        const Status alive = pair_.a->probePeerAliveByID(pair_.segment, kPatience);
        EXPECT_TRUE(alive) << alive.toString();
    }

    EnginePair pair_{setup()};
    Liar liar_;
};

TEST_F(BadDescriptor, FailsTheOpenWithTheReasonAndHarmsNoOtherSegment) {
    for (const Lie& lie : lies(liar_.honest())) {
        SCOPED_TRACE(lie.text.substr(0, 200) + " ... " + lie.why);
        liar_.describeAs(lie.text);
        const auto opened = pair_.a->openSegment(liar_.name());
        expectCode(opened, Code::ProtocolError);
        EXPECT_THAT(opened.status().message(), AllOf(HasSubstr(lie.why), HasSubstr("peer " + liar_.name())));
        expectOthersUnharmed();
    }
    // It was the descriptor alone.
    liar_.describeAs(liar_.honest().dump());
    const auto opened = pair_.a->openSegment(liar_.name());
    ASSERT_TRUE(opened) << opened.status().toString();
    EXPECT_EQ((*pair_.a->getSegmentDescByID(*opened))->buffers.size(), 2u);
}

TEST_F(BadDescriptor, OfASegmentThatIsOpenIsWhatSyncSays) {
    liar_.describeAs(liar_.honest().dump());
    const auto opened = pair_.a->openSegment(liar_.name());
    ASSERT_TRUE(opened) << opened.status().toString();
    liar_.describeAs(with(liar_.honest(), "/buffers/0/length", 0));
    const Status synced = pair_.a->syncSegmentCache(liar_.name());
    expectCode(synced, Code::ProtocolError);
    EXPECT_THAT(synced.message(), HasSubstr("buffers[0].length is 0"));
    // What it said before is not replaced by half of a lie.
    const auto kept = pair_.a->getSegmentDescByID(*opened);
    ASSERT_TRUE(kept) << kept.status().toString();
    EXPECT_EQ((*kept)->buffers[0].length, 4096u);
    expectOthersUnharmed();
    // Once it tells the truth it is believed again.
    json truth = liar_.honest();
    truth["buffers"][0]["length"] = 8192;
    liar_.describeAs(truth.dump());
    const TimePoint limit = Clock::now() + kPatience;
    while (!pair_.a->syncSegmentCache(liar_.name()) && Clock::now() < limit) {
    }
    EXPECT_EQ((*pair_.a->getSegmentDescByID(*opened))->buffers[0].length, 8192u);
}

/// As with a device that cannot be reached from here: only the control port tells that the process is gone.
TEST_F(BadDescriptor, OfADataPortThatNeverAnswersKeepsNoTaskOnceThePeerIsGone) {
    const auto silent = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    ASSERT_TRUE(silent) << silent.status().toString();
    json desc = liar_.honest();
    desc["troupe"]["lane_ports"] = {SocketAddress::local(silent->get())->port()};
    liar_.describeAs(desc.dump());
    const auto opened = pair_.a->openSegment(liar_.name());
    ASSERT_TRUE(opened) << opened.status().toString();
    liar_.end();
    const auto write = makeRequest(Opcode::Write, *opened, pair_.local.data(), 0x10000, 64);
    // The first may be on its way when the peer is found to be gone, the others come after that.
    for (int i = 0; i < 3; ++i) expectCode(runBatch(*pair_.a, {write}).error, Code::PeerDown);
}

}  // namespace
}  // namespace troupe::test
