#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::apps {

/// A child process whose standard input and output are pipes to us; its standard error is ours, a file, or where its
/// output goes. Ends the child when destroyed: closes its input, asks it by SIGTERM, and after three seconds kills it.
/// One thread.
class ChildProcess {
  public:
    struct Options {
        std::string stderr_path;               ///< Empty: inherited.
        std::vector<std::string> environment;  ///< "NAME=value", in the place of ours of that name.
        bool merge_stderr = false;             ///< Standard error goes where standard output goes.
        /// Killed with the thread that started it, however that ends. By fork(), which costs time for all the memory
        /// of this process, and parts pages that RDMA has pinned on old kernels; without it, by posix_spawn().
        bool dies_with_us = false;
    };

    /// arguments[0] is the program: its path, or a name that is looked up in PATH. NotFound or ResourceExhausted.
    static Result<ChildProcess> start(const std::vector<std::string>& arguments, const Options& options);
    static Result<ChildProcess> start(const std::vector<std::string>& arguments) { return start(arguments, Options{}); }
    ChildProcess() = default;  ///< None: to be assigned.
    ChildProcess(ChildProcess&& other) noexcept;
    ChildProcess& operator=(ChildProcess&& other) noexcept;  ///< Ends the one that was there.
    ~ChildProcess();

    pid_t pid() const { return pid_; }
    /// CPU time it has used so far, user and system, in seconds; 0 once it was waited for.
    double cpuSeconds() const;
    /// The next line without its newline. Timeout; ConnectionLost when the output ended.
    Result<std::string> readLine(std::chrono::milliseconds timeout);
    /// All that is left until the output ends. Timeout.
    Result<std::string> readAll(std::chrono::milliseconds timeout);
    /// One line to the child's input. ConnectionLost: it reads no more.
    Status writeLine(const std::string& line);
    /// End of input for the child.
    void closeInput() { input_.reset(); }
    void signal(int number) const;
    /// The exit code, or 128 + the signal's number as shells have it. Timeout: it still runs.
    Result<int> wait(std::chrono::milliseconds timeout);

  private:
    void end();
    /// Appends what is there to buffer_; false at the end of the output.
    Result<bool> readMore(std::chrono::milliseconds timeout);

    pid_t pid_ = -1;  ///< -1 once waited for.
    int exit_code_ = -1;
    UniqueFd input_;
    UniqueFd output_;
    std::string buffer_;
};

/// The path of the executable file `program` in PATH; empty when there is none.
std::string findProgram(const std::string& program);

/// The path of the running program.
std::string ownProgramPath();

}  // namespace troupe::apps
