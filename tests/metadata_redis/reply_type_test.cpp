// Replies of the wrong type to each command but those of the others' tests (hostile_test.cpp): an error that says so,
// or one in the log, and the store goes on; and what a connection says anew each time it is made.

#include "metadata_redis/redis_records.h"
#include "tests/metadata_redis/fake_server.h"
#include "tests/metadata_redis/store_fixture.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// One reply of each type, and lists that are not what is due. Of errors there is a test of their own.
const std::vector<std::string> kStrings{"+OK\r\n", "$4\r\nrubb\r\n", "$0\r\n\r\n"};
const std::vector<std::string> kNils{"$-1\r\n", "*-1\r\n"};
const std::vector<std::string> kLists{"*0\r\n", "*1\r\n:1\r\n", "*2\r\n:1\r\n:2\r\n", "*2\r\n$1\r\n0\r\n$1\r\nx\r\n",
                                      "*2\r\n*0\r\n*0\r\n"};

std::vector<std::string> all(std::initializer_list<std::vector<std::string>> kinds) {
    std::vector<std::string> result;
    for (const auto& kind : kinds) result.insert(result.end(), kind.begin(), kind.end());
    return result;
}

class RedisReplyTypes : public StoreTest {
  protected:
    /// What a command is for.
    static std::string kindOf(const std::vector<std::string>& command) {
        if (command[0] != "EVAL") return command[0];
        return command.at(1) == kPublishScript  ? "publish"
               : command.at(1) == kRenewScript  ? "renew"
               : command.at(1) == kLookScript   ? "look"
               : command.at(1) == kRemoveScript ? "remove"
               : command.at(1) == kReadScript   ? "read"
                                                : "?";
    }
    /// A server that answers by kind, and counts; what is not named is answered as if all were well.
    std::unique_ptr<FakeServer> answering(std::map<std::string, std::string> replies) {
        replies_ = std::move(replies);
        counts_.clear();
        return std::make_unique<FakeServer>(reactor_, FakeServer::greeting([this](const auto& command) {
                                                const std::string kind = kindOf(command);
                                                ++counts_[kind];
                                                if (const auto found = replies_.find(kind); found != replies_.end())
                                                    return found->second;
                                                return std::string(kind == "look" ? "*0\r\n" : ":1\r\n");
                                            }));
    }
    bool counted(const std::string& kind, std::size_t count) {
        return runUntil([&] { return counts_[kind] >= count; });
    }

    std::map<std::string, std::string> replies_;
    std::map<std::string, std::size_t> counts_;
};

TEST_F(RedisReplyTypes, ARenewalThatIsAnsweredWronglyIsSaidAndTheRecordIsWrittenAgain) {
    for (const std::string& reply : all({kStrings, kNils, kLists, {"-ERR something\r\n"}})) {
        const auto server = answering({{"renew", reply}});
        logged_.str("");
        const auto store = makeStore(server->uri());
        // A renewal each 30 ms.
        ASSERT_TRUE(publish(*store, makeSegment("x", Incarnation::random()), 90ms));
        EXPECT_TRUE(counted("publish", 3)) << reply;
        EXPECT_GE(counts_["renew"], 2u) << reply;
        EXPECT_EQ(server->accepted(), 1u) << "no reason to part";
        const std::string said = reply[0] == '-' ? "'ERR something'" : "where a number was due";
        EXPECT_GE(count(said), 1u) << reply << logged_.str();
        // Well again.
        replies_.clear();
        const std::size_t renewed = counts_["renew"];
        EXPECT_TRUE(counted("renew", renewed + 2)) << reply;
        EXPECT_EQ(server->accepted(), 1u);
    }
}

TEST_F(RedisReplyTypes, ALookThatIsAnsweredWronglyChangesNothing) {
    settings_.redis_keepalive_interval = 30ms;
    for (const std::string& reply :
         all({kStrings,
              kNils,
              {":1\r\n", "-ERR something\r\n", "*1\r\n:0\r\n", "*2\r\n:2\r\n:-2\r\n", "*1\r\n$1\r\n1\r\n",
               "*1\r\n*0\r\n", "*2\r\n:9223372036854775807\r\n:-9223372036854775808\r\n"}})) {
        const auto server = answering({{"look", reply}});
        const auto store = makeStore(server->uri());
        ASSERT_TRUE(publish(*store, makeSegment("x", Incarnation::random())));
        EXPECT_TRUE(counted("look", 3)) << reply;
        EXPECT_EQ(counts_["publish"], 1u) << reply;
        EXPECT_EQ(counts_["renew"], 0u) << reply;
        EXPECT_EQ(server->accepted(), 1u);
        // What it says as it should is done.
        replies_["look"] = "*1\r\n:1\r\n";
        replies_["renew"] = ":0\r\n";
        EXPECT_TRUE(counted("publish", 2)) << reply;
    }
}

TEST_F(RedisReplyTypes, AnEvictionThatIsAnsweredWronglyIsAnError) {
    for (const std::string& reply : all({kStrings, kNils, kLists})) {
        const auto server = answering({{"remove", reply}});
        const auto store = makeStore(server->uri());
        const Status status = evict(*store, "x", Incarnation::random());
        EXPECT_EQ(status.code(), Code::ProtocolError) << reply << status.toString();
        EXPECT_THAT(status.message(), HasSubstr("where a number was due"));
    }
    const auto server = answering({{"remove", "-READONLY You can't write against a read only replica.\r\n"}});
    settings_.redis_command_timeout = 300ms;
    const auto store = makeStore(server->uri());
    // The last answer may be on its way at the end of the time.
    EXPECT_THAT(evict(*store, "x", Incarnation::random()).code(), testing::AnyOf(Code::PeerDown, Code::Timeout));
    EXPECT_GT(server->accepted(), 1u) << "another master was looked for";
}

TEST_F(RedisReplyTypes, AWithdrawalThatIsAnsweredWronglyIsAnError) {
    for (const std::string& reply : all({kStrings, kNils, kLists, {"-NOPERM no\r\n"}})) {
        const auto server = answering({{"remove", reply}});
        const auto store = makeStore(server->uri());
        ASSERT_TRUE(publish(*store, makeSegment("x", Incarnation::random())));
        const Status status = withdraw(*store, "x");
        EXPECT_EQ(status.code(), reply[0] == '-' ? Code::AccessDenied : Code::ProtocolError) << reply;
    }
}

TEST_F(RedisReplyTypes, ALookAtOneRecordThatIsAnsweredWronglyIsAnError) {
    for (const std::string& reply : all({{":1\r\n", "+OK\r\n", "$4\r\nrubb\r\n"}, kNils, kLists})) {
        const auto server = answering({{"GETRANGE", reply}});
        const auto store = makeStore(server->uri());
        EXPECT_EQ(inspect(*store, "x").status().code(), Code::ProtocolError) << reply;
    }
}

TEST_F(RedisReplyTypes, APageOfKeysThatIsNoneIsAnErrorAndKeysThatAreNoneAreLeftOut) {
    for (const std::string& reply : all({kStrings, kNils, kLists, {":0\r\n", "*2\r\n:0\r\n*0\r\n"}})) {
        const auto server = answering({{"SCAN", reply}});
        const auto store = makeStore(server->uri());
        const Status status = list(*store).status();
        EXPECT_EQ(status.code(), Code::ProtocolError) << reply << status.toString();
        EXPECT_THAT(status.message(), HasSubstr("a page of keys"));
    }
    const auto server = answering({{"SCAN", "*2\r\n$1\r\n0\r\n*4\r\n:5\r\n$-1\r\n*0\r\n$5\r\nother\r\n"}});
    const auto store = makeStore(server->uri());
    const auto found = list(*store);
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_TRUE(found->empty());
}

TEST_F(RedisReplyTypes, AListingThatNeverEndsIsCutAtItsTime) {
    const auto server = answering({{"SCAN", "*2\r\n$1\r\n7\r\n*0\r\n"}});
    const auto store = makeStore(server->uri());
    const auto listed =
        await<Result<std::vector<StoredSegment>>>([&](auto done) { store->list(200ms, done); }, never());
    EXPECT_EQ(listed.status().code(), Code::Timeout) << listed.status().toString();
    EXPECT_GT(counts_["SCAN"], 1u);
}

TEST_F(RedisReplyTypes, ALeaseThatIsNoneIsAnErrorOfTheListing) {
    const std::string key = "mooncake/ram/x";
    const std::string page = "*2\r\n$1\r\n0\r\n*1\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
    for (const std::string& reply : all({kStrings, kNils, kLists})) {
        const auto server = answering({{"SCAN", page}, {"read", "*2\r\n:0\r\n$2\r\n{}\r\n"}, {"PTTL", reply}});
        const auto store = makeStore(server->uri());
        const Status status = list(*store).status();
        EXPECT_EQ(status.code(), Code::ProtocolError) << reply << status.toString();
        EXPECT_THAT(status.message(), HasSubstr("a time to live"));
    }
}

TEST_F(RedisReplyTypes, WordOfAChangeThatIsAnsweredWronglyBreaksNothing) {
    const auto server = answering({{"PUBLISH", "+OK\r\n"}});
    const auto store = makeStore(server->uri());
    const Incarnation id = Incarnation::random();
    const SegmentEvent change{SegmentEvent::Kind::Published, "x", 2, id};
    EXPECT_FALSE(store->announce(change)) << "nothing is published";
    ASSERT_TRUE(publish(*store, makeSegment("x", id)));
    for (const std::string& reply : all({kStrings, kNils, kLists, {"-NOPERM no\r\n", ":1\r\n"}})) {
        replies_["PUBLISH"] = reply;
        const std::size_t before = counts_["PUBLISH"];
        EXPECT_TRUE(store->announce(change)) << reply;
        EXPECT_TRUE(counted("PUBLISH", before + 1));
    }
    EXPECT_TRUE(publish(*store, makeSegment("x", id, 3)));
    EXPECT_EQ(server->accepted(), 1u);
}

TEST_F(RedisReplyTypes, WithoutAServerNoWordOfAChangeIsSent) {
    auto server = answering({});
    const auto store = makeStore(server->uri());
    const Incarnation id = Incarnation::random();
    ASSERT_TRUE(publish(*store, makeSegment("x", id)));
    server.reset();
    EXPECT_TRUE(runUntil([&] { return logged_.str().find("(commands)") != std::string::npos; }));
    EXPECT_FALSE(store->announce({SegmentEvent::Kind::Published, "x", 2, id}));
}

// --- what is said again ------------------------------------------------------------------------------------------

/// The commands of each connection's greeting, joined.
class Greetings {
  public:
    FakeServer::Answer answer(std::function<std::string(const std::vector<std::string>&)> other) {
        return [this, other = std::move(other)](std::string& received) {
            std::string reply;
            for (auto command = FakeServer::take(received); !command.empty(); command = FakeServer::take(received)) {
                std::string line;
                for (const std::string& word : command) line += (line.empty() ? "" : " ") + word;
                if (command[0] == "AUTH" || command[0] == "SELECT" || command[0] == "PING") said.push_back(line);
                reply += command[0] == "PING"                             ? std::string("+PONG\r\n")
                         : command[0] == "AUTH" || command[0] == "SELECT" ? std::string("+OK\r\n")
                                                                          : other(command);
            }
            return reply;
        };
    }
    std::vector<std::string> said;
};

class RedisGreetingAgain : public StoreTest {
  protected:
    RedisGreetingAgain() {
        // No PING but that of a greeting.
        settings_.redis_keepalive_interval = 1h;
    }
    static std::string well(const std::vector<std::string>& command) {
        return command[0] == "SUBSCRIBE" ? "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" : "$-1\r\n";
    }
};

TEST_F(RedisGreetingAgain, UserPasswordAndDatabaseAreSentWithEachConnection) {
    Greetings greetings;
    FakeServer server(reactor_, greetings.answer(well));
    const auto store = makeStore("redis://fleet:s3cret@" + server.uri().substr(8) + "/3");
    watch(*store);
    ASSERT_TRUE(heard("?"));
    EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
    const std::vector<std::string> both{"AUTH fleet s3cret", "SELECT 3", "PING",
                                        "AUTH fleet s3cret", "SELECT 3", "PING"};
    EXPECT_EQ(greetings.said, both) << "for commands, and for changes";
    for (int round = 0; round < 3; ++round) {
        greetings.said.clear();
        events_.clear();
        server.dropAll();
        ASSERT_TRUE(heard("?"));
        EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
        EXPECT_EQ(greetings.said, both) << round;
    }
}

TEST_F(RedisGreetingAgain, ASentinelsPasswordIsSentWithEachConnectionToIt) {
    Greetings greetings;
    FakeServer master(reactor_, greetings.answer(well));
    const std::string port = master.uri().substr(master.uri().rfind(':') + 1);
    // One connection to it at a time: it asks for the password, and then knows it.
    bool knows = false;
    std::size_t asked = 0;
    std::vector<std::string> passwords;
    FakeServer sentinel(reactor_, [&](std::string& received) {
        std::string reply;
        for (auto command = FakeServer::take(received); !command.empty(); command = FakeServer::take(received)) {
            if (command[0] == "AUTH") {
                passwords.push_back(command.back());
                knows = command.back() == "s3cret";
                reply += knows ? "+OK\r\n" : "-WRONGPASS no\r\n";
            } else if (!knows) {
                reply += "-NOAUTH Authentication required.\r\n";
            } else {
                ++asked;
                reply += "*2\r\n$9\r\n127.0.0.1\r\n$" + std::to_string(port.size()) + "\r\n" + port + "\r\n";
            }
        }
        return reply;
    });
    const auto store = makeStore("redis+sentinel://:s3cret@" + sentinel.uri().substr(8) + "/main/5");
    EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
    EXPECT_EQ(greetings.said, (std::vector<std::string>{"AUTH s3cret", "SELECT 5", "PING"}));
    EXPECT_EQ(passwords, std::vector<std::string>{"s3cret"});
    for (int round = 0; round < 3; ++round) {
        greetings.said.clear();
        passwords.clear();
        asked = 0;
        // A new connection, which it has not been told the password of.
        knows = false;
        sentinel.dropAll();
        master.dropAll();
        ASSERT_TRUE(runUntil([&] { return !greetings.said.empty() && greetings.said.back() == "PING"; }));
        EXPECT_EQ(resolve(*store, "x").status().code(), Code::NotFound);
        EXPECT_EQ(greetings.said, (std::vector<std::string>{"AUTH s3cret", "SELECT 5", "PING"})) << round;
        EXPECT_EQ(passwords, std::vector<std::string>{"s3cret"}) << round;
        EXPECT_EQ(asked, 1u);
    }
}

}  // namespace
}  // namespace troupe::test
