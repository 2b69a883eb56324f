#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/support/child_process.h"
#include "base/status.h"

namespace troupe::bench {

/// Starts a program to be measured beside, that dies with this one. `environment` as of ChildProcess::Options.
/// `merge_stderr`: its standard error is part of its output.
Result<apps::ChildProcess> startBeside(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment = {}, bool merge_stderr = false);

/// What a program said until its end, and its exit code (128 + signal when killed).
struct Ending {
    std::string output;
    int exit_code = 0;
};
/// Waits for the end of a child. Past `timeout` it is killed: Timeout.
Result<Ending> finish(apps::ChildProcess& child, std::chrono::milliseconds timeout);

/// CPU time of this process so far, user and system, in seconds.
double ownCpuSeconds();
/// CPU time of all children that have ended and were waited for, user and system, in seconds.
double reapedChildrenCpuSeconds();

/// Waits until a socket listens on `port` (any address); false when `timeout` passes first. Connects to nothing.
bool waitForListener(int port, std::chrono::milliseconds timeout);

}  // namespace troupe::bench
