#include "metadata_redis/redis_reply.h"

#include <gmock/gmock.h>

#include <random>

#include "metadata_redis/redis_errors.h"
#include "metadata_redis/redis_records.h"

namespace troupe {
namespace {

using testing::HasSubstr;

constexpr RedisReplyReader::Limits kSmall{4096, 16, 32};

/// Feeds all of it and takes every reply that comes.
Result<std::vector<RedisReply>> readAll(RedisReplyReader& reader, std::string_view bytes) {
    std::vector<RedisReply> replies;
    if (const Status fed = reader.feed(bytes); !fed) return fed;
    while (true) {
        auto reply = reader.next();
        if (!reply) return reply.status();
        if (!reply->has_value()) return replies;
        replies.push_back(std::move(**reply));
    }
}

TEST(RedisReplyReader, ReadsEveryType) {
    RedisReplyReader reader(kSmall);
    const auto replies = readAll(reader, "+OK\r\n-ERR no\r\n:-7\r\n$3\r\na");
    ASSERT_TRUE(replies);
    ASSERT_EQ(replies->size(), 3u);
    EXPECT_TRUE((*replies)[0].isStatus("OK"));
    EXPECT_EQ((*replies)[1].type, RedisReply::Type::Error);
    EXPECT_EQ((*replies)[2].integer, -7);
    using namespace std::string_literals;
    const auto more = readAll(reader, "\0b\r\n$-1\r\n*-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n"s);
    ASSERT_TRUE(more) << more.status().toString();
    ASSERT_EQ(more->size(), 4u);
    EXPECT_EQ((*more)[0].text, "a\0b"s);
    EXPECT_EQ((*more)[1].type, RedisReply::Type::Nil);
    EXPECT_EQ((*more)[2].type, RedisReply::Type::Nil);
    ASSERT_EQ((*more)[3].elements.size(), 2u);
    EXPECT_TRUE((*more)[3].elements[1].elements.at(0).isString());
}

TEST(RedisReplyReader, TakesBytesOneByOne) {
    RedisReplyReader reader(kSmall);
    const std::string bytes = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n+PONG\r\n";
    std::vector<RedisReply> replies;
    for (const char c : bytes) {
        auto some = readAll(reader, {&c, 1});
        ASSERT_TRUE(some);
        for (auto& reply : *some) replies.push_back(std::move(reply));
    }
    ASSERT_EQ(replies.size(), 2u);
    EXPECT_EQ(replies[0].elements.at(2).text, "hello");
    EXPECT_TRUE(replies[1].isStatus("PONG"));
}

TEST(RedisReplyReader, WhatIsNotRedisIsAProtocolError) {
    for (const char* bytes : {"HTTP/1.1 400 Bad Request\r\n\r\n", "\r\n", "*x\r\n", "$abc\r\n", ":\r\n:x\r\n",
                              "*99999999999\r\n", "$-5\r\n", "%1\r\n+a\r\n+b\r\n"}) {
        RedisReplyReader reader(kSmall);
        const auto replies = readAll(reader, bytes);
        EXPECT_EQ(replies.status().code(), Code::ProtocolError) << bytes;
    }
}

TEST(RedisReplyReader, HoldsNoMoreThanOneReplyMayHave) {
    RedisReplyReader reader(kSmall);
    ASSERT_TRUE(readAll(reader, "$1000000000\r\n"));
    std::size_t taken = 0;
    while (reader.feed(std::string(512, 'x'))) {
        taken += 512;
        ASSERT_TRUE(reader.next());
        ASSERT_LE(taken, kSmall.reply_bytes);
    }
    EXPECT_EQ(reader.feed("x" + std::string(512, 'x')).code(), Code::CapacityExceeded);
}

TEST(RedisReplyReader, ManySmallRepliesAreNoLargeOne) {
    RedisReplyReader reader(kSmall);
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(readAll(reader, "$3\r\nabc\r\n+OK\r\n*1\r\n:1\r\n"));
}

TEST(RedisReplyReader, ManySmallRepliesInPiecesAsLargeAsTheBoundAreNoLargeOne) {
    RedisReplyReader reader(kSmall);
    std::string bytes;
    while (bytes.size() < 64 * kSmall.reply_bytes) bytes += "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";
    std::size_t replies = 0;
    // Every piece but the first ends what the one before began.
    for (std::size_t at = 0; at < bytes.size(); at += kSmall.reply_bytes) {
        const auto some = readAll(reader, std::string_view(bytes).substr(at, kSmall.reply_bytes));
        ASSERT_TRUE(some) << some.status().toString();
        replies += some->size();
    }
    EXPECT_EQ(replies, bytes.size() / std::string_view("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n").size());
}

TEST(RedisReplyReader, AReplyThatIsTooLargeIsRefusedAlsoWhenItComesInOnePiece) {
    RedisReplyReader reader(kSmall);
    const auto reply = readAll(reader, "$5000\r\n" + std::string(5000, 'x') + "\r\n");
    EXPECT_EQ(reply.status().code(), Code::CapacityExceeded);
}

TEST(RedisReplyReader, ArraysAreBoundedWholeAndInSum) {
    for (const char* bytes : {"*17\r\n", "*2147483647\r\n", "*16\r\n*16\r\n*16\r\n"}) {
        RedisReplyReader reader(kSmall);
        const auto replies = readAll(reader, bytes);
        EXPECT_EQ(replies.status().code(), Code::ProtocolError) << bytes;
        EXPECT_THAT(replies.status().message(), HasSubstr("more elements")) << bytes;
    }
}

TEST(RedisReplyReader, NestingIsBounded) {
    std::string deep;
    for (int i = 0; i < 30; ++i) deep += "*1\r\n";
    RedisReplyReader reader(kSmall);
    EXPECT_EQ(readAll(reader, deep).status().code(), Code::ProtocolError);
}

TEST(RedisReplyReader, ALineWithoutEndIsRefusedBeforeItIsLookedThroughOftenly) {
    RedisReplyReader reader({8u << 20, 16, 32});
    Status last;
    for (int i = 0; i < 64 && last.isOk(); ++i)
        last = readAll(reader, (i == 0 ? "+" : "") + std::string(4096, 'x')).status();
    EXPECT_EQ(last.code(), Code::ProtocolError);
}

TEST(RedisReplyReader, RandomBytesNeverHarm) {
    std::mt19937 random(7);
    const std::string alphabet = "+-:$*\r\n0123456789ab";
    for (int round = 0; round < 3000; ++round) {
        RedisReplyReader reader(kSmall);
        std::string bytes;
        for (int i = 0; i < 120; ++i) bytes += alphabet[random() % alphabet.size()];
        static_cast<void>(readAll(reader, bytes));
    }
}

TEST(RedisErrors, EachKindHasItsCodeAndRemedy) {
    const auto expect = [](const char* error, Code code, const char* words) {
        const Status status = redisErrorStatus(error);
        EXPECT_EQ(status.code(), code) << error;
        EXPECT_THAT(status.message(), HasSubstr(words)) << error;
    };
    expect("NOAUTH Authentication required.", Code::AccessDenied, "redis.password");
    expect("WRONGPASS invalid username-password pair or user is disabled.", Code::AccessDenied, "refuses");
    expect("NOPERM this user has no permissions to run the 'eval' command", Code::AccessDenied, "ACL");
    expect("ERR The user executing the script can't run this command or subcommand script: 0a9f75, on @user_script:1.",
           Code::AccessDenied, "docs/redis.md");
    expect("ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
           Code::AccessDenied, "docs/redis.md");
    expect(
        "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the script can't "
        "run this command or subcommand",
        Code::AccessDenied, "docs/redis.md");
    expect("LOADING Redis is loading the dataset in memory", Code::PeerDown, "loading");
    expect("MASTERDOWN Link with MASTER is down", Code::PeerDown, "lost its master");
    expect("READONLY You can't write against a read only replica.", Code::PeerDown, "replica");
    expect("NOREPLICAS Not enough good replicas to write.", Code::PeerDown, "min-replicas-to-write");
    expect("OOM command not allowed when used memory > 'maxmemory'.", Code::ResourceExhausted, "maxmemory");
    expect("MISCONF Redis is configured to save RDB snapshots", Code::ResourceExhausted, "disk");
    expect("MOVED 3999 127.0.0.1:6381", Code::Unsupported, "Cluster");
    expect("ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed", Code::ResourceExhausted,
           "maxmemory");
    expect("ERR something", Code::ProtocolError, "ERR something");
    expect("\x01\x02", Code::ProtocolError, "??");
}

TEST(RedisErrors, WordsOfAServerComeOutPrintable) {
    RedisReply reply;
    for (const auto type : {RedisReply::Type::Status, RedisReply::Type::Error}) {
        reply.type = type;
        reply.text = "a\x1b[2Jb";
        EXPECT_THAT(describe(reply), HasSubstr("'a?[2Jb'"));
    }
    const std::string head = R"({"troupe":{"incarnation":"00112233445566778899aabbccddeeff","version":1,"control":")";
    EXPECT_THAT(describeHolder(head + "a\x1b[2Jb\"}"), testing::EndsWith("control a?[2Jb"));
}

TEST(RedisErrors, WordsOfAnUnknownCommandAreNotRepeated) {
    const Status status = redisErrorStatus("ERR unknown command 'AUTH', with args beginning with: 'hunter2'");
    EXPECT_EQ(status.code(), Code::Unsupported);
    EXPECT_THAT(status.message(), testing::Not(HasSubstr("hunter2")));
}

}  // namespace
}  // namespace troupe
