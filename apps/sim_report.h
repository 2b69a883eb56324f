#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "apps/sim/campaign.h"
#include "base/status.h"

namespace troupe::apps {

/// How `troupe sim` says what came out.
struct SimReportOptions {
    bool json = false;
    std::size_t trace = 200;  ///< Lines of a trace, the last ones; not with `json`.
};

/// Writes what became of a seed to `out`; what was broken is said there, too. Internal: a rule was broken.
Status reportSeed(const sim::Outcome& outcome, const SimReportOptions& options, std::FILE* out);

/// The same of a campaign from seed `first` on that took so many seconds.
Status reportCampaign(const sim::Campaign& campaign, std::uint64_t first, double seconds,
                      const SimReportOptions& options, std::FILE* out);

}  // namespace troupe::apps
