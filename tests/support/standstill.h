#pragma once

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "apps/support/child_process.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {

inline bool allThreadsStopped(pid_t pid) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        std::ifstream file(task.path() / "stat");
        std::string line;
        std::getline(file, line);
        // The state follows the name, which is in parentheses.
        const auto end = line.rfind(") ");
        if (end == std::string::npos || line[end + 2] != 'T') return false;
    }
    return true;
}

/// Stops a process by SIGSTOP. Returns when it stands still: the signal alone is only on its way.
inline void bringToStandstill(apps::ChildProcess& child) {
    child.signal(SIGSTOP);
    const auto limit = Clock::now() + kPatience;
    while (!allThreadsStopped(child.pid()) && Clock::now() < limit) std::this_thread::yield();
}

}  // namespace troupe::test
