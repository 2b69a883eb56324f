#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/support/stop_signal.h"
#include "base/config.h"
#include "bench/bare_socket.h"
#include "bench/report.h"
#include "bench/row.h"
#include "bench/serving_peer.h"

namespace troupe::bench {

namespace {

struct CommandLine {
    std::vector<std::string> names;
    bool list = false;
    bool quick = false;
    std::size_t repeats = 3;
    std::string out = "build/bench.json";
    Settings settings;
    std::vector<std::string> config;  ///< "key=value"
    bool serve_bare = false;
    bool serve_peer = false;
    std::size_t regions = 1;
    bool engine_memory = false;
    bool rdma = false;
    std::string keep;
    std::string transport = "tcp";
};

/// Fills `line`; CLI::App::parse reports what is wrong.
void describe(CLI::App& app, CommandLine& line) {
    app.add_option("names", line.names, "Rows to run: names, prefixes of names, or globs. None: all");
    app.add_flag("--list", line.list, "Name the rows and end");
    app.add_flag("--quick", line.quick, "One short repeat: does it work, not how fast is it");
    app.add_option("--repeat", line.repeats, "Repeats, each running all peers and Troupe; medians are shown")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--out", line.out, "Where the JSON goes; rows of other names that are there stay")
        ->capture_default_str();
    app.add_option("--keep", line.keep, "A JSON file written before, whose other rows go to --out in place of its own");
    app.add_flag("--rdma", line.rdma, "The rows of RDMA, which need the devices of tests/rdma_vm; else all others");
    app.add_option("--seconds", line.settings.seconds, "Length of each throughput measurement")
        ->check(CLI::Range(0.01, 3600.0))
        ->capture_default_str();
    app.add_option("--inflight", line.settings.inflight, "Batches submitted before the oldest is waited for")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    app.add_option("--streams", line.settings.streams, "Connections of the bare socket loop")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app.add_option("--footprint", line.settings.footprint, "Bytes of memory walked on each side")
        ->check(CLI::Range(std::size_t{1} << 20, std::size_t{64} << 30))
        ->capture_default_str();
    // One value each, or it would take the names of the rows as well.
    app.add_option("--set", line.config, "A setting of the engines at both ends; may be repeated")
        ->type_name("KEY=VALUE")
        ->take_all()
        ->allow_extra_args(false);
    // The two serving processes, started by the benchmark itself; no group keeps them out of --help.
    app.add_flag("--serve-bare", line.serve_bare)->group("");
    app.add_flag("--serve-peer", line.serve_peer)->group("");
    app.add_option("--regions", line.regions)->group("");
    app.add_flag("--engine-memory", line.engine_memory)->group("");
    app.add_option("--transport", line.transport)->group("");
}

bool isWanted(const Row& row, const std::vector<std::string>& names) {
    if (names.empty()) return true;
    for (const auto& name : names) {
        if (row.name.compare(0, name.size(), name) == 0 || ::fnmatch(name.c_str(), row.name.c_str(), 0) == 0) {
            return true;
        }
    }
    return false;
}

std::vector<Row> allRows(bool rdma) {
    if (rdma) return rdmaRows();
    std::vector<Row> rows;
    for (auto family : {engineRows, tcpRows, hostRows, hostProcessRows, neighbourRows, redisRows}) {
        for (auto& row : family()) rows.push_back(std::move(row));
    }
    return rows;
}

/// Says on standard error what is running: one line that changes on a terminal, else a line per row.
class ProgressLine {
  public:
    void show(const std::string& text, bool first_of_row) {
        if (terminal_) {
            fmt::print(stderr, "\r\033[K{}", text);
        } else if (first_of_row) {
            fmt::print(stderr, "{}\n", text);
        }
        std::fflush(stderr);
    }
    void clear() {
        if (terminal_) fmt::print(stderr, "\r\033[K");
        std::fflush(stderr);
    }

  private:
    bool terminal_ = ::isatty(STDERR_FILENO) == 1;
};

/// Runs the rows until a signal comes, and prints each when it is done. False when Troupe itself could not be measured
/// somewhere.
bool runRows(const std::vector<Row>& rows, const CommandLine& line, const apps::StopSignal& stop,
             std::vector<Outcome>& outcomes) {
    ProgressLine progress;
    bool good = true;
    fmt::print("{}", tableHead());
    std::fflush(stdout);
    const auto go_on = [&] { return !stop.requested(); };
    for (std::size_t i = 0; i < rows.size() && go_on(); ++i) {
        bool first = true;
        const auto tell = [&](const std::string& contender, std::size_t repeat) {
            progress.show(fmt::format("[{}/{}] {}: {}, repeat {} of {}", i + 1, rows.size(), rows[i].name, contender,
                                      repeat, line.repeats),
                          std::exchange(first, false));
        };
        std::string last_error;
        for (auto& outcome : measureRow(rows[i], line.settings, line.repeats, tell, go_on)) {
            progress.clear();
            fmt::print("{}", tableLine(outcome));
            if (!outcome.error.empty() && outcome.error != last_error) fmt::print("    {}\n", outcome.error);
            last_error = outcome.error;
            std::fflush(stdout);
            good = good && (outcome.value.has_value() || outcome.left_out);
            outcomes.push_back(std::move(outcome));
        }
    }
    progress.clear();
    return good;
}

int run(const CommandLine& line) {
    std::vector<Row> rows;
    for (auto& row : allRows(line.rdma)) {
        if (isWanted(row, line.names)) rows.push_back(std::move(row));
    }
    if (line.list) {
        for (const auto& row : rows) fmt::print("{:<24} {}\n", row.name, row.about);
        return 0;
    }
    if (rows.empty()) {
        fmt::print(stderr, "troupe_bench: no row of that name; --list names them all\n");
        return 2;
    }
    // Before minutes of measuring, not after.
    auto kept = rowsOfOut(line.out);
    if (!kept) {
        fmt::print(stderr, "troupe_bench: --out: {}\n", kept.status().toString());
        return 2;
    }
    if (!line.keep.empty()) {
        kept = readRows(line.keep);
        if (!kept) {
            fmt::print(stderr, "troupe_bench: --keep: {}\n", kept.status().toString());
            return 2;
        }
    }
    // Before any thread is started. A signal ends it between two measurements, whose servers and networks go with them.
    const auto stop = apps::StopSignal::install();
    if (!stop) {
        fmt::print(stderr, "troupe_bench: {}\n", stop.status().toString());
        return 1;
    }
    std::vector<Outcome> outcomes;
    const bool good = runRows(rows, line, *stop, outcomes);
    std::size_t judged = 0;
    std::size_t met = 0;
    for (const auto& outcome : outcomes) {
        judged += outcome.met.has_value() ? 1 : 0;
        met += outcome.met.value_or(false) ? 1 : 0;
    }
    fmt::print("\n{} of {} targets met{}\n", met, judged, stop->requested() ? "; stopped by a signal" : "");
    std::fflush(stdout);
    if (const Status written = writeJson(outcomes, line.out, *kept); !written) {
        fmt::print(stderr, "troupe_bench: {}\n", written.toString());
        return 1;
    }
    fmt::print("written to {}\n", line.out);
    return good ? 0 : 1;
}

int start(int argc, char** argv) {
    CLI::App app{"Measures Troupe beside its peers, in one run"};
    CommandLine line;
    describe(app, line);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    ConfigLoader checked;
    for (const auto& entry : line.config) {
        const auto equals = entry.find('=');
        if (equals == std::string::npos) {
            fmt::print(stderr, "troupe_bench: --set {}: expected KEY=VALUE\n", entry);
            return 2;
        }
        line.settings.config.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
        const auto& [key, value] = line.settings.config.back();
        if (const Status known = checked.set(key, value, "--set"); !known) {
            fmt::print(stderr, "troupe_bench: {}\n", known.toString());
            return 2;
        }
    }
    if (line.quick) {
        line.repeats = 1;
        line.settings.seconds = 0.2;
        line.settings.warmup_seconds = 0.05;
        line.settings.latency_samples = 2000;
    }
    if (line.serve_bare) return serveBareSocket(line.settings.footprint);
    if (line.serve_peer) return servePeer(line.settings, line.regions, line.engine_memory, line.transport);
    return run(line);
}

}  // namespace

}  // namespace troupe::bench

int main(int argc, char** argv) { return troupe::bench::start(argc, argv); }
