#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/apps_process/troupe_process.h"

namespace troupe::apps {
namespace {

/// What docs/apps.md says of a command, after what it says of all.
std::string pageOf(const std::string& command) {
    std::ifstream file(TROUPE_APPS_PAGE);
    std::ostringstream whole;
    whole << file.rdbuf();
    const std::string text = whole.str();
    const std::string common = text.substr(0, text.find("\n## "));
    const auto begin = text.find("\n## " + command + "\n");
    EXPECT_NE(begin, std::string::npos) << command;
    return begin == std::string::npos ? common : common + text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

/// The names of all fields, in whatever they lie; not of those whose names are devices, locations, codes or events.
void collect(const nlohmann::json& json, std::set<std::string>& names) {
    static const std::set<std::string> kMaps = {"priority_matrix", "reasons", "choice", "left_out", "failed", "counts"};
    if (json.is_array())
        for (const auto& each : json) collect(each, names);
    if (!json.is_object()) return;
    for (const auto& [name, value] : json.items()) {
        names.insert(name);
        if (kMaps.count(name) == 0) collect(value, names);
    }
}

void expectDescribed(const std::string& command, const nlohmann::json& json) {
    ASSERT_TRUE(json.is_object()) << command;
    std::set<std::string> names;
    collect(json, names);
    EXPECT_FALSE(names.empty());
    // What is in quarantine is said once.
    const std::string page = pageOf(command) + (names.count("quarantine") != 0 ? pageOf("verify") : "");
    for (const std::string& name : names)
        EXPECT_TRUE(page.find("`" + name + "`") != std::string::npos ||
                    page.find("\"" + name + "\"") != std::string::npos)
            << "docs/apps.md does not say what " << name << " of " << command << " is";
}

TEST(JsonFields, AreAllInTheDocumentation) {
    Server server("64MiB");
    const std::string segment = server.segment();
    const std::string trace = testing::TempDir() + "troupe_fields_" + std::to_string(::getpid());
    const std::vector<std::vector<std::string>> commands = {
        {"verify", segment, "--rounds", "10"},
        {"bench", segment, "--duration", "50ms", "--warmup", "0", "--footprint", "4MiB"},
        {"replay", TROUPE_SMALL_TRACE, segment, "--requests", "5", "--as-fast-as-possible"},
        {"trace-gen", "--requests", "3", "-o", trace},
        {"explain", segment},
        {"topo"},
        {"sim", "--seeds", "1"},
        {"sim", "--seed", "1"},
        {"faults", "--scenario", "deadline-storm", "--rounds", "1"},
        {"config"}};
    for (auto command : commands) {
        command.emplace_back("--json");
        const auto outcome = runTroupe(command);
        EXPECT_EQ(outcome.code, 0) << command[0] << ": " << outcome.err;
        expectDescribed(command[0], outcome.json());
    }
    ::unlink(trace.c_str());
    expectDescribed("serve", server.announcement());
}

TEST(JsonFields, OfABenchThatFailsAtOnceAreAnEmptyListOfRows) {
    // Port 1: nobody listens there.
    const auto outcome = runTroupe({"bench", "127.0.0.1:1", "--json"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.json()["ok"], false);
    EXPECT_EQ(outcome.json()["rows"], nlohmann::json::array()) << outcome.out;
}

}  // namespace
}  // namespace troupe::apps
