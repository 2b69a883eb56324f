#include "apps/support/child_process.h"

#include <gtest/gtest.h>

#include <csignal>

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
