#include "apps/demo.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "apps/replay.h"
#include "apps/support/arguments.h"
#include "apps/support/child_process.h"
#include "apps/support/say.h"
#include "apps/support/table.h"
#include "apps/support/trace.h"
#include "apps/support/units.h"
#include "apps/verify.h"

namespace troupe::apps {

namespace {

constexpr std::chrono::seconds kServerStart{20};  ///< A slow machine may need some to map and register the memory.
constexpr std::chrono::seconds kServerEnd{10};

// The rows of bench, and what the largest has in flight, which must fit the served memory.
constexpr std::array<std::uint64_t, 3> kBlocks{4u << 10, 64u << 10, 1u << 20};
constexpr std::uint32_t kBatch = 32;
constexpr unsigned kInflight = 2;
constexpr std::uint64_t kLeastMemory = kBlocks.back() * kBatch * kInflight;

constexpr const char* kBestWay = "auto";
constexpr const char* kWire = "tcp";

struct DemoOptions {
    CommonOptions common;
    std::string trace;  ///< Empty: the bundled one.
    double verify_seconds = 4;
    double bench_seconds = 1;         ///< Each row.
    std::uint64_t size = 256u << 20;  ///< Served memory, bytes.
};

/// Where the bundled trace lies: beside the program as installed or built, or in the source tree it was built in.
Result<std::string> findTrace(const std::string& given) {
    if (!given.empty()) return given;
    const auto folder = std::filesystem::path(ownProgramPath()).parent_path();
    const std::array candidates = {folder / "../share/troupe/small_trace.jsonl",
                                   folder / "../../../apps/data/small_trace.jsonl"};
    std::error_code error;
    for (const auto& candidate : candidates)
        if (std::filesystem::exists(candidate, error)) return candidate.lexically_normal().string();
    return {Code::InvalidArgument,
            fmt::format("the bundled trace is not at {}; give one with --trace (make it with troupe "
                        "trace-gen -o FILE)",
                        candidates[0].lexically_normal().string())};
}

Status checkOptions(const DemoOptions& options) {
    const auto config = loadConfig(options.common);
    if (!config) return config.status();
    if (auto status = checkSettingFiles(config->config()); !status) return status;
    if (options.size < kLeastMemory)
        return {Code::InvalidArgument, fmt::format("--size {} is too little for the demo; give at least {}",
                                                   formatBytes(options.size), formatBytes(kLeastMemory))};
    const auto trace = findTrace(options.trace);
    if (!trace) return trace.status();
    // A trace that cannot be read is said now, not after everything else.
    return readTraceFile(*trace).status();
}

std::string ofMicroseconds(double us) { return formatTime(std::chrono::nanoseconds(std::llround(us * 1e3))); }

/// The second process.
struct Server {
    ChildProcess process;
    std::string segment;
    std::uint64_t length = 0;
};

Result<Server> startServer(const DemoOptions& options) {
    std::vector<std::string> arguments = {ownProgramPath(), "serve", "--json", "--until-eof",
                                          "--regions",      "4",     "--size", std::to_string(options.size)};
    if (!options.common.config_file.empty())
        arguments.insert(arguments.end(), {"--config", options.common.config_file});
    for (const auto& setting : options.common.settings) arguments.insert(arguments.end(), {"--set", setting});
    auto process = ChildProcess::start(arguments);
    if (!process) return process.status();
    const auto line = process->readLine(kServerStart);
    if (!line) return line.status().withContext("the serving process did not start; its message is above");
    const auto answer = nlohmann::json::parse(*line, nullptr, false);
    // A server that fails prints its error as JSON, over several lines, and says it on stderr too.
    if (!answer.is_object() || !answer.contains("segment") || !answer.contains("length"))
        return {Code::InvalidArgument, "the serving process did not start; its message is above"};
    return Server{std::move(process).value(), answer["segment"].get<std::string>(),
                  answer["length"].get<std::uint64_t>()};
}

class Demo {
  public:
    Demo(const DemoOptions& options, Console& console) : options_(options), console_(console) {}
    Status run();

  private:
    Status runSteps(const std::string& trace);
    Status step(int number, const std::string& what);
    /// One pass of bench over the rows.
    Status measure(const std::string& transport, BenchReport& report);
    EngineArguments engineArguments(const std::string& transport) const {
        EngineArguments arguments;
        arguments.common = options_.common;
        arguments.transport = transport;
        return arguments;
    }
    void print() const;

    const DemoOptions& options_;
    Console& console_;
    std::optional<Server> server_;
    VerifyReport verified_;
    BenchReport bench_;      ///< By the best way there is: between two processes of one machine a copy.
    BenchReport bench_tcp_;  ///< As between two machines; without rows when the best way is TCP already.
    ReplayReport replay_;
    TimePoint started_ = Clock::now();
};

Status Demo::step(int number, const std::string& what) {
    if (console_.stop->requested()) return {Code::Canceled, "stopped"};
    say(console_.progress, "[{}/5] {}\n", number, what);
    return Status::ok();
}

Status Demo::runSteps(const std::string& trace) {
    if (auto status = step(1, "starting a second process that serves memory"); !status) return status;
    auto server = startServer(options_);
    if (!server) return server.status();
    server_.emplace(std::move(server).value());

    if (auto status = step(2, "verify: random writes and reads, every byte compared"); !status) return status;
    VerifyOptions verify_options;
    verify_options.engine = engineArguments(kBestWay);
    verify_options.target = server_->segment;
    verify_options.seconds = options_.verify_seconds;
    auto verified = verify(verify_options, console_);
    if (!verified) return verified.status().withContext("verify");
    verified_ = *verified;

    const std::string sizes = "writes and reads of three block sizes";
    if (auto status = step(3, "bench: " + sizes + ", by the best way there is"); !status) return status;
    if (auto status = measure(kBestWay, bench_); !status) return status;
    if (bench_.transport != kWire) {
        if (auto status = step(4, "bench: the same over TCP, as between two machines"); !status) return status;
        if (auto status = measure(kWire, bench_tcp_); !status) return status;
    } else if (auto status = step(4, "bench: went by TCP already, so not once more"); !status) {
        return status;
    }

    if (auto status = step(5, "replay: a chat service's requests, as KV-cache traffic"); !status) return status;
    ReplayOptions replay_options;
    replay_options.engine = engineArguments(kBestWay);
    replay_options.target = server_->segment;
    replay_options.trace = trace;
    replay_options.as_fast_as_possible = true;
    auto replayed = replay(replay_options, console_);
    if (!replayed) return replayed.status().withContext("replay");
    replay_ = std::move(replayed).value();
    return console_.stop->requested() ? Status(Code::Canceled, "stopped") : Status::ok();
}

Status Demo::measure(const std::string& transport, BenchReport& report) {
    BenchOptions bench_options;
    bench_options.engine = engineArguments(transport);
    bench_options.target = server_->segment;
    bench_options.block_sizes.assign(kBlocks.begin(), kBlocks.end());
    bench_options.batch_sizes = {kBatch};
    bench_options.inflight = kInflight;
    bench_options.seconds = options_.bench_seconds;
    bench_options.warmup = 0.2;
    bench_options.verify = true;
    auto measured = bench(bench_options, console_);
    if (!measured) return measured.status().withContext("bench");
    report = std::move(measured).value();
    return Status::ok();
}

Status Demo::run() {
    const auto trace = findTrace(options_.trace);
    if (!trace) return trace.status();
    if (auto status = runSteps(*trace); !status) {
        // A terminal's Ctrl-C ends the other process too, and whatever that broke is no error.
        if (console_.stop->requested()) return {Code::Canceled, "stopped"};
        if (server_)
            if (const auto code = server_->process.wait(std::chrono::milliseconds(0)))
                return status.withContext(fmt::format("the serving process has ended (code {})", *code));
        return status;
    }
    server_->process.closeInput();
    const auto code = server_->process.wait(kServerEnd);
    if (!code) return code.status().withContext("ending the serving process");
    if (*code != 0) return {Code::Internal, fmt::format("the serving process ended with code {}", *code)};
    print();
    return Status::ok();
}

void Demo::print() const {
    const double seconds = toSeconds(Clock::now() - started_);
    if (options_.common.json) {
        const nlohmann::json report = {{"ok", true},
                                       {"mismatches", 0},
                                       {"seconds", seconds},
                                       {"serve", {{"segment", server_->segment}, {"length", server_->length}}},
                                       {"verify", verified_.toJson()},
                                       {"bench", bench_.toJson()},
                                       {"bench_tcp", bench_tcp_.rows.empty() ? nlohmann::json() : bench_tcp_.toJson()},
                                       {"replay", replay_.toJson()}};
        fmt::print(console_.out, "{}\n", report.dump(2));
        return;
    }
    Table table({"step", "what", "by", "speed", "result"});
    table.alignLeft();
    table.add({"serve", formatBytes(server_->length), "", "", "segment " + server_->segment + ", another process"});
    table.add({"verify", counted(verified_.writes, "write") + ", " + counted(verified_.reads, "read"),
               verified_.transport,
               formatRate(static_cast<double>(verified_.bytes_written + verified_.bytes_read) / verified_.seconds),
               "no mismatch"});
    for (const BenchReport* report : {&bench_, &bench_tcp_})
        for (const auto& row : report->rows)
            table.add({"bench", fmt::format("{} {} x {}", row.operation, formatBytes(row.block_size), row.batch_size),
                       report->transport, formatRate(row.gigabytes_per_s * 1e9),
                       fmt::format("p50 {}, p99 {} a batch, {}", ofMicroseconds(row.p50_us), ofMicroseconds(row.p99_us),
                                   row.verified ? "no mismatch" : "not compared")});
    table.add({"replay", counted(replay_.requests, "request") + ", " + counted(replay_.blocks, "block"),
               replay_.transport, formatRate(replay_.gigabytesPerSecond() * 1e9),
               fmt::format("{:.0f} % hits, p50 {}, p99 {} a request, no mismatch", replay_.hitRate() * 100,
                           formatTime(replay_.latency.percentile(0.5)), formatTime(replay_.latency.percentile(0.99)))});
    // Who reads the words for the first time should know what they mean.
    if (bench_.transport == "host")
        fmt::print(console_.out,
                   "{}host: copied straight from one process's memory to the other's, for both are on this machine.\n"
                   "tcp: the same over TCP on the loopback interface, the way that other machines are reached.\n",
                   table.toString());
    else
        fmt::print(console_.out, "{}", table.toString());
    fmt::print(console_.out, "all done in {:.0f} s, no mismatch\n", seconds);
}

}  // namespace

void addDemoCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<DemoOptions>();
    auto* command = addCommand(app, "demo", "Two processes, everything once, in less than a minute");
    addCommonOptions(*command, options->common);
    command->add_option("--trace", options->trace, "Trace to replay instead of the bundled one")->type_name("FILE");
    addSeconds(*command, "--verify-seconds", options->verify_seconds, "Time for verify");
    addSeconds(*command, "--bench-seconds", options->bench_seconds, "Time for each row of bench");
    addBytes(*command, "--size", options->size, "Memory to serve");
    command->callback([options, &chosen] {
        chosen.name = "demo";
        chosen.json = options->common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options](Console& console) { return Demo(*options, console).run(); };
    });
}

}  // namespace troupe::apps
