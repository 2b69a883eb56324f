#include "verbs_backend/exchange_messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "verbs_backend/little_endian.h"

namespace troupe::verbs {

namespace {

constexpr std::size_t kOfferBytes = kGreetingBytes + 20 + 4 + kMaxDeviceName;
constexpr std::size_t kGidBytes = 18;
constexpr std::size_t kReplyBytes = kAnswerBytes + 16 + kGidBytes;
constexpr std::uint32_t k24Bits = 0xffffff;
constexpr std::uint8_t kInfiniband = 1;
constexpr std::uint8_t kNeedsGrh = 2;
/// ibv_gid_type: InfiniBand, RoCE v1, RoCE v2.
constexpr std::uint8_t kLastGidType = IBV_GID_TYPE_ROCE_V2;

Status bad(const std::string& what) { return {Code::ProtocolError, "rdma exchange: " + what}; }

std::span<const std::byte> bytesOf(std::string_view text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void putGid(std::byte*& at, const PeerGid& gid) {
    std::memcpy(at, gid.gid.raw, sizeof gid.gid.raw);
    at += sizeof gid.gid.raw;
    put(at, gid.type);
    put(at, std::uint8_t{0});
}

Status takeGid(const std::byte*& at, PeerGid& gid) {
    std::memcpy(gid.gid.raw, at, sizeof gid.gid.raw);
    at += sizeof gid.gid.raw;
    gid.type = take<std::uint8_t>(at);
    if (gid.type > kLastGidType) return bad("GID type " + std::to_string(gid.type));
    if (take<std::uint8_t>(at) != 0) return bad("a reserved field is not zero");
    return {};
}

bool isMtu(std::uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

bool isText(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

std::string encode(const Offer& offer) {
    const std::size_t gids = std::min(offer.gids.size(), kMaxOfferedGids);
    std::string text(kOfferBytes + gids * kGidBytes, '\0');
    auto* at = reinterpret_cast<std::byte*>(text.data());
    const auto greeting = encode(offer.greeting);
    std::memcpy(at, greeting.data(), greeting.size());
    at += greeting.size();
    put(at, static_cast<std::uint8_t>(offer.what));
    put(at, static_cast<std::uint8_t>((offer.infiniband ? kInfiniband : 0) | (offer.needs_grh ? kNeedsGrh : 0)));
    put(at, offer.lid);
    put(at, offer.qp_number);
    put(at, offer.psn);
    put(at, offer.mtu);
    put(at, std::uint16_t{offer.reads});
    put(at, static_cast<std::uint16_t>(gids));
    put(at, std::uint32_t{0});
    std::memcpy(at, offer.device.data(), std::min(offer.device.size(), kMaxDeviceName));
    at += kMaxDeviceName;
    for (std::size_t i = 0; i < gids; ++i) putGid(at, offer.gids[i]);
    return text;
}

Result<Offer> decodeOffer(std::string_view bytes) {
    if (bytes.size() < kOfferBytes) return bad("an offer of " + std::to_string(bytes.size()) + " bytes");
    const auto greeting = decodeGreeting(bytesOf(bytes).first(kGreetingBytes));
    if (!greeting) return greeting.status();
    Offer offer;
    offer.greeting = *greeting;
    const std::byte* at = bytesOf(bytes).data() + kGreetingBytes;
    const auto what = take<std::uint8_t>(at);
    const auto flags = take<std::uint8_t>(at);
    offer.lid = take<std::uint16_t>(at);
    offer.qp_number = take<std::uint32_t>(at);
    offer.psn = take<std::uint32_t>(at);
    offer.mtu = take<std::uint32_t>(at);
    const auto reads = take<std::uint16_t>(at);
    const auto gids = take<std::uint16_t>(at);
    if (take<std::uint32_t>(at) != 0) return bad("a reserved field is not zero");
    if (what != 1 && what != 2) return bad("an offer of kind " + std::to_string(what));
    if (flags > (kInfiniband | kNeedsGrh) || reads > 255 || offer.qp_number > k24Bits || offer.psn > k24Bits)
        return bad("a number out of its range");
    offer.what = static_cast<Offer::What>(what);
    offer.infiniband = (flags & kInfiniband) != 0;
    offer.needs_grh = (flags & kNeedsGrh) != 0;
    offer.reads = static_cast<std::uint8_t>(reads);
    if (gids > kMaxOfferedGids || bytes.size() != kOfferBytes + gids * kGidBytes)
        return bad(std::to_string(gids) + " GIDs in " + std::to_string(bytes.size()) + " bytes");
    if (offer.what == Offer::What::Connect && offer.greeting.fence) return bad("a fence that connects");
    if (offer.what == Offer::What::Connect && (gids == 0 || !isMtu(offer.mtu)))
        return bad("no GID, or an MTU of " + std::to_string(offer.mtu));
    bool ended = false;
    for (std::size_t i = 0; i < kMaxDeviceName; ++i) {
        const auto c = static_cast<char>(take<std::uint8_t>(at));
        ended = ended || c == '\0';
        if (ended ? c != '\0' : !isText(c) || c == ' ') return bad("the device's name is not text");
        if (!ended) offer.device += c;
    }
    offer.gids.resize(gids);
    for (PeerGid& gid : offer.gids)
        if (Status taken = takeGid(at, gid); !taken) return taken;
    return offer;
}

std::string encode(const OfferReply& reply) {
    std::string why = reply.text.substr(0, kMaxReplyText);
    std::replace_if(
        why.begin(), why.end(), [](char c) { return !isText(c); }, '?');
    std::string text(kReplyBytes, '\0');
    auto* at = reinterpret_cast<std::byte*>(text.data());
    const auto answer = encode(reply.answer);
    std::memcpy(at, answer.data(), answer.size());
    at += answer.size();
    put(at, reply.qp_number);
    put(at, reply.psn);
    put(at, reply.lid);
    put(at, reply.reads);
    put(at, static_cast<std::uint8_t>(reply.needs_grh ? 1 : 0));
    put(at, reply.gid_index);
    put(at, static_cast<std::uint16_t>(why.size()));
    putGid(at, reply.gid);
    return text + why;
}

Result<OfferReply> decodeOfferReply(std::string_view bytes) {
    if (bytes.size() < kReplyBytes) return bad("a reply of " + std::to_string(bytes.size()) + " bytes");
    const auto answer = decodeAnswer(bytesOf(bytes).first(kAnswerBytes));
    if (!answer) return answer.status();
    OfferReply reply;
    reply.answer = *answer;
    const std::byte* at = bytesOf(bytes).data() + kAnswerBytes;
    reply.qp_number = take<std::uint32_t>(at);
    reply.psn = take<std::uint32_t>(at);
    reply.lid = take<std::uint16_t>(at);
    reply.reads = take<std::uint8_t>(at);
    const auto needs_grh = take<std::uint8_t>(at);
    reply.gid_index = take<std::uint16_t>(at);
    const auto text = take<std::uint16_t>(at);
    if (needs_grh > 1 || reply.qp_number > k24Bits || reply.psn > k24Bits) return bad("a number out of its range");
    reply.needs_grh = needs_grh == 1;
    if (text > kMaxReplyText || bytes.size() != kReplyBytes + text)
        return bad(std::to_string(text) + " bytes of text in " + std::to_string(bytes.size()));
    if (Status taken = takeGid(at, reply.gid); !taken) return taken;
    if (reply.answer.code == Code::Ok && (!isMtu(reply.answer.mtu) || reply.answer.device.empty()))
        return bad("an MTU of " + std::to_string(reply.answer.mtu) + ", or no device");
    reply.text = bytes.substr(kReplyBytes);
    if (!std::all_of(reply.text.begin(), reply.text.end(), isText)) return bad("the text is not text");
    return reply;
}

}  // namespace troupe::verbs
