// Redis gets a password while engines run that do not know it.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/metadata_redis/redis_engines.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPassword = "hunter2";

void restartWith(RedisServer& server, const std::string& password) {
    server.kill();
    server.options().arguments.clear();
    if (!password.empty()) server.options().arguments = {"--requirepass", password};
    server.options().password = password;
    server.start();
}

long regionsStored(const RedisServer& server) {
    const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/server"}));
    return desc ? static_cast<long>(desc->buffers.size()) : -1;
}

/// With time-outs that nobody waits for: what is answered is answered because of what the server said.
Config patientConfig() {
    Config config = redisConfig();
    config.redis_connect_timeout = 1min;
    config.redis_command_timeout = 1min;
    config.open_timeout = 2min;
    return config;
}

/// Engines that the server does not let in: what is open goes on, and what is asked for fails at once, with `words`.
void expectShutOut(RedisPair& pair, const std::string& words) {
    Status refused;
    EXPECT_TRUE(eventually([&] {
        refused = pair.openUnknown();
        return refused.code() == Code::AccessDenied;
    })) << refused.toString();
    const TimePoint asked = Clock::now();
    for (int i = 0; i < 10; ++i) {
        refused = pair.openUnknown();
        EXPECT_EQ(refused.code(), Code::AccessDenied);
        EXPECT_THAT(refused.message(), AllOf(HasSubstr(words), Not(HasSubstr(kPassword))));
    }
    EXPECT_LT(Clock::now() - asked, 30s) << "ten answers within half of what one may wait";
    for (int i = 0; i < 100; ++i) pair.write();
    pair.registerMore();
    // What is new moves, too: nobody asks the store.
    const auto& fresh = *pair.more.back();
    const auto moved =
        runBatch(*pair.a, {makeRequest(Opcode::Write, pair.segment, pair.local.data(), fresh.address(), 4096)});
    EXPECT_EQ(moved.s, TransferStatusEnum::COMPLETED) << moved.error.toString();
}

/// Everything is published and heard of again.
void expectBack(RedisPair& pair, const RedisServer& server) {
    const long regions = static_cast<long>(1 + pair.more.size());
    ASSERT_TRUE(eventually([&] { return regionsStored(server) == regions; })) << regionsStored(server);
    ASSERT_TRUE(eventually([&] { return server.command({"EXISTS", "mooncake/ram/client"}) == "1"; }));
    ASSERT_TRUE(eventually([&] { return pair.regionsSeen() == static_cast<std::size_t>(regions); }));
    EXPECT_EQ(pair.openUnknown().code(), Code::NotFound);
    pair.registerMore();
    EXPECT_TRUE(eventually([&] { return pair.regionsSeen() == static_cast<std::size_t>(regions + 1); }));
    pair.write();
}

TEST(RedisPassword, EnginesWithoutItGoOnWithWhatIsOpenAndAreBackWhenItIsTakenOff) {
    RedisServer server;
    RedisPair pair(server.uri(), patientConfig());
    restartWith(server, kPassword);
    expectShutOut(pair, "NOAUTH");
    EXPECT_EQ(server.command({"EXISTS", "mooncake/ram/server"}), "0");
    restartWith(server, "");
    expectBack(pair, server);
}

TEST(RedisPassword, EnginesWhoseFileHasAnotherAreBackWhenItHoldsTheRightOne) {
    RedisServer server;
    const TemporaryDirectory directory;
    Config config = patientConfig();
    config.redis_password_file = directory.path() + "/password";
    std::ofstream(config.redis_password_file) << "of last year\n";
    // A server that asks for none is used although one is given.
    RedisPair pair(server.uri(), config);
    restartWith(server, kPassword);
    expectShutOut(pair, "WRONGPASS");
    // While it is changed it may be gone for a moment.
    std::filesystem::remove(config.redis_password_file);
    expectShutOut(pair, "WRONGPASS");
    std::ofstream(config.redis_password_file) << kPassword << "\n";
    expectBack(pair, server);
    // And once more, for it is read whenever it is refused.
    restartWith(server, "hunter3");
    expectShutOut(pair, "WRONGPASS");
    std::ofstream(config.redis_password_file) << "hunter3\n";
    expectBack(pair, server);
}

}  // namespace
}  // namespace troupe::test
