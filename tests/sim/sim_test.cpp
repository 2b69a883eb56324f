// Whole engines under virtual time; docs/simulator.md.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "apps/sim/campaign.h"

namespace troupe::sim {
namespace {

/// TROUPE_SIM_SEEDS runs more (or, under a sanitizer, fewer); TROUPE_SIM_FIRST others; TROUPE_SIM_LINES shows more.
std::uint64_t fromEnvironment(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string lastLines(const Outcome& outcome, std::size_t most) {
    std::string text;
    const std::size_t skip = outcome.trace.size() > most ? outcome.trace.size() - most : 0;
    for (std::size_t i = skip; i < outcome.trace.size(); ++i) text += outcome.trace[i] + "\n";
    return text;
}

void runSeeds(std::uint64_t first, std::uint64_t count) {
    const Campaign campaign = runCampaign(first, count, 1, {});
    for (const Outcome& failure : campaign.failures)
        ADD_FAILURE() << "seed " << failure.seed << ": " << *failure.violation << "\nto see it: troupe sim --seed "
                      << failure.seed << "\n"
                      << failure.setting << "\n"
                      << lastLines(failure, fromEnvironment("TROUPE_SIM_LINES", 60));
    // A simulation in which nothing happens proves nothing.
    const auto times = [&](const char* what) {
        const auto found = campaign.counts.find(what);
        return found == campaign.counts.end() ? 0 : found->second;
    };
    if (!campaign.failures.empty() || count < 200) return;
    EXPECT_GT(times("ended_COMPLETED"), 20 * count);
    for (const char* what : {"ended_FAILED",
                             "ended_TIMEOUT",
                             "ended_CANCELED",
                             "unregistered",
                             "lost_completions",
                             "late_completions",
                             "tasks_not_quiesced",
                             "packets_lost",
                             "packets_duplicated",
                             "paths_lost",
                             "paths_returned",
                             "writes_fenced",
                             "writes_unfenced",
                             "failed_writes_fenced",
                             "failed_writes_left",
                             "completed_after_a_loss",
                             "completed_by_the_next_transport",
                             "interrupted",
                             "silent_deaths",
                             "silent_hosts",
                             "heard_suspect",
                             "heard_connecting"})
        EXPECT_GT(times(what), 0u) << what;
    for (const char* what : {"uninstalled", "uninstall_busy", "installed_again", "installs_refused"})
        EXPECT_GT(times(what), 0u) << what;
    for (int fault = 0; fault < kFaults; ++fault)
        EXPECT_GT(times((std::string("fault_") + nameOf(static_cast<Fault>(fault))).c_str()), 0u)
            << nameOf(static_cast<Fault>(fault));
}

// Four shares, so that they run beside each other; more than 2,000 seeds in all. Sanitizers make each several times as
// slow, and look for other things.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kShare = 60;
#else
constexpr std::uint64_t kShare = 525;
#endif

class SimulatorSeeds : public testing::TestWithParam<int> {};

TEST_P(SimulatorSeeds, KeepsTheRules) {
    const std::uint64_t count = fromEnvironment("TROUPE_SIM_SEEDS", kShare);
    runSeeds(fromEnvironment("TROUPE_SIM_FIRST", 1) + static_cast<std::uint64_t>(GetParam()) * count, count);
}

INSTANTIATE_TEST_SUITE_P(Shares, SimulatorSeeds, testing::Range(0, 4));

TEST(Simulator, ASeedRunsTheSameEveryTime) {
    std::uint64_t left = 0;
    for (const std::uint64_t seed : {3u, 17u, 90u, 123u}) {
        const Outcome once = replay(seed);
        const Outcome again = replay(seed);
        EXPECT_EQ(once.fingerprint, again.fingerprint) << "seed " << seed;
        EXPECT_EQ(once.trace, again.trace) << "seed " << seed;
        EXPECT_NE(once.fingerprint, replay(seed + 1).fingerprint);
        if (const auto found = once.counts.find("uninstalled"); found != once.counts.end()) left += found->second;
    }
    EXPECT_GT(left, 0u) << "in none of them does a transport leave";
}

}  // namespace
}  // namespace troupe::sim
