#include "base/quiet_thread.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(QuietThread, TakesNoSignalButThoseOfItsOwnFaults) {
    sigset_t blocked;
    sigemptyset(&blocked);
    auto thread = startQuietThread("troupe.test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
    ASSERT_TRUE(thread) << thread.status().toString();
    thread->join();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGPIPE})
        EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
    // A program that has a handler for these is to see them: a blocked one ends the process at once.
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
        EXPECT_EQ(sigismember(&blocked, signal), 0) << signal;
}

TEST(QuietThread, LeavesTheSignalsOfTheCallerAsTheyWere) {
    sigset_t before;
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    auto thread = startQuietThread("troupe.test", [] {});
    ASSERT_TRUE(thread);
    thread->join();
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (int signal = 1; signal < NSIG; ++signal)
        EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
}

}  // namespace
}  // namespace troupe
