#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/faults/resources.h"
#include "apps/faults/stage.h"
#include "apps/support/random.h"

namespace troupe::apps::faults {

/// What a soak came to.
struct SoakReport {
    /// One kind of fault.
    struct Kind {
        std::uint64_t times = 0;
        std::vector<Duration> recoveries;  ///< Sorted at the end.
    };
    std::map<std::string, Kind> kinds;
    Tally tally;
    Duration took{};         ///< All of it.
    Duration transferred{};  ///< Of that, with traffic.
    unsigned acts = 0;
    std::uint64_t faults = 0;
    Resources before;         ///< Of this process, after the first act, without an engine.
    Resources after;          ///< The same at the end.
    Resources target_before;  ///< Of the target that nothing happened to whose growth was the largest: with traffic.
    Resources target_after;   ///< The same when its act ended.
    std::map<std::string, std::string> left_out;  ///< Needs that this machine does not meet, and why.
    std::vector<std::string> violations;          ///< What may never be. Empty: nothing.
    bool stopped = false;
};

/// Random faults, one after the other, under verified traffic: acts of some minutes, each with an engine of its own
/// and new targets, so that what an engine leaves behind would show as well. One thread.
class Soak {
  public:
    struct Options {
        Stage::Options stage;
        std::chrono::milliseconds time{60'000};
        std::uint64_t seed = 1;
    };

    /// `tick` is called every few milliseconds with what is under way; false ends the soak early.
    Soak(const Options& options, std::function<bool(const std::string&)> tick);

    /// The error of what could not be set up or done: not of the engine under test.
    Result<SoakReport> run();

  private:
    /// A fault with its end.
    struct Episode {
        std::string name;
        std::vector<std::string> steps;
    };
    /// Acts with different needs take turns.
    enum class Kind { Processes, Network, Redis };
    static constexpr std::array kKinds = {Kind::Processes, Kind::Network, Kind::Redis};

    Status play(Kind kind, TimePoint until);
    static Status carryOut(const Episode& episode, Stage& stage);
    Status playEpisodes(Kind kind, Stage& stage, TimePoint until);
    Scenario sceneOf(Kind kind) const;
    Episode draw(Kind kind);
    std::string pause(unsigned low_ms, unsigned high_ms);
    void violate(const std::string& what);
    void compareResources();

    const Options options_;
    const std::function<bool(const std::string&)> tick_;
    Random random_;
    std::string now_playing_;
    std::optional<Resources> first_resources_;
    SoakReport report_;
};

}  // namespace troupe::apps::faults
