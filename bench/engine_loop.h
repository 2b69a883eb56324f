#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "bench/bare_socket.h"
#include "bench/row.h"
#include "engine/transfer_engine.h"

namespace troupe::bench {

/// How the submitting thread learns that a batch has ended.
enum class Waiting {
    Wait,  ///< waitTransfer.
    Spin,  ///< getBatchTransferStatus until it is terminal.
};

/// An engine with p2p metadata on the loopback interface, the settings' configuration and one transport; an empty
/// `transport` installs none.
/// With "tcp" and "rdma" it reaches processes of this host by that, too, unless `serves`: then whoever comes chooses.
Result<std::unique_ptr<TransferEngine>> makeEngine(const Settings& settings, const std::string& transport,
                                                   bool serves = false);

/// Between what and what a loop moves. All of it outlives the loop; `local` and the range at `remote` are registered
/// and at least as long as the footprint.
struct LoopEnds {
    TransferEngine* engine = nullptr;
    SegmentID segment = kLocalSegmentID;
    std::uint64_t remote = 0;
    char* local = nullptr;
    std::function<double()> peer_cpu_seconds;  ///< CPU time of the peer's process so far; empty: there is none.
};

/// What `settings` say about a throughput loop.
LoopOptions loopOptions(const Settings& settings, bool write, std::size_t block, std::uint32_t batch);

/// One submitting thread keeps `options.inflight` batches submitted and waits for the oldest. Any transfer that does
/// not complete ends the loop with its error.
Result<LoopFigures> runEngineLoop(const LoopEnds& ends, const LoopOptions& options, Waiting waiting);

/// One request at a time: from before submitTransfer to the caller's seeing COMPLETED.
Result<LatencyFigures> runEngineLatency(const LoopEnds& ends, bool write, std::size_t bytes, std::size_t count,
                                        Waiting waiting);

/// One request, waited for.
Status transferOnce(const LoopEnds& ends, bool write, std::size_t bytes);

}  // namespace troupe::bench
