#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "bench/engine_loop.h"
#include "bench/memory.h"
#include "bench/row.h"
#include "bench/serving_peer.h"

namespace troupe::bench {

/// An engine here with memory of the application's, a serving peer there, and the peer's segment open by one wire.
struct WireRig {
    Memory memory;
    ServingPeer peer;
    std::unique_ptr<TransferEngine> engine;  ///< Ends before the memory and the peer do.
    SegmentID segment = kInvalidSegmentID;

    LoopEnds ends() const {
        return {engine.get(), segment, peer.address(), memory.data(), [this] { return peer.cpuSeconds(); }};
    }
};

/// `here` and `there`: of the two ends, each with as much memory as its footprint. `transport`: "tcp" or "rdma".
Result<WireRig> makeWireRig(const Settings& here, const Settings& there, const std::string& transport);

}  // namespace troupe::bench
