// The store against a real redis-server.

#include <algorithm>
#include <optional>

#include "metadata_redis/redis_records.h"
#include "tests/metadata_redis/store_fixture.h"
#include "tests/support/redis_server.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class RedisStoreTest : public StoreTest {
  protected:
    RedisServer server_;
    std::unique_ptr<RedisStore> one_ = makeStore(server_.uri());
    std::unique_ptr<RedisStore> two_ = makeStore(server_.uri());
    const Incarnation id_one_ = Incarnation::random();
    const Incarnation id_two_ = Incarnation::random();
};

TEST_F(RedisStoreTest, WhatIsPublishedIsResolvedListedAndInspected) {
    const SegmentDesc desc = makeSegment("rack 1/\xc3\xa4", id_one_, 7, 3);
    ASSERT_TRUE(publish(*one_, desc));
    const auto found = resolve(*two_, desc.name);
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_EQ(*found, desc);
    EXPECT_EQ(*inspect(*two_, desc.name), (RecordHead{id_one_, 7}));
    const auto all = list(*two_);
    ASSERT_TRUE(all) << all.status().toString();
    ASSERT_EQ(all->size(), 1u);
    EXPECT_EQ(all->front().name, desc.name);
    EXPECT_EQ(*all->front().desc, desc);
    ASSERT_TRUE(all->front().lease);
    EXPECT_THAT(*all->front().lease, AllOf(testing::Gt(50min), testing::Le(1h)));
    EXPECT_EQ(all->front().bytes, encodeSegmentDesc(desc).size());
    EXPECT_EQ(server_.command({"GET", "mooncake/ram/rack 1/\xc3\xa4"}), encodeSegmentDesc(desc));
}

TEST_F(RedisStoreTest, ANameThatNobodyPublishedIsNotFound) {
    const auto found = resolve(*one_, "nobody");
    EXPECT_EQ(found.status().code(), Code::NotFound);
    EXPECT_THAT(found.status().message(), AllOf(HasSubstr("'nobody'"), HasSubstr("mooncake/ram/nobody")));
    EXPECT_EQ(inspect(*one_, "nobody").status().code(), Code::NotFound);
    EXPECT_EQ(list(*one_)->size(), 0u);
    EXPECT_TRUE(withdraw(*one_, "nobody"));
    EXPECT_EQ(evict(*one_, "nobody", id_one_).code(), Code::NotFound);
}

TEST_F(RedisStoreTest, ALiveHolderKeepsItsNameAndIsNamed) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    const Status refused = publish(*two_, makeSegment("a", id_two_));
    EXPECT_EQ(refused.code(), Code::AlreadyExists);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr(id_one_.toString()), HasSubstr("10.0.0.1:7000")));
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_one_);
    EXPECT_TRUE(withdraw(*two_, "a")) << "nothing of its own";
    EXPECT_EQ(evict(*two_, "a", id_two_).code(), Code::NotFound);
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_one_);
    EXPECT_TRUE(evict(*two_, "a", id_one_));
    EXPECT_TRUE(publish(*two_, makeSegment("a", id_two_)));
}

TEST_F(RedisStoreTest, OfManyThatClaimAtOnceOneWins) {
    constexpr int kClaimants = 8;
    std::vector<std::unique_ptr<RedisStore>> stores;
    int won = 0;
    int lost = 0;
    for (int i = 0; i < kClaimants; ++i) {
        stores.push_back(makeStore(server_.uri()));
        stores.back()->publish(makeSegment("a", Incarnation::random()), 1h, [&](const Status& status) {
            won += status.isOk() ? 1 : 0;
            lost += status.code() == Code::AlreadyExists ? 1 : 0;
        });
    }
    EXPECT_TRUE(runUntil([&] { return won + lost == kClaimants; }));
    EXPECT_EQ(won, 1);
}

TEST_F(RedisStoreTest, ARecordOfAnotherKindOfEngineIsNotOverwritten) {
    server_.command({"SET", "mooncake/ram/a", R"({"name":"a","protocol":"tcp","buffers":[]})"});
    const Status refused = publish(*one_, makeSegment("a", id_one_));
    EXPECT_EQ(refused.code(), Code::AlreadyExists);
    EXPECT_THAT(refused.message(), HasSubstr("no Troupe engine"));
    const auto found = resolve(*one_, "a");
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_TRUE(found->incarnation.isNull());
    EXPECT_EQ(inspect(*one_, "a").status().code(), Code::ProtocolError);
    server_.command({"DEL", "mooncake/ram/a"});
    server_.command({"LPUSH", "mooncake/ram/a", "x"});
    const Status wrong = publish(*two_, makeSegment("a", id_two_));
    EXPECT_EQ(wrong.code(), Code::ProtocolError);
    EXPECT_THAT(wrong.message(), HasSubstr("redis.prefix"));
    EXPECT_EQ(resolve(*one_, "a").status().code(), Code::ProtocolError);
}

TEST_F(RedisStoreTest, ALeaseIsRenewedWhileTheStoreLivesAndEndsAfterIt) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_), 600ms));
    runFor(1500ms);
    EXPECT_TRUE(resolve(*two_, "a")) << "it was renewed";
    // One write, and then a renewal at each third.
    EXPECT_LT(server_.info("total_net_input_bytes"), 20'000);
    one_.reset();
    EXPECT_TRUE(runUntil([&] { return resolve(*two_, "a").status().code() == Code::NotFound; }));
    EXPECT_TRUE(publish(*two_, makeSegment("a", id_two_)));
}

TEST_F(RedisStoreTest, ChangesAreHeardAndAWithdrawnNameIsFree) {
    watch(*two_);
    ASSERT_TRUE(heard("?")) << "what was before the subscription counts as missed";
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 1)));
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 2)));
    ASSERT_TRUE(withdraw(*one_, "a"));
    ASSERT_TRUE(heard("-a"));
    EXPECT_THAT(events_, ElementsAre("?", "+a@1", "+a@2", "-a"));
    EXPECT_TRUE(publish(*two_, makeSegment("a", id_two_)));
}

TEST_F(RedisStoreTest, AnOlderVersionThatComesLateDoesNotReplaceANewer) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 5)));
    // What a connection that was believed dead still carries; nobody hears its answer.
    server_.command({"EVAL", std::string(kPublishScript), "1", "mooncake/ram/a",
                     encodeSegmentDesc(makeSegment("a", id_one_, 4)), "60000", id_one_.toString(), "4",
                     "mooncake/ram/#changes", "{}", ""});
    EXPECT_EQ(resolve(*two_, "a")->version, 5u);
}

TEST_F(RedisStoreTest, AForgedLaterVersionOfOursIsReplacedAndSaidOnce) {
    watch(*two_);
    ASSERT_TRUE(heard("?"));
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 5, 2)));
    for (const char* version : {"9007199254740991", "18446744073709551615", "99999999999999999999999999"}) {
        std::string forged = encodeSegmentDesc(makeSegment("a", id_one_, 5));
        const std::string own = R"("version":5)";
        forged.replace(forged.find(own), own.size(), R"("version":)" + std::string(version));
        server_.command({"SET", "mooncake/ram/a", forged});
        const auto restored = [&] {
            return server_.command({"GET", "mooncake/ram/a"}) == encodeSegmentDesc(makeSegment("a", id_one_, 5, 2));
        };
        ASSERT_TRUE(runUntil(restored)) << "found by itself: " << version;
        EXPECT_GT(std::stoll(server_.command({"PTTL", "mooncake/ram/a"})), 0);
        server_.command({"SET", "mooncake/ram/a", forged});
        ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 6, 3)));
        EXPECT_EQ(server_.command({"GET", "mooncake/ram/a"}), encodeSegmentDesc(makeSegment("a", id_one_, 6, 3)));
        ASSERT_TRUE(withdraw(*one_, "a"));
        ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_, 5, 2)));
    }
    EXPECT_EQ(count("somebody has written version"), 3u) << "once for each publication: " << logged_.str();
}

TEST_F(RedisStoreTest, RecordsThatAreLostWithoutABrokenConnectionAreBackSoon) {
    constexpr int kSegments = 300;
    int published = 0;
    for (int i = 0; i < kSegments; ++i)
        one_->publish(makeSegment("s" + std::to_string(i), id_one_), 1h,
                      [&](const Status& status) { published += status.isOk() ? 1 : 0; });
    ASSERT_TRUE(runUntil([&] { return published == kSegments; }));
    // The leases are renewed after twenty minutes.
    for (const std::vector<std::string>& loss :
         {std::vector<std::string>{"FLUSHALL"}, {"DEL", "mooncake/ram/s7"}, {"DEL", "mooncake/ram/s299"}}) {
        server_.command(loss);
        const TimePoint lost = Clock::now();
        EXPECT_TRUE(runUntil([&] { return server_.command({"DBSIZE"}) == std::to_string(kSegments); })) << loss[0];
        RecordProperty("back_after_ms",
                       std::to_string(std::chrono::nanoseconds(Clock::now() - lost).count() / 1000000));
    }
    EXPECT_EQ(warnings(), 0u) << logged_.str();
}

TEST_F(RedisStoreTest, ANameThatAnotherHasIsTakenSoonAfterItIsFree) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    server_.command({"SET", "mooncake/ram/a", encodeSegmentDesc(makeSegment("a", id_two_))});
    ASSERT_TRUE(runUntil([&] { return logged_.str().find("held by incarnation") != std::string::npos; }));
    runFor(700ms);
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_two_);
    server_.command({"DEL", "mooncake/ram/a"});
    EXPECT_TRUE(runUntil([&] { return server_.command({"EXISTS", "mooncake/ram/a"}) == "1"; }));
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_one_);
}

TEST_F(RedisStoreTest, AServerThatWasAnEmptyOnesReplicaForAWhileHasEverythingAgain) {
    const RedisServer empty;
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    server_.command({"REPLICAOF", "127.0.0.1", std::to_string(empty.port())});
    ASSERT_TRUE(runUntil([&] { return server_.command({"EXISTS", "mooncake/ram/a"}) == "0"; }));
    const Status hidden = resolve(*two_, "a").status();
    EXPECT_EQ(hidden.code(), Code::PeerDown) << "a replica cannot say that there is none: " << hidden.toString();
    runFor(4s);
    EXPECT_LE(warnings(), 6u) << "of two stores: " << logged_.str();
    server_.command({"REPLICAOF", "NO", "ONE"});
    EXPECT_TRUE(runUntil([&] { return server_.command({"EXISTS", "mooncake/ram/a"}) == "1"; }));
    EXPECT_TRUE(resolve(*two_, "a"));
}

TEST_F(RedisStoreTest, ConnectionsThatAreKilledAgainAndAgainAreSaidOnce) {
    watch(*one_);
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    ASSERT_TRUE(heard("?"));
    const TimePoint end = Clock::now() + 4s;
    while (Clock::now() < end) {
        server_.command({"CLIENT", "KILL", "TYPE", "normal"});
        server_.command({"CLIENT", "KILL", "TYPE", "pubsub"});
        runFor(100ms);
    }
    EXPECT_LE(warnings(), 4u) << logged_.str();
    EXPECT_TRUE(runUntil([&] { return logged_.str().find("(commands): back after") != std::string::npos; }));
}

TEST_F(RedisStoreTest, AnOversizedRecordIsNamedAndBreaksNothing) {
    settings_.max_descriptor_bytes = 64u << 10;
    const auto small = makeStore(server_.uri());
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    ASSERT_TRUE(resolve(*small, "a"));
    server_.command({"SET", "mooncake/ram/large", std::string(8u << 20, 'x')});
    const long long connections = server_.info("total_connections_received");
    const Status status = resolve(*small, "large").status();
    EXPECT_EQ(status.code(), Code::CapacityExceeded);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("mooncake/ram/large"), HasSubstr("65536 bytes")));
    const auto all = list(*small);
    ASSERT_TRUE(all) << all.status().toString();
    ASSERT_EQ(all->size(), 2u);
    EXPECT_TRUE((*all)[0].desc);
    EXPECT_EQ((*all)[1].desc.status().code(), Code::CapacityExceeded);
    EXPECT_LE(server_.info("total_connections_received"), connections + 1) << "the test's own";
    EXPECT_LT(server_.info("total_net_output_bytes"), 1u << 20);
}

TEST_F(RedisStoreTest, ABurstOfChangesIsHeardWhole) {
    watch(*two_);
    ASSERT_TRUE(heard("?"));
    constexpr int kChanges = 20'000;
    server_.command({"EVAL",
                     "for i = 1, ARGV[1] do redis.call('PUBLISH', 'mooncake/ram/#changes', "
                     "'{\"kind\":\"published\",\"name\":\"rack1/node' .. i .. '\",\"incarnation\":\"' .. "
                     "string.rep('a', 32) .. '\",\"version\":1}') end return 1",
                     "0", std::to_string(kChanges)});
    EXPECT_TRUE(runUntil([&] { return events_.size() == kChanges + 1; })) << events_.size() << logged_.str();
    EXPECT_EQ(warnings(), 0u) << logged_.str();
}

TEST_F(RedisStoreTest, AServerThatWasRestartedEmptyHasEverythingAgain) {
    watch(*two_);
    ASSERT_TRUE(heard("?"));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(publish(*one_, makeSegment("s" + std::to_string(i), id_one_, 1, 10)));
    server_.kill();
    runFor(700ms);
    const Status away = resolve(*two_, "s3").status();
    EXPECT_EQ(away.code(), Code::ConnectionRefused) << away.toString();
    EXPECT_THAT(away.message(), HasSubstr(server_.address()));
    events_.clear();
    server_.start();
    const TimePoint back = reactor_.now();
    EXPECT_TRUE(runUntil([&] { return server_.command({"DBSIZE"}) == "20"; }));
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(reactor_.now() - back);
    RecordProperty("published_again_after_ms", static_cast<int>(took.count()));
    std::printf("published again after %lld ms\n", static_cast<long long>(took.count()));
    ASSERT_TRUE(heard("?"));
    ASSERT_TRUE(publish(*one_, makeSegment("s3", id_one_, 2)));
    EXPECT_TRUE(heard("+s3@2"));
    EXPECT_EQ(resolve(*two_, "s3")->version, 2u);
}

TEST_F(RedisStoreTest, WhatIsAskedDuringAShortOutageWaitsForItsEnd) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    settings_.redis_command_timeout = 20s;
    const auto patient = makeStore(server_.uri());
    ASSERT_TRUE(resolve(*patient, "a"));
    server_.kill();
    runFor(50ms);
    std::optional<Result<SegmentDesc>> answer;
    patient->resolve("a", 1h, [&](Result<SegmentDesc> desc) { answer = std::move(desc); });
    std::optional<Status> written;
    patient->publish(makeSegment("b", id_two_), 1h, [&](const Status& status) { written = status; });
    runFor(300ms);
    EXPECT_FALSE(answer || written);
    server_.start();
    ASSERT_TRUE(runUntil([&] { return answer && written; }));
    EXPECT_TRUE(*written) << written->toString();
    EXPECT_TRUE(*answer || answer->status().code() == Code::NotFound) << "one_ may publish it a moment later";
}

TEST_F(RedisStoreTest, WhatCouldNotBePublishedIsPublishedWhenTheServerIsBack) {
    server_.kill();
    const Status status = publish(*one_, makeSegment("a", id_one_));
    EXPECT_EQ(status.code(), Code::ConnectionRefused);
    EXPECT_THAT(status.message(), HasSubstr("'a' is not published yet"));
    server_.start();
    EXPECT_TRUE(runUntil([&] { return server_.command({"EXISTS", "mooncake/ram/a"}) == "1"; }));
}

TEST_F(RedisStoreTest, WritesThatAreRefusedForNowAreErrorsAndComeLater) {
    server_.command({"CONFIG", "SET", "min-replicas-to-write", "1"});
    const Status refused = publish(*one_, makeSegment("a", id_one_));
    EXPECT_EQ(refused.code(), Code::PeerDown) << refused.toString();
    EXPECT_THAT(refused.message(), HasSubstr("NOREPLICAS"));
    EXPECT_EQ(resolve(*one_, "a").status().code(), Code::NotFound) << "reading goes on";
    server_.command({"CONFIG", "SET", "min-replicas-to-write", "0"});
    EXPECT_TRUE(runUntil([&] { return resolve(*two_, "a").isOk(); }));
}

TEST_F(RedisStoreTest, ANameLostDuringAnOutageIsComplainedAboutAndComesBack) {
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_), 600ms));
    server_.kill();
    runFor(100ms);
    server_.start();
    const std::string theirs = encodeSegmentDesc(makeSegment("a", id_two_));
    // Whoever comes first after the restart has the name. The store may have been faster: then it is taken from it.
    server_.command({"SET", "mooncake/ram/a", theirs, "PX", "3600000"});
    EXPECT_TRUE(
        runUntil([&] { return logged_.str().find("held by incarnation " + id_two_.toString()) != std::string::npos; }));
    EXPECT_EQ(server_.command({"GET", "mooncake/ram/a"}), theirs);
    ASSERT_EQ(server_.command({"PEXPIRE", "mooncake/ram/a", "1"}), "1");
    EXPECT_TRUE(runUntil([&] {
        const auto found = resolve(*two_, "a");
        return found && found->incarnation == id_one_;
    })) << "its lease has ended";
}

TEST_F(RedisStoreTest, ADatabaseAndAPrefixKeepFleetsApart) {
    settings_.redis_prefix = "b*[1]?/";
    const auto other = makeStore(server_.uri());
    const auto database = makeStore(server_.uri() + "/3");
    watch(*two_);
    ASSERT_TRUE(heard("?"));
    ASSERT_TRUE(publish(*one_, makeSegment("a", id_one_)));
    ASSERT_TRUE(publish(*other, makeSegment("b", id_two_)));
    EXPECT_EQ(resolve(*other, "a").status().code(), Code::NotFound);
    EXPECT_EQ(resolve(*database, "b").status().code(), Code::NotFound);
    EXPECT_EQ(list(*other)->size(), 1u);
    EXPECT_EQ(list(*one_)->size(), 1u);
    EXPECT_EQ(list(*database)->size(), 0u);
    EXPECT_EQ(server_.command({"EXISTS", "b*[1]?/b"}), "1");
    runFor(50ms);
    EXPECT_THAT(events_, testing::Not(testing::Contains("+b@1")));
    const auto none = makeStore(server_.uri() + "/999");
    const Status status = resolve(*none, "a").status();
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("database"));
}

TEST_F(RedisStoreTest, AThousandSegmentsAreListed) {
    constexpr int kSegments = 1000;
    int published = 0;
    for (int i = 0; i < kSegments; ++i)
        one_->publish(makeSegment("s" + std::to_string(i), id_one_, 1, 4), 1h,
                      [&](const Status& status) { published += status.isOk() ? 1 : 0; });
    ASSERT_TRUE(runUntil([&] { return published == kSegments; }));
    server_.command({"SET", "unrelated", "x"});
    server_.command({"SET", "mooncake/ram/broken", "not JSON"});
    const auto all = list(*two_);
    ASSERT_TRUE(all) << all.status().toString();
    ASSERT_EQ(all->size(), kSegments + 1u);
    EXPECT_EQ(all->front().name, "broken");
    EXPECT_FALSE(all->front().desc);
    EXPECT_FALSE(all->front().lease);
    EXPECT_TRUE(std::is_sorted(all->begin(), all->end(), [](auto& a, auto& b) { return a.name < b.name; }));
}

TEST_F(RedisStoreTest, TenThousandRegionsGoThere) {
    const SegmentDesc desc = makeSegment("large", id_one_, 1, 10'000);
    ASSERT_TRUE(publish(*one_, desc));
    const auto found = resolve(*two_, "large");
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_EQ(*found, desc);
    EXPECT_EQ(inspect(*two_, "large")->version, 1u);
}

TEST_F(RedisStoreTest, NameBytesThatAreNoUtf8AreRefused) {
    EXPECT_EQ(publish(*one_, makeSegment("\xff\xfe", id_one_)).code(), Code::InvalidArgument);
}

TEST_F(RedisStoreTest, AQuietConnectionIsKeptAlive) {
    ASSERT_FALSE(resolve(*one_, "a"));
    const long long connections = server_.info("total_connections_received");
    runFor(4 * settings_.redis_keepalive_interval);
    // Only the two of this test's own questions.
    EXPECT_LE(server_.info("total_connections_received"), connections + 1);
    EXPECT_NE(server_.command({"INFO", "commandstats"}).find("cmdstat_ping"), std::string::npos);
}

TEST(RedisStoreUnix, ASocketOfThisMachineServesToo) {
    RedisServer::Options options;
    options.unix_socket = true;
    RedisServer server(options);
    struct Fixture : StoreTest {
        void TestBody() override {}
        using StoreTest::inspect;
        using StoreTest::makeStore;
        using StoreTest::publish;
        using StoreTest::resolve;
        using StoreTest::runUntil;
    } fixture;
    const auto store = fixture.makeStore("redis+unix://" + server.socketPath());
    const Incarnation id = Incarnation::random();
    ASSERT_TRUE(fixture.publish(*store, makeSegment("a", id)));
    EXPECT_EQ(fixture.resolve(*store, "a")->incarnation, id);
    server.kill();
    const Status away = fixture.resolve(*store, "a").status();
    EXPECT_FALSE(away.isOk());
    EXPECT_THAT(away.message(), HasSubstr(server.socketPath()));
    server.start();
    EXPECT_TRUE(fixture.runUntil([&] { return fixture.resolve(*store, "a").isOk(); }));
}

}  // namespace
}  // namespace troupe::test
