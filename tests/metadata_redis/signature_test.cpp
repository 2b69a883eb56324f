// Records that are signed with the cluster key.

#include "tests/metadata_redis/store_fixture.h"
#include "tests/security/auth_keys.h"
#include "tests/support/redis_server.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class Signed : public StoreTest {
  protected:
    std::unique_ptr<RedisStore> storeWith(const std::string& keys) {
        auth_ = authOf(keys);
        auto store = std::make_unique<RedisStore>(*RedisUri::parse(server_.uri()), settings_, log_, auth_);
        EXPECT_TRUE(store->start(reactor_));
        return store;
    }

    RedisServer server_;
    std::shared_ptr<const ClusterAuth> auth_;  ///< Of the last store.
};

TEST_F(Signed, RecordsAreReadByWhoHasTheKey) {
    const auto writer = storeWith("k");
    const auto incarnation = Incarnation::random();
    ASSERT_TRUE(publish(*writer, makeSegment("a", incarnation, 3, 100)));
    const auto reader = storeWith("ok");
    const auto found = resolve(*reader, "a");
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_EQ(found->buffers.size(), 100u);
    EXPECT_EQ(inspect(*reader, "a")->version, 3u);
    const auto all = list(*reader);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->at(0).signature, "good");
    EXPECT_TRUE(all->at(0).desc);
    // Who has no key reads it, too.
    const auto keyless = storeWith("");
    EXPECT_TRUE(resolve(*keyless, "a"));
    EXPECT_EQ(list(*keyless)->at(0).signature, "unchecked");
}

TEST_F(Signed, OthersAreRefusedWithTheReasonAndListed) {
    ASSERT_TRUE(publish(*storeWith(""), makeSegment("plain", Incarnation::random())));
    ASSERT_TRUE(publish(*storeWith("o"), makeSegment("other", Incarnation::random())));
    const auto reader = storeWith("k");
    const auto plain = resolve(*reader, "plain");
    EXPECT_EQ(plain.status().code(), Code::AccessDenied);
    EXPECT_THAT(plain.status().message(),
                testing::AllOf(HasSubstr("not signed"), HasSubstr("key 'mooncake/ram/plain'")));
    const auto other = resolve(*reader, "other");
    EXPECT_EQ(other.status().code(), Code::AccessDenied);
    EXPECT_THAT(other.status().message(), HasSubstr("signature is wrong"));
    EXPECT_EQ(auth_->counts().of(AuthRefusal::BadRecord), 2u);
    const auto all = list(*reader);
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 2u);
    EXPECT_EQ(all->at(0).signature, "wrong");
    EXPECT_EQ(all->at(0).desc.status().code(), Code::AccessDenied);
    EXPECT_EQ(all->at(1).signature, "none");
    EXPECT_EQ(all->at(1).desc.status().code(), Code::AccessDenied);
}

TEST_F(Signed, ARecordThatSomebodyChangedIsRefused) {
    const auto store = storeWith("k");
    ASSERT_TRUE(publish(*store, makeSegment("a", Incarnation::random())));
    const std::string record = server_.command({"GET", "mooncake/ram/a"});
    std::string changed = record;
    changed.replace(changed.find("10.0.0.1"), 8, "10.0.0.9");
    server_.command({"SET", "mooncake/ram/a", changed});
    EXPECT_EQ(resolve(*store, "a").status().code(), Code::AccessDenied);
    // And so is one that was signed for another name.
    server_.command({"SET", "mooncake/ram/b", record});
    EXPECT_EQ(resolve(*store, "b").status().code(), Code::ProtocolError);
}

TEST_F(Signed, ALaterVersionIsSignedAnew) {
    const auto store = storeWith("k");
    const auto incarnation = Incarnation::random();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        ASSERT_TRUE(publish(*store, makeSegment("a", incarnation, version, version)));
        EXPECT_EQ(resolve(*store, "a")->version, version);
    }
}

}  // namespace
}  // namespace troupe::test
