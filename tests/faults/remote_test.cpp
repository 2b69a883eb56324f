// `troupe faults --at`: the engine of a `troupe serve` that it did not start.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/apps_process/troupe_process.h"

namespace troupe::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kBreakable = {
    "--set", "faults.enabled=true", "--set", "faults.remote=true", "--transport", "tcp"};

std::vector<std::string> with(std::vector<std::string> first, const std::vector<std::string>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
}

/// Gone when the test ends.
class File {
  public:
    File(const std::string& name, const std::string& text)
        : path_(testing::TempDir() + name + "_" + std::to_string(::getpid())) {
        std::ofstream(path_) << text;
        ::chmod(path_.c_str(), 0600);
    }
    ~File() { std::remove(path_.c_str()); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const std::string& path() const { return path_; }

  private:
    const std::string path_;
};

void awaitSaid(TroupeProcess& process, const std::string& text) {
    while (process.errors().find(text) == std::string::npos)
        ASSERT_EQ(process.child().wait(std::chrono::milliseconds(20)).status().code(), Code::Timeout)
            << process.errors();
}

void expectPlayed(const Outcome& outcome, const std::vector<std::string>& names) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    const auto answer = outcome.json();
    ASSERT_TRUE(answer.is_object()) << outcome.out;
    ASSERT_EQ(answer.value("scenarios", nlohmann::json::array()).size(), names.size()) << outcome.out;
    for (std::size_t i = 0; i < names.size(); ++i) {
        const auto& row = answer["scenarios"][i];
        EXPECT_EQ(row.value("scenario", ""), names[i]);
        EXPECT_TRUE(row.value("ok", false)) << row.dump(2);
        EXPECT_GT(row.value("completed", 0), 0) << row.dump(2);
        EXPECT_EQ(row.value("wrong", 1) + row.value("hung", 1), 0) << row.dump(2);
    }
}

TEST(RemoteFaults, BreakAServerThatAllowsItAndItSaysWhatAndByWhom) {
    Server server("64MiB", kBreakable);
    EXPECT_THAT(server.process().errors(),
                HasSubstr("faults.remote is on: whoever reaches its control port can break this engine"));
    const auto outcome = runTroupe(
        {"faults", "--json", "--at", server.segment(), "--scenario", "target-frozen", "target-corrupt-bytes"});
    expectPlayed(outcome, {"target-frozen", "target-corrupt-bytes"});
    const std::string said = server.process().errors();
    EXPECT_THAT(said, AllOf(HasSubstr("breaks this engine: freeze: data loop 0, for 300 ms"),
                            HasSubstr("breaks this engine: freeze: the control loop, for 300 ms"),
                            HasSubstr("breaks this engine: corrupt: 1 % of payloads, for 60000 ms")));
    EXPECT_THAT(said, AllOf(HasSubstr("faults.remote: 127.0.0.1:"), HasSubstr("(incarnation "),
                            HasSubstr("mended, it was asked for")));
}

TEST(RemoteFaults, OfAClusterWithAKeyAreForWhoHasIt) {
    const File key("key", std::string(64, 'a') + "\n");
    const File other("other", std::string(64, 'b') + "\n");
    Server server("64MiB", with(kBreakable, {"--set", "auth.key_file=" + key.path()}));
    EXPECT_THAT(server.process().errors(), HasSubstr("whoever has the cluster key can break this engine"));
    const std::vector<std::string> command = {"faults",         "--json",     "--at",
                                              server.segment(), "--scenario", "target-frozen"};
    for (const auto& wrong : {command, with(command, {"--set", "auth.key_file=" + other.path()})}) {
        const auto outcome = runTroupe(wrong);
        EXPECT_EQ(outcome.code, 1) << outcome.err;
        EXPECT_THAT(outcome.err, AllOf(HasSubstr("AccessDenied"), HasSubstr("cluster key")));
    }
    EXPECT_THAT(server.process().errors(), Not(HasSubstr("breaks this engine:")));
    expectPlayed(runTroupe(with(command, {"--set", "auth.key_file=" + key.path()})), {"target-frozen"});
    EXPECT_THAT(server.process().errors(), HasSubstr("breaks this engine:"));
}

TEST(RemoteFaults, WhereTheyAreNotAllowedNothingIsBrokenAndTheRemedyIsSaid) {
    for (const std::vector<std::string>& settings :
         {std::vector<std::string>{}, std::vector<std::string>{"--set", "faults.enabled=true"}}) {
        Server server("64MiB", settings);
        const auto outcome =
            runTroupe({"faults", "--json", "--at", server.segment(), "--scenario", "target-control-frames"});
        EXPECT_EQ(outcome.code, 1);
        const auto answer = outcome.json();
        ASSERT_TRUE(answer.is_object()) << outcome.out;
        EXPECT_EQ(answer["error"]["code"], "AccessDenied");
        EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("may not be broken by others"));
        EXPECT_THAT(answer["error"]["try"].get<std::string>(), HasSubstr("--set faults.remote=true"));
        EXPECT_THAT(server.process().errors(),
                    AllOf(HasSubstr("faults.remote is off: 127.0.0.1:"), Not(HasSubstr("breaks this engine:"))));
    }
}

TEST(RemoteFaults, WhatTheTrafficDoesToItselfNeedsNoLeave) {
    Server server("64MiB");
    expectPlayed(runTroupe({"faults", "--json", "--at", server.segment(), "--scenario", "cancel-storm"}),
                 {"cancel-storm"});
}

TEST(RemoteFaults, AreMendedWhenWhoAskedIsKilledInTheMiddleOfOne) {
    Server server("64MiB", kBreakable);
    const File scenario("killed", R"([{"name": "long", "deadline": "1min", "steps": ["run 100ms",
        "fault remote lost-control-frames", "fault remote corrupt-bytes", "run 50s", "heal remote off"]}])");
    {
        TroupeProcess asking({"faults", "--file", scenario.path(), "--at", server.segment(), "--set", "tcp.crc=true"});
        awaitSaid(server.process(), "breaks this engine: corrupt");
        EXPECT_THAT(server.process().errors(), Not(HasSubstr("mended")));
        asking.child().signal(SIGKILL);
        const auto code = asking.child().wait(kPatience);
        ASSERT_TRUE(code) << code.status().toString();
        EXPECT_EQ(*code, 128 + SIGKILL);
    }
    awaitSaid(server.process(), "mended, the connection ended that it was asked for over: what 127.0.0.1:");
    const auto mended = [&](const std::string& what) {
        const std::string said = server.process().errors();
        const auto at = said.find("mended, the connection ended");
        return said.find(what, at == std::string::npos ? said.size() : at) != std::string::npos;
    };
    while (!mended(": corrupt: 1 % of payloads"))
        ASSERT_EQ(server.process().child().wait(std::chrono::milliseconds(20)).status().code(), Code::Timeout);
    EXPECT_TRUE(mended(": lose: 30 % of control frames"));
    // Without checksums, every corrupted byte is found.
    const auto verified = runTroupe({"verify", server.segment(), "--transport", "tcp", "--rounds", "200"});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

TEST(RemoteFaults, ATargetThatIsGoneIsSaid) {
    const auto outcome = runTroupe({"faults", "--at", "127.0.0.1:1", "--scenario", "target-frozen"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("cannot open segment '127.0.0.1:1'"), HasSubstr("try: ")));
}

TEST(RemoteFaults, WhatCannotBeDoneElsewhereIsRefusedBeforeAnythingStarts) {
    const auto refused = [](const std::vector<std::string>& arguments, const std::string& why) {
        const auto outcome = runTroupe(with({"faults"}, arguments));
        EXPECT_EQ(outcome.code, 2) << outcome.err;
        EXPECT_THAT(outcome.err, HasSubstr(why));
        EXPECT_EQ(outcome.out, "");
    };
    const std::vector<std::string> at = {"--at", "127.0.0.1:1"};
    refused(with(at, {"--scenario", "target-frozen", "target-kill"}), "scenario 'target-kill' has the step \"kill\"");
    refused(with(at, {"--scenario", "target-kill"}), "only be done to targets that this program starts");
    refused(with(at, {"--scenario", "loss"}), "needs \"network\"");
    refused(with(at, {"--scenario", "redis-kill"}), "needs \"redis\"");
    refused(with(at, {"--scenario", "one-of-16-dead"}), "has bystanders");
    const File file("file", R"([{"name": "mine", "steps": ["run 1ms", "fault files few"]}])");
    refused(with(at, {"--file", file.path()}), "scenario 'mine' has the step \"files few\"");
    refused({"--at", "nowhere"}, "has no port");
    refused({"--metadata", "redis://127.0.0.1:1"}, "--at");
    refused({"--set", "faults.remote=true"}, "faults.enabled");
    EXPECT_THAT(runTroupe({"faults", "--list", "--at", "127.0.0.1:1"}).out,
                AllOf(HasSubstr("target-frozen"), HasSubstr("cancel-storm"), Not(HasSubstr("target-kill"))));
}

}  // namespace
}  // namespace troupe::apps
