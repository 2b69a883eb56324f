#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::bench {

/// A program that runs beside this one, with pipes to its standard input and from its standard output.
/// Dies with the thread that started it. Used by one thread.
class ChildProcess {
  public:
    struct Options {
        std::vector<std::string> argv;         ///< argv[0] is looked up in PATH.
        std::vector<std::string> environment;  ///< "NAME=value", added to ours.
        bool merge_stderr = false;             ///< Standard error goes where standard output goes; else it is ours.
    };

    /// NotFound: no such program. ResourceExhausted: no process or pipe to be had.
    static Result<ChildProcess> start(const Options& options);

    ChildProcess() = default;
    ChildProcess(ChildProcess&& other) noexcept;
    ChildProcess& operator=(ChildProcess&& other) noexcept;
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;
    /// Closes its input, gives it two seconds to end, then kills it.
    ~ChildProcess();

    pid_t pid() const { return pid_; }
    /// CPU time it has used so far, user and system, in seconds; 0 once it has ended.
    double cpuSeconds() const;
    /// One line of its output, without the newline. Timeout, or NotFound when the output ended before.
    Result<std::string> readLine(std::chrono::milliseconds timeout);
    /// The rest of its output and its exit code (128 + signal when killed). Past `timeout` it is killed: Timeout.
    Result<std::pair<std::string, int>> finish(std::chrono::milliseconds timeout);

  private:
    /// Appends what arrives before `until`; false at end of file.
    Result<bool> readSome(std::chrono::steady_clock::time_point until);
    /// True when it has ended and was reaped into `exit_code_`.
    bool reap(bool block);
    void stop();

    pid_t pid_ = -1;
    UniqueFd input_;
    UniqueFd output_;
    std::string pending_;
    int exit_code_ = 0;
};

/// CPU time of this process so far, user and system, in seconds.
double ownCpuSeconds();
/// CPU time of all children that have ended and were waited for, user and system, in seconds.
double reapedChildrenCpuSeconds();

/// The path of this program, for running it again as a peer.
std::string ownProgram();

/// True when `name` is an executable file in PATH.
bool isInstalled(const std::string& name);

/// A TCP port of the loopback interface that was free a moment ago; 0 when there is none.
int freeLoopbackPort();
/// Waits until a socket listens on `port` (any address); false when `timeout` passes first. Connects to nothing.
bool waitForListener(int port, std::chrono::milliseconds timeout);

}  // namespace troupe::bench
