#include "apps/sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/sim/campaign.h"
#include "apps/support/arguments.h"
#include "apps/support/progress.h"
#include "apps/support/session.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

struct SimOptions {
    CommonOptions common;
    std::optional<std::uint64_t> seed;
    std::uint64_t first = 1;
    std::uint64_t seeds = 1000;
    double minutes = 0;
    std::size_t trace = 200;
};

nlohmann::json toJson(const sim::Outcome& outcome) {
    return {{"ok", !outcome.violation.has_value()},
            {"seed", outcome.seed},
            {"violation", outcome.violation ? nlohmann::json(*outcome.violation) : nlohmann::json()},
            {"setting", outcome.setting},
            {"virtual_seconds", outcome.virtual_seconds},
            {"steps", outcome.steps},
            {"fingerprint", outcome.fingerprint}};
}

void printTrace(const sim::Outcome& outcome, std::size_t most, std::FILE* out) {
    const std::size_t skip = outcome.trace.size() > most ? outcome.trace.size() - most : 0;
    if (skip != 0) fmt::print(out, "... {} lines before (--trace)\n", skip);
    for (std::size_t i = skip; i < outcome.trace.size(); ++i) fmt::print(out, "{}\n", outcome.trace[i]);
}

Status verdict(const sim::Outcome& outcome) {
    return {Code::Internal, fmt::format("seed {}: {}; to see it again: troupe sim --seed {}", outcome.seed,
                                        *outcome.violation, outcome.seed)};
}

Status runOne(const SimOptions& options, Console& console) {
    const sim::Outcome outcome = sim::replay(*options.seed);
    if (options.common.json && !outcome.violation) {
        fmt::print(console.out, "{}\n", toJson(outcome).dump(2));
        return Status::ok();
    }
    if (!options.common.json) {
        fmt::print(console.out, "seed {}: {}\n", outcome.seed, outcome.setting);
        printTrace(outcome, options.trace, console.out);
    }
    if (outcome.violation) return verdict(outcome);
    fmt::print(console.out, "no rule was broken in {:.3f} s of virtual time and {} steps\n", outcome.virtual_seconds,
               outcome.steps);
    return Status::ok();
}

Status runMany(const SimOptions& options, Console& console) {
    Progress progress(console.progress, "sim");
    const TimePoint began = Clock::now();
    const double seconds = options.minutes * 60;
    const std::uint64_t count = seconds > 0 ? UINT64_MAX - options.first : options.seeds;
    const auto go_on = [&](const sim::Campaign& campaign) {
        const double gone = std::chrono::duration<double>(Clock::now() - began).count();
        if (progress.due())
            progress.update(
                seconds > 0 ? gone / seconds : static_cast<double>(campaign.seeds) / static_cast<double>(count),
                counted(campaign.seeds, "seed"));
        return !console.stop->requested() && (seconds <= 0 || gone < seconds);
    };
    const sim::Campaign campaign = sim::runCampaign(options.first, count, 1, go_on);
    const double took = std::chrono::duration<double>(Clock::now() - began).count();
    if (!campaign.failures.empty() && !options.common.json) {
        const sim::Outcome& worst = campaign.failures.front();
        fmt::print(console.out, "seed {}: {}\n", worst.seed, worst.setting);
        printTrace(worst, options.trace, console.out);
    }
    if (!campaign.failures.empty()) return verdict(campaign.failures.front());
    if (options.common.json) {
        nlohmann::json report = {{"ok", true},
                                 {"first", options.first},
                                 {"seeds", campaign.seeds},
                                 {"seconds", took},
                                 {"virtual_hours", campaign.virtual_seconds / 3600},
                                 {"steps", campaign.steps},
                                 {"failures", nlohmann::json::array()},
                                 {"counts", campaign.counts},
                                 {"stopped", campaign.stopped}};
        fmt::print(console.out, "{}\n", report.dump(2));
        return Status::ok();
    }
    fmt::print(console.out, "{} from {} on: no rule was broken in {:.2f} virtual hours, {} steps, {:.1f} s\n",
               counted(campaign.seeds, "seed"), options.first, campaign.virtual_seconds / 3600, campaign.steps, took);
    for (const auto& [what, times] : campaign.counts) fmt::print(console.out, "  {:26} {}\n", what, times);
    return Status::ok();
}

}  // namespace

void addSimCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<SimOptions>();
    auto* command = addCommand(
        app, "sim", "Run the engine's actors under virtual time with faults, from seeds, and check its rules");
    addCommonOptions(*command, options->common);
    command->add_option("--seed", options->seed, "Run this seed alone and print its trace")->check(wholeNumber());
    command->add_option("--seeds", options->seeds, "Seeds to run")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}))
        ->capture_default_str();
    command->add_option("--first", options->first, "The first of them")->check(wholeNumber())->capture_default_str();
    command->add_option("--minutes", options->minutes, "Run as many seeds as this takes, in place of --seeds")
        ->check(CLI::Range(0.0, 10'000.0));
    command->add_option("--trace", options->trace, "Lines of a trace to print, the last ones")->capture_default_str();
    command->callback([options, &chosen] {
        chosen.name = "sim";
        chosen.json = options->common.json;
        // The settings do not matter here, but a wrong one should never pass unseen.
        chosen.check = [options] { return loadConfig(options->common).status(); };
        chosen.run = [options](Console& console) {
            return options->seed ? runOne(*options, console) : runMany(*options, console);
        };
    });
}

}  // namespace troupe::apps
