#include "verbs_backend/gid_route.h"

#include <algorithm>
#include <tuple>

#include "verbs_backend/device.h"

namespace troupe::verbs {

int commonPrefix(const ibv_gid& a, const ibv_gid& b) {
    int bits = 0;
    while (bits < 128 && ((a.raw[bits / 8] ^ b.raw[bits / 8]) >> (7 - bits % 8) & 1) == 0) ++bits;
    return bits;
}

std::vector<GidPair> pairGids(const std::vector<ibv_gid_entry>& own, const std::vector<PeerGid>& peer) {
    std::vector<GidPair> pairs;
    for (std::size_t i = 0; i < own.size(); ++i)
        for (std::size_t j = 0; j < peer.size(); ++j) {
            const GidScope scope = scopeOf(own[i].gid);
            if (own[i].gid_type == peer[j].type && scope != GidScope::Null && scope == scopeOf(peer[j].gid))
                pairs.push_back({i, j});
        }
    const auto merit = [&](const GidPair& pair) {
        const ibv_gid_entry& entry = own[pair.own];
        return std::tuple(entry.gid_type == IBV_GID_TYPE_ROCE_V2, static_cast<int>(scopeOf(entry.gid)),
                          commonPrefix(entry.gid, peer[pair.peer].gid));
    };
    std::stable_sort(pairs.begin(), pairs.end(),
                     [&](const GidPair& a, const GidPair& b) { return merit(a) > merit(b); });
    return pairs;
}

}  // namespace troupe::verbs
