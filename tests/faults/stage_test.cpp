// Which failures of a scenario are the machine's, and which may be the engine's.

#include "apps/faults/stage.h"

#include <gmock/gmock.h>

#include <initializer_list>

#include "tests/support/engine_pair.h"

namespace troupe::apps::faults {
namespace {

/// How a scenario of these steps ends, and whether it is the machine's fault.
struct End {
    Status status;
    bool machine_lacks = false;
};

End endOf(std::initializer_list<const char*> steps, std::vector<Need> needs = {}) {
    const auto served = test::startEngine();
    test::Buffer memory(8u << 20);
    const Status registered = served->registerLocalMemory(memory.data(), memory.size());
    EXPECT_TRUE(registered) << registered.toString();
    Scenario scenario;
    scenario.name = "mine";
    scenario.needs = std::move(needs);
    for (const char* line : steps) scenario.steps.push_back(*parseStep(line));
    Stage::Options options;
    options.engine.command = "faults";
    options.engine.transport = "tcp";
    options.at = served->localSegmentName();
    Stage stage(scenario, options, [] { return true; });
    const auto round = stage.run();
    return {round.status(), stage.machineLacks()};
}

TEST(FaultStage, WhatItNeedsAndIsNotThereIsTheMachinesFault) {
    const End end = endOf({"fault kill"}, {Need::Rails});
    EXPECT_EQ(end.status.code(), Code::Unsupported) << end.status.toString();
    EXPECT_TRUE(end.machine_lacks);
}

TEST(FaultStage, AnErrorAfterAFaultIsNotTheMachinesFaultWhateverItsCode) {
    // The engine says so itself, as it may not be broken.
    const End end = endOf({"fault storm cancel", "run 50ms", "fault inject posts"});
    EXPECT_EQ(end.status.code(), Code::AccessDenied) << end.status.toString();
    EXPECT_FALSE(end.machine_lacks);
}

}  // namespace
}  // namespace troupe::apps::faults
