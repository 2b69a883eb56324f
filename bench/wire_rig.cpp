#include "bench/wire_rig.h"

#include <utility>

namespace troupe::bench {

Result<WireRig> makeWireRig(const Settings& here, const Settings& there, const std::string& transport) {
    auto memory = Memory::populated(here.footprint);
    if (!memory) return memory.status();
    auto peer = ServingPeer::start(there, 1, false, transport);
    if (!peer) return peer.status();
    auto engine = makeEngine(here, transport);
    if (!engine) return engine.status();
    if (Status status = (*engine)->registerLocalMemory(memory->data(), memory->size()); !status) return status;
    auto segment = (*engine)->openSegment(peer->segment());
    if (!segment) return segment.status();
    return WireRig{std::move(*memory), std::move(*peer), std::move(*engine), *segment};
}

}  // namespace troupe::bench
