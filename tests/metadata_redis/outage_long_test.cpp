#include "tests/metadata_redis/outage_fixture.h"

namespace troupe::test {
namespace {

class RedisOutageLong : public RedisOutage {};

TEST_F(RedisOutageLong, StoppedForTwentySecondsWithTheDefaultSettings) {
    RedisServer server;
    Config config;
    config.data_loops = 1;
    config.transfer_timeout = std::chrono::milliseconds(kPatience);
    RedisPair pair(server.uri(), config);
    endure(pair,
           {"SIGSTOP for 20 s",
            [&] { server.stop(); },
            [&] { server.proceed(); },
            {Code::Timeout},
            std::chrono::seconds(20)},
           [&]() -> const RedisServer& { return server; });
}

}  // namespace
}  // namespace troupe::test
