#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::verbs {

/// A GID as the peer's table has it.
struct PeerGid {
    ibv_gid gid{};
    std::uint8_t type = 0;  ///< ibv_gid_type.
};

/// A pair of GIDs by which two ports may reach each other, as indices of two lists.
struct GidPair {
    std::size_t own = 0;
    std::size_t peer = 0;
    bool operator==(const GidPair&) const = default;
};

/// Which GIDs of two ports go together, the likeliest first. Only those of one type and one scope do: a mapped IPv4
/// address is not reached from an IPv6 one, and of two link-local ones nobody knows whether they are on one link before
/// it is tried. RoCE v2 comes before v1, the wider scope before the narrower, the longer common prefix (one subnet,
/// most likely) before the shorter.
std::vector<GidPair> pairGids(const std::vector<ibv_gid_entry>& own, const std::vector<PeerGid>& peer);

/// Leading bits that two GIDs have in common.
int commonPrefix(const ibv_gid& a, const ibv_gid& b);

/// What the two ends of a pair told each other where rdma_cm does not: all that its transitions need of the other end.
struct ExchangedRoute {
    ibv_gid_entry own{};         ///< Of the own port.
    ibv_gid peer{};              ///< Of the peer's.
    std::uint16_t peer_lid = 0;  ///< InfiniBand.
    bool needs_grh = false;      ///< InfiniBand: a port at either end needs a global route header.
    std::uint32_t peer_qp = 0;
    std::uint32_t own_psn = 0;   ///< Number of the first packet sent.
    std::uint32_t peer_psn = 0;  ///< Of the first that comes.
    std::uint8_t reads = 0;      ///< READs at once, from the initiator to the target.
};

}  // namespace troupe::verbs
