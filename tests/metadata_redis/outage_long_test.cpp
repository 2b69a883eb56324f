#include "tests/metadata_redis/outage_fixture.h"

namespace troupe::test {
namespace {

class RedisOutageLong : public RedisOutage {};

TEST_F(RedisOutageLong, StoppedForTwentySecondsWithTheDefaultSettings) {
    RedisServer server;
    RedisPair pair(server.uri(), pairConfig());
    endure(pair,
           {"SIGSTOP for 20 s",
            [&] { server.stop(); },
            [&] { server.proceed(); },
            {Code::Timeout},
            {"redis " + server.address(), " in time"},
            std::chrono::seconds(20)},
           [&]() -> const RedisServer& { return server; });
}

}  // namespace
}  // namespace troupe::test
