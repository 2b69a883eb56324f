#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "verbs_backend/gid_route.h"
#include "verbs_backend/handshake.h"

namespace troupe::verbs {

/// GIDs that one offer names, at most.
inline constexpr std::size_t kMaxOfferedGids = 16;
/// Bytes of the text in a reply.
inline constexpr std::size_t kMaxReplyText = 512;

/// What the initiator asks over the control connection where rdma_cm has no way. Little-endian:
///
///     56 a Greeting, as in the private data of rdma_cm
///     u8 what: 1 connect, 2 end the pair that was made for this queue pair, or with a Greeting that is a fence all
///     pairs of its lane up to its attempt, however made   u8 bit 0: InfiniBand, bit 1: packets to its port need a
///     global route header   u16 LID
///     u32 QP number   u32 first packet number   u32 path MTU   u16 READs at once   u16 number of GIDs
///     32 name of the target's device that is meant, padded with zeros, then for each GID
///     16 GID   u8 type (0 InfiniBand or RoCE v1, 1 RoCE v2 as in ibv_gid_type)   u8 zero
struct Offer {
    enum class What : std::uint8_t { Connect = 1, End = 2 };
    Greeting greeting;
    What what = What::Connect;
    bool infiniband = false;
    bool needs_grh = false;  ///< The initiator's port takes and sends no packets without a global route header.
    std::uint16_t lid = 0;
    std::uint32_t qp_number = 0;  ///< 24 bits.
    std::uint32_t psn = 0;        ///< 24 bits.
    std::uint32_t mtu = 0;        ///< Bytes, 256 to 4096: of the port, and what the settings allow.
    std::uint8_t reads = 0;       ///< READs that it wants to have outstanding.
    std::string device;
    std::vector<PeerGid> gids;  ///< 1 to kMaxOfferedGids, for Connect.
};

/// The answer. With a code but Ok, nothing was made; Canceled answers what asks for an end: it has ended.
/// Little-endian:
///
///     64 an Answer, as in the private data of rdma_cm
///     u32 QP number   u32 first packet number   u16 LID   u8 READs at once   u8 1: packets carry a global route header
///     although the subnet is one   u16 which GID of the offer
///     u16 bytes of text   16 the target's GID   u8 its type   u8 zero   text: why not, for people
struct OfferReply {
    Answer answer;
    std::uint32_t qp_number = 0;
    std::uint32_t psn = 0;
    std::uint16_t lid = 0;
    std::uint8_t reads = 0;
    bool needs_grh = false;       ///< Either port needs one, so both ends' packets have it.
    std::uint16_t gid_index = 0;  ///< In Offer::gids.
    PeerGid gid;
    std::string text;
};

std::string encode(const Offer& offer);
std::string encode(const OfferReply& reply);

/// The bytes are hostile. ProtocolError says what is wrong: a length that is not exactly right, a number out of its
/// range, a field that must be zero, a name or text that is none.
Result<Offer> decodeOffer(std::string_view bytes);
Result<OfferReply> decodeOfferReply(std::string_view bytes);

}  // namespace troupe::verbs
