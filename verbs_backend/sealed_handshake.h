#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "security/cluster_auth.h"
#include "verbs_backend/handshake.h"

namespace troupe::verbs {

/// The handshake with a cluster key. rdma_cm leaves an initiator 56 bytes, and there is no round trip for a challenge,
/// so a greeting is a ticket that its initiator made with the key:
///
///     u32 magic "TRDK" ("TRDF": a fence)  u16 Nic  u16 lane  16 initiator's incarnation  16 target's incarnation
///     u64: 48 bits attempt, 13 candidate, 3 path MTU  8 the beginning of the proof over all before it
///
/// It proves that the initiator had the key when it made it, for this target and this lane. (initiator, Nic, lane,
/// attempt, candidate) occurs once and grows, so a target refuses what it has seen (SeenGreetings); a fence may come
/// again, it ends what has ended. The answer is that of handshake.h, and then 32 bytes of proof over the greeting, the
/// answer and its text: fresh, as the greeting is. With a key or without, a refusal ends with that text: up to 52 bytes
/// for people, ended by a zero or the end.

/// As encode(Greeting) without a key. InvalidArgument: a number that finds no room (Nic or lane above 65,535, attempt
/// of 2^48 or more).
Result<std::array<std::byte, kGreetingBytes>> sealGreeting(const Greeting& greeting,
                                                           const std::shared_ptr<const ClusterAuth>& auth);
/// ProtocolError as decodeGreeting; AccessDenied: only one end has a key, or another one. Counted.
Result<Greeting> openGreeting(std::span<const std::byte> bytes, const std::shared_ptr<const ClusterAuth>& auth);

/// `greeting` as it came; without its proof when `proven` is false: to somebody who has proven nothing.
std::vector<std::byte> sealAnswer(const Answer& answer, std::span<const std::byte> greeting, bool proven,
                                  const std::shared_ptr<const ClusterAuth>& auth);
/// ProtocolError as decodeAnswer; AccessDenied: the other end said so, or the proof is missing or wrong. Counted.
Result<Answer> openAnswer(std::span<const std::byte> bytes, std::span<const std::byte> greeting,
                          const std::shared_ptr<const ClusterAuth>& auth);

/// The last attempt and candidate of each lane that were let in, so that a greeting which somebody recorded is not let
/// in again. At the bound the lane that was not heard of for longest is forgotten.
class SeenGreetings {
  public:
    explicit SeenGreetings(std::size_t most = 65536) : most_(most) {}
    /// Of one that was opened. False: this one, or a later one of its lane, was seen before.
    bool isNew(const Greeting& greeting);

  private:
    using Lane = std::tuple<Incarnation, std::uint32_t, std::uint32_t>;
    struct Seen {
        std::uint64_t ticket = 0;  ///< Attempt and candidate.
        std::uint64_t order = 0;
    };
    const std::size_t most_;
    std::uint64_t order_ = 0;
    std::map<Lane, Seen> seen_;
    std::map<std::uint64_t, Lane> by_order_;
};

}  // namespace troupe::verbs
