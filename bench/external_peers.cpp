#include "bench/external_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/support/free_port.h"
#include "bench/processes.h"

namespace troupe::bench {

namespace {

/// A program needs seconds to start in an emulated machine.
constexpr auto kListenTimeout = std::chrono::seconds(60);
/// On top of the time that the measurement itself should take. A machine that is busy elsewhere makes two spinning
/// processes a hundred times slower.
constexpr auto kSlack = std::chrono::seconds(60);

/// From this block size on, 16 outstanding gets are as fast as 64 and need less memory.
constexpr std::size_t kUcxLargeBlock = 1u << 20;

Status notInstalled(const std::string& program) {
    return {Code::NotFound, program + " is not installed: ./dev bench installs it"};
}

/// The last line of `text` that is not empty.
std::string lastLine(const std::string& text) {
    std::istringstream lines(text);
    std::string last;
    for (std::string line; std::getline(lines, line);) {
        if (!line.empty()) last = line;
    }
    return last;
}

/// What a client said and what CPU time both ends took.
struct Conversation {
    std::string output;
    double cpu_seconds = 0;
};

/// A program with its arguments, and what of its environment is not ours.
struct Command {
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    bool merge_stderr = false;
};

/// Runs `server`, then `client` once something listens on `port`, and returns what the client printed.
Result<Conversation> converse(const Command& server, const Command& client, int port,
                              std::chrono::milliseconds timeout) {
    const std::string& program = client.arguments.front();
    auto serving = startBeside(server.arguments, server.environment, server.merge_stderr);
    if (!serving) return serving.status();
    if (!waitForListener(port, kListenTimeout)) return {Code::Timeout, program + ": its server does not listen"};
    const double children_before = reapedChildrenCpuSeconds();
    auto asking = startBeside(client.arguments, client.environment, client.merge_stderr);
    if (!asking) return asking.status();
    auto said = finish(*asking, timeout);
    if (!said) return said.status().withContext(program);
    if (said->exit_code != 0) {
        return {Code::Internal, fmt::format("{} ended with {}: {}", program, said->exit_code, lastLine(said->output))};
    }
    // Both serve one client and end by themselves.
    auto served = finish(*serving, kListenTimeout);
    if (!served) return served.status().withContext(program + " server");
    return Conversation{std::move(said->output), reapedChildrenCpuSeconds() - children_before};
}

struct UcxLine {
    double percentile_us = 0;
    double messages_per_second = 0;
};

struct UcxRun {
    UcxLine line;
    double cpu_seconds = 0;
};

/// The CSV of -v: iterations, percentile, average and overall latency, average and overall MB/s, average and overall
/// messages/s; a header line, then one line of figures.
Result<UcxLine> parseUcx(const std::string& output) {
    std::vector<double> fields;
    std::istringstream line(lastLine(output));
    for (std::string field; std::getline(line, field, ',');) {
        char* end = nullptr;
        fields.push_back(std::strtod(field.c_str(), &end));
        if (end == field.c_str()) break;
    }
    // An overall latency may read "inf" (UCX 1.13); nobody asks for it.
    if (fields.size() != 8 || !std::isfinite(fields[1]) || !std::isfinite(fields[7]) || fields[7] <= 0) {
        return {Code::ProtocolError, "ucx_perftest printed something else: " + lastLine(output)};
    }
    return UcxLine{fields[1], fields[7]};
}

Result<UcxRun> runUcx(std::vector<std::string> test, std::size_t iterations, std::size_t warmup, double seconds,
                      bool shared_memory = false) {
    if (apps::findProgram("ucx_perftest").empty()) return notInstalled("ucx_perftest");
    const auto free = apps::freePort();
    if (!free) return free.status();
    const int port = *free;
    // UCX_WARN_UNUSED_ENV_VARS and the log level keep its warnings out of the figures.
    const std::vector<std::string> environment = {shared_memory ? "UCX_TLS=posix,cma" : "UCX_TLS=tcp",
                                                  "UCX_NET_DEVICES=lo", "UCX_LOG_LEVEL=error"};
    const std::string port_text = std::to_string(port);
    Command client{{"ucx_perftest", "127.0.0.1", "-p", port_text, "-f", "-v", "-n", std::to_string(iterations), "-w",
                    std::to_string(warmup)},
                   environment,
                   false};
    client.arguments.insert(client.arguments.end(), test.begin(), test.end());
    const auto expected = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
    auto said = converse({{"ucx_perftest", "-p", port_text}, environment, true}, client, port, expected + kSlack);
    if (!said) return said.status();
    auto line = parseUcx(said->output);
    if (!line) return line.status();
    return UcxRun{*line, said->cpu_seconds};
}

/// The figures that the client printed for `block`, in perftest's order; at least `fields` of them.
Result<std::vector<double>> runPerftest(const std::string& program, const RdmaEnds& ends, std::size_t block,
                                        std::size_t fields, const std::vector<std::string>& options, double seconds) {
    if (apps::findProgram(program).empty()) return notInstalled(program);
    const auto free = apps::freePort();
    if (!free) return free.status();
    const int port = *free;
    Command server{{program, "-F", "-x", std::to_string(ends.gid_index), "-u", std::to_string(ends.ack_timeout), "-p",
                    std::to_string(port), "-s", std::to_string(block)},
                   {},
                   true};
    server.arguments.insert(server.arguments.end(), options.begin(), options.end());
    Command client = server;
    server.arguments.insert(server.arguments.end(), {"-d", ends.server});
    client.arguments.insert(client.arguments.end(), {"-d", ends.client, ends.address});
    const auto expected = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
    auto said = converse(server, client, port, expected + kSlack);
    if (!said) return said.status();
    std::istringstream lines(said->output);
    for (std::string line; std::getline(lines, line);) {
        std::vector<double> figures;
        std::istringstream words(line);
        for (double figure = 0; words >> figure;) figures.push_back(figure);
        if (figures.size() >= fields && figures.front() == static_cast<double>(block)) return figures;
    }
    return {Code::ProtocolError, program + " printed something else: " + lastLine(said->output)};
}

}  // namespace

Result<double> runPerftestThroughput(const RdmaEnds& ends, bool write, std::size_t block, std::uint32_t depth,
                                     std::uint32_t queue_pairs, double seconds) {
    // It counts whole seconds, at least two, and leaves out a quarter of a short run at each end.
    const int whole = std::max(2, static_cast<int>(std::lround(seconds * 2)));
    const auto figures = runPerftest(
        write ? "ib_write_bw" : "ib_read_bw", ends, block, 4,
        {"-t", std::to_string(depth), "-q", std::to_string(queue_pairs), "-N", "-D", std::to_string(whole)}, whole);
    if (!figures) return figures.status();
    // Bytes, iterations, peak (left out: -N) and average in 2^20 bytes a second, messages.
    constexpr double kMiB = 1 << 20;
    return (*figures)[3] * kMiB / 1e9;
}

Result<LatencyFigures> runPerftestWriteLatency(const RdmaEnds& ends, std::size_t bytes, std::size_t count) {
    const auto figures =
        runPerftest("ib_write_lat", ends, bytes, 8, {"-n", std::to_string(count)}, static_cast<double>(count) * 1e-3);
    if (!figures) return figures.status();
    // Bytes, iterations, least, most, typical (the median), average, deviation, 99 %, 99.9 %.
    return LatencyFigures{(*figures)[4], (*figures)[7]};
}

Result<double> runPerftestOneWrite(const RdmaEnds& ends, std::size_t bytes, std::size_t count) {
    const auto figures = runPerftest("ib_write_bw", ends, bytes, 5, {"-t", "1", "-N", "-n", std::to_string(count)},
                                     static_cast<double>(count) * 1e-3);
    if (!figures) return figures.status();
    // Bytes, iterations, peak (left out: -N), average, 10^6 messages a second.
    return 1 / (*figures)[4];
}

Result<double> runIperf3(std::size_t block, double seconds) {
    if (apps::findProgram("iperf3").empty()) return notInstalled("iperf3");
    // iperf3 counts whole seconds and takes at most 1 MiB a write.
    const int whole = std::max(1, static_cast<int>(std::lround(seconds)));
    constexpr std::size_t kLargestWrite = 1u << 20;
    const std::string length = std::to_string(std::min(block, kLargestWrite));
    const auto free = apps::freePort();
    if (!free) return free.status();
    const int port = *free;
    const std::string port_text = std::to_string(port);
    auto said = converse(
        {{"iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port_text}, {}, true},
        {{"iperf3", "-c", "127.0.0.1", "-p", port_text, "-l", length, "-t", std::to_string(whole), "-J"}, {}, false},
        port, std::chrono::seconds(whole) + kSlack);
    if (!said) return said.status();
    const auto json = nlohmann::json::parse(said->output, nullptr, false);
    const nlohmann::json::json_pointer received("/end/sum_received/bits_per_second");
    if (!json.is_object() || !json.contains(received) || !json.at(received).is_number()) {
        return {Code::ProtocolError, "iperf3 printed something else: " + lastLine(said->output)};
    }
    return json.at(received).get<double>() / 8e9;
}

Result<LoopFigures> runUcxThroughput(bool write, std::size_t block, double seconds, bool shared_memory) {
    // It counts messages, not time: as many as the slowest figure known for it moves in that time (peers: 4 KiB
    // 150,000/s, 64 KiB and up 4 GB/s put and 1.3 GB/s get). Its own choice of outstanding puts is its fastest; a
    // get needs to be told.
    const double tcp_rate = write ? 4e9 : 1.3e9;
    constexpr double kSharedRate = 8e9;
    const double per_second = std::min(shared_memory ? 700'000.0 : 150'000.0,
                                       (shared_memory ? kSharedRate : tcp_rate) / static_cast<double>(block));
    const auto iterations = static_cast<std::size_t>(std::max(32.0, per_second * seconds));
    std::vector<std::string> test = {"-t", write ? "ucp_put_bw" : "ucp_get", "-s", std::to_string(block)};
    if (!write) test.insert(test.end(), {"-O", block < kUcxLargeBlock ? "64" : "16"});
    const std::size_t warm_up = iterations / 10;
    auto run = runUcx(test, iterations, warm_up, seconds * 2, shared_memory);
    if (!run) return run.status();
    const double rate = run->line.messages_per_second;
    const double gigabytes = static_cast<double>(iterations + warm_up) * static_cast<double>(block) / 1e9;
    return LoopFigures{rate * static_cast<double>(block) / 1e9, rate, run->cpu_seconds / gigabytes};
}

Result<LatencyFigures> runUcxLatency(bool write, std::size_t bytes, std::size_t count) {
    // Both tests print half of a round trip. The serving end of "ucp_get" sleeps a millisecond in poll() between two
    // looks at the network (UCX 1.13), so a lone get takes as long, and says nothing of UCX.
    const char* test = write ? "ucp_put_lat" : "ucp_am_lat";
    const double halves = write ? 1 : 2;
    LatencyFigures figures;
    for (const auto& [rank, figure] : {std::pair("50", &figures.p50), std::pair("99", &figures.p99)}) {
        auto run = runUcx({"-t", test, "-s", std::to_string(bytes), "-R", rank}, count, count / 10, 2);
        if (!run) return run.status();
        *figure = halves * run->line.percentile_us;
    }
    return figures;
}

Result<LatencyFigures> runUcxSharedGet(std::size_t bytes, std::size_t count) {
    LatencyFigures figures;
    for (const auto& [rank, figure] : {std::pair("50", &figures.p50), std::pair("99", &figures.p99)}) {
        // One outstanding get: its rate is its latency.
        auto run =
            runUcx({"-t", "ucp_get", "-s", std::to_string(bytes), "-O", "1", "-R", rank}, count, count / 10, 2, true);
        if (!run) return run.status();
        *figure = run->line.percentile_us;
    }
    return figures;
}

}  // namespace troupe::bench
