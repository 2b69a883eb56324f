#include "bench/row.h"

#include <unistd.h>

#include "bench/stats.h"

namespace troupe::bench {

namespace {

/// All that one contender showed over the repeats.
struct Samples {
    std::map<std::string, std::vector<double>> by_quantity;
    Status error;

    std::optional<double> median(const std::string& quantity) const {
        const auto found = by_quantity.find(quantity);
        if (!error || found == by_quantity.end()) return std::nullopt;
        return bench::median(found->second);
    }
};

std::optional<bool> judge(const Target& target, std::optional<double> value, std::optional<double> ratio) {
    using Kind = Target::Kind;
    const bool by_ratio = target.kind == Kind::RatioAtLeast || target.kind == Kind::RatioAtMost;
    const std::optional<double> judged = by_ratio ? ratio : value;
    if (target.kind == Kind::None || !judged) return std::nullopt;
    const bool at_least = target.kind == Kind::RatioAtLeast || target.kind == Kind::ValueAtLeast;
    return at_least ? *judged >= target.bound : *judged <= target.bound;
}

Outcome compare(const Row& row, const Comparison& comparison, const std::map<std::string, Samples>& samples) {
    Outcome outcome;
    outcome.name = row.name + comparison.suffix;
    outcome.unit = comparison.unit;
    outcome.target = comparison.target;
    const auto look = [&](const std::string& contender, const std::string& quantity) -> std::optional<double> {
        const auto found = samples.find(contender);
        if (found == samples.end()) return std::nullopt;
        if (!found->second.error)
            outcome.error += (outcome.error.empty() ? "" : "; ") + contender + ": " + found->second.error.message();
        return found->second.median(quantity);
    };
    outcome.value = look(comparison.ours, comparison.quantity);
    if (!comparison.peer.empty()) {
        outcome.peer = comparison.peer;
        outcome.peer_value =
            look(comparison.peer, comparison.peer_quantity.empty() ? comparison.quantity : comparison.peer_quantity);
    }
    if (outcome.value && outcome.peer_value && *outcome.peer_value > 0) {
        outcome.ratio = *outcome.value / *outcome.peer_value;
    }
    // Root lacks no right; and what had a figure before was not kept from it by this machine.
    if (const auto ours = samples.find(comparison.ours); ours != samples.end())
        outcome.left_out =
            ours->second.error.code() == Code::AccessDenied && ours->second.by_quantity.empty() && ::geteuid() != 0;
    outcome.met = judge(outcome.target, outcome.value, outcome.ratio);
    return outcome;
}

}  // namespace

Result<Config> configOf(const Settings& settings) {
    ConfigLoader loader;
    for (const auto& [key, value] : settings.config)
        if (Status status = loader.set(key, value, "--set"); !status) return status;
    return loader.config();
}

std::vector<Outcome> measureRow(const Row& row, const Settings& settings, std::size_t repeats, const Progress& progress,
                                const std::function<bool()>& go_on) {
    std::map<std::string, Samples> samples;
    for (std::size_t repeat = 1; repeat <= repeats; ++repeat) {
        for (const auto& contender : row.contenders) {
            Samples& sample = samples[contender.name];
            if (!sample.error) continue;
            if (!go_on()) return {};
            progress(contender.name, repeat);
            const auto figures = contender.measure(settings);
            if (!go_on()) return {};
            if (!figures) {
                sample.error = figures.status();
                continue;
            }
            for (const auto& [quantity, figure] : *figures) sample.by_quantity[quantity].push_back(figure);
        }
    }
    std::vector<Outcome> outcomes;
    for (const auto& comparison : row.comparisons) outcomes.push_back(compare(row, comparison, samples));
    return outcomes;
}

}  // namespace troupe::bench
