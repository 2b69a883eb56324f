#include "apps/faults/scenario.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace troupe::apps::faults {
namespace {

using testing::HasSubstr;

TEST(FaultStep, ReadsAWaitAFaultAndItsEnd) {
    const auto run = parseStep("run 500ms");
    ASSERT_TRUE(run);
    EXPECT_EQ(run->kind, Step::Kind::Run);
    EXPECT_EQ(run->time, std::chrono::milliseconds(500));
    const auto fault = parseStep("fault storm cancel");
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->kind, Step::Kind::Fault);
    EXPECT_EQ(fault->action, "storm");
    EXPECT_EQ(fault->argument, "cancel");
    const auto control = parseStep("control 1s");
    ASSERT_TRUE(control);
    EXPECT_EQ(control->kind, Step::Kind::Control);
    EXPECT_EQ(control->time, std::chrono::seconds(1));
    const auto heal = parseStep("heal start");
    ASSERT_TRUE(heal);
    EXPECT_EQ(heal->kind, Step::Kind::Heal);
}

TEST(FaultStep, SaysWhatIsWrongWithALine) {
    for (const auto& [line, why] :
         std::initializer_list<std::pair<const char*, const char*>>{{"", "it is \"run TIME\""},
                                                                    {"run", "it is \"run TIME\""},
                                                                    {"run fast", "fast"},
                                                                    {"break kill", "it is \"run TIME\""},
                                                                    {"fault explode", "there are kill, start"},
                                                                    {"fault kill now", "kill takes no argument"},
                                                                    {"fault drop", "drop takes on or off"},
                                                                    {"fault drop on now", "it is \"run TIME\""},
                                                                    {"fault drop maybe", "on or off, not 'maybe'"},
                                                                    {"fault redis or", "readonly, writable or slow"},
                                                                    {"fault storm rain", "cancel, unregister or off"},
                                                                    {"fault loss much", "as in 5%; not 'much'"},
                                                                    {"fault loss 101%", "as in 5%; not '101%'"},
                                                                    {"fault peers few", "1 to 1000; not 'few'"},
                                                                    {"fault peers 0", "1 to 1000; not '0'"},
                                                                    {"fault inject pots", "it is posts, late-posts"},
                                                                    {"fault remote pots", "it is posts"}}) {
        const auto step = parseStep(line);
        ASSERT_FALSE(step) << line;
        EXPECT_EQ(step.status().code(), Code::InvalidArgument);
        EXPECT_THAT(step.status().message(), HasSubstr(why));
    }
}

TEST(FaultScenarios, TheBuiltInOnesAreTheTestsAndEachHasAFaultAndAnEnd) {
    std::string names;
    std::string names_of_rdma;
    for (const Scenario& scenario : builtinScenarios()) {
        if (scenario.survives || scenario.bystanders > 0) {
            EXPECT_GE(scenario.deadline, std::chrono::seconds(10)) << scenario.name << ": a loaded machine is no fault";
        }
        std::string& list = scenario.needs == std::vector<Need>{Need::Rails} ? names_of_rdma : names;
        list += (list.empty() ? "" : " ") + scenario.name;
        const auto has = [&](Step::Kind kind) {
            return std::any_of(scenario.steps.begin(), scenario.steps.end(),
                               [kind](const Step& step) { return step.kind == kind; });
        };
        EXPECT_TRUE(has(Step::Kind::Fault) && has(Step::Kind::Heal)) << scenario.name;
        EXPECT_FALSE(scenario.about.empty()) << scenario.name;
    }
    EXPECT_EQ(names, TROUPE_SCENARIOS);
    EXPECT_EQ(names_of_rdma, TROUPE_SCENARIOS_OF_RDMA);
}

TEST(FaultScenarios, AnywhereThoseArePlayedThatBreakNothingOfThisMachine) {
    std::string names;
    for (const Scenario& scenario : builtinScenarios())
        if (playsAnywhere(scenario)) names += scenario.name + " ";
    EXPECT_EQ(names,
              "deadline-storm cancel-storm unregister-storm one-path-lost target-frozen target-control-frames "
              "target-corrupt-bytes ");
    Scenario scenario;
    scenario.name = "mine";
    const auto why = [&] {
        const Status status = playsAnywhere(scenario);
        EXPECT_EQ(status.code(), Code::InvalidArgument);
        return status.message();
    };
    scenario.steps = {*parseStep("run 1ms"), *parseStep("fault remote posts"), *parseStep("heal redis start")};
    EXPECT_THAT(why(), HasSubstr("scenario 'mine' has the step \"redis start\""));
    scenario.steps.pop_back();
    EXPECT_TRUE(playsAnywhere(scenario));
    EXPECT_TRUE(breaksTargetsEngine(scenario));
    scenario.bystanders = 1;
    EXPECT_THAT(why(), HasSubstr("bystanders"));
    scenario.needs = {Need::Network};
    EXPECT_THAT(why(), HasSubstr("needs \"network\""));
}

class ScenarioFile : public testing::Test {
  protected:
    Result<std::vector<Scenario>> load(const std::string& text) {
        std::ofstream(path_) << text;
        return loadScenarios(path_);
    }
    ~ScenarioFile() override { std::remove(path_.c_str()); }

    const std::string path_ = fmt::format("{}/scenarios_{}", std::filesystem::temp_directory_path().string(),
                                          testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ScenarioFile, IsReadWithAllItsKeys) {
    const auto all =
        load(R"([{"name": "a", "about": "b", "needs": ["network", "redis", "rails"], "settings": ["tcp.lanes=2"],
        "deadline": "3s", "ends_within": "4s", "survives": true, "bystanders": 2, "steps": ["run 1ms", "fault loss 5%"]}])");
    ASSERT_TRUE(all) << all.status().toString();
    ASSERT_EQ(all->size(), 1u);
    const Scenario& only = all->front();
    EXPECT_EQ(only.name, "a");
    EXPECT_EQ(only.about, "b");
    EXPECT_EQ(only.needs, (std::vector<Need>{Need::Network, Need::Redis, Need::Rails}));
    EXPECT_EQ(only.settings, std::vector<std::string>{"tcp.lanes=2"});
    EXPECT_EQ(only.deadline, std::chrono::seconds(3));
    EXPECT_EQ(only.ends_within, std::chrono::seconds(4));
    EXPECT_TRUE(only.survives);
    EXPECT_EQ(only.bystanders, 2u);
    ASSERT_EQ(only.steps.size(), 2u);
    EXPECT_EQ(only.steps[1].argument, "5%");
}

TEST_F(ScenarioFile, OneThatIsWrongSaysWhichScenarioAndWhy) {
    const char* const good = R"({"name": "good", "steps": ["run 1ms"]})";
    for (const auto& [bad, why] : std::initializer_list<std::pair<const char*, const char*>>{
             {"7", "not a JSON object"},
             {R"({"steps": ["run 1ms"]})", "without a \"name\""},
             {R"({"name": "x"})", "no \"steps\""},
             {R"({"name": "x", "steps": ["run"]})", "step \"run\""},
             {R"({"name": "x", "steps": "run 1ms"})", "\"steps\" is"},
             {R"({"name": "x", "steps": ["run 1ms"], "survive": true})", "no key \"survive\""},
             {R"({"name": "x", "steps": ["run 1ms"], "bystanders": "many"})", "\"bystanders\" is"},
             {R"({"name": "x", "steps": ["run 1ms"], "needs": ["gpu"]})", "\"gpu\"; there are"},
             {R"({"name": "x", "steps": ["run 1ms"], "deadline": "soon"})", "\"deadline\""},
             {R"({"name": "x", "steps": ["run 1ms"], "ends_within": "soon"})", "\"ends_within\""},
             {R"({"name": "x", "steps": ["run 1ms"], "bystanders": -1})", "whole number, 256 at most"},
             {R"({"name": "x", "steps": ["run 1ms"], "bystanders": 257})", "whole number, 256 at most"},
             {R"({"name": "x", "steps": ["run 1ms"], "settings": ["tcp.lanes"]})", "no \"key=value\""},
             {R"({"name": "x", "steps": ["run 1ms"], "settings": ["tcp.lane=2"]})", "tcp.lanes"},
             {R"({"name": "x", "steps": ["run 1ms"], "settings": ["tcp.lanes=many"]})", "many"},
             {R"({"name": "x", "steps": ["fault link down"]})", "\"fault link down\": it needs \"network\""},
             {R"({"name": "x", "steps": ["fault rail down"], "needs": ["network"]})", "it needs \"rails\""},
             {R"({"name": "x", "steps": ["heal redis start"]})", "it needs \"redis\""},
             {R"({"name": "x", "steps": ["fault kill", "fault stop"]})", "the target was killed"},
             {R"({"name": "x", "steps": ["fault kill", "control 1s"]})", "before the first fault"},
             {R"({"name": "x", "steps": ["fault initiator start"]})", "\"bystanders\" is 0"},
             {R"({"name": "x", "steps": ["fault initiator kill"], "bystanders": 1})", "start, and then kill"}}) {
        const auto all = load(fmt::format("[{}, {}]", good, bad));
        ASSERT_FALSE(all) << bad;
        EXPECT_EQ(all.status().code(), Code::InvalidArgument);
        EXPECT_THAT(all.status().message(), HasSubstr("scenario 2"));
        EXPECT_THAT(all.status().message(), HasSubstr(why));
    }
    EXPECT_FALSE(load("{"));
    EXPECT_FALSE(load("[]"));
    EXPECT_EQ(loadScenarios("/no/such/file").status().code(), Code::NotFound);
    const Status folder = loadScenarios(std::filesystem::temp_directory_path()).status();
    EXPECT_EQ(folder.code(), Code::InvalidArgument);
    EXPECT_THAT(folder.message(), HasSubstr(std::filesystem::temp_directory_path().string() + ": it is a directory"));
}

}  // namespace
}  // namespace troupe::apps::faults
