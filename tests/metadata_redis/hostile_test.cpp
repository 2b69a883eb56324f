// Servers that are not Redis, or not ours: what they say harms nobody, and the error says what it was.

#include "tests/metadata_redis/fake_server.h"
#include "tests/metadata_redis/store_fixture.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class RedisHostile : public StoreTest {
  protected:
    /// What a resolve answers when the greeting is right and every other command is answered with `reply`.
    Status resolveAnswered(const std::string& reply) {
        FakeServer server(reactor_, FakeServer::greeting([reply](const auto&) { return reply; }));
        const auto store = makeStore(server.uri());
        return resolve(*store, "x").status();
    }
    /// What a resolve says of a server that answers everything with `bytes`.
    Status greetedWith(const std::string& bytes) {
        FakeServer server(reactor_, [bytes](std::string& received) {
            received.clear();
            return bytes;
        });
        const auto store = makeStore(server.uri());
        return resolve(*store, "x").status();
    }
};

TEST_F(RedisHostile, AGreetingThatIsNoRedisIsAProtocolError) {
    for (const char* bytes : {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "*1\r\n$4\r\nPONG\r\n", ":1\r\n",
                              "$-1\r\n", "+QUEUED\r\n", "220 smtp ready\r\n", "\x16\x03\x01\x02"}) {
        const Status status = greetedWith(bytes);
        EXPECT_TRUE(status.code() == Code::ProtocolError || status.code() == Code::Timeout) << status.toString();
        EXPECT_THAT(status.message(), HasSubstr("redis 127.0.0.1"));
    }
}

TEST_F(RedisHostile, EveryKindOfWrongReplyToAResolveIsAnError) {
    EXPECT_EQ(resolveAnswered("$-1\r\n").code(), Code::NotFound);
    for (const char* reply : {":5\r\n", "+OK\r\n", "*0\r\n", "*2\r\n:1\r\n:2\r\n", "*-1\r\n", "$2\r\n{}\r\n",
                              "$0\r\n\r\n", "$9\r\n{\"name\":1\r\n"}) {
        const Status status = resolveAnswered(reply);
        EXPECT_EQ(status.code(), std::string(reply) == "*-1\r\n" ? Code::NotFound : Code::ProtocolError)
            << reply << ": " << status.toString();
    }
    EXPECT_EQ(resolveAnswered("-LOADING Redis is loading\r\n").code(), Code::PeerDown);
    EXPECT_EQ(resolveAnswered("-NOPERM no\r\n").code(), Code::AccessDenied);
    // What a Sentinel says to a GET.
    const Status unknown = resolveAnswered("-ERR unknown command 'GET', with args beginning with: 'x'\r\n");
    EXPECT_EQ(unknown.code(), Code::Unsupported);
    EXPECT_THAT(unknown.message(), HasSubstr("redis+sentinel://"));
}

TEST_F(RedisHostile, TheRecordOfAnotherNameIsRefused) {
    const std::string json = encodeSegmentDesc(makeSegment("y", Incarnation::random()));
    const Status status = resolveAnswered("*2\r\n:0\r\n$" + std::to_string(json.size()) + "\r\n" + json + "\r\n");
    EXPECT_EQ(status.code(), Code::ProtocolError);
    EXPECT_THAT(status.message(), HasSubstr("record of 'y'"));
}

TEST_F(RedisHostile, WrongRepliesToAPublishAreErrorsAndItGoesOnTrying) {
    for (const char* reply : {"$4\r\nrubb\r\n", "+OK\r\n", "*0\r\n", "$-1\r\n", ":0\r\n"}) {
        std::size_t asked = 0;
        FakeServer server(reactor_, FakeServer::greeting([&](const auto&) {
                              ++asked;
                              return asked < 3 ? std::string(reply) : std::string(":1\r\n");
                          }));
        const auto store = makeStore(server.uri());
        const Status status = publish(*store, makeSegment("x", Incarnation::random()));
        // A string is the head of a holder's record.
        EXPECT_EQ(status.code(), reply[0] == '$' && reply[1] == '4' ? Code::AlreadyExists : Code::ProtocolError)
            << reply;
        if (status.code() == Code::AlreadyExists) continue;
        EXPECT_TRUE(runUntil([&] { return asked == 3; })) << reply;
    }
}

TEST_F(RedisHostile, AReplyThatNobodyAskedForEndsTheConnectionAndAnotherIsMade) {
    FakeServer server(reactor_, FakeServer::greeting([](const auto&) { return std::string("$-1\r\n"); }));
    const auto store = makeStore(server.uri());
    EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
    for (const char* bytes : {"+OK\r\n", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", "$-1\r\n", "-ERR x\r\n"}) {
        const std::size_t before = server.accepted();
        server.say(bytes);
        EXPECT_TRUE(runUntil([&] { return server.accepted() > before; })) << bytes;
        EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
    }
}

TEST_F(RedisHostile, AnEndlessReplyIsCutAtTheBound) {
    settings_.max_descriptor_bytes = 64u << 10;
    const std::string much(1u << 20, 'x');
    FakeServer server(reactor_, FakeServer::greeting([](const auto&) { return std::string("$1000000000\r\n"); }));
    const auto store = makeStore(server.uri());
    std::optional<Status> answer;
    store->resolve("x", std::chrono::hours(1), [&](const Result<SegmentDesc>& desc) { answer = desc.status(); });
    // A record, and some room: what is more is not taken.
    std::size_t said = 0;
    EXPECT_TRUE(runUntil([&] {
        server.say(much.substr(0, 60'000));
        said += 60'000;
        return answer.has_value();
    }));
    // Of this connection, or of a later one that was told the same in the middle.
    EXPECT_TRUE(answer->code() == Code::CapacityExceeded || answer->code() == Code::ProtocolError)
        << answer->toString();
    EXPECT_LT(said, 64u << 20);
}

TEST_F(RedisHostile, SilenceIsATimeoutThatSaysSo) {
    FakeServer server(reactor_, [](std::string& received) {
        received.clear();
        return std::string();
    });
    const auto store = makeStore(server.uri());
    const Status status = resolve(*store, "x").status();
    EXPECT_EQ(status.code(), Code::Timeout);
    EXPECT_THAT(status.message(), HasSubstr("no answer in time"));
}

TEST_F(RedisHostile, SilenceEndsTheConnectionHoweverMuchIsAskedMeanwhile) {
    FakeServer server(reactor_, FakeServer::greeting([](const auto&) { return std::string(); }));
    const auto store = makeStore(server.uri());
    // More often than the time-out: each time the kernel takes the command.
    const TimePoint limit = reactor_.now() + std::chrono::seconds(60);
    while (server.accepted() < 2 && reactor_.now() < limit) {
        store->inspect("x", std::chrono::milliseconds(50), [](const Result<RecordHead>&) {});
        runFor(settings_.redis_command_timeout / 10);
    }
    EXPECT_GE(server.accepted(), 2u);
    EXPECT_THAT(logged_.str(), HasSubstr("silent for longer than redis.command_timeout"));
}

TEST_F(RedisHostile, AShorterTimeoutThanTheConnectionsIsKept) {
    FakeServer server(reactor_, FakeServer::greeting([](const auto&) { return std::string(); }));
    const auto store = makeStore(server.uri());
    const TimePoint begin = reactor_.now();
    const Status status = resolve(*store, "x", std::chrono::milliseconds(50)).status();
    EXPECT_EQ(status.code(), Code::Timeout);
    EXPECT_LT(reactor_.now() - begin, settings_.redis_command_timeout);
}

TEST_F(RedisHostile, APasswordIsNeverRepeated) {
    for (const char* reply : {"-ERR unknown command 'AUTH', with args beginning with: 'hunter2'\r\n",
                              "-ERR you said hunter2\r\n", "+hunter2\r\n", "-WRONGPASS bad\r\n"}) {
        FakeServer server(reactor_, [reply](std::string& received) {
            received.clear();
            return std::string(reply);
        });
        const auto store = makeStore("redis://user:hunter2@" + server.uri().substr(8));
        const Status status = resolve(*store, "x").status();
        EXPECT_THAT(status.message(), Not(HasSubstr("hunter2")));
        const Status published = publish(*store, makeSegment("x", Incarnation::random()));
        EXPECT_THAT(published.message(), Not(HasSubstr("hunter2")));
    }
    EXPECT_THAT(logged_.str(), Not(HasSubstr("hunter2")));
}

TEST_F(RedisHostile, MessagesThatAreNoChangesAreIgnored) {
    const auto message = [](const std::string& text) {
        return "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
    };
    FakeServer server(
        reactor_, FakeServer::greeting([](const auto& command) {
            return std::string(command[0] == "SUBSCRIBE" ? "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" : "$-1\r\n");
        }));
    const auto store = makeStore(server.uri());
    watch(*store);
    ASSERT_TRUE(heard("?"));
    const std::string id = Incarnation::random().toString();
    for (const std::string& text : {std::string("{}"), std::string("rubbish"), std::string("[[[[[[[[["),
                                    R"({"kind":"other","name":"x","incarnation":")" + id + R"(","version":1})",
                                    R"({"kind":"published","name":"","incarnation":")" + id + R"(","version":1})",
                                    std::string(R"({"kind":"published","name":"x","incarnation":"zz","version":1})"),
                                    R"({"kind":"published","name":"x","incarnation":")" + id + R"(","version":-1})",
                                    R"({"kind":"published","name":")" + std::string(2000, 'x') +
                                        R"(","incarnation":")" + id + R"(","version":1})"})
        server.say(message(text));
    server.say("*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n");
    server.say(message(R"({"kind":"published","name":"good","incarnation":")" + id + R"(","version":7,"more":[1]})"));
    ASSERT_TRUE(heard("+good@7"));
    EXPECT_EQ(events_, (std::vector<std::string>{"?", "+good@7"}));
}

TEST_F(RedisHostile, ASubscriptionThatIsRefusedIsTriedAgain) {
    std::size_t asked = 0;
    FakeServer server(
        reactor_, FakeServer::greeting([&](const auto&) {
            return std::string(++asked < 3 ? "-NOPERM no channel\r\n" : "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        }));
    const auto store = makeStore(server.uri());
    watch(*store);
    EXPECT_TRUE(heard("?"));
    EXPECT_THAT(logged_.str(), HasSubstr("ACL"));
}

TEST_F(RedisHostile, WhatWaitsForTheServerIsBounded) {
    FakeServer server(reactor_, [](std::string& received) {
        received.clear();
        return std::string();
    });
    const auto store = makeStore(server.uri());
    std::size_t answered = 0;
    std::size_t refused = 0;
    constexpr std::size_t kAsked = 20'000;
    for (std::size_t i = 0; i < kAsked; ++i)
        store->inspect("x", std::chrono::hours(1), [&](const Result<RecordHead>& head) {
            ++answered;
            refused += head.status().code() == Code::CapacityExceeded ? 1 : 0;
        });
    EXPECT_TRUE(runUntil([&] { return answered == kAsked; }));
    EXPECT_EQ(refused, kAsked - (1u << 14));
}

TEST_F(RedisHostile, WhoeverWaitsForAServerThatGreetsAndHangsUpWaitsOn) {
    FakeServer server(reactor_, {});
    const auto serves = FakeServer::greeting([](const auto&) { return std::string("$-1\r\n"); });
    bool hung_up = false;
    server.setAnswer([&](std::string& received) {
        if (std::exchange(hung_up, true)) return serves(received);
        server.say("+PONG\r\n");
        server.resetAll();
        return std::string();
    });
    const auto store = makeStore(server.uri());
    std::vector<Code> answers;
    for (int i = 0; i < 3; ++i)
        store->resolve("x", std::chrono::hours(1),
                       [&](const Result<SegmentDesc>& desc) { answers.push_back(desc.status().code()); });
    EXPECT_TRUE(runUntil([&] { return answers.size() == 3; }));
    EXPECT_TRUE(hung_up);
    EXPECT_EQ(answers, std::vector<Code>(3, Code::NotFound));
}

TEST_F(RedisHostile, AStoreMayEndWithinItsOwnCallbacks) {
    FakeServer server(
        reactor_, FakeServer::greeting([](const auto& command) {
            return std::string(command[0] == "SUBSCRIBE" ? "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" : "$-1\r\n");
        }));
    auto store = makeStore(server.uri());
    bool called = false;
    for (int i = 0; i < 3; ++i)
        store->resolve("x", std::chrono::hours(1), [&](const Result<SegmentDesc>&) {
            EXPECT_FALSE(called) << "called after the store was destroyed";
            called = true;
            store.reset();
        });
    EXPECT_TRUE(runUntil([&] { return called; }));
    store = makeStore(server.uri());
    called = false;
    store->watch([&](const SegmentEvent&) {
        called = true;
        store.reset();
    });
    EXPECT_TRUE(runUntil([&] { return called; }));
    // While nothing can be reached, and the waiting ones are told.
    store = makeStore("redis://127.0.0.1:1");
    called = false;
    for (int i = 0; i < 3; ++i)
        store->publish(makeSegment("x" + std::to_string(i), Incarnation::random()), std::chrono::hours(1),
                       [&](const Status&) {
                           EXPECT_FALSE(called);
                           called = true;
                           store.reset();
                       });
    EXPECT_TRUE(runUntil([&] { return called; }));
    runFor(std::chrono::milliseconds(50));
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

}  // namespace
}  // namespace troupe::test
