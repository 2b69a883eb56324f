#include "apps/support/child_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

namespace troupe::apps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ChildProcess, LinesComeOneByOneAndTheExitCodeIsTheChilds) {
    auto child = ChildProcess::start({"/bin/sh", "-c", "echo one; echo two; printf rest; exit 3"});
    ASSERT_TRUE(child);
    EXPECT_EQ(*child->readLine(seconds(10)), "one");
    EXPECT_EQ(*child->readLine(seconds(10)), "two");
    EXPECT_EQ(*child->readAll(seconds(10)), "rest");
    EXPECT_EQ(*child->wait(seconds(10)), 3);
    EXPECT_EQ(*child->wait(seconds(10)), 3);
}

TEST(ChildProcess, AChildThatWaitsForItsInputEndsWhenThatIsClosed) {
    auto child = ChildProcess::start({"/bin/cat"});
    ASSERT_TRUE(child);
    EXPECT_EQ(child->wait(milliseconds(20)).status().code(), Code::Timeout);
    EXPECT_EQ(child->readLine(milliseconds(20)).status().code(), Code::Timeout);
    child->closeInput();
    EXPECT_EQ(*child->wait(seconds(10)), 0);
    EXPECT_EQ(child->readLine(seconds(1)).status().code(), Code::ConnectionLost);
}

TEST(ChildProcess, ASignalShowsInTheExitCode) {
    auto child = ChildProcess::start({"/bin/cat"});
    ASSERT_TRUE(child);
    child->signal(SIGKILL);
    EXPECT_EQ(*child->wait(seconds(10)), 128 + SIGKILL);
}

TEST(ChildProcess, AProgramThatIsNotThereIsAnError) {
    EXPECT_EQ(ChildProcess::start({"/nonexistent/program"}).status().code(), Code::NotFound);
}

TEST(ChildProcess, AProgramIsLookedUpInPath) {
    for (const bool dies_with_us : {false, true}) {
        ChildProcess::Options options;
        options.dies_with_us = dies_with_us;
        auto child = ChildProcess::start({"sh", "-c", "echo here"}, options);
        ASSERT_TRUE(child) << child.status().toString();
        EXPECT_EQ(*child->readLine(seconds(10)), "here");
        for (const char* missing : {"no-such-program", "/nonexistent/program"})
            EXPECT_EQ(ChildProcess::start({missing}, options).status().code(), Code::NotFound) << missing;
    }
    EXPECT_FALSE(findProgram("sh").empty());
    EXPECT_TRUE(findProgram("no-such-program").empty());
}

TEST(ChildProcess, AVariableThatIsGivenTakesThePlaceOfOurs) {
    ChildProcess::Options options;
    options.environment = {"PATH=/nowhere", "TROUPE_TEST_OTHER=x"};
    auto child = ChildProcess::start({"/usr/bin/env"}, options);
    ASSERT_TRUE(child);
    const auto all = child->readAll(seconds(10));
    ASSERT_TRUE(all);
    const std::string text = "\n" + *all;
    EXPECT_NE(text.find("\nPATH=/nowhere\n"), std::string::npos) << text;
    EXPECT_NE(text.find("\nTROUPE_TEST_OTHER=x\n"), std::string::npos) << text;
    EXPECT_EQ(text.find("\nPATH="), text.rfind("\nPATH=")) << text;
}

TEST(ChildProcess, StandardErrorMayGoWhereTheOutputGoes) {
    for (const bool dies_with_us : {false, true}) {
        ChildProcess::Options options;
        options.merge_stderr = true;
        options.dies_with_us = dies_with_us;
        auto child = ChildProcess::start({"/bin/sh", "-c", "echo out; echo err >&2"}, options);
        ASSERT_TRUE(child);
        EXPECT_EQ(*child->readAll(seconds(10)), "out\nerr\n");
    }
}

TEST(ChildProcess, OneThatIsAssignedEndsTheOneThatWasThere) {
    ChildProcess child;
    EXPECT_EQ(child.cpuSeconds(), 0);
    child = std::move(*ChildProcess::start({"/bin/cat"}));
    const pid_t first = child.pid();
    child = std::move(*ChildProcess::start({"/bin/cat"}));
    EXPECT_NE(child.pid(), first);
    EXPECT_NE(::kill(first, 0), 0);
    EXPECT_EQ(::kill(child.pid(), 0), 0);
}

// Of a process in between, whose end this test can wait for: its child holds the pipe that is read here.
TEST(ChildProcess, DiesWithUsWhereItIsAskedTo) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t between = ::fork();
    if (between == 0) {
        ChildProcess::Options options;
        options.dies_with_us = true;
        // The end that it inherits to write is closed when the last process that has it is gone.
        auto child = ChildProcess::start({"/bin/sh", "-c", "echo up; exec sleep 1000"}, options);
        if (child) static_cast<void>(child->readLine(seconds(10)));
        ::kill(::getpid(), SIGKILL);
    }
    ::close(ends[1]);
    ASSERT_GT(between, 0);
    pollfd ended{ends[0], POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 60000), 1) << "the child lives on";
    EXPECT_EQ(::waitpid(between, nullptr, 0), between);
    ::close(ends[0]);
}

TEST(ChildProcess, IsEndedWithItsOwner) {
    pid_t pid = 0;
    {
        auto child = ChildProcess::start({"/bin/cat"});
        ASSERT_TRUE(child);
        pid = child->pid();
    }
    EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace troupe::apps
