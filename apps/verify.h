#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/support/command.h"
#include "apps/support/session.h"

namespace troupe::apps {

struct VerifyOptions {
    EngineArguments engine;
    std::string target;
    double seconds = 0;        ///< 0: no limit.
    std::uint64_t rounds = 0;  ///< Operations; 0: no limit.
    std::uint64_t seed = 1;
    unsigned inflight = 8;              ///< Operations at the same time.
    std::uint64_t max_size = 8u << 20;  ///< Largest operation, bytes.
};

struct VerifyReport {
    std::uint64_t seed = 0;
    // The random operations.
    std::uint64_t writes = 0;
    std::uint64_t reads = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t bytes_read = 0;
    // Before them every stretch was written once, and after them read once.
    std::uint64_t fill_writes = 0;
    std::uint64_t final_reads = 0;
    std::uint64_t fill_bytes = 0;  ///< Of all stretches; as many were read.
    double seconds = 0;
    bool stopped = false;     ///< By the signal, before a limit was reached.
    std::string transport;    ///< That carried it; Session::transportUsed.
    Quarantined quarantined;  ///< At the end; TransferEngine::quarantine.

    nlohmann::json toJson() const;
    std::string toString() const;  ///< One line, and what is in quarantine; without newline.
};

/// Random writes and reads of the target's memory, each read compared with what the writes before must have left
/// there, until a limit or the stop signal; then all of it is read once more. ChecksumMismatch at the first wrong
/// byte. Nobody else may write there meanwhile.
Result<VerifyReport> verify(const VerifyOptions& options, const Console& console);

/// troupe verify.
void addVerifyCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
