#include "apps/sim.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "apps/sim/campaign.h"
#include "apps/sim_report.h"
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

Status runOne(const SimOptions& options, Console& console) {
    return reportSeed(sim::replay(*options.seed), {options.common.json, options.trace}, console.out);
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
    sim::Campaign campaign = sim::runCampaign(options.first, count, 1, go_on);
    // The end of --minutes is what was asked for.
    campaign.stopped = campaign.stopped && console.stop->requested();
    return reportCampaign(campaign, options.first, std::chrono::duration<double>(Clock::now() - began).count(),
                          {options.common.json, options.trace}, console.out);
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
    command->add_option("--trace", options->trace, "Lines of a trace to print, the last ones")
        ->check(wholeNumber())
        ->capture_default_str();
    command->callback([options, &chosen] {
        chosen.name = "sim";
        chosen.json = options->common.json;
        // The settings do not matter here, but a wrong one should never pass unseen.
        chosen.check = [options] { return loadConfig(options->common).status(); };
        chosen.run = [options, &chosen](Console& console) {
            const Status done = options->seed ? runOne(*options, console) : runMany(*options, console);
            // The answer has been given; what was broken is in it.
            chosen.json = false;
            return done;
        };
    });
}

}  // namespace troupe::apps
