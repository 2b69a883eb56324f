#include "apps/sim_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/support/units.h"

namespace troupe::apps {

namespace {

void printTrace(const sim::Outcome& outcome, std::size_t most, std::FILE* out) {
    fmt::print(out, "seed {}: {}\n", outcome.seed, outcome.setting);
    const std::size_t skip = outcome.trace.size() > most ? outcome.trace.size() - most : 0;
    if (skip != 0) fmt::print(out, "... {} lines before (--trace)\n", skip);
    for (std::size_t i = skip; i < outcome.trace.size(); ++i) fmt::print(out, "{}\n", outcome.trace[i]);
}

Status verdict(const sim::Outcome& outcome) {
    if (!outcome.violation) return Status::ok();
    return {Code::Internal, fmt::format("seed {}: {}; to see it again: troupe sim --seed {}", outcome.seed,
                                        *outcome.violation, outcome.seed)};
}

}  // namespace

Status reportSeed(const sim::Outcome& outcome, const SimReportOptions& options, std::FILE* out) {
    if (options.json) {
        const nlohmann::json report = {
            {"ok", !outcome.violation.has_value()},
            {"seed", outcome.seed},
            {"violation", outcome.violation ? nlohmann::json(*outcome.violation) : nlohmann::json()},
            {"setting", outcome.setting},
            {"virtual_seconds", outcome.virtual_seconds},
            {"steps", outcome.steps},
            {"fingerprint", outcome.fingerprint}};
        fmt::print(out, "{}\n", report.dump(2));
        return verdict(outcome);
    }
    printTrace(outcome, options.trace, out);
    if (!outcome.violation)
        fmt::print(out, "no rule was broken in {:.3f} s of virtual time and {} steps\n", outcome.virtual_seconds,
                   outcome.steps);
    return verdict(outcome);
}

Status reportCampaign(const sim::Campaign& campaign, std::uint64_t first, double seconds,
                      const SimReportOptions& options, std::FILE* out) {
    if (options.json) {
        nlohmann::json failures = nlohmann::json::array();
        for (const sim::Outcome& each : campaign.failures)
            failures.push_back(
                {{"seed", each.seed}, {"setting", each.setting}, {"violation", each.violation.value_or("")}});
        const nlohmann::json report = {{"ok", campaign.failures.empty()},
                                       {"first", first},
                                       {"seeds", campaign.seeds},
                                       {"seconds", seconds},
                                       {"virtual_hours", campaign.virtual_seconds / 3600},
                                       {"steps", campaign.steps},
                                       {"failures", failures},
                                       {"counts", campaign.counts},
                                       {"stopped", campaign.stopped}};
        fmt::print(out, "{}\n", report.dump(2));
    } else if (campaign.failures.empty()) {
        fmt::print(out, "{} from {} on: no rule was broken in {:.2f} virtual hours, {} steps, {:.1f} s{}\n",
                   counted(campaign.seeds, "seed"), first, campaign.virtual_seconds / 3600, campaign.steps, seconds,
                   campaign.stopped ? "; stopped by a signal" : "");
        for (const auto& [what, times] : campaign.counts) fmt::print(out, "  {:26} {}\n", what, times);
    } else {
        printTrace(campaign.failures.front(), options.trace, out);
    }
    return campaign.failures.empty() ? Status::ok() : verdict(campaign.failures.front());
}

}  // namespace troupe::apps
