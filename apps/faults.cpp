#include "apps/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/faults/scenario.h"
#include "apps/faults/stage.h"
#include "apps/support/arguments.h"
#include "apps/support/progress.h"
#include "apps/support/session.h"
#include "apps/support/table.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

using faults::Round;
using faults::Scenario;

struct FaultsOptions {
    EngineArguments engine;
    std::vector<std::string> names = {"all"};
    std::string file;
    std::string at;  ///< The segment of somebody else's target; empty: targets are started.
    unsigned rounds = 1;
    bool list = false;
    faults::Traffic::Options traffic;
};

/// All rounds of one scenario.
struct Row {
    std::string name;
    std::string skipped;  ///< Why it cannot be run here.
    std::vector<Round> rounds;

    faults::Tally tally() const {
        faults::Tally sum;
        for (const Round& round : rounds) sum.add(round.tally);
        return sum;
    }
    std::string broken() const {
        for (std::size_t i = 0; i < rounds.size(); ++i)
            if (!rounds[i].broken.empty()) return fmt::format("round {}: {}", i + 1, rounds[i].broken);
        return {};
    }
    /// One of the times of the rounds that have it, sorted.
    std::vector<Duration> times(std::optional<Duration> Round::*which) const {
        std::vector<Duration> all;
        for (const Round& round : rounds)
            if (round.*which) all.push_back(*(round.*which));
        std::sort(all.begin(), all.end());
        return all;
    }
    std::int64_t most(std::int64_t Round::*which) const {
        std::int64_t largest = 0;
        for (const Round& round : rounds) largest = std::max(largest, round.*which);
        return largest;
    }
    double median(double Round::*which) const {
        std::vector<double> all;
        for (const Round& round : rounds) all.push_back(round.*which);
        std::sort(all.begin(), all.end());
        return all.empty() ? 0 : all[all.size() / 2];
    }
};

std::string timesText(const std::vector<Duration>& times) {
    if (times.empty()) return "-";
    const std::string median = formatTime(times[times.size() / 2]);
    return times.size() == 1 ? median : fmt::format("{} ({})", median, formatTime(times.back()));
}

nlohmann::json timesJson(const std::vector<Duration>& times) {
    if (times.empty()) return nullptr;
    const auto at = [&](std::size_t index) { return toSeconds(times[index]) * 1e3; };
    const std::size_t p99 = (times.size() * 99 + 99) / 100 - 1;
    return {{"count", times.size()}, {"p50", at(times.size() / 2)}, {"p99", at(p99)}, {"max", at(times.size() - 1)}};
}

std::string causesText(const faults::Tally& tally) {
    std::string text;
    for (const auto& [cause, count] : tally.failed)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, cause);
    return text.empty() ? "0" : text;
}

nlohmann::json toJson(const Row& row) {
    if (!row.skipped.empty()) return {{"scenario", row.name}, {"skipped", row.skipped}};
    const faults::Tally tally = row.tally();
    const std::string broken = row.broken();
    return {{"scenario", row.name},
            {"rounds", row.rounds.size()},
            {"ok", broken.empty()},
            {"broken", broken.empty() ? nlohmann::json() : nlohmann::json(broken)},
            {"detect_ms", timesJson(row.times(&Round::detected))},
            {"all_ended_ms", timesJson(row.times(&Round::ended))},
            {"recover_ms", timesJson(row.times(&Round::recovered))},
            {"open_ms", timesJson(row.times(&Round::opened))},
            {"moved_ms", timesJson(row.times(&Round::moved))},
            {"completed", tally.completed},
            {"bytes", tally.bytes},
            {"failed", tally.failed},
            {"refused", tally.refused},
            {"wrong", tally.wrong},
            {"hung", tally.hung},
            {"quarantined", tally.quarantined},
            {"throughput_lost", row.median(&Round::lost)},
            {"bystanders_lost", row.median(&Round::bystanders_lost)},
            {"memory_grown", row.most(&Round::memory_grown)},
            {"descriptors_grown", row.most(&Round::descriptors_grown)}};
}

std::string percent(double share) { return fmt::format("{:.0f} %", share * 100); }

void print(const std::vector<Row>& rows, std::FILE* out) {
    Table table({"scenario", "rounds", "detect", "all ended", "moved", "recover", "completed", "failed", "wrong",
                 "hung", "quarantined", "lost", ""});
    for (const Row& row : rows) {
        if (!row.skipped.empty()) {
            table.add({row.name, "0", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "skipped"});
            continue;
        }
        const faults::Tally tally = row.tally();
        table.add({row.name, std::to_string(row.rounds.size()), timesText(row.times(&Round::detected)),
                   timesText(row.times(&Round::ended)), timesText(row.times(&Round::moved)),
                   timesText(row.times(&Round::recovered)), std::to_string(tally.completed), causesText(tally),
                   std::to_string(tally.wrong), std::to_string(tally.hung), std::to_string(tally.quarantined),
                   percent(row.median(&Round::lost)), row.broken().empty() ? "ok" : "BROKEN"});
    }
    fmt::print(out,
               "{}\ndetect: from the fault to the first operation that failed; all ended: until all that was under way "
               "had; moved:\nby RDMA, from the loss of a path until the first of its bytes had arrived by another; "
               "recover:\nfrom the end of the fault to the first new operation that completed (Redis: until the "
               "record is there). Medians,\nthe longest in brackets. lost: of the throughput while the fault lasted.\n",
               table.toString());
    for (const Row& row : rows) {
        if (!row.skipped.empty()) fmt::print(out, "{} was skipped: {}\n", row.name, row.skipped);
        if (const std::string broken = row.broken(); !broken.empty()) fmt::print(out, "{}: {}\n", row.name, broken);
    }
}

Status list(const std::vector<Scenario>& scenarios, bool json, std::FILE* out) {
    if (json) {
        nlohmann::json all = nlohmann::json::array();
        for (const Scenario& each : scenarios) all.push_back({{"scenario", each.name}, {"about", each.about}});
        fmt::print(out, "{}\n", all.dump(2));
        return Status::ok();
    }
    Table table({"scenario", "what happens"});
    table.alignLeft();
    for (const Scenario& each : scenarios) table.add({each.name, each.about});
    fmt::print(out, "{}", table.toString());
    return Status::ok();
}

Result<std::vector<Scenario>> choose(const FaultsOptions& options) {
    std::vector<Scenario> known = faults::builtinScenarios();
    if (!options.file.empty()) {
        auto loaded = faults::loadScenarios(options.file);
        if (!loaded) return loaded.status();
        known = std::move(*loaded);
    }
    const bool some_file = !options.file.empty();
    if (options.names == std::vector<std::string>{"all"}) {
        // Of the built-in ones, what is about RDMA alone is not played by the others.
        std::erase_if(known, [&](const Scenario& each) {
            if (!options.at.empty() && !some_file && !faults::playsAnywhere(each)) return true;
            return !options.list && options.engine.transport != "rdma" &&
                   std::find(each.needs.begin(), each.needs.end(), faults::Need::Rails) != each.needs.end();
        });
        return known;
    }
    std::vector<Scenario> chosen;
    for (const std::string& name : options.names) {
        const auto found =
            std::find_if(known.begin(), known.end(), [&](const Scenario& each) { return each.name == name; });
        if (found == known.end())
            return {Code::InvalidArgument, "no scenario '" + name + "'; troupe faults --list names them"};
        chosen.push_back(*found);
    }
    return chosen;
}

/// InvalidArgument: one of them cannot be played at somebody else's target.
Status checkPlayable(const std::vector<Scenario>& scenarios) {
    for (const Scenario& scenario : scenarios)
        if (const Status anywhere = faults::playsAnywhere(scenario); !anywhere) return anywhere.withContext("--at");
    return Status::ok();
}

Status runAll(const FaultsOptions& options, ChosenCommand& command, Console& console) {
    const auto scenarios = choose(options);
    if (!scenarios) return scenarios.status();
    if (options.list) return list(*scenarios, command.json, console.out);

    const auto all_rounds = static_cast<double>(scenarios->size()) * options.rounds;
    Progress progress(console.progress, "faults");
    std::vector<Row> rows;
    for (const Scenario& scenario : *scenarios) {
        Row& row = rows.emplace_back();
        row.name = scenario.name;
        for (unsigned i = 0; i < options.rounds && row.skipped.empty(); ++i) {
            const double done = static_cast<double>(rows.size() - 1) * options.rounds + i;
            faults::Stage::Options stage_options{options.engine, options.traffic, options.at};
            stage_options.traffic.seed += i;
            faults::Stage stage(scenario, stage_options, [&] {
                progress.update(done / all_rounds,
                                fmt::format("{}, round {} of {}", scenario.name, i + 1, options.rounds));
                return !console.stop->requested();
            });
            auto round = stage.run();
            if (!round && round.status().code() == Code::Canceled) return round.status();
            // What is not there, or does not allow it, is so for all of them; later it has broken.
            if (!round && !options.at.empty() && rows.size() == 1 && i == 0) return round.status();
            // What went well once, or failed later, is not for want of anything.
            if (!round && options.at.empty() && row.rounds.empty() && stage.machineLacks()) {
                row.skipped = round.status().message();
                continue;
            }
            if (round) {
                row.rounds.push_back(std::move(*round));
            } else {
                Round& failed = row.rounds.emplace_back();
                failed.broken = round.status().toString();
            }
        }
    }
    std::string broken;
    for (const Row& row : rows)
        if (broken.empty() && !row.broken().empty()) broken = row.name + ": " + row.broken();
    if (command.json) {
        nlohmann::json table = nlohmann::json::array();
        for (const Row& row : rows) table.push_back(toJson(row));
        fmt::print(console.out, "{}\n", nlohmann::json{{"ok", broken.empty()}, {"scenarios", table}}.dump(2));
        // The answer has been given; what broke is in it.
        command.json = false;
    } else {
        print(rows, console.out);
    }
    return broken.empty() ? Status::ok() : Status(Code::Internal, broken);
}

/// A scenario's settings with all the others, as Stage makes them.
Status checkSettingsOf(const Scenario& scenario, const CommonOptions& common) {
    CommonOptions both = common;
    both.settings.insert(both.settings.begin(), scenario.settings.begin(), scenario.settings.end());
    const std::string whose = fmt::format("scenario '{}'", scenario.name);
    const auto config = loadConfig(both);
    if (!config) return config.status().withContext(whose);
    const auto injects = std::find_if(scenario.steps.begin(), scenario.steps.end(),
                                      [](const faults::Step& step) { return step.action == "inject"; });
    if (injects == scenario.steps.end() || config->config().faults_enabled) return Status::ok();
    return {Code::InvalidArgument,
            fmt::format("{}: the step \"inject {}\" needs \"faults.enabled=true\" in its \"settings\"", whose,
                        injects->argument)};
}

Status checkOptions(const FaultsOptions& options) {
    if (const Status engine = checkEngineArguments(options.engine); !engine) return engine;
    if (options.engine.transport == "null")
        return {Code::InvalidArgument, "--transport null moves nothing, so there is nothing to compare"};
    const auto scenarios = choose(options);
    if (!scenarios) return scenarios.status();
    for (const Scenario& scenario : *scenarios)
        if (const Status settings = checkSettingsOf(scenario, options.engine.common); !settings) return settings;
    if (options.at.empty()) return Status::ok();
    if (const Status target = checkTarget(options.engine, options.at); !target) return target;
    return checkPlayable(*scenarios);
}

}  // namespace

void addFaultsCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<FaultsOptions>();
    options->engine.command = "faults";
    options->engine.transport = "tcp";
    auto* command =
        addCommand(app, "faults", "Break processes, networks and Redis under verified traffic, and show what happens");
    command->add_option("--scenario", options->names, "Names of scenarios, or all")
        ->type_name("NAME")
        ->capture_default_str();
    command->add_option("--file", options->file, "JSON file of scenarios, in place of the built-in ones")
        ->type_name("FILE");
    auto* at =
        command->add_option("--at", options->at,
                            "Segment of a running `troupe serve`, in place of targets that are started; the "
                            "begin of its memory is written. It allows faults of its engine by faults.enabled and "
                            "faults.remote");
    at->type_name("SEGMENT");
    command
        ->add_option("--metadata", options->engine.metadata,
                     "Where that segment is found: p2p, or the URI of a store (docs/redis.md)")
        ->type_name("URI")
        ->needs(at)
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "Rounds of each")
        ->check(CLI::Range(1u, 100'000u))
        ->capture_default_str();
    command->add_flag("--list", options->list, "Name the scenarios and end");
    addBytes(*command, "--block_size,--block-size", options->traffic.block, "Bytes of one operation");
    command->add_option("--inflight", options->traffic.inflight, "Operations at the same time")
        ->check(CLI::Range(1u, 32u))
        ->capture_default_str();
    addSeed(*command, options->traffic.seed, "Of the operations and their contents");
    command->add_option("--transport", options->engine.transport, "auto, tcp, rdma or host, as of bench")
        ->check(CLI::IsMember({"auto", "tcp", "rdma", "host"}))
        ->capture_default_str();
    addCommonOptions(*command, options->engine.common);
    command->callback([options, &chosen] {
        chosen.name = "faults";
        chosen.json = options->engine.common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options, &chosen](Console& console) { return runAll(*options, chosen, console); };
    });
}

}  // namespace troupe::apps
