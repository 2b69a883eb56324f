#pragma once

#include <vector>

#include "metadata/segment_desc.h"
#include "verbs_backend/connector.h"
#include "verbs_backend/device.h"

namespace troupe::verbs {

/// The ways from one of our ports to a peer, the likeliest first: its device of the same name, then the one whose
/// address has the longest prefix in common (the same rail, most likely), then the others in the order that it names
/// them. Each by rdma_cm where both ends have an address for it, else by exchange, or not at all where that cannot be.
/// `index`: of `own` among the Connector's devices.
std::vector<Connector::Candidate> candidatesFor(const SegmentDesc& peer, const Device& own, std::size_t index,
                                                bool by_cm, bool by_exchange);

}  // namespace troupe::verbs
