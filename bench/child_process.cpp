#include "bench/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

namespace troupe::bench {

namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kStopGrace = std::chrono::seconds(2);
constexpr auto kPollStep = std::chrono::milliseconds(5);

/// The full path of `program`; empty when there is none.
std::string findProgram(const std::string& program) {
    if (program.find('/') != std::string::npos) return ::access(program.c_str(), X_OK) == 0 ? program : std::string();
    const char* path = std::getenv("PATH");
    std::istringstream folders(path ? path : "/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
        const std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
        if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return {};
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (auto& s : strings) result.push_back(s.data());
    result.push_back(nullptr);
    return result;
}

/// A copy of our environment in which `added` replace variables of the same name.
std::vector<std::string> mergedEnvironment(const std::vector<std::string>& added) {
    std::vector<std::string> result = added;
    for (char** at = environ; *at; ++at) {
        const std::string entry = *at;
        const auto name = entry.substr(0, entry.find('=') + 1);
        bool replaced = false;
        for (const auto& a : added) replaced = replaced || a.compare(0, name.size(), name) == 0;
        if (!replaced) result.push_back(entry);
    }
    return result;
}

double seconds(const timespec& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9; }

}  // namespace

Result<ChildProcess> ChildProcess::start(const Options& options) {
    // All that allocates happens before fork: the child of a threaded process may only make system calls.
    const std::string program = findProgram(options.argv.front());
    if (program.empty()) return {Code::NotFound, options.argv.front() + " is not installed"};
    auto arguments = options.argv;
    auto environment = mergedEnvironment(options.environment);
    const auto argv = pointers(arguments);
    const auto envp = pointers(environment);

    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0) return {Code::ResourceExhausted, fmt::format("pipe: {}", std::strerror(errno))};
    UniqueFd in_read(in[0]);
    UniqueFd in_write(in[1]);
    if (::pipe2(out, O_CLOEXEC) != 0) return {Code::ResourceExhausted, fmt::format("pipe: {}", std::strerror(errno))};
    UniqueFd out_read(out[0]);
    UniqueFd out_write(out[1]);

    const pid_t pid = ::fork();
    if (pid < 0) return {Code::ResourceExhausted, fmt::format("fork: {}", std::strerror(errno))};
    if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(in_read.get(), STDIN_FILENO);
        ::dup2(out_write.get(), STDOUT_FILENO);
        if (options.merge_stderr) ::dup2(out_write.get(), STDERR_FILENO);
        ::execve(program.c_str(), argv.data(), envp.data());
        ::_exit(127);
    }
    ChildProcess child;
    child.pid_ = pid;
    child.input_ = std::move(in_write);
    child.output_ = std::move(out_read);
    return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      pending_(std::move(other.pending_)),
      exit_code_(other.exit_code_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
    if (this != &other) {
        stop();
        pid_ = std::exchange(other.pid_, -1);
        input_ = std::move(other.input_);
        output_ = std::move(other.output_);
        pending_ = std::move(other.pending_);
        exit_code_ = other.exit_code_;
    }
    return *this;
}

ChildProcess::~ChildProcess() { stop(); }

double ChildProcess::cpuSeconds() const {
    clockid_t clock{};
    timespec used{};
    if (pid_ <= 0 || ::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
    return seconds(used);
}

Result<bool> ChildProcess::readSome(SteadyClock::time_point until) {
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock::now()).count();
        pollfd ready{output_.get(), POLLIN, 0};
        const int count = ::poll(&ready, 1, static_cast<int>(left > 0 ? left + 1 : 0));
        if (count == 0) return {Code::Timeout, "the process said nothing in time"};
        if (count < 0 && errno == EINTR) continue;
        char buffer[4096];
        const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        pending_.append(buffer, static_cast<std::size_t>(got));
        return true;
    }
}

Result<std::string> ChildProcess::readLine(std::chrono::milliseconds timeout) {
    const auto until = SteadyClock::now() + timeout;
    for (;;) {
        const auto end = pending_.find('\n');
        if (end != std::string::npos) {
            std::string line = pending_.substr(0, end);
            pending_.erase(0, end + 1);
            return line;
        }
        const auto more = readSome(until);
        if (!more) return more.status();
        if (!*more) return {Code::NotFound, "the process ended without an answer"};
    }
}

Result<std::pair<std::string, int>> ChildProcess::finish(std::chrono::milliseconds timeout) {
    const auto until = SteadyClock::now() + timeout;
    for (;;) {
        const auto more = readSome(until);
        if (!more) {
            stop();
            return more.status();
        }
        if (!*more) break;
    }
    while (!reap(false)) {
        if (SteadyClock::now() > until) {
            stop();
            return {Code::Timeout, "the process closed its output but did not end"};
        }
        std::this_thread::sleep_for(kPollStep);
    }
    return std::pair(std::exchange(pending_, {}), exit_code_);
}

bool ChildProcess::reap(bool block) {
    if (pid_ <= 0) return true;
    int status = 0;
    pid_t got = 0;
    do {
        got = ::waitpid(pid_, &status, block ? 0 : WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got == 0) return false;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
    return true;
}

void ChildProcess::stop() {
    if (pid_ <= 0) return;
    input_.reset();
    const auto until = SteadyClock::now() + kStopGrace;
    while (!reap(false)) {
        if (SteadyClock::now() > until) {
            ::kill(pid_, SIGKILL);
            reap(true);
            return;
        }
        std::this_thread::sleep_for(kPollStep);
    }
}

double ownCpuSeconds() {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return seconds(used);
}

double reapedChildrenCpuSeconds() {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    const auto inSeconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return inSeconds(used.ru_utime) + inSeconds(used.ru_stime);
}

std::string ownProgram() {
    char path[4096];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

bool isInstalled(const std::string& name) { return !findProgram(name).empty(); }

int freeLoopbackPort() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd.get(), generic, length) != 0 || ::getsockname(fd.get(), generic, &length) != 0) return 0;
    return ntohs(address.sin_port);
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
        std::this_thread::sleep_for(kPollStep);
    }
}

}  // namespace troupe::bench
