// The redis-server that tests, faults and the benchmark start.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "apps/support/redis_server.h"
#include "tests/support/redis_server.h"

namespace troupe::apps {
namespace {

// Of a process in between, whose end this test can wait for: its server holds the pipe that is read here.
TEST(RedisServerProcess, DiesWithTheProcessThatStartedIt) {
    // What it leaves behind is in here.
    const test::TemporaryDirectory folder;
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t between = ::fork();
    if (between == 0) {
        ::setenv("TMPDIR", folder.path().c_str(), 1);
        const auto server = RedisServer::start();
        static_cast<void>(!::write(ends[1], server ? "y" : "n", 1));
        ::kill(::getpid(), SIGKILL);
    }
    ::close(ends[1]);
    ASSERT_GT(between, 0);
    char started = 'n';
    EXPECT_EQ(::read(ends[0], &started, 1), 1);
    EXPECT_EQ(started, 'y');
    pollfd ended{ends[0], POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 60000), 1) << "the server lives on";
    EXPECT_EQ(::waitpid(between, nullptr, 0), between);
    ::close(ends[0]);
}

TEST(RedisServerProcess, OneThatEndsAtOnceIsNotWaitedFor) {
    RedisServer::Options options;
    options.arguments = {"--no-such-setting", "1"};
    const auto server = RedisServer::start(std::move(options));
    ASSERT_FALSE(server);
    EXPECT_EQ(server.status().code(), Code::Internal);
    EXPECT_THAT(server.status().message(), testing::HasSubstr("redis-server ended with "));
}

}  // namespace
}  // namespace troupe::apps
