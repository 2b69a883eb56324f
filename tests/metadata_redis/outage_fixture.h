#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/metadata_redis/redis_engines.h"

namespace troupe::test {

/// What an outage does to those who are there.
struct Trouble {
    std::string name;
    std::function<void()> begin;
    std::function<void()> end;
    std::vector<Code> causes;        ///< Of opening a name that nobody has; one of them.
    std::vector<std::string> words;  ///< What the error of that says, unless the name is looked up as ever.
    Duration length = std::chrono::milliseconds(1500);  ///< At least.
};

class RedisOutage : public testing::Test {
  protected:
    /// Number of regions that the server's record has in Redis; -1 without a record.
    static long regionsStored(const RedisServer& server) {
        const auto desc = decodeSegmentDesc(server.command({"GET", "mooncake/ram/server"}));
        return desc ? static_cast<long>(desc->buffers.size()) : -1;
    }

    /// Before, during and after: transfers go on, names that are not known fail with the cause and in time, and
    /// afterwards everything is published and watched as before. `after` is the server that has the records then.
    ///
    /// How long the return took is printed and noted (--gtest_output=xml), not asserted: on a loaded machine it says
    /// more of the load. What bounds it is asserted by RedisLinkPauses and RedisReturn, and `./dev bench redis.outage`
    /// measures it.
    static void endure(RedisPair& pair, const Trouble& trouble, const std::function<const RedisServer&()>& after) {
        const auto before = pair.writesFor(Duration::zero());
        trouble.begin();
        const TimePoint begun = Clock::now();
        const TimePoint asked = Clock::now();
        // The first may still be answered by what has not noticed yet.
        Status unknown = pair.openUnknown();
        std::vector<long long> answers{millisecondsSince(asked)};
        const auto during = pair.writesFor(trouble.length);
        const TimePoint again = Clock::now();
        unknown = pair.openUnknown();
        answers.push_back(millisecondsSince(again));
        EXPECT_THAT(trouble.causes, testing::Contains(unknown.code())) << unknown.toString();
        const bool failed = unknown.code() != Code::NotFound;
        for (const std::string& word : failed ? trouble.words : std::vector<std::string>())
            EXPECT_THAT(unknown.message(), testing::HasSubstr(word));
        // The store's answer, after redis.command_timeout at most, and not the end of what an open may take: there is
        // time for a loaded machine between them.
        for (const long long answer : answers) EXPECT_LT(answer, Config().open_timeout.count());
        // What changes meanwhile is not lost.
        pair.registerMore();
        pair.write();
        while (Clock::now() - begun < trouble.length) pair.write();

        trouble.end();
        const TimePoint back = Clock::now();
        const long regions = static_cast<long>(1 + pair.more.size());
        ASSERT_TRUE(eventually([&] { return regionsStored(after()) == regions; }))
            << "published: " << regionsStored(after());
        ASSERT_TRUE(eventually([&] { return after().command({"EXISTS", "mooncake/ram/client"}) == "1"; }));
        const long long published_ms = millisecondsSince(back);
        ASSERT_TRUE(eventually([&] { return pair.regionsSeen() == static_cast<std::size_t>(regions); }))
            << "a missed change is looked up after the return; nobody but the store tells of it";
        const long long watched_ms = millisecondsSince(back);
        // The watch itself: the next change is heard with nobody asking.
        pair.registerMore();
        ASSERT_TRUE(eventually([&] { return pair.regionsSeen() == static_cast<std::size_t>(regions + 1); }));
        EXPECT_EQ(pair.openUnknown().code(), Code::NotFound);
        pair.write();
        std::printf(
            "%s: write p50 %.0f us before, %.0f us during, p99 %.0f and %.0f us; unknown name after %lld and %lld ms "
            "(%s); back: published after %lld ms, seen after %lld ms\n",
            trouble.name.c_str(), before.p50, during.p50, before.p99, during.p99, answers[0], answers[1],
            unknown.toString().c_str(), published_ms, watched_ms);
        RecordProperty("published_ms", std::to_string(published_ms));
        RecordProperty("watched_ms", std::to_string(watched_ms));
        RecordProperty("write_p50_before_us", std::to_string(before.p50));
        RecordProperty("write_p50_during_us", std::to_string(during.p50));
        RecordProperty("write_p99_before_us", std::to_string(before.p99));
        RecordProperty("write_p99_during_us", std::to_string(during.p99));
    }
};

}  // namespace troupe::test
