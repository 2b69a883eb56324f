// How a store comes back to its server, counted and in the pauses that it asks for, not in the time that a test took.

#include "metadata_redis/redis_link.h"
#include "metadata_redis/redis_records.h"
#include "tests/metadata_redis/fake_server.h"
#include "tests/metadata_redis/store_fixture.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;

/// Notes each pause that is asked for, and does not make it.
class HastyReactor : public TestReactor {
  public:
    TimerId runAt(TimePoint when, std::function<void()> fire) override {
        const Duration pause = when - now();
        // What is longer is a deadline.
        if (pause > 1min) return TestReactor::runAt(when, std::move(fire));
        pauses.push_back(std::max(pause, Duration::zero()));
        return TestReactor::runAt(now(), std::move(fire));
    }
    std::vector<Duration> pauses;
};

TEST(RedisLinkPauses, DoubleUpToABoundThatLeavesTimeWithinTwoSeconds) {
    HastyReactor reactor;
    Config settings;
    settings.redis_connect_timeout = 1h;
    const auto port = [] {
        const auto fd = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
        return SocketAddress::local(fd->get())->port();
    }();
    const auto uri = RedisUri::parse("redis://127.0.0.1:" + std::to_string(port));
    std::size_t failed = 0;
    RedisLinkHandlers handlers;
    handlers.onDown = [&](const Status& why) {
        EXPECT_EQ(why.code(), Code::ConnectionRefused) << why.toString();
        ++failed;
    };
    RedisLink link(reactor, *uri, settings, makeSilentLogger(), "test", {}, std::move(handlers));
    link.start();
    constexpr std::size_t kAttempts = 40;
    ASSERT_TRUE(reactor.runUntil([&] { return failed == kAttempts; }, 60s));
    // The first attempt, the one right after the first failure, and then one pause for each failure.
    ASSERT_EQ(reactor.pauses.size(), kAttempts + 1);
    // The clock moves between the call and the note.
    constexpr auto kNote = 20ms;
    EXPECT_LE(reactor.pauses[0], kNote);
    EXPECT_LE(reactor.pauses[1], kNote);
    Duration longest{};
    for (std::size_t i = 2; i < reactor.pauses.size(); ++i) {
        const Duration whole = std::min<Duration>(50ms * (1 << std::min<std::size_t>(i - 2, 10)), 500ms);
        EXPECT_LE(reactor.pauses[i], whole * 5 / 4) << i;
        EXPECT_GE(reactor.pauses[i] + kNote, whole * 3 / 4) << i;
        longest = std::max(longest, reactor.pauses[i]);
    }
    EXPECT_LE(longest, 625ms);
}

class RedisReturn : public StoreTest {};

TEST_F(RedisReturn, CostsOneConnectionEachAndOneWriteForARecordThatIsGone) {
    std::map<std::string, std::size_t> counts;
    bool has_record = false;
    FakeServer server(reactor_, FakeServer::greeting([&](const std::vector<std::string>& command) {
                          const std::string what = command[0] != "EVAL"              ? command[0]
                                                   : command.at(1) == kPublishScript ? "publish"
                                                   : command.at(1) == kRenewScript   ? "renew"
                                                                                     : "look";
                          // Looks come with time.
                          if (what == "look") return std::string("*0\r\n");
                          ++counts[what];
                          if (what == "SUBSCRIBE") return std::string("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
                          if (what == "renew") return std::string(has_record ? ":1\r\n" : ":0\r\n");
                          has_record = true;
                          return std::string(":1\r\n");
                      }));
    const auto store = makeStore(server.uri());
    watch(*store);
    ASSERT_TRUE(publish(*store, makeSegment("x", Incarnation::random())));
    ASSERT_TRUE(heard("?"));
    for (int round = 1; round <= 3; ++round) {
        const std::size_t accepted = server.accepted();
        counts.clear();
        events_.clear();
        has_record = false;
        server.dropAll();
        ASSERT_TRUE(runUntil([&] { return has_record; }));
        ASSERT_TRUE(heard("?"));
        EXPECT_EQ(counts, (std::map<std::string, std::size_t>{{"SUBSCRIBE", 1}, {"renew", 1}, {"publish", 1}}));
        EXPECT_EQ(server.accepted() - accepted, 2u) << "one for commands, one for changes";
    }
}

}  // namespace
}  // namespace troupe::test
