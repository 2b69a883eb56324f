#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/incarnation.h"
#include "base/status.h"
#include "transports/range_fault.h"

/// The protocol of a data connection. All numbers are little-endian; every frame has a fixed length or says its own.
/// Decoders are pure functions over exactly the given number of bytes and take anything an attacker can send.
///
///   initiator                                target
///   Hello                        ->
///                                <-          HelloReply (closed afterwards unless its code is Ok)
/// or, with a cluster key at both ends,
///   Hello, nonce                 ->
///                                <-          HelloReply (Ok), nonce
///   proof                        ->          over both of the above
///                                <-          HelloReply, proof over all of the above and this reply's first 32 bytes
/// and then
///   RequestHeader [payload]      ->          many in flight, in order
///                                <-          ResponseHeader [payload or message], in the order of the requests
///
/// The initiator sends no request before the reply, so that a connection the target has replaced holds no work.
namespace troupe::tcp {

inline constexpr std::uint32_t kMagic = 0x50525454;  ///< "TTRP".
inline constexpr std::uint16_t kVersion = 1;

/// Longest payload of one request. Bounds how long one frame can hold a connection.
inline constexpr std::uint64_t kMaxRequestBytes = 256u << 20;
/// The same with a checksum: the sender computes it in one go before the header, and its loop waits for it.
inline constexpr std::uint64_t kMaxCheckedBytes = 8u << 20;
/// Longest text of an error response.
inline constexpr std::size_t kMaxMessageBytes = 192;

/// Which connection of an initiator this is. A new one with the same id replaces the older one at the target.
struct LaneId {
    Incarnation initiator;
    std::uint32_t nic = 0;   ///< Index of the initiator's Nic.
    std::uint32_t lane = 0;  ///< Number of the lane among those from that Nic to this target.
    bool operator==(const LaneId&) const = default;
};

struct Hello {
    LaneId lane;
    Incarnation target;         ///< Whom the initiator means to reach.
    std::uint64_t attempt = 0;  ///< Grows with every connection of that Nic: tells the newer of two with one id.
    bool crc = false;           ///< The initiator will ask for checksums.
    bool has_nonce = false;     ///< It has a cluster key, and its nonce (kNonceBytes) follows.
};
inline constexpr std::size_t kHelloBytes = 80;

struct HelloReply {
    Incarnation target;  ///< Who answers.
    Code code = Code::Ok;
    /// A nonce or a proof follows, 32 bytes each. The first is a challenge, and then the code is Ok.
    bool has_auth = false;
};
/// What proofs on a data connection are for.
inline constexpr std::string_view kAuthProtocol = "tcp";
inline constexpr std::size_t kAuthBytes = 32;  ///< Of a nonce, and of a proof.
inline constexpr std::size_t kHelloReplyBytes = 32;

enum class Op : std::uint8_t { Read = 1, Write = 2 };

struct RequestHeader {
    Op op = Op::Read;
    bool crc = false;  ///< Write: `crc32c` is that of the payload. Read: answer with one.
    std::uint32_t crc32c = 0;
    std::uint64_t id = 0;      ///< Consecutive on a connection.
    std::uint64_t addr = 0;    ///< In the target's address space.
    std::uint64_t length = 0;  ///< At most kMaxRequestBytes (kMaxCheckedBytes); a Write's payload follows.
};
inline constexpr std::size_t kRequestBytes = 32;

enum class ResponseKind : std::uint8_t {
    WriteAck = 1,  ///< The writes id .. id + value - 1 are applied.
    ReadData = 2,  ///< `length` bytes follow; value is their CRC32C when `crc` is set.
    Error = 3,     ///< Request `id` was refused with code `value`; `length` bytes of text follow.
};

struct ResponseHeader {
    ResponseKind kind = ResponseKind::WriteAck;
    bool crc = false;
    std::uint32_t value = 0;
    std::uint64_t id = 0;
    std::uint64_t length = 0;
};
inline constexpr std::size_t kResponseBytes = 24;

void encodeHello(const Hello& hello, std::byte* out);
/// ProtocolError names what is wrong: magic, version, an authentication this version does not know, reserved bits.
Result<Hello> decodeHello(const std::byte* in);
/// True while the first `have` bytes can still become a Hello: garbage is closed before it is complete.
bool startsLikeHello(const std::byte* in, std::size_t have);

void encodeHelloReply(const HelloReply& reply, std::byte* out);
Result<HelloReply> decodeHelloReply(const std::byte* in);

void encodeRequest(const RequestHeader& header, std::byte* out);
/// False when no initiator of this version sends such a header.
bool decodeRequest(const std::byte* in, RequestHeader& header);

void encodeResponse(const ResponseHeader& header, std::byte* out);
/// False when no target of this version sends such a header.
bool decodeResponse(const std::byte* in, ResponseHeader& header);

/// The text for a refused request, written to `out` (kMaxMessageBytes); returns its length. The same for the same
/// arguments, so that it can be made again when a send stopped in the middle of it.
std::size_t refusalText(const RangeFault& fault, char* out);

}  // namespace troupe::tcp
