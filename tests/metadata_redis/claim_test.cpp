// Whose name it is: engines that claim one, die, and come back.

#include <gmock/gmock.h>
#include <signal.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/metadata_redis/redis_engines.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

/// A redis_peer: an engine in a process of its own, killed with the test.
class PeerProcess {
  public:
    PeerProcess(const std::string& uri, const std::string& name, std::uint16_t port = 0) {
        auto child = apps::ChildProcess::start({TROUPE_REDIS_PEER, uri, name, std::to_string(port)});
        EXPECT_TRUE(child) << child.status().toString();
        if (!child) return;
        child_.emplace(std::move(*child));
        const auto line = child_->readLine(kPatience);
        EXPECT_TRUE(line) << line.status().toString();
        if (line) std::istringstream(*line) >> outcome_ >> incarnation_ >> address_;
    }
    /// "ready", or the name of an error's code.
    const std::string& outcome() const { return outcome_; }
    const std::string& incarnation() const { return incarnation_; }
    std::uint64_t address() const { return address_; }
    void kill() {
        child_->signal(SIGKILL);
        EXPECT_EQ(*child_->wait(kPatience), 128 + SIGKILL);
    }

  private:
    std::optional<apps::ChildProcess> child_;
    std::string outcome_;
    std::string incarnation_;
    std::uint64_t address_ = 0;
};

TEST(RedisClaim, ALiveEngineKeepsItsNameAndIsNamed) {
    const RedisServer server;
    const auto holder = startRedisEngine(server.uri(), "name");
    const auto claimant = makeRedisEngine();
    const Status refused = claimant->init(server.uri(), "name", "127.0.0.1");
    EXPECT_EQ(refused.code(), Code::AlreadyExists);
    EXPECT_THAT(refused.message(),
                AllOf(HasSubstr(holder->incarnation().toString()), HasSubstr("127.0.0.1:"), HasSubstr("it answers")));
    // An engine that ends in order gives its name back at once.
    ASSERT_TRUE(holder->freeEngine());
    EXPECT_EQ(server.command({"EXISTS", "mooncake/ram/name"}), "0");
    const auto next = startRedisEngine(server.uri(), "name");
}

TEST(RedisClaim, ARestartedEngineTakesItsStaleRecordOverAtOnce) {
    const RedisServer server;
    PeerProcess first(server.uri(), "name");
    ASSERT_EQ(first.outcome(), "ready");
    first.kill();
    ASSERT_EQ(server.command({"EXISTS", "mooncake/ram/name"}), "1") << "its lease runs for half a minute more";
    const PeerProcess second(server.uri(), "name");
    EXPECT_EQ(second.outcome(), "ready");
    const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/name"}));
    ASSERT_TRUE(desc);
    EXPECT_EQ(desc->incarnation.toString(), second.incarnation());
}

TEST(RedisClaim, OnTheSamePortTooWhereItIsItselfThatAnswersForThePredecessor) {
    const RedisServer server;
    const std::uint16_t port = freePort();
    std::string last;
    for (int round = 0; round < 3; ++round) {
        PeerProcess peer(server.uri(), "name", port);
        ASSERT_EQ(peer.outcome(), "ready");
        EXPECT_NE(peer.incarnation(), last);
        last = peer.incarnation();
        const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/name"}));
        ASSERT_TRUE(desc);
        EXPECT_EQ(desc->incarnation.toString(), last);
        EXPECT_EQ(desc->control.port, port);
        peer.kill();
        ASSERT_EQ(server.command({"EXISTS", "mooncake/ram/name"}), "1");
    }
}

TEST(RedisClaim, OfTwoSuccessorsOneWins) {
    const RedisServer server;
    PeerProcess first(server.uri(), "name");
    first.kill();
    std::vector<std::unique_ptr<TransferEngine>> engines;
    for (int i = 0; i < 4; ++i) engines.push_back(makeRedisEngine());
    std::vector<Status> outcomes(engines.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < engines.size(); ++i)
        threads.emplace_back([&, i] { outcomes[i] = engines[i]->init(server.uri(), "name", "127.0.0.1"); });
    for (auto& thread : threads) thread.join();
    int won = 0;
    for (const Status& outcome : outcomes) {
        won += outcome.isOk() ? 1 : 0;
        EXPECT_TRUE(outcome.isOk() || outcome.code() == Code::AlreadyExists) << outcome.toString();
    }
    EXPECT_EQ(won, 1);
}

TEST(RedisClaim, AHolderThatCannotBeProvenDeadKeepsTheNameUntilItsLeaseEnds) {
    const RedisServer server;
    // Longer than this test: its lease ends when it is told to.
    const auto hold = [&](const SegmentDesc& desc) {
        server.command({"SET", "mooncake/ram/name", encodeSegmentDesc(desc), "PX", "3600000"});
    };
    // Something that accepts and says nothing, under the name of a machine that is not this one.
    const auto silent = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    SegmentDesc desc;
    desc.name = "name";
    desc.incarnation = Incarnation::random();
    desc.control = {"127.0.0.1", SocketAddress::local(silent->get())->port()};
    desc.boot_id = readBootId();
    hold(desc);
    Config config = redisConfig();
    config.connect_timeout = 300ms;
    const auto claimant = makeRedisEngine(config);
    const Status refused = claimant->init(server.uri(), "name", "127.0.0.1");
    EXPECT_EQ(refused.code(), Code::AlreadyExists);
    EXPECT_THAT(refused.message(), HasSubstr("cannot be proven dead"));
    // Of another machine: whoever listens at our 127.0.0.1 is not asked at all.
    desc.boot_id = "another machine";
    desc.control.port = freePort();
    hold(desc);
    const auto next = makeRedisEngine(config);
    const Status still = next->init(server.uri(), "name", "127.0.0.1");
    EXPECT_THAT(still.message(), HasSubstr("another machine"));
    ASSERT_EQ(server.command({"PEXPIRE", "mooncake/ram/name", "1"}), "1");
    EXPECT_TRUE(eventually([&] { return makeRedisEngine(config)->init(server.uri(), "name", "127.0.0.1").isOk(); }));
}

TEST(RedisClaim, ATakeoverIsSaidOncePerSuccessor) {
    const RedisServer server;
    const auto lines = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
    EngineOptions options;
    options.config = redisConfig();
    options.log = std::make_shared<spdlog::logger>("test", lines);
    TransferEngine engine(std::move(options));
    ASSERT_TRUE(engine.init(server.uri(), "name", "127.0.0.1"));
    const std::string first(32, 'a');
    const std::string second(32, 'b');
    // A successor's changes are not takeovers of their own.
    for (const std::string& incarnation : {first, first, first, second}) {
        const std::string event =
            R"({"kind":"published","name":"name","incarnation":")" + incarnation + R"(","version":1})";
        server.command({"PUBLISH", "mooncake/ram/#changes", event});
    }
    const auto said = [&](const std::string& incarnation) {
        const auto all = lines->last_formatted();
        return std::count_if(all.begin(), all.end(), [&](const std::string& line) {
            return line.find(incarnation + " has taken the name") != std::string::npos;
        });
    };
    EXPECT_TRUE(eventually([&] { return said(second) == 1; }));
    EXPECT_EQ(said(first), 1);
}

TEST(RedisRestart, AClientGoesOnWithTheSuccessorOfADeadServer) {
    const RedisServer server;
    const auto client = startRedisEngine(server.uri(), "client");
    Buffer local(1u << 16);
    ASSERT_TRUE(client->registerLocalMemory(local.data(), local.size()));
    std::optional<PeerProcess> peer(std::in_place, server.uri(), "server");
    const auto segment = client->openSegment("server");
    ASSERT_TRUE(segment) << segment.status().toString();
    // Refused while the successor has not installed its transport, and failed while it is not known.
    const auto write = [&] {
        BatchHolder batch(*client, 1);
        const Status submitted =
            batch.submit({makeRequest(Opcode::Write, *segment, local.data(), peer->address(), local.size())});
        if (submitted) return batch.wait();
        TransferStatus refused;
        refused.error = submitted;
        return refused;
    };
    expectCompleted(write(), local.size());
    for (int round = 0; round < 3; ++round) {
        const std::string old = peer->incarnation();
        peer->kill();
        // Another port, another incarnation, the same name.
        peer.emplace(server.uri(), "server");
        ASSERT_EQ(peer->outcome(), "ready");
        ASSERT_NE(peer->incarnation(), old);
        const TimePoint back = Clock::now();
        TransferStatus last;
        EXPECT_TRUE(eventually([&] {
            last = write();
            return last.s == TransferStatusEnum::COMPLETED;
        })) << last.error.toString();
        std::printf("the successor is used %lld ms after it was ready\n", millisecondsSince(back));
        const auto desc = client->getSegmentDescByID(*segment);
        ASSERT_TRUE(desc);
        EXPECT_EQ((*desc)->incarnation.toString(), peer->incarnation());
    }
}

TEST(RedisRestart, OpeningByAStaleRecordFailsWithTheCauseAndWorksOnceTheSuccessorIsThere) {
    const RedisServer server;
    PeerProcess first(server.uri(), "server");
    first.kill();
    const auto client = startRedisEngine(server.uri(), "client");
    EXPECT_EQ(client->openSegment("server").status().code(), Code::ConnectionRefused);
    const PeerProcess second(server.uri(), "server");
    const auto opened = client->openSegment("server");
    EXPECT_TRUE(opened) << opened.status().toString();
}

TEST(RedisRestart, AStaleRecordIsLookedUpOnceMoreAndNotForEver) {
    const RedisServer server;
    // Somebody lives there, and it is not whom the record names, however often it is read.
    EngineOptions options;
    options.config = redisConfig();
    options.log = makeSilentLogger();
    TransferEngine successor(options);
    ASSERT_TRUE(successor.init("p2p", "127.0.0.1", "127.0.0.1"));
    SegmentDesc stale;
    stale.name = "server";
    stale.incarnation = Incarnation::random();
    stale.control = *Endpoint::parse(successor.localSegmentName());
    stale.boot_id = readBootId();
    server.command({"SET", "mooncake/ram/server", encodeSegmentDesc(stale)});
    Config config = redisConfig();
    // No looks at its own record; the leases are renewed after ten seconds.
    config.redis_keepalive_interval = 1h;
    const auto client = startRedisEngine(server.uri(), "client", config);
    const auto scripts = [&] {
        const std::string text = server.command({"INFO", "commandstats"});
        const std::string key = "cmdstat_eval:calls=";
        const std::size_t at = text.find(key);
        return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + key.size());
    };
    // What it publishes when a transport is installed is on its way.
    ASSERT_TRUE(client->updateLocalSegmentDesc());
    for (int round = 0; round < 3; ++round) {
        const long long before = scripts();
        const Status refused = client->openSegment("server").status();
        EXPECT_EQ(refused.code(), Code::StaleIncarnation) << refused.toString();
        EXPECT_EQ(scripts() - before, 2) << "the record is read, and once more";
    }
}

TEST(RedisPublishing, RegisteringManyRegionsOneByOneCostsBytesByTheirNumber) {
    const RedisServer server;
    const auto engine = startRedisEngine(server.uri(), "server");
    constexpr std::size_t kRegions = 4000;
    constexpr std::size_t kSize = 4096;
    Buffer memory(kRegions * 2 * kSize);
    const long long before = server.info("total_net_input_bytes");
    const TimePoint begin = Clock::now();
    for (std::size_t i = 0; i < kRegions; ++i)
        ASSERT_TRUE(engine->registerLocalMemory(memory.data() + 2 * i * kSize, kSize));
    const auto took = std::chrono::duration<double>(Clock::now() - begin).count();
    std::size_t record = 0;
    ASSERT_TRUE(eventually([&] {
        const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/server"}));
        if (desc) record = encodeSegmentDesc(*desc).size();
        return desc && desc->buffers.size() == kRegions;
    })) << "the last change is published too";
    const auto bytes = static_cast<double>(server.info("total_net_input_bytes") - before);
    std::printf("%zu regions in %.2f s: %.0f bytes to the server, %.1f records of %zu bytes; one each would be %.0f\n",
                kRegions, took, bytes, bytes / static_cast<double>(record), record,
                static_cast<double>(record) * kRegions / 2);
    // The rate, and the first and the last record.
    EXPECT_LT(bytes, 1.5 * (took + 1) * (2u << 20) + 3 * static_cast<double>(record));
    EXPECT_LT(bytes, static_cast<double>(record) * kRegions / 2 / 20) << "far from a record for each";
}

TEST(RedisPublishing, RegisteringSlowlyCostsBytesByTheirNumberTooAndIsHeardOfAtOnce) {
    const RedisServer server;
    // Only the store tells the client what changes.
    RedisPair pair(server.uri());
    constexpr std::size_t kRegions = 300;
    constexpr std::size_t kSize = 4096;
    Buffer memory(kRegions * 2 * kSize);
    const long long before = server.info("total_net_input_bytes");
    const TimePoint begin = Clock::now();
    for (std::size_t i = 0; i < kRegions; ++i) {
        ASSERT_TRUE(pair.b->registerLocalMemory(memory.data() + 2 * i * kSize, kSize));
        // Heard of, and longer than the pause after a record of as many regions (61 us for each).
        ASSERT_TRUE(eventually([&] { return pair.regionsSeen() == i + 2; })) << i;
        std::this_thread::sleep_for(std::chrono::microseconds(1000 + 65 * i));
    }
    const auto took = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto bytes = static_cast<double>(server.info("total_net_input_bytes") - before);
    const std::size_t record = server.command({"GET", "mooncake/ram/server"}).size();
    std::printf("%zu regions in %.1f s, each heard of: %.0f bytes to the server, %.0f for each; records: %zu bytes\n",
                kRegions, took, bytes, bytes / kRegions, record);
    // What a region and a second bring (LocalPublisher), what was saved before, the word of each region, and what four
    // connections and two engines' looks and renewals take.
    EXPECT_LT(bytes, kRegions * (2048 + 400) + took * (4096 + 8192) + 3 * 65536);
    EXPECT_LT(bytes, static_cast<double>(record) * kRegions / 4) << "one for each would be half of that product";
    // Who asks gets the record at once.
    ASSERT_TRUE(pair.b->updateLocalSegmentDesc());
    const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/server"}));
    ASSERT_TRUE(desc);
    EXPECT_EQ(desc->buffers.size(), kRegions + 1);
}

TEST(RedisSecrets, APasswordIsInNoErrorOfTheEngine) {
    for (const char* uri : {"redit://u:hunter2@h:1", "redis://u:hunter2@h:x", "redis://u:hunter2@127.0.0.1:1",
                            "redis+sentinel://u:hunter2@127.0.0.1:1/m"}) {
        const Status status = makeRedisEngine()->init(uri, "x", "127.0.0.1");
        EXPECT_FALSE(status.isOk()) << uri;
        EXPECT_THAT(status.message(), testing::Not(HasSubstr("hunter2")));
    }
}

TEST(RedisAway, AnEngineStartsWhenTheServerComesUpWhileItWaits) {
    RedisServer server;
    server.kill();
    Config config = redisConfig();
    config.redis_command_timeout = std::chrono::milliseconds(kPatience);
    const auto engine = makeRedisEngine(config);
    std::promise<void> begun;
    auto started = std::async(std::launch::async, [&] {
        begun.set_value();
        return engine->init(server.uri(), "name", "127.0.0.1");
    });
    begun.get_future().wait();
    std::this_thread::sleep_for(100ms);
    server.start();
    const Status status = started.get();
    EXPECT_TRUE(status) << status.toString();
    EXPECT_EQ(server.command({"EXISTS", "mooncake/ram/name"}), "1");
}

TEST(RedisAway, AfterAnInitThatFailedAnotherEngineStartsAtTheReturn) {
    RedisServer server;
    for (const bool stopped : {false, true}) {
        if (stopped)
            server.stop();
        else
            server.kill();
        const Status status = makeRedisEngine()->init(server.uri(), "name", "127.0.0.1");
        EXPECT_EQ(status.code(), stopped ? Code::Timeout : Code::ConnectionRefused) << status.toString();
        if (stopped)
            server.proceed();
        else
            server.start();
        const auto engine = startRedisEngine(server.uri(), "name");
    }
}

TEST(RedisAway, ARefusedPasswordEndsInitAtOnceWithOneError) {
    RedisServer::Options options;
    options.arguments = {"--requirepass", "hunter2"};
    options.password = "hunter2";
    const RedisServer server(options);
    std::ostringstream said;
    EngineOptions engine_options;
    engine_options.config = redisConfig();
    // Nobody waits for these; what is answered is answered because of the refusal.
    engine_options.config.redis_connect_timeout = 5min;
    engine_options.config.redis_command_timeout = 5min;
    engine_options.log =
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
    engine_options.log->set_level(spdlog::level::warn);
    TransferEngine engine(engine_options);
    const Status status = engine.init("redis://:wrong@" + server.address(), "name", "127.0.0.1");
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), HasSubstr("WRONGPASS"));
    EXPECT_EQ(said.str(), "") << "what init returns is not said as well";
}

TEST(RedisAway, AnEngineCannotStartAndSaysWhy) {
    const auto engine = makeRedisEngine();
    const Status status = engine->init("redis://127.0.0.1:" + std::to_string(freePort()), "x", "127.0.0.1");
    EXPECT_EQ(status.code(), Code::ConnectionRefused);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'x'"), HasSubstr("Connection refused")));
    const Status unresolved = makeRedisEngine()->init("redis://no.such.host.invalid:1", "x", "127.0.0.1");
    EXPECT_TRUE(unresolved.code() == Code::NotFound || unresolved.code() == Code::Timeout) << unresolved.toString();
}

}  // namespace
}  // namespace troupe::test
