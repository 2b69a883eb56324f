#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/support/command.h"
#include "apps/support/latency_histogram.h"
#include "apps/support/session.h"
#include "apps/support/trace.h"

namespace troupe::apps {

struct ReplayOptions {
    EngineArguments engine;
    std::string trace;  ///< Path.
    /// What is in it, if somebody has read it already.
    std::shared_ptr<const std::vector<TraceRequest>> read;
    std::string target;
    std::uint64_t bytes_per_token = 1024;
    std::uint64_t requests = 0;  ///< At most; 0: all.
    double speedup = 1;          ///< Of the trace's pace.
    bool as_fast_as_possible = false;
    std::uint64_t staging = 256u << 20;  ///< Local memory, bytes; requests with more blocks go in parts.
    std::uint64_t seed = 1;
    bool huge = false;
    bool engine_memory = false;  ///< Local memory of the engine's own.
};

struct ReplayReport {
    std::uint64_t requests = 0;
    std::uint64_t blocks = 0;      ///< Asked for, each once per request.
    std::uint64_t hits = 0;        ///< Of these held by the peer, and fetched.
    std::uint64_t written = 0;     ///< Of these new, and stored.
    std::uint64_t not_stored = 0;  ///< Of these past the slots there are, in one request.
    std::uint64_t evictions = 0;
    std::uint64_t block_size = 0;  ///< Bytes.
    std::uint64_t slots = 0;
    double seconds = 0;            ///< From the first request to the end of the last.
    double transfer_seconds = 0;   ///< Of these in transfers; the rest made and checked contents, or waited.
    double worst_lag_seconds = 0;  ///< How late a request began, after the trace's pace.
    bool stopped = false;          ///< By the stop signal.
    bool failed = false;           ///< In the request after these, whose blocks are counted as asked for.
    std::uint64_t uneven = 0;      ///< Requests whose hash ids are not one for each block of input.
    LatencyHistogram latency;      ///< Of a request's transfers.
    std::string transport;         ///< That carried them; Session::transportUsed.

    std::uint64_t bytesRead() const { return hits * block_size; }
    std::uint64_t bytesWritten() const { return written * block_size; }
    double hitRate() const { return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks); }
    double gigabytesPerSecond() const;  ///< While transferring.
    nlohmann::json toJson() const;
    std::string toString() const;  ///< Some lines, without the last newline.
};

/// Plays a trace against the target's memory, used as a store of blocks. The store is taken to be empty at first.
/// InvalidArgument names the line of a bad trace; ChecksumMismatch when a fetched block is not what was stored.
/// After a failure `before` has what was replayed till then, where it is given.
Result<ReplayReport> replay(const ReplayOptions& options, const Console& console, ReplayReport* before = nullptr);

/// troupe replay.
void addReplayCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
