#include "messages/task_history.h"

#include <gtest/gtest.h>

namespace troupe::test {
namespace {

using namespace std::chrono_literals;

TEST(TaskHistory, WhatCameBackInOneIncidentIsOneAttemptWithThePauseThatFollowed) {
    TaskHistory history;
    const TimePoint start = Clock::now();
    const Status lost(Code::ConnectionLost, "lost");
    history.arrived(1, 100, start);
    history.failed(1, 10, lost, 7, start);
    history.failed(2, 5, lost, 7, start);
    history.failed(1, 20, lost, 7, start + 1ms);
    history.sentAgain(start + 4ms);
    history.sentAgain(start + 9ms);
    history.arrived(3, 12, start + 10ms);
    history.arrived(3, 0, start + 11ms);
    history.arrived(3, 8, start + 12ms);
    ASSERT_EQ(history.attempts.size(), 4u);
    EXPECT_EQ(history.attempts[0].bytes, 100u);
    EXPECT_EQ(history.attempts[1].bytes, 30u);
    EXPECT_EQ(history.attempts[1].cause.message(), "lost");
    EXPECT_EQ(history.attempts[1].when, start + 1ms);
    EXPECT_EQ(history.attempts[2].pause, Duration(4ms));
    EXPECT_EQ(history.attempts[3].worker, 3u);
    EXPECT_EQ(history.attempts[3].bytes, 20u);
    EXPECT_EQ(history.attempts[3].pause, Duration(10ms));
    EXPECT_EQ(history.firstCause(), &history.attempts[1].cause);
}

TEST(TaskHistory, IsBounded) {
    TaskHistory history;
    EXPECT_EQ(history.firstCause(), nullptr);
    for (std::uint64_t incident = 1; incident <= 100; ++incident)
        history.failed(1, 1, Status(Code::ConnectionLost, "lost"), incident, Clock::now());
    EXPECT_EQ(history.attempts.size(), TaskHistory::kMost);
    EXPECT_EQ(history.left_out, 100 - TaskHistory::kMost);
}

}  // namespace
}  // namespace troupe::test
