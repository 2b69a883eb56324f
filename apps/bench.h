#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/support/command.h"
#include "apps/support/session.h"

namespace troupe::apps {

struct BenchOptions {
    EngineArguments engine;
    std::string target;
    bool local = false;  ///< Against memory of the own segment.
    std::vector<std::uint64_t> block_sizes = {64u << 10};
    std::vector<std::uint32_t> batch_sizes = {16};
    std::vector<unsigned> threads = {1};
    double seconds = 2;              ///< Measured, of each row.
    double warmup = 0.3;             ///< Before, seconds.
    std::string operation = "both";  ///< "read", "write" or "both".
    std::uint64_t footprint = 0;     ///< Bytes per thread and side; 0: 64 MiB, more where a row needs it.
    unsigned inflight = 2;           ///< Batches per thread at the same time.
    bool verify = false;
    bool scatter = false;
    bool sweep = false;
    bool huge = false;
    bool engine_memory = false;  ///< Local memory of the engine's own.
    std::uint64_t seed = 1;
};

/// What one combination of operation, block size, batch size and number of threads gave.
struct BenchRow {
    std::string operation;
    std::uint64_t block_size = 0;
    std::uint32_t batch_size = 0;
    unsigned threads = 1;
    std::uint64_t batches = 0;   ///< Completed while measured.
    double gigabytes_per_s = 0;  ///< 10^9 bytes.
    double requests_per_s = 0;
    double p50_us = 0;  ///< Of a batch, from submit to its observed end.
    double p99_us = 0;
    double p999_us = 0;
    double cpu_s_per_gb = 0;  ///< User and system time of this process.
    bool verified = false;
};

struct BenchReport {
    std::string target;
    std::string transport;  ///< That carried the rows; Session::transportUsed.
    unsigned inflight = 1;
    bool scatter = false;
    bool stopped = false;  ///< By the stop signal, before the last row.
    std::vector<BenchRow> rows;
    Quarantined quarantined;  ///< At the end; TransferEngine::quarantine.

    /// Over "null" no byte goes anywhere, so there is no rate of bytes.
    bool movesBytes() const { return transport != "null"; }
    nlohmann::json toJson() const;
    /// The head of the table, a row of it, and what is said below it; each ends with a newline.
    static std::string head();
    std::string line(const BenchRow& row) const;
    std::string foot() const;
};

/// Told of each row when it is done: it is the last of the report's.
using BenchRowDone = std::function<void(const BenchReport& so_far)>;

/// Measures every row. InvalidArgument when a row does not fit the memory; ChecksumMismatch when verification fails.
Result<BenchReport> bench(const BenchOptions& options, const Console& console, const BenchRowDone& row_done = {});

/// troupe bench.
void addBenchCommand(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe::apps
