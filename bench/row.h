#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/status.h"

namespace troupe::bench {

/// What the command line says about how to measure.
struct Settings {
    double seconds = 1;  ///< Of each throughput loop, after the warm-up.
    double warmup_seconds = 0.2;
    std::size_t latency_samples = 20000;
    std::uint32_t inflight = 2;                               ///< Batches submitted before the oldest is waited for.
    std::uint32_t streams = 1;                                ///< Connections of the bare loop.
    std::size_t footprint = 256u << 20;                       ///< Bytes walked on each side.
    std::vector<std::pair<std::string, std::string>> config;  ///< Keys and values for every engine, see base/config.h.
};

/// The config of an engine under these settings. InvalidArgument names the setting.
Result<Config> configOf(const Settings& settings);

/// What one measurement found: quantity -> figure, e.g. {"GB/s": 5.1, "CPU s/GB": 0.3}.
using Figures = std::map<std::string, double>;

/// One of those that are measured against each other.
struct Contender {
    std::string name;  ///< "troupe", "bare socket", "iperf3", ...
    std::function<Result<Figures>(const Settings&)> measure;
};

/// A bound on a row's value, or on its ratio to the peer's.
struct Target {
    enum class Kind { None, RatioAtLeast, RatioAtMost, ValueAtLeast, ValueAtMost };
    Kind kind = Kind::None;
    double bound = 0;

    static Target ratioAtLeast(double bound) { return {Kind::RatioAtLeast, bound}; }
    static Target ratioAtMost(double bound) { return {Kind::RatioAtMost, bound}; }
    static Target valueAtLeast(double bound) { return {Kind::ValueAtLeast, bound}; }
    static Target valueAtMost(double bound) { return {Kind::ValueAtMost, bound}; }
};

/// One line of the table: a quantity of one contender, beside a quantity of another.
struct Comparison {
    std::string suffix;         ///< Appended to the row's name; empty for its main line.
    std::string unit;           ///< Of both figures.
    std::string ours;           ///< Contender.
    std::string quantity;       ///< Key of its Figures.
    std::string peer;           ///< Contender; empty: no peer.
    std::string peer_quantity;  ///< Empty: the same as `quantity`.
    Target target;
};

/// Something to measure: the contenders run one after the other, in this order, in every repeat; the figures of each
/// are the medians over the repeats; the comparisons turn them into lines.
struct Row {
    std::string name;   ///< "tcp.write.1MiB"
    std::string about;  ///< One sentence.
    std::vector<Contender> contenders;
    std::vector<Comparison> comparisons;
};

/// One line of the outcome.
struct Outcome {
    std::string name;
    std::string unit;
    std::optional<double> value;  ///< None: it could not be measured.
    std::string peer;             ///< Empty: none.
    std::optional<double> peer_value;
    std::optional<double> ratio;  ///< value / peer_value.
    Target target;
    std::optional<bool> met;  ///< None: no target, or not measured.
    std::string error;        ///< Why a figure is missing.
    bool left_out = false;    ///< Ours may not be measured by this user, who is not root (AccessDenied): no failure.
};

/// Called before each measurement with the contender's name and the repeat, from 1.
using Progress = std::function<void(const std::string& contender, std::size_t repeat)>;

/// Measures a row `repeats` times, interleaved. A contender that fails once is not run again. `go_on` is asked before
/// and after each measurement; once it says no the row is given up, and has no outcome: what ends the benchmark may
/// have ended a peer of the measurement, too.
std::vector<Outcome> measureRow(const Row& row, const Settings& settings, std::size_t repeats, const Progress& progress,
                                const std::function<bool()>& go_on);

/// The rows of each family; see the file of the same name.
std::vector<Row> engineRows();
std::vector<Row> tcpRows();
std::vector<Row> hostRows();
std::vector<Row> redisRows();
std::vector<Row> hostProcessRows();
std::vector<Row> neighbourRows();
std::vector<Row> rdmaRows();

/// GB/s of std::memcpy in a loop over two cold footprints, `block` bytes at a time: the yardstick of every copy.
Result<Figures> plainCopies(const Settings& settings, std::size_t block);

}  // namespace troupe::bench
