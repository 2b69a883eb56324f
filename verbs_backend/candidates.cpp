#include "verbs_backend/candidates.h"

#include <arpa/inet.h>

#include <algorithm>

namespace troupe::verbs {

std::vector<Connector::Candidate> candidatesFor(const SegmentDesc& peer, const Device& own, std::size_t index,
                                                bool by_cm, bool by_exchange) {
    struct Ranked {
        int rank;
        Connector::Candidate candidate;
    };
    std::vector<Ranked> ranked;
    const auto mine = own.view();
    for (const DeviceDesc& device : peer.devices) {
        ibv_gid gid{};
        if (inet_pton(AF_INET6, device.gid.c_str(), gid.raw) != 1) continue;
        // Its port has lost its addresses, or it is out of use; it is named for the sake of the others' places.
        const GidScope scope = scopeOf(gid);
        if (scope == GidScope::Null) continue;
        // Only InfiniBand has LIDs, and its ports reach no RoCE.
        const bool infiniband = device.lid != 0;
        if (infiniband != own.infiniband) continue;
        const auto address = SocketAddress::fromNumeric(addressOfGid(gid).host(), peer.rdma_port);
        const bool has_address = !infiniband && peer.rdma_port != 0 && address &&
                                 address->family() == mine->address.family() &&
                                 (scope == GidScope::MappedV4 || scope == GidScope::GlobalV6);
        Connector::Candidate candidate;
        candidate.device = device.name;
        candidate.own = index;
        if (address) candidate.address = *address;
        candidate.by_exchange = !(by_cm && mine->by_cm && has_address);
        if (candidate.by_exchange && !by_exchange) continue;
        // Without the prefix length of the interface, the longest common prefix is the best guess at a shared rail.
        ranked.push_back({(device.name == own.name ? 1000 : 0) + commonPrefix(gid, mine->gid.gid), candidate});
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.rank > b.rank; });
    std::vector<Connector::Candidate> candidates;
    candidates.reserve(ranked.size());
    for (Ranked& entry : ranked) candidates.push_back(std::move(entry.candidate));
    return candidates;
}

}  // namespace troupe::verbs
