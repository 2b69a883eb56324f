// Servers that will not have us, and URIs that mean something else: the cause at once, and said once.

#include "tests/metadata_redis/store_fixture.h"
#include "tests/support/redis_server.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// With time-outs that no test waits for: what is answered is answered because of what the server said.
class RedisRefusal : public StoreTest {
  protected:
    RedisRefusal() {
        settings_.redis_connect_timeout = 1h;
        settings_.redis_command_timeout = 1h;
    }
    static RedisServer::Options withPassword() {
        RedisServer::Options options;
        options.arguments = {"--requirepass", "hunter2"};
        options.password = "hunter2";
        return options;
    }
    std::unique_ptr<RedisStore> makeConfigured(const std::string& uri) {
        auto parsed = RedisUri::parse(uri);
        EXPECT_TRUE(parsed) << parsed.status().toString();
        EXPECT_TRUE(addConfiguredPassword(*parsed, settings_));
        auto store = std::make_unique<RedisStore>(*parsed, settings_, log_);
        EXPECT_TRUE(store->start(reactor_));
        return store;
    }
    /// What a publish and a resolve over a fresh store that watches are told.
    void expectRefused(const std::string& uri, Code code, const std::string& words) {
        const auto store = makeStore(uri);
        watch(*store);
        for (int i = 0; i < 2; ++i) {
            const Status published = publish(*store, makeSegment("x", Incarnation::random()));
            EXPECT_EQ(published.code(), code) << published.toString();
            EXPECT_THAT(published.message(), AllOf(HasSubstr(words), Not(HasSubstr("hunter2"))));
            const Status resolved = resolve(*store, "x").status();
            EXPECT_EQ(resolved.code(), code) << resolved.toString();
            EXPECT_THAT(resolved.message(), HasSubstr(words));
        }
        EXPECT_EQ(warnings(), 0u) << "who asked was told: " << logged_.str();
    }
};

TEST_F(RedisRefusal, WithoutThePasswordWhoeverAsksIsToldAtOnce) {
    const RedisServer server(withPassword());
    expectRefused(server.uri(), Code::AccessDenied, "NOAUTH");
}

TEST_F(RedisRefusal, WithAWrongPasswordToo) {
    const RedisServer server(withPassword());
    expectRefused("redis://:wrong@" + server.address(), Code::AccessDenied, "WRONGPASS");
}

TEST_F(RedisRefusal, AnOutageAfterwardsIsSaidOnceForBothConnections) {
    RedisServer server;
    settings_.redis_connect_timeout = 500ms;
    const auto store = makeStore(server.uri());
    watch(*store);
    ASSERT_TRUE(publish(*store, makeSegment("x", Incarnation::random())));
    ASSERT_TRUE(heard("?"));
    server.kill();
    server.options().arguments = {"--requirepass", "hunter2"};
    server.options().password = "hunter2";
    server.start();
    ASSERT_TRUE(runUntil([&] { return logged_.str().find("NOAUTH") != std::string::npos; }));
    const Status published = publish(*store, makeSegment("y", Incarnation::random()));
    EXPECT_EQ(published.code(), Code::AccessDenied);
    runFor(1s);
    // Connection lost or refused, of each connection, and NOAUTH; whatever the number of attempts.
    EXPECT_LE(warnings(), 6u) << logged_.str();
    const std::string text = logged_.str();
    std::size_t refused = 0;
    for (std::size_t at = 0; (at = text.find("[warning]", at)) != std::string::npos; ++at)
        refused += text.substr(at, text.find('\n', at) - at).find("NOAUTH") != std::string::npos ? 1 : 0;
    EXPECT_EQ(refused, 1u) << text;
    server.kill();
    server.options().arguments.clear();
    server.options().password.clear();
    server.start();
    ASSERT_TRUE(runUntil([&] { return server.command({"EXISTS", "mooncake/ram/y"}) == "1"; })) << logged_.str();
}

TEST_F(RedisRefusal, AUserOfTheUriGoesWithAPasswordOfTheSettings) {
    const RedisServer server;
    ASSERT_EQ(server.command({"ACL", "SETUSER", "fleet", "on", ">s3cret", "~*", "&*", "+@all"}), "OK");
    ASSERT_EQ(server.command({"ACL", "SETUSER", "default", "off"}), "OK");
    settings_.redis_password = "s3cret";
    const auto store = makeConfigured("redis://fleet@" + server.address());
    EXPECT_TRUE(publish(*store, makeSegment("x", Incarnation::random())));
    EXPECT_TRUE(resolve(*store, "x"));
    // The same password without the user is the default user's, which is off.
    const auto other = makeConfigured(server.uri());
    EXPECT_EQ(resolve(*other, "x").status().code(), Code::AccessDenied);
}

TEST_F(RedisRefusal, ASocketThatIsNotThereIsNamed) {
    settings_.redis_command_timeout = 300ms;
    const TemporaryDirectory directory;
    const auto store = makeStore("redis+unix://" + directory.path() + "/none");
    const Status status = resolve(*store, "x").status();
    EXPECT_EQ(status.code(), Code::ConnectionRefused);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(directory.path() + "/none"), HasSubstr("No such file"),
                                        Not(HasSubstr("localhost")), Not(HasSubstr(":0"))));
}

TEST_F(RedisRefusal, ASentinelUriThatMeansAServerIsToldSo) {
    const RedisServer server;
    // Wherever it stands in the list: those that are not there say less.
    const std::string nobody = "127.0.0.1:" + std::to_string(freePort());
    for (const std::string& hosts :
         {server.address(), server.address() + "," + nobody, nobody + "," + server.address()}) {
        const auto store = makeStore("redis+sentinel://" + hosts + "/main");
        const Status status = resolve(*store, "x").status();
        EXPECT_EQ(status.code(), Code::Unsupported) << status.toString();
        EXPECT_THAT(status.message(), AllOf(HasSubstr("no Sentinel"), HasSubstr("redis://host:port")));
    }
}

}  // namespace
}  // namespace troupe::test
