// Engines with and without the cluster key.

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"
#include "topology/topology.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string keyOf(char letter) { return std::string(32, letter); }

EngineSetup with(const std::string& letters, bool host_peers = false) {
    EngineSetup setup;
    if (!letters.empty()) setup.config.auth_key = keyOf(letters[0]);
    if (letters.size() > 1) setup.config.auth_accept_key = keyOf(letters[1]);
    setup.config.host_peers = host_peers;
    setup.config.open_timeout = std::chrono::seconds(20);
    return setup;
}

/// Opens, writes and reads between two engines; Ok, or what the first step said.
Status exchange(TransferEngine& a, TransferEngine& b) {
    Buffer local(65536);
    Buffer remote(65536);
    local.fillPattern(5);
    if (const Status here = a.registerLocalMemory(local.data(), local.size()); !here) return here;
    if (const Status there = b.registerLocalMemory(remote.data(), remote.size()); !there) return there;
    const auto segment = a.openSegment(b.localSegmentName());
    Status result = segment.status();
    if (segment) {
        const auto status =
            runBatch(a, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), local.size())});
        result = status.error;
        if (result) {
            EXPECT_TRUE(remote.holdsPattern(5));
        }
        EXPECT_TRUE(a.closeSegment(*segment));
    }
    EXPECT_TRUE(a.unregisterLocalMemory(local.data()));
    EXPECT_TRUE(b.unregisterLocalMemory(remote.data()));
    return result;
}

TEST(ClusterKey, OneKeyAtBothEndsWorksOverTcpAndBetweenProcesses) {
    for (const bool host_peers : {false, true}) {
        const auto a = startEngine(with("k", host_peers));
        const auto b = startEngine(with("k", host_peers));
        const Status status = exchange(*a, *b);
        EXPECT_TRUE(status) << status.toString();
        // One control and one data connection, at least.
        EXPECT_GE(a->authCounts().accepted, 2u);
        EXPECT_GE(b->authCounts().accepted, 2u);
    }
}

TEST(ClusterKey, WrongOrMissingOnesAreRefusedWithTheReason) {
    const auto refused = [](const std::string& keys_a, const std::string& keys_b, const std::string& why,
                            AuthRefusal counted) {
        const auto a = startEngine(with(keys_a));
        const auto b = startEngine(with(keys_b));
        const Status status = exchange(*a, *b);
        EXPECT_EQ(status.code(), Code::AccessDenied) << status.toString();
        EXPECT_THAT(status.message(), HasSubstr(why));
        EXPECT_GE(b->authCounts().of(counted), 1u);
        EXPECT_EQ(b->authCounts().accepted, 0u);
    };
    refused("a", "b", "the cluster keys differ", AuthRefusal::WrongProof);
    refused("", "b", "asks for the cluster key", AuthRefusal::NoProof);
    refused("a", "", "uses no cluster key", AuthRefusal::UnusedKey);
}

TEST(ClusterKey, AClusterChangesItsKeyEngineByEngine) {
    // Each engine goes through these steps in its own time; neighbours in it always understand each other.
    const std::vector<std::string> steps = {"o", "on", "no", "n"};
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
        const auto a = startEngine(with(steps[i]));
        const auto b = startEngine(with(steps[i + 1]));
        EXPECT_TRUE(exchange(*a, *b)) << steps[i] << " to " << steps[i + 1];
        EXPECT_TRUE(exchange(*b, *a)) << steps[i + 1] << " to " << steps[i];
    }
}

TEST(ClusterKey, IsSaidToBeMissingOnceAndNeverShown) {
    const auto logOf = [](const std::string& letters, const std::string& host) {
        std::ostringstream text;
        EngineSetup setup = with(letters);
        setup.host = host;
        setup.options.log =
            std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
        setup.options.log->set_level(spdlog::level::trace);
        {
            const auto engine = startEngine(setup);
            const auto other = startEngine(with("x"));
            static_cast<void>(exchange(*engine, *other));
        }
        return text.str();
    };
    const std::string line = "whoever reaches the ports of this engine can read and write";
    const std::string without = logOf("", "127.0.0.1");
    EXPECT_NE(without.find(line), std::string::npos) << without;
    EXPECT_EQ(without.find(line), without.rfind(line));
    EXPECT_THAT(without.substr(0, without.find(line)), Not(HasSubstr("[warning]")));
    // Where others than this machine's own processes may come it is a warning.
    for (const NetworkInterface& interface : discoverTopology().interfaces) {
        if (!interface.up || interface.name == "lo" || interface.addresses.empty()) continue;
        EXPECT_THAT(logOf("", interface.name), HasSubstr("[warning] no cluster key is set"));
        break;
    }
    const std::string keyed = logOf("k", "127.0.0.1");
    EXPECT_THAT(keyed, Not(HasSubstr(line)));
    EXPECT_THAT(keyed, Not(HasSubstr(keyOf('k'))));
}

TEST(ClusterKey, ThatIsNoneStopsTheStart) {
    EngineOptions options;
    options.config.auth_key = "short";
    options.log = makeSilentLogger();
    TransferEngine engine(std::move(options));
    const Status started = engine.init("p2p", "", "127.0.0.1");
    EXPECT_EQ(started.code(), Code::InvalidArgument);
    EXPECT_THAT(started.message(), HasSubstr("auth.key has 5 bytes"));
    EXPECT_EQ(engine.authCounts().accepted, 0u);
}

TEST(ClusterKey, AnEngineWithAnotherKeyCannotTakeOverAName) {
    // Who has the name answers the claim, but not with a proof that counts: nobody is proven dead by that.
    const auto directory = std::make_shared<InprocDirectory>();
    const auto optionsOf = [&](char letter) {
        EngineOptions options;
        options.config = with(std::string(1, letter)).config;
        options.log = makeSilentLogger();
        options.inproc_store = [&] { return std::make_unique<InprocStore>(directory); };
        return options;
    };
    TransferEngine first(optionsOf('a'));
    ASSERT_TRUE(first.init("inproc://", "the name", "127.0.0.1"));
    TransferEngine second(optionsOf('b'));
    EXPECT_EQ(second.init("inproc://", "the name", "127.0.0.1").code(), Code::AlreadyExists);
    EXPECT_GE(first.authCounts().of(AuthRefusal::WrongProof), 1u);
}

}  // namespace
}  // namespace troupe::test
