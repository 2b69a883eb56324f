#include "verbs_backend/sealed_handshake.h"

#include <algorithm>
#include <string>

#include "verbs_backend/little_endian.h"

namespace troupe::verbs {

namespace {

constexpr std::uint32_t kSealedMagic = 0x4b445254;       // "TRDK"
constexpr std::uint32_t kSealedFenceMagic = 0x46445254;  // "TRDF"
constexpr std::string_view kProtocol = "rdma";
constexpr std::size_t kTagBytes = 8;
constexpr std::size_t kSignedBytes = kGreetingBytes - kTagBytes;
// Below the attempt: which of its ways, and the path MTU.
constexpr unsigned kMtuBits = 3;
constexpr unsigned kCandidateBits = 13;
constexpr unsigned kWayBits = kCandidateBits + kMtuBits;

std::uint64_t ticketOf(const Greeting& greeting) {
    return greeting.attempt << kWayBits | std::uint64_t{greeting.candidate} << kMtuBits | mtuNumber(greeting.mtu);
}

/// What stands there, up to a zero. rdma_cm pads with them.
std::span<const std::byte> textAt(std::span<const std::byte> bytes, std::size_t from) {
    if (bytes.size() <= from) return {};
    const auto rest = bytes.subspan(from, std::min(bytes.size() - from, kMaxAnswerText));
    const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
    return rest.first(static_cast<std::size_t>(end - rest.begin()));
}

/// For a log; it may be anybody's.
std::string readable(std::span<const std::byte> text) {
    std::string result;
    for (const std::byte each : text) {
        const char c = static_cast<char>(each);
        result += c >= ' ' && c <= '~' ? c : '?';
    }
    return result;
}

}  // namespace

Result<std::array<std::byte, kGreetingBytes>> sealGreeting(const Greeting& greeting,
                                                           const std::shared_ptr<const ClusterAuth>& auth) {
    if (!hasKey(auth)) return encode(greeting);
    if (greeting.nic > UINT16_MAX || greeting.lane > UINT16_MAX)
        return Status(Code::InvalidArgument, "with a cluster key rdma has 65,536 Nics and lanes at most");
    if (greeting.attempt >> (64 - kWayBits) != 0)
        return Status(Code::InvalidArgument, "with a cluster key rdma has 2^48 attempts at most");
    std::array<std::byte, kGreetingBytes> bytes{};
    std::byte* at = bytes.data();
    put(at, greeting.fence ? kSealedFenceMagic : kSealedMagic);
    put(at, static_cast<std::uint16_t>(greeting.nic));
    put(at, static_cast<std::uint16_t>(greeting.lane));
    put(at, greeting.initiator);
    put(at, greeting.target);
    put(at, ticketOf(greeting));
    const Proof proof = auth->prove(AuthRole::Initiator, kProtocol, {std::span(bytes).first(kSignedBytes)});
    std::copy_n(proof.begin(), kTagBytes, bytes.begin() + kSignedBytes);
    return bytes;
}

Result<Greeting> openGreeting(std::span<const std::byte> bytes, const std::shared_ptr<const ClusterAuth>& auth) {
    const std::byte* at = bytes.data();
    const std::uint32_t magic = bytes.size() >= kGreetingBytes ? take<std::uint32_t>(at) : 0;
    const bool sealed = magic == kSealedMagic || magic == kSealedFenceMagic;
    if (!hasKey(auth)) {
        if (!sealed) return decodeGreeting(bytes);
        countRefusal(auth, AuthRefusal::UnusedKey);
        return hasNoKey("this engine");
    }
    if (!sealed) {
        auto plain = decodeGreeting(bytes);
        if (!plain) return plain;
        auth->count(AuthRefusal::NoProof);
        return needsKey("this engine");
    }
    if (!auth->accepts(AuthRole::Initiator, kProtocol, {bytes.first(kSignedBytes)},
                       bytes.subspan(kSignedBytes, kTagBytes))) {
        auth->count(AuthRefusal::WrongProof);
        return otherKey("this engine");
    }
    Greeting greeting;
    greeting.nic = take<std::uint16_t>(at);
    greeting.lane = take<std::uint16_t>(at);
    greeting.initiator = takeIncarnation(at);
    greeting.target = takeIncarnation(at);
    const auto ticket = take<std::uint64_t>(at);
    const auto mtu = mtuOfNumber(static_cast<std::uint16_t>(ticket & ((1u << kMtuBits) - 1)));
    if (!mtu) return mtu.status();
    greeting.mtu = *mtu;
    greeting.candidate = static_cast<std::uint16_t>(ticket >> kMtuBits & ((1u << kCandidateBits) - 1));
    greeting.attempt = ticket >> kWayBits;
    greeting.fence = magic == kSealedFenceMagic;
    if (greeting.initiator.isNull())
        return Status(Code::ProtocolError, "rdma handshake: the initiator names no incarnation");
    return greeting;
}

std::vector<std::byte> sealAnswer(const Answer& answer, std::span<const std::byte> greeting, bool proven,
                                  const std::shared_ptr<const ClusterAuth>& auth) {
    const auto plain = encode(answer);
    const auto text = std::as_bytes(std::span(answer.text)).first(std::min(answer.text.size(), kMaxAnswerText));
    std::vector<std::byte> bytes(plain.begin(), plain.end());
    if (proven && hasKey(auth) && greeting.size() >= kGreetingBytes) {
        const Proof proof = auth->prove(AuthRole::Responder, kProtocol, {greeting.first(kGreetingBytes), plain, text});
        bytes.insert(bytes.end(), proof.begin(), proof.end());
    }
    bytes.insert(bytes.end(), text.begin(), text.end());
    return bytes;
}

Result<Answer> openAnswer(std::span<const std::byte> bytes, std::span<const std::byte> greeting,
                          const std::shared_ptr<const ClusterAuth>& auth) {
    auto answer = decodeAnswer(bytes);
    if (!answer) return answer;
    const bool refused = answer->code == Code::AccessDenied;
    if (!hasKey(auth)) {
        if (refused) return needsKey("the peer");
        answer->text = readable(textAt(bytes, kAnswerBytes));
        return answer;
    }
    const auto text = textAt(bytes, kAnswerBytes + kProofBytes);
    if (bytes.size() >= kAnswerBytes + kProofBytes &&
        auth->accepts(AuthRole::Responder, kProtocol, {greeting, bytes.first(kAnswerBytes), text},
                      bytes.subspan(kAnswerBytes, kProofBytes))) {
        auth->countAccepted();
        answer->text = readable(text);
        return answer;
    }
    auth->count(refused ? AuthRefusal::NoProof : AuthRefusal::WrongProof);
    if (!refused) return otherKey("this engine");
    return Status(Code::AccessDenied,
                  "the peer refuses the proof of the cluster key: it has another key, or none (auth.key_file; "
                  "docs/security.md)");
}

bool SeenGreetings::isNew(const Greeting& greeting) {
    const Lane lane{greeting.initiator, greeting.nic, greeting.lane};
    const std::uint64_t ticket = ticketOf(greeting);
    auto found = seen_.find(lane);
    if (found != seen_.end()) {
        if (ticket <= found->second.ticket) return false;
        by_order_.erase(found->second.order);
    } else {
        if (seen_.size() >= most_) {
            seen_.erase(by_order_.begin()->second);
            by_order_.erase(by_order_.begin());
        }
        found = seen_.emplace(lane, Seen{}).first;
    }
    found->second = {ticket, ++order_};
    by_order_.emplace(order_, lane);
    return true;
}

}  // namespace troupe::verbs
