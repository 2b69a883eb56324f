// The outages of a real redis-server, each with engines that transfer through it.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/metadata_redis/outage_fixture.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST_F(RedisOutage, KilledAndRestartedEmpty) {
    RedisServer server;
    RedisPair pair(server.uri());
    endure(pair,
           {"killed, restarted empty", [&] { server.kill(); }, [&] { server.start(); }, {Code::ConnectionRefused}},
           [&]() -> const RedisServer& { return server; });
}

TEST_F(RedisOutage, RestartedWithAPassword) {
    RedisServer server;
    Config config = redisConfig();
    config.redis_password = "hunter2";
    RedisPair pair(server.uri(), config);
    // One that was not told the password.
    const auto other = startRedisEngine(server.uri(), "other");
    endure(pair,
           {"restarted with a password",
            [&] { server.kill(); },
            [&] {
                server.options().arguments = {"--requirepass", "hunter2"};
                server.options().password = "hunter2";
                server.start();
            },
            {Code::ConnectionRefused}},
           [&]() -> const RedisServer& { return server; });
    Status refused;
    EXPECT_TRUE(eventually([&] {
        refused = other->openSegment("server").status();
        return refused.code() == Code::AccessDenied;
    }));
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("NOAUTH"), HasSubstr("redis.password")));
    const auto wrong = makeRedisEngine();
    const Status status = wrong->init("redis://:wrong7@" + server.address(), "wrong", "127.0.0.1");
    EXPECT_EQ(status.code(), Code::AccessDenied);
    EXPECT_THAT(status.message(), testing::Not(HasSubstr("wrong7")));
}

TEST_F(RedisOutage, StoppedForSomeSeconds) {
    RedisServer server;
    RedisPair pair(server.uri());
    endure(pair, {"SIGSTOP for 4 s", [&] { server.stop(); }, [&] { server.proceed(); }, {Code::Timeout}, 4s},
           [&]() -> const RedisServer& { return server; });
}

TEST_F(RedisOutage, MadeAReadOnlyReplica) {
    RedisServer server;
    RedisServer master;
    RedisPair pair(server.uri());
    // It loses all it had to its new master, and then takes no writes; reads it answers.
    endure(pair,
           {"made a read-only replica",
            [&] {
                server.command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
                ASSERT_TRUE(eventually([&] {
                    return server.command({"INFO", "replication"}).find("master_link_status:up") != std::string::npos;
                }));
            },
            [&] {
                server.command({"REPLICAOF", "NO", "ONE"});
            },
            {Code::NotFound, Code::PeerDown, Code::ConnectionLost}},
           [&]() -> const RedisServer& { return server; });
}

TEST_F(RedisOutage, LoadingALargeDump) {
    RedisServer server;
    server.command({"DEBUG", "POPULATE", "20000"});
    RedisPair pair(server.uri());
    ASSERT_EQ(server.command({"SAVE"}), "OK");
    endure(pair,
           {"loading a large dump",
            [&] {
                server.kill();
                // 20,000 keys, 200 us each.
                server.options().arguments = {"--key-load-delay", "200", "--loading-process-events-interval-bytes",
                                              "1024"};
                server.start();
                ASSERT_THAT(server.command({"GET", "x"}), HasSubstr("LOADING"));
            },
            [&] {
                server.command({"CONFIG", "SET", "key-load-delay", "0"});
                ASSERT_TRUE(eventually([&] { return server.command({"PING"}) == "PONG"; }));
            },
            {Code::PeerDown, Code::Timeout}},
           [&]() -> const RedisServer& { return server; });
}

TEST_F(RedisOutage, FilledToMaxmemory) {
    RedisServer server;
    RedisPair pair(server.uri());
    endure(pair,
           {"filled to maxmemory",
            [&] {
                ASSERT_EQ(server.command({"CONFIG", "SET", "maxmemory", "1mb"}), "OK");
                ASSERT_THAT(server.command({"SET", "x", std::string(100'000, 'x')}), HasSubstr("OOM"));
                const auto fresh = makeRedisEngine();
                const Status full = fresh->init(server.uri(), "fresh", "127.0.0.1");
                EXPECT_EQ(full.code(), Code::ResourceExhausted);
                EXPECT_THAT(full.message(), HasSubstr("maxmemory"));
            },
            [&] {
                server.command({"CONFIG", "SET", "maxmemory", "0"});
            },
            // Reading is possible.
            {Code::NotFound}},
           [&]() -> const RedisServer& { return server; });
}

TEST_F(RedisOutage, CannotWriteToItsDisk) {
    RedisServer server;
    RedisPair pair(server.uri());
    // Where its dump goes there is a directory, which stops root too.
    const std::string dump = server.directory() + "/dump.rdb";
    const auto saves = [&](const std::string& outcome) {
        server.command({"BGSAVE"});
        return eventually([&] {
            const std::string text = server.command({"INFO", "persistence"});
            return text.find("rdb_bgsave_in_progress:0") != std::string::npos &&
                   text.find("rdb_last_bgsave_status:" + outcome) != std::string::npos;
        });
    };
    endure(pair,
           {"cannot write to its disk",
            [&] {
                ASSERT_TRUE(std::filesystem::create_directory(dump));
                ASSERT_EQ(server.command({"CONFIG", "SET", "save", "3600 1"}), "OK");
                ASSERT_TRUE(saves("err")) << server.log();
                ASSERT_THAT(server.command({"SET", "x", "y"}), HasSubstr("MISCONF"));
                const Status full = makeRedisEngine()->init(server.uri(), "fresh", "127.0.0.1");
                EXPECT_EQ(full.code(), Code::ResourceExhausted);
                EXPECT_THAT(full.message(), AllOf(HasSubstr("MISCONF"), HasSubstr("disk")));
            },
            [&] {
                ASSERT_TRUE(std::filesystem::remove(dump));
                ASSERT_TRUE(saves("ok")) << server.log();
            },
            // Reading is possible.
            {Code::NotFound}},
           [&]() -> const RedisServer& { return server; });
}

/// A network namespace with a pair of interfaces to it; gone with the test.
class Namespace {
  public:
    Namespace() : id_(std::to_string(::getpid() % 100'000)) {
        const int net = ::getpid() % 16384;
        prefix_ = "10.211." + std::to_string(net / 64) + ".";
        base_ = net % 64 * 4;
        good_ = run("ip netns add " + name()) && run("ip link add " + outer() + " type veth peer name " + inner()) &&
                run("ip link set " + inner() + " netns " + name()) &&
                run("ip addr add " + ip(1) + "/30 dev " + outer()) && run("ip link set " + outer() + " up") &&
                run("ip netns exec " + name() + " ip addr add " + ip(2) + "/30 dev " + inner()) &&
                run("ip netns exec " + name() + " ip link set " + inner() + " up") &&
                run("ip netns exec " + name() + " ip link set lo up") &&
                run("ip netns exec " + name() + " iptables -L -n");
    }
    ~Namespace() {
        run("ip link del " + outer());
        run("ip netns del " + name());
    }
    Namespace(const Namespace&) = delete;
    Namespace& operator=(const Namespace&) = delete;

    bool good() const { return good_; }
    std::string address() const { return ip(2); }
    std::vector<std::string> wrapper() const { return {"/usr/sbin/ip", "netns", "exec", name()}; }
    /// No packet goes in or out, and nobody is told.
    void cut() { EXPECT_TRUE(tables("-A INPUT") && tables("-A OUTPUT")); }
    void mend() { EXPECT_TRUE(tables("-D INPUT") && tables("-D OUTPUT")); }

  private:
    static bool run(const std::string& command) {
        return std::system(("PATH=$PATH:/usr/sbin:/sbin; " + command + " >/dev/null 2>&1").c_str()) == 0;
    }
    bool tables(const std::string& rule) const {
        return run("ip netns exec " + name() + " iptables -w 20 " + rule + " ! -i lo -p tcp -j DROP") ||
               run("ip netns exec " + name() + " iptables -w 20 " + rule + " -p tcp -j DROP");
    }
    std::string name() const { return "troupe" + id_; }
    std::string outer() const { return "tro" + id_; }
    std::string inner() const { return "tri" + id_; }
    std::string ip(int host) const { return prefix_ + std::to_string(base_ + host); }

    const std::string id_;
    std::string prefix_;
    int base_ = 0;
    bool good_ = false;
};

TEST_F(RedisOutage, CutOffSilently) {
    Namespace network;
    if (!network.good())
        GTEST_SKIP() << "NOT TESTED: a silent cut needs a network namespace with iptables, which needs root "
                        "(CAP_NET_ADMIN) and the packages iproute2 and iptables";
    RedisServer::Options options;
    options.wrapper = network.wrapper();
    options.bind = network.address();
    RedisServer server(options);
    RedisPair pair(server.uri());
    endure(pair, {"cut off silently", [&] { network.cut(); }, [&] { network.mend(); }, {Code::Timeout}, 3s},
           [&]() -> const RedisServer& { return server; });
}

/// A real redis-sentinel that watches `master` as "main".
class Sentinel {
  public:
    explicit Sentinel(const RedisServer& master) : port_(freePort()) {
        const std::string config = directory_.path() + "/sentinel.conf";
        std::ofstream(config) << "port " << port_ << "\nbind 127.0.0.1\ndir " << directory_.path() << "\nlogfile "
                              << directory_.path() << "/log\nsentinel monitor main 127.0.0.1 " << master.port()
                              << " 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n";
        auto child = apps::ChildProcess::start({redisProgram(directory_, "redis-sentinel"), config});
        EXPECT_TRUE(child) << child.status().toString();
        if (child) child_.emplace(std::move(*child));
    }
    ~Sentinel() {
        if (!child_) return;
        child_->signal(SIGKILL);
        static_cast<void>(child_->wait(kRedisPatience));
    }
    std::uint16_t port() const { return port_; }
    std::string ask(const std::string& command) const {
        const timeval patience{5, 0};
        redisContext* context = redisConnectWithTimeout("127.0.0.1", port_, patience);
        std::string result;
        if (context != nullptr && context->err == 0) {
            auto* reply = static_cast<redisReply*>(redisCommand(context, command.c_str()));
            if (reply != nullptr) result = flat(*reply);
            if (reply != nullptr) freeReplyObject(reply);
        }
        if (context != nullptr) redisFree(context);
        return result;
    }

  private:
    static std::string flat(const redisReply& reply) {
        std::string text(reply.str != nullptr ? std::string(reply.str, reply.len) : "");
        for (std::size_t i = 0; i < reply.elements; ++i) text += flat(*reply.element[i]) + " ";
        return text;
    }

    TemporaryDirectory directory_;
    std::uint16_t port_;
    std::optional<apps::ChildProcess> child_;
};

TEST_F(RedisOutage, FailedOverBySentinel) {
    RedisServer first;
    RedisServer::Options replica;
    replica.arguments = {"--replicaof", "127.0.0.1", std::to_string(first.port())};
    RedisServer second(replica);
    const Sentinel sentinel(first);
    ASSERT_TRUE(eventually([&] {
        const std::string replicas = sentinel.ask("SENTINEL replicas main");
        return replicas.find(std::to_string(second.port())) != std::string::npos &&
               replicas.find("master-link-status ok") != std::string::npos;
    }));
    // The first sentinel of the list is not there.
    RedisPair pair("redis+sentinel://127.0.0.1:" + std::to_string(freePort()) +
                   ",127.0.0.1:" + std::to_string(sentinel.port()) + "/main");
    endure(pair,
           {"failed over by Sentinel",
            [&] { first.kill(); },
            [&] {
                ASSERT_TRUE(eventually([&] {
                    return sentinel.ask("SENTINEL get-master-addr-by-name main").find(std::to_string(second.port())) !=
                               std::string::npos &&
                           second.command({"INFO", "replication"}).find("role:master") != std::string::npos;
                }));
            },
            // The failover may be done before the second question.
            {Code::ConnectionRefused, Code::NotFound, Code::PeerDown, Code::ConnectionLost},
            500ms},
           [&]() -> const RedisServer& { return second; });
    const auto unknown = makeRedisEngine();
    const Status status =
        unknown->init("redis+sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "/other", "x", "127.0.0.1");
    EXPECT_EQ(status.code(), Code::NotFound);
    EXPECT_THAT(status.message(), HasSubstr("no master 'other'"));
}

TEST_F(RedisOutage, AnOrderlyFailoverIsFollowedWhileTheOldMasterStillAnswers) {
    RedisServer first;
    RedisServer::Options replica;
    replica.arguments = {"--replicaof", "127.0.0.1", std::to_string(first.port())};
    RedisServer second(replica);
    const Sentinel sentinel(first);
    ASSERT_TRUE(eventually(
        [&] { return sentinel.ask("SENTINEL replicas main").find("master-link-status ok") != std::string::npos; }));
    const std::string uri = "redis+sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "/main";
    RedisPair pair(uri);
    ASSERT_EQ(sentinel.ask("SENTINEL FAILOVER main"), "OK");
    ASSERT_TRUE(eventually([&] {
        return sentinel.ask("SENTINEL get-master-addr-by-name main").find(std::to_string(second.port())) !=
               std::string::npos;
    }));
    const TimePoint named = Clock::now();
    // What changes now is seen by both, with the master that they then have.
    pair.registerMore();
    EXPECT_TRUE(eventually([&] { return regionsStored(second) == 2; }));
    const long long published_ms = millisecondsSince(named);
    EXPECT_TRUE(eventually([&] { return pair.regionsSeen() == 2; }));
    // Both connections of both.
    const auto clients = [&](const char* kind) {
        const std::string list = second.command({"CLIENT", "LIST", "TYPE", kind});
        return std::count(list.begin(), list.end(), '\n');
    };
    EXPECT_TRUE(eventually([&] { return clients("pubsub") >= 2; }));
    // One that starts now is found.
    const auto fresh = startRedisEngine(uri, "fresh");
    EXPECT_TRUE(eventually([&] { return pair.a->openSegment("fresh").isOk(); }));
    const long long opened_ms = millisecondsSince(named);
    const bool is_demoted = first.command({"INFO", "replication"}).find("role:slave") != std::string::npos;
    std::printf("orderly failover: published after %lld ms, a new name opened after %lld ms; the old master is %s\n",
                published_ms, opened_ms, is_demoted ? "a replica" : "not demoted yet");
    RecordProperty("published_ms", std::to_string(published_ms));
    RecordProperty("opened_ms", std::to_string(opened_ms));
    pair.write();
}

}  // namespace
}  // namespace troupe::test
