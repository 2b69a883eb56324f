#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "bench/bare_socket.h"

namespace troupe::bench {

/// Throughput of `iperf3` over loopback, one stream, writes of `block` bytes for `seconds`, in 10^9 bytes a second.
/// Its buffers stay in cache, and it acknowledges nothing: a limit, not an equal. NotFound: not installed.
Result<double> runIperf3(std::size_t block, double seconds);

/// Throughput of `ucx_perftest` (UCX_TLS=tcp) over loopback: puts or gets of `block` bytes with enough outstanding,
/// for about `seconds`. A put counts once it has left, not once it has arrived. `cpu_seconds_per_gigabyte` covers both
/// ends and includes their start. NotFound: not installed.
/// `shared_memory`: UCX_TLS=posix,cma instead of tcp.
Result<LoopFigures> runUcxThroughput(bool write, std::size_t block, double seconds, bool shared_memory = false);

/// Latency of `ucx_perftest` (UCX_TLS=tcp), one message at a time, both ends spinning. Of a write: its put latency,
/// which is half a round trip of an exchange of puts. Of a read: a whole round trip of active messages of `bytes`, the
/// work of a request and its answer. NotFound: not installed.
Result<LatencyFigures> runUcxLatency(bool write, std::size_t bytes, std::size_t count);

/// Both ends of one cable, on this host: what perftest measures between.
struct RdmaEnds {
    std::string client;   ///< Device.
    std::string server;   ///< Device.
    std::string address;  ///< Of the server's interface.
    int gid_index = 0;    ///< On both devices.
    int ack_timeout = 14;
};

/// Throughput of `ib_write_bw` or `ib_read_bw` between two devices of this host, in 10^9 bytes a second: `queue_pairs`
/// pairs with `depth` work requests each. Every pair moves one block again and again. NotFound: not installed.
Result<double> runPerftestThroughput(const RdmaEnds& ends, bool write, std::size_t block, std::uint32_t depth,
                                     std::uint32_t queue_pairs, double seconds);

/// Latency of `ib_write_lat`: half a round trip of an exchange of writes, both ends spinning on their memory. NotFound:
/// not installed.
Result<LatencyFigures> runPerftestWriteLatency(const RdmaEnds& ends, std::size_t bytes, std::size_t count);

/// Microseconds from post to completion of a write by `ib_write_bw` with one work request out at a time, the mean of
/// `count`. NotFound: not installed.
Result<double> runPerftestOneWrite(const RdmaEnds& ends, std::size_t bytes, std::size_t count);

/// p50 and p99 of one "ucp_get" of `bytes` at a time with UCX_TLS=posix,cma. NotFound: not installed.
Result<LatencyFigures> runUcxSharedGet(std::size_t bytes, std::size_t count);

}  // namespace troupe::bench
