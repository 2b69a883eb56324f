#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/sim/simulation.h"

namespace troupe::sim {

/// Many seeds, one after another.
struct Campaign {
    std::uint64_t seeds = 0;
    double virtual_seconds = 0;
    std::uint64_t steps = 0;
    std::map<std::string, std::uint64_t> counts;
    std::vector<Outcome> failures;  ///< Each was run once more for its trace.
    bool stopped = false;
};

/// Runs `count` seeds from `first` on, until `most_failures` of them failed or `go_on` (may be empty) says no; it is
/// asked before every seed with the number of those that are done.
Campaign runCampaign(std::uint64_t first, std::uint64_t count, std::size_t most_failures,
                     const std::function<bool(const Campaign&)>& go_on);

/// A seed's second run, which has the trace, with what the first one violated: it stays violated though the second may
/// have gone another way, and then says so.
Outcome withTrace(const Outcome& first, Outcome again);

/// One seed, with its trace.
Outcome replay(std::uint64_t seed);

}  // namespace troupe::sim
