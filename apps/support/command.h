#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/support/stop_signal.h"
#include "base/status.h"

namespace troupe::apps {

/// What a running command talks to.
struct Console {
    std::FILE* out = nullptr;       ///< Results.
    std::FILE* progress = nullptr;  ///< Progress; null: none wanted.
    StopSignal* stop = nullptr;     ///< SIGINT and SIGTERM.
    /// What a command that fails has measured before, an object that --json gives beside the error. May be null.
    nlohmann::json* partial = nullptr;
};

/// Brings the results out of the process; an error when the system did not take them all (a full disk).
inline Status flushOutput(std::FILE* out) {
    errno = 0;
    if (std::fflush(out) == 0 && std::ferror(out) == 0) return Status::ok();
    const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
    return {Code::ResourceExhausted, "cannot write to standard output" + why};
}

/// The command that the arguments chose. Each command has a function `addXCommand(app, chosen)` that describes its
/// options to CLI11 and, when it is the one, fills this in.
struct ChosenCommand {
    std::string name;
    bool json = false;  ///< The answer, and an error too, is one JSON object on standard output.
    /// What of the arguments only shows as wrong once all are known; before `run`, exit code 2. Empty: nothing.
    std::function<Status()> check;
    std::function<Status(Console&)> run;
};

}  // namespace troupe::apps
