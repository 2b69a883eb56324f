#include "apps/soak.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/faults/soak.h"
#include "apps/support/arguments.h"
#include "apps/support/progress.h"
#include "apps/support/session.h"
#include "apps/support/table.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

using faults::SoakReport;

struct SoakOptions {
    EngineArguments engine;
    double minutes = 1;
    std::uint64_t seed = 1;
    faults::Traffic::Options traffic;
};

double rateOf(const SoakReport& report) {
    const double seconds = toSeconds(report.transferred);
    return seconds <= 0 ? 0 : static_cast<double>(report.tally.bytes) / seconds;
}

nlohmann::json toJson(const faults::Resources& before, const faults::Resources& after) {
    return {{"memory_bytes_before", before.memory},
            {"memory_bytes_after", after.memory},
            {"descriptors_before", before.descriptors},
            {"descriptors_after", after.descriptors}};
}

nlohmann::json toJson(const SoakOptions& options, const SoakReport& report) {
    nlohmann::json kinds = nlohmann::json::object();
    for (const auto& [name, kind] : report.kinds) {
        nlohmann::json& entry = kinds[name] = {{"times", kind.times}, {"recover_ms", nullptr}};
        if (const auto& times = kind.recoveries; !times.empty())
            entry["recover_ms"] = {{"p50", toSeconds(times[times.size() / 2]) * 1e3},
                                   {"max", toSeconds(times.back()) * 1e3}};
    }
    return {{"ok", report.violations.empty()},
            {"seed", options.seed},
            {"transport", options.engine.transport},
            {"seconds", toSeconds(report.took)},
            {"acts", report.acts},
            {"faults", report.faults},
            {"kinds", kinds},
            {"completed", report.tally.completed},
            {"bytes", report.tally.bytes},
            {"bytes_per_second", rateOf(report)},
            {"failed", report.tally.failed},
            {"refused", report.tally.refused},
            {"wrong", report.tally.wrong},
            {"hung", report.tally.hung},
            {"quarantined", report.tally.quarantined},
            {"process", toJson(report.before, report.after)},
            {"target", toJson(report.target_before, report.target_after)},
            {"left_out", report.left_out},
            {"violations", report.violations},
            {"stopped", report.stopped}};
}

std::string grown(const faults::Resources& before, const faults::Resources& after) {
    return fmt::format("{} -> {} of memory, {} -> {} descriptors", formatBytes(before.memory),
                       formatBytes(after.memory), before.descriptors, after.descriptors);
}

void print(const SoakOptions& options, const SoakReport& report, std::FILE* out) {
    const faults::Tally& tally = report.tally;
    fmt::print(out, "soak by {}, seed {}: {:.1f} s, {}, {}{}\n\n", options.engine.transport, options.seed,
               toSeconds(report.took), counted(report.acts, "act"), counted(report.faults, "fault"),
               report.stopped ? ", stopped by a signal" : "");
    Table table({"fault", "times", "recover", "longest"});
    for (const auto& [name, kind] : report.kinds) {
        const auto& times = kind.recoveries;
        table.add({name, std::to_string(kind.times), times.empty() ? "-" : formatTime(times[times.size() / 2]),
                   times.empty() ? "-" : formatTime(times.back())});
    }
    fmt::print(out, "{}\n", table.toString());
    fmt::print(out, "completed    {} operations, {}, {} of verified traffic\n", tally.completed,
               formatBytes(tally.bytes), formatRate(rateOf(report)));
    fmt::print(out, "failed       {}\n", tally.failures());
    for (const auto& [cause, count] : tally.failed) fmt::print(out, "  {:20} {}\n", cause, count);
    fmt::print(out, "refused      {}\nwrong        {}\nhung         {}\nquarantined  {}\n", tally.refused, tally.wrong,
               tally.hung, tally.quarantined);
    fmt::print(out, "this process {}\n", grown(report.before, report.after));
    if (report.target_after.memory != 0)
        fmt::print(out, "a target     {}\n", grown(report.target_before, report.target_after));
    for (const auto& [need, why] : report.left_out) fmt::print(out, "left out     {}: {}\n", need, why);
    for (const std::string& violation : report.violations) fmt::print(out, "VIOLATION    {}\n", violation);
    if (report.violations.empty()) fmt::print(out, "no violation\n");
}

Status runSoak(const SoakOptions& options, ChosenCommand& command, Console& console) {
    faults::Soak::Options soak_options;
    soak_options.stage = {options.engine, options.traffic};
    soak_options.seed = options.seed;
    soak_options.time = std::chrono::milliseconds(static_cast<std::int64_t>(options.minutes * 60'000));
    Progress progress(console.progress, "soak");
    const TimePoint began = Clock::now();
    faults::Soak soak(soak_options, [&](const std::string& playing) {
        if (progress.due()) progress.update(toSeconds(Clock::now() - began) / (options.minutes * 60), playing);
        return !console.stop->requested();
    });
    const auto report = soak.run();
    if (!report) return report.status();
    if (command.json) {
        fmt::print(console.out, "{}\n", toJson(options, *report).dump(2));
        // The answer has been given; what was violated is in it.
        command.json = false;
    } else {
        print(options, *report, console.out);
    }
    return report->violations.empty() ? Status::ok() : Status(Code::Internal, report->violations.front());
}

}  // namespace

void addSoakCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<SoakOptions>();
    options->engine.command = "soak";
    options->engine.transport = "tcp";
    auto* command = addCommand(app, "soak", "Random faults under verified traffic for a time, and a report of a page");
    command->add_option("--minutes", options->minutes, "How long")
        ->check(CLI::Range(0.05, 100'000.0))
        ->capture_default_str();
    addSeed(*command, options->seed, "Of the faults, the operations and their contents");
    addBytes(*command, "--block_size,--block-size", options->traffic.block, "Bytes of one operation");
    command->add_option("--inflight", options->traffic.inflight, "Operations at the same time")
        ->check(CLI::Range(1u, 32u))
        ->capture_default_str();
    command->add_option("--transport", options->engine.transport, "auto, tcp, rdma or host, as of bench")
        ->check(CLI::IsMember({"auto", "tcp", "rdma", "host"}))
        ->capture_default_str();
    addCommonOptions(*command, options->engine.common);
    command->callback([options, &chosen] {
        chosen.name = "soak";
        chosen.json = options->engine.common.json;
        chosen.check = [options] { return checkEngineArguments(options->engine); };
        chosen.run = [options, &chosen](Console& console) { return runSoak(*options, chosen, console); };
    });
}

}  // namespace troupe::apps
