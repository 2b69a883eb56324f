// `troupe segments`, and the other commands with a store, as processes.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "metadata/segment_desc.h"
#include "tests/apps_process/troupe_process.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/redis_server.h"

namespace troupe::apps {
namespace {

using test::RedisServer;
using testing::AllOf;
using testing::HasSubstr;

class SegmentsCommand : public testing::Test {
  protected:
    Outcome segments(std::vector<std::string> more = {}) {
        std::vector<std::string> arguments = {"segments", "--json", "--metadata", redis_.uri()};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runTroupe(arguments);
    }
    std::vector<std::string> named(const std::string& name) { return {"--metadata", redis_.uri(), "--name", name}; }

    RedisServer redis_;
};

TEST_F(SegmentsCommand, ListsWhatIsThere) {
    Server one("3MiB", named("rack 1/a"));
    Server two("1MiB", {"--metadata", redis_.uri(), "--name", "b", "--regions", "4"});
    redis_.command({"SET", "mooncake/ram/c", "rubbish\x1b[2J"});
    const auto outcome = segments();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto list = outcome.json().value("segments", nlohmann::json::array());
    ASSERT_EQ(list.size(), 3u) << outcome.out;
    EXPECT_EQ(list[0]["name"], "b");
    EXPECT_EQ(list[0]["regions"], 4);
    EXPECT_EQ(list[0]["bytes"], 1u << 20);
    EXPECT_EQ(list[0]["incarnation"].get<std::string>().size(), 32u);
    EXPECT_THAT(list[0]["transports"].get<std::vector<std::string>>(), testing::Contains("tcp"));
    EXPECT_GT(list[0]["lease_seconds"].get<double>(), 1);
    EXPECT_LT(list[0]["lease_seconds"].get<double>(), 31);
    EXPECT_LT(list[0]["age_seconds"].get<double>(), 600);
    EXPECT_EQ(list[1]["name"], "c");
    EXPECT_TRUE(list[1].contains("error"));
    EXPECT_TRUE(list[1]["lease_seconds"].is_null());
    EXPECT_EQ(list[2]["name"], "rack 1/a");
    const auto table = runTroupe({"segments", "--metadata", redis_.uri()});
    EXPECT_THAT(table.out,
                AllOf(HasSubstr("incarnation"), HasSubstr("rack 1/a"), HasSubstr("3 MiB"), HasSubstr("unreadable")));
    EXPECT_EQ(table.out.find('\x1b'), std::string::npos);
    const auto verified = runTroupe(
        {"verify", "rack 1/a", "--seconds", "0.5", "--json", "--metadata", redis_.uri(), "--name", "verifier"});
    EXPECT_EQ(verified.code, 0) << verified.err << verified.out;
}

TEST_F(SegmentsCommand, AClientNeedsNoNameListensToItsMachineAloneAndOffersNothing) {
    Server server("16MiB", named("a"));
    TroupeProcess verify({"verify", "a", "--metadata", redis_.uri(), "--json"});
    // Its first progress line shows that it runs, with memory of its own.
    while (verify.errors().find("operations") == std::string::npos)
        ASSERT_EQ(verify.child().wait(std::chrono::milliseconds(50)).status().code(), Code::Timeout) << verify.errors();
    const auto list = segments().json().value("segments", nlohmann::json::array());
    ASSERT_EQ(list.size(), 2u) << list;
    EXPECT_EQ(list[0]["regions"], 1);
    EXPECT_THAT(list[1]["name"].get<std::string>(), testing::StartsWith("verify-"));
    EXPECT_THAT(list[1]["control"].get<std::string>(), testing::StartsWith("127.0.0.1:"));
    EXPECT_EQ(list[1]["regions"], 0);
    EXPECT_EQ(list[1]["bytes"], 0);
    verify.child().signal(SIGINT);
    EXPECT_EQ(finish(verify).code, 0);
}

TEST_F(SegmentsCommand, ADatabaseThatTheServerDoesNotHaveSaysWhichThereAre) {
    const auto outcome = runTroupe({"serve", "--size", "1MiB", "--metadata", redis_.uri() + "/99", "--name", "a"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("try: take a database that the server has"));
}

TEST_F(SegmentsCommand, ANameThatIsTakenSaysHowToGoOn) {
    Server server("1MiB", named("a"));
    const auto outcome = runTroupe({"serve", "--size", "1MiB", "--metadata", redis_.uri(), "--name", "a"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("try: take another --name"));
}

TEST_F(SegmentsCommand, WatchFollowsWhatHappens) {
    TroupeProcess watch(
        {"segments", "--json", "--watch", "--metadata", redis_.uri(), "--set", "redis.command_timeout=500ms"});
    const auto next = [&] {
        const auto line = watch.child().readLine(kPatience);
        EXPECT_TRUE(line) << line.status().toString() << watch.errors();
        return line ? nlohmann::json::parse(*line, nullptr, false) : nlohmann::json::object();
    };
    // Skips changes: a segment is published before its memory is.
    const auto await = [&](const std::string& event) {
        auto line = next();
        while (line.value("event", "none") != event && line.value("event", "none") == "changed") line = next();
        return line;
    };
    std::string first;
    {
        Server server("1MiB", named("a"));
        const auto line = await("new");
        EXPECT_EQ(line.value("name", ""), "a");
        first = line.value("incarnation", "");
        server.process().child().signal(SIGKILL);
        static_cast<void>(server.process().child().wait(kPatience));
    }
    {
        Server server("1MiB", named("a"));
        // Its predecessor's record is removed first, which the watch may see or not.
        auto line = next();
        while (line.value("event", "") == "changed" || line.value("event", "") == "gone") line = next();
        EXPECT_THAT(line.value("event", ""), testing::AnyOf("restarted", "new"));
        EXPECT_NE(line.value("incarnation", first), first);
    }
    EXPECT_EQ(await("gone").value("event", ""), "gone");
    redis_.kill();
    EXPECT_TRUE(RedisServer::eventually([&] { return watch.errors().find("store is away") != std::string::npos; }));
    redis_.start();
    Server server("1MiB", named("b"));
    EXPECT_EQ(await("new").value("name", ""), "b");
    watch.child().signal(SIGINT);
    EXPECT_EQ(*watch.child().wait(kPatience), 0);
    EXPECT_THAT(watch.errors(), HasSubstr("store is back"));
}

TEST_F(SegmentsCommand, PruneRemovesOnlyWhatIsProvenDead) {
    Server alive("1MiB", named("alive"));
    {
        Server dead("1MiB", named("dead"));
        dead.process().child().signal(SIGKILL);
        static_cast<void>(dead.process().child().wait(kPatience));
    }
    // One that answers with another incarnation, one that is silent, one of another machine, one that is not ours.
    const auto put = [&](const std::string& name, const std::string& boot, std::uint16_t port,
                         const std::string& host = "127.0.0.1") {
        SegmentDesc desc;
        desc.name = name;
        desc.incarnation = Incarnation::random();
        desc.boot_id = boot;
        desc.control = {host, port};
        redis_.command({"SET", "mooncake/ram/" + name, encodeSegmentDesc(desc), "PX", "30000"});
    };
    const auto live = decodeSegmentDesc(redis_.command({"GET", "mooncake/ram/alive"}));
    ASSERT_TRUE(live);
    put("replaced", readBootId(), live->control.port, live->control.host);
    const auto silent = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    put("silent", readBootId(), SocketAddress::local(silent->get())->port());
    put("elsewhere", "another boot", test::freePort());
    redis_.command({"SET", "mooncake/ram/foreign", R"({"name":"foreign","protocol":"rdma","buffers":[]})"});
    redis_.command({"LPUSH", "mooncake/ram/list", "x"});

    const auto outcome = segments({"--prune"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto names = [&](const char* list) {
        std::vector<std::string> found;
        const auto answer = outcome.json();
        for (const auto& each : answer.value(list, nlohmann::json::array())) {
            found.push_back(each.value("name", ""));
            EXPECT_NE(each.value("why", ""), "");
        }
        std::sort(found.begin(), found.end());
        return found;
    };
    EXPECT_EQ(names("removed"), (std::vector<std::string>{"dead", "replaced"})) << outcome.out;
    EXPECT_EQ(names("kept"), (std::vector<std::string>{"alive", "elsewhere", "foreign", "list", "silent"}))
        << outcome.out;
    EXPECT_EQ(redis_.command({"DBSIZE"}), "5");
}

TEST_F(SegmentsCommand, PruneKeepsWhatIsRenewedAlthoughItsPortRefuses) {
    // As behind a firewall that refuses, or in another network namespace: nobody listens where the record says.
    SegmentDesc desc;
    desc.name = "behind";
    desc.incarnation = Incarnation::random();
    desc.boot_id = readBootId();
    desc.control = {"127.0.0.1", test::freePort()};
    redis_.command({"SET", "mooncake/ram/behind", encodeSegmentDesc(desc), "PX", "6000"});
    desc.name = "dead";
    redis_.command({"SET", "mooncake/ram/dead", encodeSegmentDesc(desc), "PX", "24000"});
    desc.name = "for long";
    redis_.command({"SET", "mooncake/ram/for long", encodeSegmentDesc(desc), "PX", "3600000"});
    std::atomic<bool> ends = false;
    std::thread owner([&] {
        while (!ends) {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
            redis_.command({"PEXPIRE", "mooncake/ram/behind", "6000"});
        }
    });
    const auto outcome = segments({"--prune"});
    ends = true;
    owner.join();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto answer = outcome.json();
    ASSERT_EQ(answer["kept"].size(), 2u) << outcome.out;
    EXPECT_EQ(answer["kept"][0]["name"], "for long");
    EXPECT_EQ(answer["kept"][1]["name"], "behind");
    EXPECT_THAT(answer["kept"][1]["why"].get<std::string>(), HasSubstr("renewed"));
    ASSERT_EQ(answer["removed"].size(), 1u) << outcome.out;
    EXPECT_EQ(answer["removed"][0]["name"], "dead");
    EXPECT_EQ(redis_.command({"EXISTS", "mooncake/ram/behind"}), "1");
}

TEST_F(SegmentsCommand, AControlPortWithoutDescriptorsSaysSoOnce) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    Server server("1MiB", named("a"));
    const auto desc = decodeSegmentDesc(redis_.command({"GET", "mooncake/ram/a"}));
    ASSERT_TRUE(desc);
    const pid_t pid = server.process().child().pid();
    const rlimit none{3, 3};
    ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &none, nullptr), 0);
    // It waits in the backlog, and the server tries again ten times a second.
    const auto client = startConnect(*SocketAddress::fromNumeric(desc->control.host, desc->control.port));
    ASSERT_TRUE(client);
    ASSERT_TRUE(
        RedisServer::eventually([&] { return server.process().errors().find("cannot accept") != std::string::npos; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const std::string errors = server.process().errors();
    EXPECT_EQ(errors.find("cannot accept"), errors.rfind("cannot accept")) << errors;
}

TEST_F(SegmentsCommand, KeysThatHoldNoRecordAreListedAmongTheOthers) {
    Server server("1MiB", named("a"));
    redis_.command({"LPUSH", "mooncake/ram/list", "x"});
    redis_.command({"SET", "mooncake/ram/large", std::string(80u << 20, 'x')});
    const auto outcome = segments();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto list = outcome.json().value("segments", nlohmann::json::array());
    ASSERT_EQ(list.size(), 3u) << outcome.out;
    EXPECT_EQ(list[0]["name"], "a");
    EXPECT_FALSE(list[0].contains("error"));
    EXPECT_THAT(list[1].value("error", ""), HasSubstr("max_descriptor_bytes"));
    EXPECT_THAT(list[2].value("error", ""), HasSubstr("WRONGTYPE"));
    TroupeProcess watch({"segments", "--json", "--watch", "--metadata", redis_.uri()});
    std::vector<std::string> seen;
    while (seen.size() < 3) {
        const auto line = watch.child().readLine(kPatience);
        ASSERT_TRUE(line) << line.status().toString() << watch.errors();
        const auto event = nlohmann::json::parse(*line, nullptr, false);
        if (event.value("event", "") == "new") seen.push_back(event.value("name", ""));
    }
    EXPECT_EQ(seen, (std::vector<std::string>{"a", "large", "list"}));
    EXPECT_THAT(watch.errors(), testing::Not(HasSubstr("away")));
    watch.child().signal(SIGINT);
    EXPECT_EQ(*watch.child().wait(kPatience), 0);
}

TEST_F(SegmentsCommand, WhatCanNeverWorkIsSaidAndNoPasswordWithIt) {
    EXPECT_EQ(runTroupe({"segments", "--metadata", "p2p"}).code, 2);
    EXPECT_EQ(runTroupe({"segments"}).code, 2);
    EXPECT_EQ(segments({"--watch", "--prune"}).code, 2);
    const auto bad = runTroupe({"segments", "--metadata", "redis://u:hunter2@h:x"});
    EXPECT_EQ(bad.code, 2);
    EXPECT_THAT(bad.err, AllOf(HasSubstr("h:x"), testing::Not(HasSubstr("hunter2"))));
    const auto away = runTroupe(
        {"segments", "--json", "-v", "--metadata", "redis://u:hunter2@127.0.0.1:" + std::to_string(test::freePort())});
    EXPECT_EQ(away.code, 1);
    EXPECT_EQ(away.json()["error"]["code"], "ConnectionRefused");
    EXPECT_THAT(away.out + away.err, testing::Not(HasSubstr("hunter2")));
    const auto unnamed = runTroupe({"serve", "--metadata", redis_.uri()});
    EXPECT_EQ(unnamed.code, 2);
    EXPECT_THAT(unnamed.err, HasSubstr("--name"));
}

TEST_F(SegmentsCommand, ThePasswordComesFromEnvironmentOrFileAndIsNotShown) {
    redis_.kill();
    redis_.options().arguments = {"--requirepass", "hunter2"};
    redis_.options().password = "hunter2";
    redis_.start();
    const auto refused = segments();
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.json()["error"]["code"], "AccessDenied");
    const auto by_environment = runTroupe({"segments", "--metadata", redis_.uri()}, {"TROUPE_REDIS_PASSWORD=hunter2"});
    EXPECT_EQ(by_environment.code, 0) << by_environment.err;
    const std::string file = redis_.directory() + "/password";
    std::ofstream(file) << "hunter2\n";
    const auto by_file = runTroupe({"segments", "--metadata", redis_.uri(), "--set", "redis.password_file=" + file});
    EXPECT_EQ(by_file.code, 0) << by_file.err;
    for (const char* json : {"--json", "-v"}) {
        const auto config = runTroupe({"config", json}, {"TROUPE_REDIS_PASSWORD=hunter2"});
        EXPECT_EQ(config.code, 0);
        EXPECT_THAT(config.out + config.err, AllOf(HasSubstr("(set)"), testing::Not(HasSubstr("hunter2"))));
    }
}

TEST_F(SegmentsCommand, TheAclLineOfTheDocsIsEnough) {
    // docs/redis.md, "The ACL line of a restricted user".
    std::ifstream file(TROUPE_REDIS_DOC);
    std::string line;
    std::vector<std::string> rules = {"ACL", "SETUSER", "user"};
    while (std::getline(file, line) && line.find("    user troupe on") == std::string::npos) {
    }
    const std::string prefix = "    user troupe ";
    ASSERT_EQ(line.substr(0, prefix.size()), prefix);
    std::string text = line.substr(prefix.size());
    while (std::getline(file, line) && line.rfind("         ", 0) == 0) text += " " + line;
    std::istringstream words(text);
    for (std::string word; words >> word;) rules.push_back(word);
    ASSERT_EQ(redis_.command(rules), "OK") << text;
    const std::string uri = "redis://user:password@" + redis_.address();
    Server server("1MiB", {"--metadata", uri, "--name", "a"});
    const auto verified =
        runTroupe({"verify", "a", "--seconds", "0.3", "--json", "--metadata", uri, "--name", "verifier"});
    EXPECT_EQ(verified.code, 0) << verified.err << verified.out;
    const auto list = runTroupe({"segments", "--json", "--metadata", uri});
    EXPECT_EQ(list.json()["segments"].size(), 1u) << list.err;
    server.process().child().signal(SIGKILL);
    static_cast<void>(server.process().child().wait(kPatience));
    EXPECT_EQ(runTroupe({"segments", "--prune", "--json", "--metadata", uri}).json()["removed"].size(), 1u);
    // And nothing more is allowed.
    EXPECT_EQ(redis_.command({"ACL", "DRYRUN", "user", "SET", "other", "x"}).find("OK"), std::string::npos);
    EXPECT_THAT(redis_.command({"ACL", "LOG"}), testing::Not(HasSubstr("eval")));
}

}  // namespace
}  // namespace troupe::apps
