#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/incarnation.h"
#include "base/status.h"

namespace troupe::verbs {

/// One version of everything below; another one is refused.
inline constexpr std::uint16_t kHandshakeVersion = 1;

/// What the initiator says in the private data of its connection request: all that rdma_cm leaves of it, 56 bytes
/// (rdma_connect(3), RDMA_PS_TCP). Little-endian:
///
///     u32 magic "TRDM"  u16 version (1)  u16 flags (bit 0: fence; bits 1 to 3: path MTU, see mtuNumber)
///     16 initiator's incarnation  16 target's incarnation  u32 Nic  u32 lane  u64 attempt
///
/// (initiator, Nic, lane) names a lane. A request with a higher attempt ends its predecessor at the target before it is
/// answered, so that nothing the old one still has on the way is applied after its successor's work. A *fence* asks for
/// that alone: the lane's connections up to this attempt are ended, and the answer is a reject with code 0. It may come
/// through any device, so that work lost with one can go on over another, and by exchange (exchange_messages.h).
struct Greeting {
    Incarnation initiator;
    Incarnation target;
    std::uint32_t nic = 0;
    std::uint32_t lane = 0;
    std::uint64_t attempt = 0;
    std::uint16_t candidate = 0;  ///< Of the ways that the attempt tries, which; in sealed_handshake.h only.
    /// What the initiator's port takes, in bytes: a power of two from 256 to 4,096; 0: whatever the way has. Both ends
    /// must send packets of one size, and rdma_cm knows of no setting.
    std::uint32_t mtu = 0;
    bool fence = false;

    bool sameLane(const Greeting& other) const {
        return initiator == other.initiator && nic == other.nic && lane == other.lane;
    }
};
inline constexpr std::size_t kGreetingBytes = 56;

/// The answer, in the private data of an accept or a reject. Accepted means: the target's queue pair is ready to
/// receive, work may be sent. Rejected with code 0 answers a fence: nothing of the lane up to that attempt touches
/// memory any more. Little-endian, 64 bytes:
///
///     u32 magic "TRDM"  u16 version (1)  u16 code (0: welcome)  16 who answers  u32 path MTU  u32 zero
///     32 name of the device that answers, padded with zeros
struct Answer {
    Code code = Code::Ok;
    Incarnation target;
    std::uint32_t mtu = 0;  ///< Bytes; of the target's port.
    std::string device;     ///< As in its descriptor; at most 32 bytes.
    std::string text = {};  ///< Of a refusal: why, for people; see sealed_handshake.h.
};
inline constexpr std::size_t kAnswerBytes = 64;
/// The code of an answer that is not the hoped for one, as a cause on this side: the peer chose its number. See
/// codeFromWire; ProtocolError for a welcome.
Code refusalCode(const Answer& answer);
inline constexpr std::size_t kMaxDeviceName = 32;
/// Bytes of Answer::text: what a reject of rdma_cm has room for (148) beside the answer and a proof.
inline constexpr std::size_t kMaxAnswerText = 52;

/// Greeting::mtu in three bits, numbered as the specification does: 1 for 256 bytes to 5 for 4,096; 0 for 0.
std::uint16_t mtuNumber(std::uint32_t bytes);
/// ProtocolError: 6 or 7.
Result<std::uint32_t> mtuOfNumber(std::uint16_t number);

std::array<std::byte, kGreetingBytes> encode(const Greeting& greeting);
std::array<std::byte, kAnswerBytes> encode(const Answer& answer);

/// rdma_cm pads private data with zeros, so more bytes than these are no error. ProtocolError says what is wrong:
/// too short, another magic or version, a reserved field that is not zero, a name that is not text.
Result<Greeting> decodeGreeting(std::span<const std::byte> bytes);
Result<Answer> decodeAnswer(std::span<const std::byte> bytes);

}  // namespace troupe::verbs
