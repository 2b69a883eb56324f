#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "tests/apps_process/troupe_process.h"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

/// Waits until `process` has said `text` on standard error.
void awaitSaid(TroupeProcess& process, const std::string& text) {
    while (process.errors().find(text) == std::string::npos)
        ASSERT_EQ(process.child().wait(std::chrono::milliseconds(20)).status().code(), Code::Timeout)
            << process.errors();
}

/// A port that takes connections, into the backlog, and says nothing.
class SilentPort {
  public:
    SilentPort() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        EXPECT_EQ(::listen(listener_.get(), 4), 0);
        sockaddr_in address{};
        socklen_t length = sizeof address;
        EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
        name_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    }
    const std::string& name() const { return name_; }
    bool awaitConnection() const {
        pollfd entry{listener_.get(), POLLIN, 0};
        return ::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) > 0;
    }

  private:
    UniqueFd listener_;
    std::string name_;
};

/// Sends it again and again, as an impatient user does, until the process has ended; what it ended with.
int endBySignals(TroupeProcess& process, int signal) {
    for (const TimePoint deadline = Clock::now() + kPatience; Clock::now() < deadline;) {
        process.child().signal(signal);
        if (const auto code = process.child().wait(std::chrono::milliseconds(300))) return *code;
    }
    ADD_FAILURE() << "no signal ended it";
    return -1;
}

TEST(Signals, TheSecondEndsACommandThatCannotLookAtTheFirst) {
    for (const int signal : {SIGINT, SIGTERM}) {
        const SilentPort peer;
        // Nothing but a signal ends it in the time of the test.
        TroupeProcess verify({"verify", peer.name(), "--set", "open_timeout=5min", "--set", "connect_timeout=5min",
                              "--set", "handshake_timeout=5min"});
        ASSERT_TRUE(peer.awaitConnection());
        EXPECT_EQ(endBySignals(verify, signal), 128 + signal) << verify.errors();
    }
}

TEST(Signals, TheSecondEndsACommandWhoseEngineStarts) {
    const SilentPort redis;
    TroupeProcess verify({"verify", "x", "--metadata", "redis://" + redis.name(), "--set", "redis.connect_timeout=5min",
                          "--set", "redis.command_timeout=5min"});
    ASSERT_TRUE(redis.awaitConnection());
    EXPECT_EQ(endBySignals(verify, SIGINT), 128 + SIGINT) << verify.errors();
}

TEST(Signals, TwoAtOnceAreOneRequest) {
    // As timeout(1) sends them: to the process, and to its group.
    Server server("1MiB");
    server.process().child().signal(SIGTERM);
    server.process().child().signal(SIGTERM);
    const auto outcome = finish(server.process());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Signals, TheReportOfAMeasurementThatWasEndedSaysSo) {
    Server server("64MiB");
    const std::vector<std::string> commands[] = {
        {"verify", server.segment(), "--seconds", "1h"},
        {"bench", server.segment(), "--duration", "1h"},
        {"replay", TROUPE_SMALL_TRACE, server.segment(), "--speedup", "0.001"}};
    for (const auto& command : commands) {
        for (const int signal : {SIGINT, SIGTERM}) {
            TroupeProcess process(command);
            awaitSaid(process, command.front());
            process.child().signal(signal);
            const auto outcome = finish(process);
            EXPECT_EQ(outcome.code, 0) << outcome.err;
            EXPECT_THAT(outcome.out, HasSubstr("stopped by a signal")) << command.front();
        }
    }
}

TEST(Signals, TheFirstEndsTraceGenWhichShowsItsProgress) {
    const std::string path = testing::TempDir() + "troupe_trace_" + std::to_string(::getpid());
    TroupeProcess generate({"trace-gen", "--requests", "1000000", "-o", path, "--json"});
    awaitSaid(generate, "trace-gen");
    generate.child().signal(SIGINT);
    const auto outcome = finish(generate);
    ::unlink(path.c_str());
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_EQ(outcome.json()["error"]["code"], "Canceled");
    EXPECT_THAT(outcome.json()["error"]["message"].get<std::string>(), HasSubstr("stopped"));
}

TEST(Signals, TheFirstEndsTraceGenWhileItWrites) {
    TroupeProcess generate({"trace-gen", "--requests", "200000"});
    // The pipe is full after its first lines.
    ASSERT_TRUE(generate.child().readLine(kPatience)) << generate.errors();
    generate.child().signal(SIGTERM);
    const auto outcome = finish(generate);
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("stopped; standard output has only the first"));
}

}  // namespace
}  // namespace troupe::apps
