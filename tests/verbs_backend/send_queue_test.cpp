#include "verbs_backend/send_queue.h"

#include <gmock/gmock.h>

#include <random>

namespace troupe::verbs {
namespace {

WorkRequest numbered(std::uint64_t cookie) {
    WorkRequest request;
    request.cookie = cookie;
    request.length = 1;
    return request;
}

struct Recorder {
    std::vector<std::uint64_t> done;
    std::vector<std::uint64_t> failed;
    std::vector<std::uint64_t> culprits;

    SendQueue::Accounted succeed(SendQueue& queue, std::uint32_t low) {
        return queue.succeed(low, [this](const WorkRequest& request) { done.push_back(request.cookie); });
    }
    void drain(SendQueue& queue) {
        queue.drain([this](const WorkRequest& request, bool culprit) {
            failed.push_back(request.cookie);
            if (culprit) culprits.push_back(request.cookie);
        });
    }
};

using testing::ElementsAre;
using testing::IsEmpty;

TEST(VerbsSendQueue, OneCompletionStandsForAllBeforeIt) {
    SendQueue queue(8);
    for (std::uint64_t i = 0; i < 4; ++i) queue.push(numbered(i), 1);
    Recorder seen;
    const auto accounted = seen.succeed(queue, 2);
    EXPECT_TRUE(accounted.known);
    EXPECT_EQ(accounted.released, 3u);
    EXPECT_THAT(seen.done, ElementsAre(0, 1, 2));
    EXPECT_EQ(queue.outstanding(), 1u);
    EXPECT_EQ(queue.room(), 7u);
}

TEST(VerbsSendQueue, ARequestIsDoneWithItsLastWorkRequest) {
    SendQueue queue(8);
    queue.push(numbered(7), 3);
    Recorder seen;
    seen.succeed(queue, 1);
    EXPECT_THAT(seen.done, IsEmpty());
    seen.succeed(queue, 2);
    EXPECT_THAT(seen.done, ElementsAre(7));
    EXPECT_TRUE(queue.idle());
}

TEST(VerbsSendQueue, ACompletionSeenTwiceOrOfNothingChangesNothing) {
    SendQueue queue(8);
    queue.push(numbered(0), 1);
    queue.push(numbered(1), 1);
    Recorder seen;
    EXPECT_TRUE(seen.succeed(queue, 0).known);
    EXPECT_FALSE(seen.succeed(queue, 0).known);
    EXPECT_FALSE(seen.succeed(queue, 2).known);
    EXPECT_FALSE(seen.succeed(queue, 0xffffffffu).known);
    EXPECT_THAT(seen.done, ElementsAre(0));
    EXPECT_EQ(queue.outstanding(), 1u);
}

TEST(VerbsSendQueue, WhatWasNotConfirmedBeforeAnErrorFailsWithIt) {
    SendQueue queue(8);
    for (std::uint64_t i = 0; i < 5; ++i) queue.push(numbered(i), 1);
    Recorder seen;
    seen.succeed(queue, 0);
    queue.fail(2, true);
    queue.fail(3, false);
    EXPECT_FALSE(queue.idle());
    queue.fail(4, false);
    EXPECT_TRUE(queue.idle());
    EXPECT_TRUE(queue.holdsRequests());
    seen.drain(queue);
    EXPECT_THAT(seen.done, ElementsAre(0));
    EXPECT_THAT(seen.failed, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(seen.culprits, ElementsAre(2));
    EXPECT_FALSE(queue.holdsRequests());
}

TEST(VerbsSendQueue, NothingCompletesAfterAnError) {
    SendQueue queue(8);
    for (std::uint64_t i = 0; i < 3; ++i) queue.push(numbered(i), 1);
    Recorder seen;
    queue.fail(0, true);
    EXPECT_TRUE(seen.succeed(queue, 2).known);
    EXPECT_THAT(seen.done, IsEmpty());
    seen.drain(queue);
    EXPECT_THAT(seen.failed, ElementsAre(0, 1, 2));
}

TEST(VerbsSendQueue, ARequestPostedInPartNeverCompletes) {
    SendQueue queue(8);
    queue.push(numbered(0), 1);
    queue.pushPart(numbered(1), 2);
    Recorder seen;
    seen.succeed(queue, 2);
    EXPECT_THAT(seen.done, ElementsAre(0));
    EXPECT_FALSE(queue.idle());
    seen.drain(queue);
    EXPECT_THAT(seen.failed, ElementsAre(1));
}

TEST(VerbsSendQueue, NumbersMayWrapAround32Bits) {
    SendQueue queue(1u << 20);
    Recorder seen;
    for (std::uint64_t i = 0; i < 5000; ++i) {
        queue.push(numbered(i), 1u << 20);
        const auto last = static_cast<std::uint32_t>(queue.nextNumber() - 1);
        ASSERT_EQ(seen.succeed(queue, last).released, 1u << 20);
    }
    EXPECT_GT(queue.nextNumber(), std::uint64_t{1} << 32);
    EXPECT_EQ(seen.done.size(), 5000u);
}

TEST(VerbsSendQueue, EveryRequestEndsOnceUnderRandomCompletions) {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        SendQueue queue(64);
        Recorder seen;
        std::uint64_t cookies = 0;
        for (int step = 0; step < 400; ++step) {
            const std::uint32_t size = 1 + random() % 4;
            if (random() % 2 == 0 && queue.room() >= size) queue.push(numbered(cookies++), size);
            if (random() % 3 == 0 && queue.outstanding() != 0)
                seen.succeed(queue,
                             static_cast<std::uint32_t>(queue.nextNumber() - 1 - random() % queue.outstanding()));
        }
        seen.drain(queue);
        ASSERT_EQ(seen.done.size() + seen.failed.size(), cookies);
        seen.done.insert(seen.done.end(), seen.failed.begin(), seen.failed.end());
        for (std::uint64_t i = 0; i < cookies; ++i) ASSERT_EQ(seen.done[i], i);
    }
}

}  // namespace
}  // namespace troupe::verbs
