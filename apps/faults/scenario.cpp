#include "apps/faults/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "apps/faults/injection.h"
#include "base/config.h"

namespace troupe::apps::faults {

namespace {

/// What an action takes.
struct ActionRule {
    std::string_view name;
    std::string_view argument;  ///< For people; empty: nothing.
    /// Whether an argument is one of those; null: the words of `argument`, which are separated by commas and "or".
    Status (*check)(const std::string& argument) = nullptr;
};

/// Most of the short-lived targets of a step, and of bystanders: each is a process.
constexpr unsigned kMostTargets = 1000;
constexpr unsigned kMostBystanders = 256;

Status notA(const std::string& argument) { return {Code::InvalidArgument, "not '" + argument + "'"}; }

/// "5%", "0.1%", as tc takes it.
Status checkPercentage(const std::string& argument) {
    double percent = 0;
    const char* const end = argument.data() + argument.size();
    const auto [rest, error] = std::from_chars(argument.data(), end, percent);
    const bool right = error == std::errc() && end - rest == 1 && *rest == '%' && percent >= 0 && percent <= 100;
    return right ? Status::ok() : notA(argument);
}

Status checkTargets(const std::string& argument) {
    unsigned count = 0;
    const char* const end = argument.data() + argument.size();
    const auto [rest, error] = std::from_chars(argument.data(), end, count);
    return error == std::errc() && rest == end && count >= 1 && count <= kMostTargets ? Status::ok() : notA(argument);
}

Status checkInjection(const std::string& argument) { return injection(argument).status(); }

// What Stage carries out.
constexpr std::array kActions = {
    ActionRule{"kill", ""},
    ActionRule{"start", ""},
    ActionRule{"stop", ""},
    ActionRule{"continue", ""},
    ActionRule{"drop", "on or off"},
    ActionRule{"reset", "on or off"},
    ActionRule{"link", "down or up"},
    ActionRule{"loss", "a percentage, as in 5%", checkPercentage},
    ActionRule{"rail", "down or up"},
    ActionRule{"device", "delete"},
    ActionRule{"files", "few or many"},
    ActionRule{"memory", "few or many"},
    ActionRule{"initiator", "start or kill"},
    ActionRule{"peers", "a number of short-lived targets, 1 to 1000", checkTargets},
    ActionRule{"open", "stopped"},
    ActionRule{"storm", "deadline, cancel, unregister or off"},
    ActionRule{"inject", "a fault of the engine's own, or off", checkInjection},
    ActionRule{"remote", "a fault of the target's engine, or off", checkInjection},
    ActionRule{"redis", "kill, start, stop, continue, forget, readonly, writable or slow"},
};

/// InvalidArgument names the choices.
Status checkArgument(const ActionRule& rule, const std::string& argument) {
    const Status wrong(Code::InvalidArgument, fmt::format("{} takes {}", rule.name, rule.argument));
    if (rule.argument.empty() != argument.empty())
        return rule.argument.empty() ? Status(Code::InvalidArgument, fmt::format("{} takes no argument", rule.name))
                                     : wrong;
    if (argument.empty()) return Status::ok();
    if (rule.check != nullptr) {
        const Status checked = rule.check(argument);
        return checked ? checked : Status(wrong.code(), wrong.message() + "; " + checked.message());
    }
    std::istringstream words{std::string(rule.argument)};
    for (std::string word; words >> word;) {
        if (word.back() == ',') word.pop_back();
        if (word != "or" && word == argument) return Status::ok();
    }
    return {wrong.code(), wrong.message() + ", not '" + argument + "'"};
}

std::string knownActions() {
    std::string all;
    for (const ActionRule& rule : kActions) all += (all.empty() ? "" : ", ") + std::string(rule.name);
    return all;
}

Scenario make(std::string name, std::string about, std::vector<std::string> steps) {
    Scenario scenario;
    scenario.name = std::move(name);
    scenario.about = std::move(about);
    for (const std::string& line : steps) scenario.steps.push_back(*parseStep(line));
    return scenario;
}

std::vector<Scenario> makeBuiltin() {
    std::vector<Scenario> all;
    const auto add = [&](std::string name, std::string about, std::vector<std::string> steps) -> Scenario& {
        return all.emplace_back(make(std::move(name), std::move(about), std::move(steps)));
    };
    add("target-kill", "the target is killed (kill -9), and started again on its port",
        {"run 300ms", "fault kill", "run 500ms", "heal start", "run 500ms"});
    add("target-restart", "the target is killed, and back on its port at once",
        {"run 300ms", "fault kill", "heal start", "run 500ms"});
    add("target-stop", "the target is stopped (SIGSTOP) for 3 s",
        {"run 300ms", "fault stop", "run 3s", "heal continue", "run 500ms"});
    Scenario& initiator = add("initiator-kill", "another process is killed in the middle of its writes to a target",
                              {"run 300ms", "fault initiator start", "run 500ms", "fault initiator kill", "run 300ms",
                               "heal start", "run 500ms"});
    initiator.survives = true;
    initiator.bystanders = 1;
    Scenario& bystanders =
        add("one-of-16-dead", "one of 16 targets is killed while all are used",
            {"run 300ms", "control 1s", "run 300ms", "fault kill", "run 1s", "heal start", "run 300ms"});
    bystanders.bystanders = 15;
    add("short-lived-peers", "50 targets come, are used once, and are killed",
        {"run 200ms", "fault peers 50", "heal start", "run 300ms"})
        .survives = true;
    add("open-stopped", "a new target is stopped (SIGSTOP) and then opened",
        {"run 300ms", "fault open stopped", "heal start", "run 300ms"})
        .survives = true;
    add("few-files", "the target has no descriptors left for 2 s",
        {"run 300ms", "fault files few", "run 2s", "heal files many", "run 300ms"})
        .survives = true;
    // What is canceled has its connection made anew, and memory for it.
    add("few-memory", "the target gets no more memory for 2 s, while what runs is canceled at random",
        {"run 300ms", "fault memory few", "fault storm cancel", "run 2s", "heal storm off", "heal memory many",
         "run 300ms"});
    add("deadline-storm", "deadlines of 0 to 3 ms for 2 s",
        {"run 300ms", "fault storm deadline", "run 2s", "heal storm off", "run 300ms"});
    add("cancel-storm", "what runs is canceled at random for 2 s",
        {"run 300ms", "fault storm cancel", "run 2s", "heal storm off", "run 300ms"});
    add("unregister-storm", "the local memory is unregistered and registered again and again for 2 s",
        {"run 300ms", "fault storm unregister", "run 2s", "heal storm off", "run 300ms"});
    Scenario& path =
        add("one-path-lost", "one of two paths to the target is lost for 1 s (a fault of the engine's own)",
            {"run 500ms", "fault inject one-of-two-paths", "run 1s", "heal inject off", "run 300ms"});
    path.settings = {"data_loops=2", "faults.enabled=true"};
    path.survives = true;

    Scenario& frozen = add("target-frozen", "the target's loops stand still for 300 ms, by a fault of its engine",
                           {"run 300ms", "fault remote frozen-loop", "fault remote frozen-control-loop", "run 1s",
                            "heal remote off", "run 300ms"});
    frozen.survives = true;
    add("target-control-frames", "a third of what the target sends on control connections ends them, for 2 s",
        {"run 300ms", "fault remote control-frames", "run 2s", "heal remote off", "run 500ms"})
        .settings = {"keepalive_interval=100ms"};
    add("target-corrupt-bytes", "one piece in a hundred of what the target receives has a wrong byte for 2 s",
        {"run 300ms", "fault remote corrupt-bytes", "run 2s", "heal remote off", "run 300ms"})
        .settings = {"tcp.crc=true"};

    const auto addNetwork = [&](std::string name, std::string about, std::vector<std::string> steps) -> Scenario& {
        Scenario& scenario = add(std::move(name), std::move(about), std::move(steps));
        scenario.needs = {Need::Network};
        return scenario;
    };
    addNetwork("connections-reset", "every packet to the target is answered with a reset for 100 ms",
               {"run 300ms", "fault reset on", "run 100ms", "heal reset off", "run 1s"});
    Scenario& silent = addNetwork("silent-partition", "packets to the target are dropped silently for 2 s",
                                  {"run 300ms", "fault drop on", "run 2s", "heal drop off", "run 2s"});
    silent.settings = {"keepalive_interval=60ms", "keepalive_timeout=200ms"};
    silent.deadline = std::chrono::seconds(10);
    // By the keepalive, that is, and not by the deadline.
    silent.ends_within = std::chrono::seconds(3);
    addNetwork("paths-down", "the only link to the target is down for 5 s",
               {"run 300ms", "fault link down", "run 5s", "heal link up", "run 2s"});
    addNetwork("light-loss", "one packet in a hundred is lost for 3 s",
               {"run 300ms", "fault loss 1%", "run 3s", "heal loss 0%", "run 1s"})
        .deadline = std::chrono::seconds(5);
    addNetwork("loss", "one packet in twenty is lost for 3 s",
               {"run 300ms", "fault loss 5%", "run 3s", "heal loss 0%", "run 1s"})
        .deadline = std::chrono::seconds(5);

    const auto addRails = [&](std::string name, std::string about, std::vector<std::string> steps) {
        Scenario& scenario = add(std::move(name), std::move(about), std::move(steps));
        scenario.needs = {Need::Rails};
        scenario.survives = true;
    };
    addRails("rail-lost", "by RDMA, one of two links to the target is down for 1 s",
             {"run 500ms", "fault rail down", "run 1s", "heal rail up", "run 500ms"});
    addRails("device-deleted", "by RDMA, one of two devices is deleted while it is used",
             {"run 500ms", "fault device delete", "run 1s", "heal start", "run 500ms"});

    const auto addRedis = [&](std::string name, std::string about, std::vector<std::string> steps) {
        Scenario& scenario = add(std::move(name), std::move(about), std::move(steps));
        scenario.needs = {Need::Redis};
        scenario.survives = true;
    };
    addRedis("redis-kill", "Redis is killed, and back empty after 2 s",
             {"run 300ms", "fault redis kill", "run 2s", "heal redis start", "run 1s"});
    addRedis("redis-stop", "Redis is stopped (SIGSTOP) for 5 s",
             {"run 300ms", "fault redis stop", "run 5s", "heal redis continue", "run 1s"});
    addRedis("redis-amnesia", "Redis forgets everything",
             {"run 300ms", "fault redis forget", "heal redis start", "run 2s"});
    addRedis("redis-readonly", "Redis is a replica that takes no writes for 2 s",
             {"run 300ms", "fault redis readonly", "run 2s", "heal redis writable", "run 1s"});
    addRedis("redis-slow", "Redis answers nothing for 2 s",
             {"run 300ms", "fault redis slow", "run 2s", "heal redis start", "run 1s"});
    // Where operations may not fail, or are compared with others, it is the fault that is to end them, and not a
    // machine that does something else for a second.
    for (Scenario& scenario : all)
        if (scenario.survives || scenario.bystanders > 0)
            scenario.deadline = std::max(scenario.deadline, std::chrono::milliseconds(10'000));
    return all;
}

template <class T>
Status take(const nlohmann::json& object, const char* key, T& value) {
    if (!object.contains(key)) return Status::ok();
    try {
        value = object.at(key).get<T>();
    } catch (const nlohmann::json::exception&) {
        return {Code::InvalidArgument,
                fmt::format("\"{}\" is {}, which has the wrong type", key, object.at(key).dump().substr(0, 80))};
    }
    return Status::ok();
}

/// Each is a setting with a value that it may have.
Status checkSettings(const std::vector<std::string>& settings) {
    ConfigLoader loader;
    for (const std::string& setting : settings) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos)
            return {Code::InvalidArgument,
                    "\"settings\" has \"" + setting + "\", which is no \"key=value\", as in \"tcp.lanes=2\""};
        if (const Status set = loader.set(setting.substr(0, equals), setting.substr(equals + 1), "\"settings\""); !set)
            return set;
    }
    return Status::ok();
}

/// Whether the steps can be done one after the other, with what the scenario says that it needs.
Status checkSteps(const Scenario& scenario) {
    const auto has = [&](Need need) {
        return std::find(scenario.needs.begin(), scenario.needs.end(), need) != scenario.needs.end();
    };
    bool target_runs = true;
    bool initiator_runs = false;
    bool has_fault = false;
    for (const Step& step : scenario.steps) {
        const std::string& action = step.action;
        const auto refuse = [&](const std::string& why) {
            return Status(Code::InvalidArgument,
                          fmt::format("step \"{} {}{}{}\": {}", step.kind == Step::Kind::Fault ? "fault" : "heal",
                                      action, step.argument.empty() ? "" : " ", step.argument, why));
        };
        const auto needs = [&](const char* what) {
            return refuse(fmt::format("it needs {}, which \"needs\" does not have", what));
        };
        if (step.kind == Step::Kind::Run) continue;
        if (step.kind == Step::Kind::Control) {
            if (has_fault) return {Code::InvalidArgument, "step \"control\": it comes before the first fault"};
            continue;
        }
        has_fault = has_fault || step.kind == Step::Kind::Fault;
        if ((action == "drop" || action == "reset") && !has(Need::Network)) return needs("\"network\"");
        if ((action == "link" || action == "loss") && !has(Need::Network) && !has(Need::Rails))
            return needs("\"network\" (by RDMA \"rails\" will do)");
        if ((action == "rail" || action == "device") && !has(Need::Rails)) return needs("\"rails\"");
        if (action == "redis" && !has(Need::Redis)) return needs("\"redis\"");
        if ((action == "stop" || action == "continue" || action == "files" || action == "memory") && !target_runs)
            return refuse("the target was killed and not started again");
        if (action == "kill" || action == "start") target_runs = action == "start";
        if (action != "initiator") continue;
        if (scenario.bystanders == 0) return refuse("it works on a bystander, and \"bystanders\" is 0");
        if (initiator_runs == (step.argument == "start")) return refuse("it is start, and then kill");
        initiator_runs = !initiator_runs;
    }
    return Status::ok();
}

Result<Scenario> readScenario(const nlohmann::json& object) {
    if (!object.is_object()) return {Code::InvalidArgument, "not a JSON object: " + object.dump().substr(0, 80)};
    static constexpr std::array kKeys = {"name",        "about",    "needs",      "settings", "deadline",
                                         "ends_within", "survives", "bystanders", "steps"};
    for (const auto& [key, value] : object.items())
        if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
            return {Code::InvalidArgument, "no key \"" + key + "\" of a scenario"};
    Scenario scenario;
    std::vector<std::string> needs;
    std::vector<std::string> steps;
    std::string deadline;
    std::string ends_within;
    for (const Status& taken :
         {take(object, "name", scenario.name), take(object, "about", scenario.about), take(object, "needs", needs),
          take(object, "settings", scenario.settings), take(object, "deadline", deadline),
          take(object, "ends_within", ends_within), take(object, "survives", scenario.survives),
          take(object, "bystanders", scenario.bystanders), take(object, "steps", steps)})
        if (!taken) return taken;
    if (scenario.name.empty()) return {Code::InvalidArgument, "a scenario without a \"name\""};
    // As a number without a sign -1 would be four thousand million.
    if (object.contains("bystanders") &&
        (!object["bystanders"].is_number_unsigned() || object["bystanders"].get<std::uint64_t>() > kMostBystanders))
        return {Code::InvalidArgument, fmt::format("\"bystanders\" is {}; it is a whole number, {} at most",
                                                   object["bystanders"].dump().substr(0, 80), kMostBystanders)};
    if (const Status known = checkSettings(scenario.settings); !known) return known;
    for (const std::string& need : needs) {
        static constexpr std::array kNeeds = {Need::Network, Need::Rails, Need::Redis};
        const auto known = std::find_if(kNeeds.begin(), kNeeds.end(), [&](Need each) { return need == nameOf(each); });
        if (known == kNeeds.end())
            return {Code::InvalidArgument,
                    "\"needs\" has \"" + need + "\"; there are \"network\", \"rails\" and \"redis\""};
        scenario.needs.push_back(*known);
    }
    if (!deadline.empty()) {
        const auto time = parseTime(deadline);
        if (!time) return time.status().withContext("\"deadline\"");
        scenario.deadline = std::chrono::ceil<std::chrono::milliseconds>(*time);
    }
    if (!ends_within.empty()) {
        const auto time = parseTime(ends_within);
        if (!time) return time.status().withContext("\"ends_within\"");
        scenario.ends_within = std::chrono::ceil<std::chrono::milliseconds>(*time);
    }
    if (steps.empty()) return {Code::InvalidArgument, "no \"steps\""};
    for (const std::string& line : steps) {
        auto step = parseStep(line);
        if (!step) return step.status();
        scenario.steps.push_back(std::move(*step));
    }
    if (const Status possible = checkSteps(scenario); !possible) return possible;
    return scenario;
}

}  // namespace

const char* nameOf(Need need) {
    switch (need) {
        case Need::Network: return "network";
        case Need::Rails: return "rails";
        case Need::Redis: return "redis";
    }
    return "unknown";
}

bool breaksTargetsEngine(const Scenario& scenario) {
    return std::any_of(scenario.steps.begin(), scenario.steps.end(),
                       [](const Step& step) { return step.action == "remote"; });
}

Status playsAnywhere(const Scenario& scenario) {
    const auto refuse = [&](const std::string& what) {
        return Status(
            Code::InvalidArgument,
            fmt::format("scenario '{}' {}, which can only be done to targets that this program starts on this "
                        "machine; elsewhere there are inject, remote and storm",
                        scenario.name, what));
    };
    if (!scenario.needs.empty()) return refuse(fmt::format("needs \"{}\"", nameOf(scenario.needs.front())));
    if (scenario.bystanders > 0) return refuse("has bystanders");
    for (const Step& step : scenario.steps) {
        const bool is_fault = step.kind == Step::Kind::Fault || step.kind == Step::Kind::Heal;
        if (is_fault && step.action != "inject" && step.action != "remote" && step.action != "storm")
            return refuse(
                fmt::format("has the step \"{}{}{}\"", step.action, step.argument.empty() ? "" : " ", step.argument));
    }
    return Status::ok();
}

Result<Step> parseStep(const std::string& line) {
    std::istringstream words(line);
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    const auto refuse = [&](const std::string& why) {
        return Status(Code::InvalidArgument, "step \"" + line + "\": " + why);
    };
    Step step;
    if (all.size() == 2 && (all[0] == "run" || all[0] == "control")) {
        const auto time = parseTime(all[1]);
        if (!time) return refuse(time.status().message());
        step.kind = all[0] == "run" ? Step::Kind::Run : Step::Kind::Control;
        step.time = *time;
        return step;
    }
    if (all.size() < 2 || all.size() > 3 || (all[0] != "fault" && all[0] != "heal"))
        return refuse("it is \"run TIME\", \"control TIME\", \"fault ACTION\" or \"heal ACTION\"");
    step.kind = all[0] == "fault" ? Step::Kind::Fault : Step::Kind::Heal;
    step.action = all[1];
    if (all.size() == 3) step.argument = all[2];
    const auto rule =
        std::find_if(kActions.begin(), kActions.end(), [&](const auto& each) { return each.name == step.action; });
    if (rule == kActions.end()) return refuse("no such action; there are " + knownActions());
    if (const Status right = checkArgument(*rule, step.argument); !right) return refuse(right.message());
    return step;
}

const std::vector<Scenario>& builtinScenarios() {
    static const std::vector<Scenario> all = makeBuiltin();
    return all;
}

Result<std::vector<Scenario>> loadScenarios(const std::string& path) {
    const std::string origin = "scenario file " + path;
    // A stream over a directory opens, and its buffer throws at the first read.
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored))
        return {Code::InvalidArgument, origin + ": it is a directory; give a file"};
    errno = 0;
    std::ifstream file(path);
    if (!file)
        return {errno == ENOENT ? Code::NotFound : Code::InvalidArgument,
                fmt::format("{}: {}", origin, std::strerror(errno))};
    nlohmann::json json;
    try {
        json = nlohmann::json::parse(file, nullptr, false);
    } catch (const std::ios_base::failure& error) {
        return {Code::InvalidArgument, fmt::format("{}: it cannot be read: {}", origin, error.what())};
    }
    if (!json.is_array() || json.empty())
        return {Code::InvalidArgument, origin + ": it is not a JSON array of scenarios"};
    std::vector<Scenario> all;
    for (const auto& object : json) {
        auto scenario = readScenario(object);
        if (!scenario) return scenario.status().withContext(fmt::format("{}: scenario {}", origin, all.size() + 1));
        all.push_back(std::move(*scenario));
    }
    return all;
}

}  // namespace troupe::apps::faults
