#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe::bench {

/// What one throughput loop moves, and how. The same description drives Troupe and the bare sockets.
struct LoopOptions {
    bool write = true;                   ///< Else read.
    std::size_t block = 1u << 20;        ///< Bytes per request.
    std::uint32_t batch = 16;            ///< Requests per batch.
    std::uint32_t inflight = 2;          ///< Batches submitted before the oldest is waited for.
    std::uint32_t streams = 1;           ///< Connections.
    std::size_t footprint = 256u << 20;  ///< Bytes of memory walked on each side.
    bool scattered = true;               ///< Neighbouring requests are far apart in memory, on both sides.
    double seconds = 1;                  ///< How long to run after the warm-up.
    double warmup_seconds = 0.2;
};

/// What a throughput loop reached.
struct LoopFigures {
    double gigabytes_per_second = 0;  ///< 10^9 bytes.
    double requests_per_second = 0;
    double cpu_seconds_per_gigabyte = 0;  ///< Of both processes.
};

/// Latencies of single requests, in microseconds.
struct LatencyFigures {
    double p50 = 0;
    double p99 = 0;
    double mean = 0;  ///< 0: not known.
};

/// The yardstick: the same bytes over plain blocking sockets between two processes, with nothing in between.
///
/// One thread and one connection per stream at each end. A batch goes out as one gathered sendmsg of header and
/// payload pairs. Payloads of kDirectBytes and more are received straight into place, smaller ones through one 256 KiB
/// buffer and a copy. A write is acknowledged after its batch is applied; a read is a request, answered by header and
/// payload. Each batch is awaited once `inflight` are out. The serving process is this program again.
Result<LoopFigures> runBareSocket(const LoopOptions& options);

/// One request of `bytes` at a time over one connection, both ends spinning. `count` samples after a warm-up.
Result<LatencyFigures> runBareLatency(bool write, std::size_t bytes, std::size_t count);

/// The serving process: listens on a free loopback port, prints it as {"port": N}, serves every connection, and ends
/// when standard input closes. Returns the exit code.
int serveBareSocket(std::size_t footprint);

}  // namespace troupe::bench
