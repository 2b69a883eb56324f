#include "metadata_redis/redis_uri.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"

namespace troupe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string refusal(const std::string& text) {
    const auto uri = RedisUri::parse(text);
    EXPECT_EQ(uri.status().code(), Code::InvalidArgument) << text;
    return uri.status().message();
}

TEST(RedisUri, OneServer) {
    const auto uri = RedisUri::parse("redis://10.0.0.1:7000/3");
    ASSERT_TRUE(uri) << uri.status().toString();
    EXPECT_EQ(uri->kind, RedisUri::Kind::Server);
    EXPECT_EQ(uri->hosts, (std::vector<Endpoint>{{"10.0.0.1", 7000}}));
    EXPECT_EQ(uri->database, 3u);
    EXPECT_TRUE(uri->user.empty() && uri->password.empty());
    EXPECT_EQ(uri->toString(), "redis://10.0.0.1:7000/3");
}

TEST(RedisUri, PortAndDatabaseHaveDefaults) {
    for (const char* text : {"redis://node7", "redis://node7/", "redis://node7:6379", "redis://node7/0"}) {
        const auto uri = RedisUri::parse(text);
        ASSERT_TRUE(uri) << uri.status().toString();
        EXPECT_EQ(uri->hosts, (std::vector<Endpoint>{{"node7", 6379}})) << text;
        EXPECT_EQ(uri->database, 0u);
    }
}

TEST(RedisUri, UserAndPasswordArePercentDecoded) {
    const auto uri = RedisUri::parse("redis://fleet%40a:p%2Fw%3A%25%20@node7:6379");
    ASSERT_TRUE(uri) << uri.status().toString();
    EXPECT_EQ(uri->user, "fleet@a");
    EXPECT_EQ(uri->password, "p/w:% ");
    const auto only_password = RedisUri::parse("redis://:secret:with@colon@node7");
    ASSERT_TRUE(only_password);
    EXPECT_EQ(only_password->user, "");
    EXPECT_EQ(only_password->password, "secret:with@colon");
}

TEST(RedisUri, AUserAloneHasItsPasswordFromTheSettings) {
    Config settings;
    for (const char* text :
         {"redis://fleet%40a@node7", "redis+unix://fleet%40a@/run/sock", "redis+sentinel://fleet%40a@s1,s2/main"}) {
        auto uri = RedisUri::parse(text);
        ASSERT_TRUE(uri) << uri.status().toString();
        EXPECT_EQ(uri->user, "fleet@a");
        EXPECT_EQ(uri->password, "");
        // Without one there would be no AUTH at all, and the user named in vain. It may also be a password.
        settings.redis_password.clear();
        const Status none = addConfiguredPassword(*uri, settings);
        EXPECT_EQ(none.code(), Code::InvalidArgument);
        EXPECT_THAT(none.message(),
                    AllOf(HasSubstr("redis.password"), HasSubstr(":password@"), Not(HasSubstr("fleet"))));
        settings.redis_password = "secret";
        ASSERT_TRUE(addConfiguredPassword(*uri, settings));
        EXPECT_EQ(uri->user, "fleet@a");
        EXPECT_EQ(uri->password, "secret");
    }
    EXPECT_THAT(refusal("redis://@node7"), HasSubstr("neither user nor password"));
    EXPECT_THAT(refusal("redis://user:@node7"), HasSubstr("is empty"));
}

TEST(RedisUri, V6HostsStandInBrackets) {
    const auto uri = RedisUri::parse("redis://[fe80::1]:7000");
    ASSERT_TRUE(uri) << uri.status().toString();
    EXPECT_EQ(uri->hosts, (std::vector<Endpoint>{{"fe80::1", 7000}}));
    EXPECT_EQ(RedisUri::parse("redis://[::1]")->hosts, (std::vector<Endpoint>{{"::1", 6379}}));
    EXPECT_THAT(refusal("redis://fe80::1"), HasSubstr("brackets"));
}

TEST(RedisUri, AUnixSocketHasAPath) {
    const auto uri = RedisUri::parse("redis+unix:///run/redis%20a/sock?db=2");
    ASSERT_TRUE(uri) << uri.status().toString();
    EXPECT_EQ(uri->kind, RedisUri::Kind::Unix);
    EXPECT_EQ(uri->path, "/run/redis a/sock");
    EXPECT_EQ(uri->database, 2u);
    EXPECT_EQ(RedisUri::parse("redis+unix://:pw@/run/sock")->password, "pw");
    EXPECT_THAT(refusal("redis+unix://run/sock"), HasSubstr("absolute"));
    EXPECT_THAT(refusal("redis+unix:///"), HasSubstr("path is missing"));
    EXPECT_THAT(refusal("redis+unix:///sock?x=1"), HasSubstr("?db=N"));
    EXPECT_THAT(refusal("redis+unix:///" + std::string(200, 'x')), HasSubstr("201 bytes"));
}

TEST(RedisUri, SentinelsAreAListAndAName) {
    const auto uri = RedisUri::parse("redis+sentinel://:pw@s1:5000,[::1],s3/main%20one/4");
    ASSERT_TRUE(uri) << uri.status().toString();
    EXPECT_EQ(uri->kind, RedisUri::Kind::Sentinel);
    EXPECT_EQ(uri->hosts, (std::vector<Endpoint>{{"s1", 5000}, {"::1", 26379}, {"s3", 26379}}));
    EXPECT_EQ(uri->master_name, "main one");
    EXPECT_EQ(uri->password, "pw");
    EXPECT_EQ(uri->database, 4u);
    EXPECT_EQ(uri->toString(), "redis+sentinel://s1:5000,[::1]:26379,s3:26379/main one/4");
    EXPECT_THAT(refusal("redis+sentinel://s1,s2"), HasSubstr("master's name"));
    EXPECT_THAT(refusal("redis+sentinel://s1,,s2/main"), HasSubstr("host is missing"));
}

TEST(RedisUri, ErrorsNameTheValue) {
    EXPECT_THAT(refusal("rediss://h"), HasSubstr("scheme"));
    EXPECT_THAT(refusal("redis://"), HasSubstr("host is missing"));
    EXPECT_THAT(refusal("redis://h:99999"), HasSubstr("h:99999"));
    EXPECT_THAT(refusal("redis://h:0"), HasSubstr("h:0"));
    EXPECT_THAT(refusal("redis://h/x"), HasSubstr("'x' is not a number"));
    EXPECT_THAT(refusal("redis://h/-1"), HasSubstr("'-1'"));
    EXPECT_THAT(refusal("redis://h/1/2"), HasSubstr("'1/2'"));
    EXPECT_THAT(refusal("redis://h/99999999999"), HasSubstr("99999999999"));
}

TEST(RedisUri, ErrorsNeverHoldThePassword) {
    for (const char* text :
         {"redis://user:hunter2@h/x", "redis://:hunter2@", "redis://hunter2@h/x", "redis://u:hunter2%zz@h",
          "redis://u:hun/ter2@h", "redit://u:hunter2@h", "redis+sentinel://u:hunter2@a,,b/n",
          "redis+unix://u:hunter2@x/sock", "redis://u:hunter2@h:1:2:3"}) {
        EXPECT_THAT(refusal(text), AllOf(Not(HasSubstr("hunter2")), Not(HasSubstr("ter2")), HasSubstr("***"))) << text;
    }
    const auto uri = RedisUri::parse("redis://user:hunter2@h:1");
    ASSERT_TRUE(uri);
    EXPECT_THAT(uri->toString(), Not(HasSubstr("hunter2")));
}

class Passwords : public testing::Test {
  protected:
    void SetUp() override { settings_.redis_password_file = path_; }
    void TearDown() override { std::filesystem::remove(path_); }
    void write(const std::string& text) { std::ofstream(path_) << text; }

    const std::string path_ = testing::TempDir() + "troupe_redis_password_" + std::to_string(::getpid());
    Config settings_;
};

TEST_F(Passwords, TheUriWinsThenTheSettingThenTheFile) {
    write("from file\nsecond line\n");
    RedisUri uri = *RedisUri::parse("redis://h");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    EXPECT_EQ(uri.password, "from file");
    settings_.redis_password = "from settings";
    uri = *RedisUri::parse("redis://h");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    EXPECT_EQ(uri.password, "from settings");
    uri = *RedisUri::parse("redis://:own@h");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    EXPECT_EQ(uri.password, "own");
}

TEST_F(Passwords, AFileThatGivesNoneIsAnErrorThatNamesIt) {
    RedisUri uri = *RedisUri::parse("redis://h");
    EXPECT_THAT(addConfiguredPassword(uri, settings_).message(), AllOf(HasSubstr(path_), HasSubstr("No such file")));
    for (const std::string& text : {std::string(), std::string("\nx\n"), std::string(5000, 'x')}) {
        write(text);
        EXPECT_EQ(addConfiguredPassword(uri, settings_).code(), Code::InvalidArgument);
    }
    write("crlf\r\n");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    EXPECT_EQ(uri.password, "crlf");
}

TEST_F(Passwords, AFileIsReadAgainAfterARefusalAndKeepsItsLastWhileItIsGone) {
    write("first\n");
    RedisUri uri = *RedisUri::parse("redis://h");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    const auto becomes = [&](const std::string& password) {
        const TimePoint limit = Clock::now() + std::chrono::seconds(60);
        while (uri.currentPassword() != password && Clock::now() < limit) {
            uri.password_file->refused();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return uri.currentPassword() == password;
    };
    write("second\n");
    EXPECT_EQ(uri.currentPassword(), "first") << "nobody refused it";
    EXPECT_TRUE(becomes("second"));
    std::filesystem::remove(path_);
    for (int i = 0; i < 20; ++i) {
        uri.password_file->refused();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(uri.currentPassword(), "second");
    }
    write("third\n");
    EXPECT_TRUE(becomes("third"));
    // What is not from the file never changes.
    settings_.redis_password = "from settings";
    uri = *RedisUri::parse("redis://h");
    ASSERT_TRUE(addConfiguredPassword(uri, settings_));
    EXPECT_EQ(uri.password_file, nullptr);
    EXPECT_EQ(uri.currentPassword(), "from settings");
}

}  // namespace
}  // namespace troupe
