#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine_pair.h"
#include "tests/support/redis_server.h"

namespace troupe::test {

/// Both engines are of one process and go by TCP, and only the store tells one what the other changed: the control
/// connection would ask for it at each keepalive.
inline Config pairConfig() {
    Config config;
    config.data_loops = 1;
    config.host_peers = false;
    config.keepalive_interval = std::chrono::minutes(30);
    config.keepalive_timeout = std::chrono::hours(1);
    config.transfer_timeout = std::chrono::milliseconds(kPatience);
    return config;
}

/// And with trouble found sooner than in production, so that tests of it do not take longer than it.
inline Config redisConfig() {
    Config config = pairConfig();
    config.redis_connect_timeout = std::chrono::milliseconds(600);
    config.redis_command_timeout = std::chrono::milliseconds(1000);
    config.redis_keepalive_interval = std::chrono::milliseconds(400);
    return config;
}

/// Not yet initialised.
inline std::unique_ptr<TransferEngine> makeRedisEngine(const Config& config = redisConfig()) {
    EngineOptions options;
    options.config = config;
    options.log = makeSilentLogger();
    return std::make_unique<TransferEngine>(std::move(options));
}

inline std::unique_ptr<TransferEngine> startRedisEngine(const std::string& uri, const std::string& name,
                                                        const Config& config = redisConfig()) {
    auto engine = makeRedisEngine(config);
    const Status started = engine->init(uri, name, "127.0.0.1");
    EXPECT_TRUE(started) << started.toString();
    if (started) {
        const auto tcp = engine->installTransport("tcp");
        EXPECT_TRUE(tcp) << tcp.status().toString();
    }
    return engine;
}

/// A client and a server whose segment it has open, found through Redis.
class RedisPair {
  public:
    explicit RedisPair(const std::string& uri, const Config& config = redisConfig())
        : a(startRedisEngine(uri, "client", config)), b(startRedisEngine(uri, "server", config)) {
        EXPECT_TRUE(a->registerLocalMemory(local.data(), local.size()));
        EXPECT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
        const auto opened = a->openSegment("server");
        EXPECT_TRUE(opened) << opened.status().toString();
        if (!opened) return;
        segment = *opened;
        const auto route = a->explainSegment(segment);
        EXPECT_TRUE(route && route->transport == "tcp") << (route ? route->toString() : route.status().toString());
    }

    /// Microseconds that a small write took; it must complete.
    double write() {
        const TimePoint begin = Clock::now();
        const auto status = runBatch(*a, {makeRequest(Opcode::Write, segment, local.data(), remote.address(), 4096)});
        const double took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
        EXPECT_EQ(status.s, TransferStatusEnum::COMPLETED) << status.error.toString();
        return took;
    }
    /// Microseconds.
    struct Times {
        double p50 = 0;
        double p99 = 0;
    };
    /// Of writes over at least `span`.
    Times writesFor(Duration span, std::size_t least = 200) {
        std::vector<double> times;
        const TimePoint end = Clock::now() + span;
        while (times.size() < least || Clock::now() < end) {
            times.push_back(write());
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
        std::sort(times.begin(), times.end());
        return {times[times.size() / 2], times[times.size() * 99 / 100]};
    }
    /// Regions of the server as the client has them.
    std::size_t regionsSeen() const {
        const auto desc = a->getSegmentDescByID(segment);
        return desc ? (*desc)->buffers.size() : 0;
    }
    /// Another region of the server's.
    void registerMore() {
        more.push_back(std::make_unique<Buffer>(4096));
        const Status status = b->registerLocalMemory(more.back()->data(), more.back()->size());
        EXPECT_TRUE(status) << status.toString();
    }
    Status openUnknown() { return a->openSegment("nobody has this name").status(); }

    Buffer local{1u << 20};
    Buffer remote{1u << 20};
    std::vector<std::unique_ptr<Buffer>> more;
    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

template <class Done>
bool eventually(Done&& done) {
    return RedisServer::eventually(std::forward<Done>(done));
}

inline long long millisecondsSince(TimePoint begin) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
}

}  // namespace troupe::test
