#include "apps/sim/campaign.h"

#include <fmt/format.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

namespace troupe::sim {

namespace {

/// No actor of a simulation runs on CAF's scheduler, so it gets one thread, which sleeps.
class QuietSystem {
  public:
    QuietSystem() : config_(make()), system_(*config_) {}
    caf::actor_system& operator*() { return system_; }

  private:
    static std::unique_ptr<caf::actor_system_config> make() {
        auto config = std::make_unique<caf::actor_system_config>();
        config->set("scheduler.policy", caf::atom("sharing"));
        config->set("scheduler.max-threads", 1);
        return config;
    }

    const std::unique_ptr<caf::actor_system_config> config_;
    caf::actor_system system_;
};

}  // namespace

Campaign runCampaign(std::uint64_t first, std::uint64_t count, std::size_t most_failures,
                     const std::function<bool(const Campaign&)>& go_on) {
    QuietSystem system;
    Campaign campaign;
    for (std::uint64_t i = 0; i < count && campaign.failures.size() < most_failures; ++i) {
        if (go_on && !go_on(campaign)) {
            campaign.stopped = true;
            break;
        }
        const Outcome outcome = simulate(*system, first + i, false);
        ++campaign.seeds;
        campaign.virtual_seconds += outcome.virtual_seconds;
        campaign.steps += outcome.steps;
        for (const auto& [what, times] : outcome.counts) campaign.counts[what] += times;
        if (outcome.violation) campaign.failures.push_back(withTrace(outcome, simulate(*system, first + i, true)));
    }
    return campaign;
}

Outcome withTrace(const Outcome& first, Outcome again) {
    if (again.violation == first.violation) return again;
    again.violation = fmt::format("{} (its trace is of a second run, which {}: two runs of a seed must not differ)",
                                  first.violation.value_or("no rule was broken"),
                                  again.violation ? "broke another rule: " + *again.violation : "broke none");
    return again;
}

Outcome replay(std::uint64_t seed) {
    QuietSystem system;
    return simulate(*system, seed, true);
}

}  // namespace troupe::sim
