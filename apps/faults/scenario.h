#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace troupe::apps::faults {

/// One line of a scenario: "run 500ms", "control 1s", "fault kill", "heal start", "fault loss 5%".
struct Step {
    enum class Kind {
        Run,      ///< The traffic runs for `time`.
        Control,  ///< The traffic to the bystanders alone does: what they are compared with while the fault lasts.
        Fault,    ///< `action` breaks something; times are counted from the first of these on.
        Heal,     ///< `action` mends it; recovery is counted from the last of these on.
    };
    Kind kind = Kind::Run;
    Duration time{};
    std::string action;
    std::string argument;
};

/// What a scenario needs beside this program.
enum class Need {
    Network,  ///< Links to the target that can be broken: a network namespace; by RDMA, the rails.
    Rails,    ///< Two of them, of RDMA devices (rails.h).
    Redis,
};
/// "network" and so on.
const char* nameOf(Need need);

/// What is done to whom, and what is expected of the engine.
struct Scenario {
    std::string name;
    std::string about;  ///< One sentence.
    std::vector<Need> needs;
    std::vector<std::string> settings;         ///< "key=value", of both sides' engines.
    std::chrono::milliseconds deadline{1000};  ///< Of each operation.
    /// Of each operation, from its submit to its end, else it has hung; nothing: its deadline and the drain's bound.
    std::optional<std::chrono::milliseconds> ends_within;
    bool survives = false;    ///< No operation may fail.
    unsigned bystanders = 0;  ///< More targets, that nothing happens to; their traffic counts apart.
    std::vector<Step> steps;
};

/// It asks for faults of the target's own engine ("fault remote ..."), which has to allow that.
bool breaksTargetsEngine(const Scenario& scenario);
/// InvalidArgument says what in it happens to processes, networks and servers of this machine, and so not to a target
/// that somebody else started.
Status playsAnywhere(const Scenario& scenario);

/// InvalidArgument names the line and what would be right.
Result<Step> parseStep(const std::string& line);

const std::vector<Scenario>& builtinScenarios();

/// A JSON array of objects {"name", "about", "needs": ["network", "rails", "redis"], "settings": ["key=value"],
/// "deadline": "1s", "ends_within": "3s", "survives": false, "bystanders": 0, "steps": ["run 500ms", ...]}; all but
/// name and steps may be left out. NotFound; InvalidArgument names the scenario and what is wrong with it.
Result<std::vector<Scenario>> loadScenarios(const std::string& path);

}  // namespace troupe::apps::faults
