#include "bench/processes.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <ctime>
#include <fstream>
#include <thread>

namespace troupe::bench {

namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kPollStep = std::chrono::milliseconds(5);

std::chrono::milliseconds leftUntil(SteadyClock::time_point until) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock::now());
}

}  // namespace

Result<apps::ChildProcess> startBeside(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment, bool merge_stderr) {
    apps::ChildProcess::Options options;
    options.environment = environment;
    options.merge_stderr = merge_stderr;
    options.dies_with_us = true;
    return apps::ChildProcess::start(arguments, options);
}

Result<Ending> finish(apps::ChildProcess& child, std::chrono::milliseconds timeout) {
    const auto until = SteadyClock::now() + timeout;
    auto output = child.readAll(timeout);
    auto code = output ? child.wait(leftUntil(until)) : Result<int>(output.status());
    if (code) return Ending{std::move(*output), *code};
    child.signal(SIGKILL);
    return code.status();
}

double ownCpuSeconds() {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double reapedChildrenCpuSeconds() {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    const auto inSeconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return inSeconds(used.ru_utime) + inSeconds(used.ru_stime);
}

bool waitForListener(int port, std::chrono::milliseconds timeout) {
    // A line of /proc/net/tcp: "sl: local_address:PORT remote st ...", port in hex; st 0A is LISTEN.
    const std::string wanted = fmt::format(":{:04X} ", port);
    const auto until = SteadyClock::now() + timeout;
    for (;;) {
        for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
            std::ifstream lines(table);
            for (std::string line; std::getline(lines, line);) {
                const auto local = line.find(wanted);
                if (local != std::string::npos && line.find(" 0A ", local) != std::string::npos) return true;
            }
        }
        if (SteadyClock::now() > until) return false;
        std::this_thread::sleep_for(kPollStep);  // Nothing says when another process listens.
    }
}

}  // namespace troupe::bench
