// That `troupe faults` says so when the engine hangs: here it is told of a deadline that is far away, and loses what
// would end an operation before it.

#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/apps_process/troupe_process.h"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

/// What ends at all ends within ten seconds, however loaded the machine is.
nlohmann::json play(const std::string& fault, int expected) {
    const std::string path = testing::TempDir() + "hang_" + std::to_string(::getpid()) + ".json";
    std::ofstream(path) << R"([{"name": "hang", "settings": ["faults.enabled=true"], "deadline": "1min",
        "ends_within": "10s", "steps": ["run 100ms", "fault )"
                        << fault << R"(", "run 100ms", "heal inject off", "run 100ms"]}])";
    const Outcome outcome = runTroupe({"faults", "--file", path, "--json"});
    std::remove(path.c_str());
    EXPECT_EQ(outcome.code, expected) << outcome.out << outcome.err;
    const auto answer = outcome.json();
    if (!answer.is_object() || answer.value("scenarios", nlohmann::json::array()).size() != 1) {
        ADD_FAILURE() << outcome.out << outcome.err;
        return nlohmann::json::object();
    }
    return answer["scenarios"][0];
}

TEST(FaultsHang, AnOperationThatNeverEndsIsOneThatHungAndTheScenarioIsBroken) {
    const auto row = play("inject one-lost-completion", 1);
    EXPECT_EQ(row.value("hung", 0), 1) << row.dump(2);
    EXPECT_FALSE(row.value("ok", true)) << row.dump(2);
    EXPECT_THAT(row.dump(), HasSubstr("1 operation had not ended 10000 ms after its submit"));
}

TEST(FaultsHang, WhatEndsInTimeIsNone) {
    const auto row = play("inject late-completions", 0);
    EXPECT_EQ(row.value("hung", -1), 0) << row.dump(2);
    EXPECT_TRUE(row.value("ok", false)) << row.dump(2);
}

}  // namespace
}  // namespace troupe::apps
