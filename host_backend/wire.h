#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/incarnation.h"
#include "base/status.h"
#include "security/cluster_auth.h"
#include "transports/device.h"

/// What two processes of one host say to each other over their unix socket; docs/design.md has the layout.
///
///     initiator                    owner
///        Hello  ----------------->        who I am, whom I mean
///               <-----------------  Welcome (or Refuse)
///        Ready  ----------------->        the owner is the process that I meant, and I may copy (what it lets me)
///        GrantRequest ----------->
///               <-----------------  Grant (or DeviceGrant, or GrantRefused)
///               <-----------------  Revoke
///        RevokeAck -------------->        the region is not touched any more
///
/// With a cluster key at both ends, each proves to the other that it has it, for one round trip more:
///
///        Hello with a nonce ---->
///               <-----------------  Challenge with a nonce
///        KeyProof -------------->        over the packets of Hello and Challenge
///               <-----------------  Welcome or Refuse, and KeyProof
///                                        over the packets of Hello, Challenge and that answer
///        Ready  ----------------->
///
/// One frame is one packet (SOCK_SEQPACKET), so there are no partial ones.
namespace troupe::host {

struct Hello {
    Incarnation initiator;
    Incarnation owner;
    std::optional<Nonce> nonce = std::nullopt;  ///< It has a cluster key.
    bool operator==(const Hello&) const = default;
};

struct Welcome {
    Incarnation owner;
    std::uint64_t nonce = 0;  ///< Comes back in Ready.
    std::uint64_t word = 0;   ///< Where the owner's process keeps its incarnation: what a trial read must find.
    /// All memory that it lets peers use can be mapped, as of now: whoever may not use process_vm needs nothing else.
    bool all_mapped = false;
    bool operator==(const Welcome&) const = default;
};

/// The owner will not talk to this process, and closes.
struct Refuse {
    Code code = Code::Internal;
    std::string text;
    bool operator==(const Refuse&) const = default;
};

struct Ready {
    std::uint64_t nonce = 0;
    bool operator==(const Ready&) const = default;
};

/// May I read, and with `write` write too, all of [addr, addr + length)?
struct GrantRequest {
    std::uint64_t id = 0;
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    bool write = false;
    bool operator==(const GrantRequest&) const = default;
};

/// Yes, as far as the region goes that `addr` lies in: [base, base + length) may be used until it is revoked.
struct Grant {
    enum class Kind : std::uint32_t {
        Vm = 0,      ///< By process_vm_readv and process_vm_writev.
        Mapped = 1,  ///< By mapping a memory file, whose descriptor comes with the first grant of the region.
    };
    std::uint64_t id = 0;      ///< Of the request.
    std::uint64_t region = 0;  ///< Never reused by this owner: the generation.
    std::uint64_t base = 0;
    std::uint64_t length = 0;
    std::uint64_t offset = 0;  ///< Of `base` in the file.
    Kind kind = Kind::Vm;
    bool writable = true;  ///< Else only to read.
    bool operator==(const Grant&) const = default;
};

/// Yes, and it is memory of a GPU: [base, base + length) lies in an allocation that can be mapped, see
/// device::SharedMemory. With kind File its descriptor comes with the first grant of the region.
struct DeviceGrant {
    std::uint64_t id = 0;      ///< Of the request.
    std::uint64_t region = 0;  ///< As in Grant; of a region of several allocations each has its own.
    std::uint64_t base = 0;
    std::uint64_t length = 0;
    device::ShareKind kind = device::ShareKind::Ipc;
    std::uint64_t allocation = 0;        ///< Where the owner has its first byte,
    std::uint64_t allocation_bytes = 0;  ///< and how long it is. [base, base + length) lies in it.
    std::array<std::uint8_t, device::kShareHandleBytes> handle{};
    bool operator==(const DeviceGrant&) const = default;
};

struct GrantRefused {
    std::uint64_t id = 0;
    Code code = Code::Internal;
    std::string text;
    bool operator==(const GrantRefused&) const = default;
};

struct Revoke {
    std::uint64_t region = 0;
    bool operator==(const Revoke&) const = default;
};

struct RevokeAck {
    std::uint64_t region = 0;
    bool operator==(const RevokeAck&) const = default;
};

/// The owner has a cluster key.
struct Challenge {
    Incarnation owner;
    Nonce nonce{};
    bool operator==(const Challenge&) const = default;
};

struct KeyProof {
    Proof proof{};
    bool operator==(const KeyProof&) const = default;
};

using Frame = std::variant<Hello, Welcome, Refuse, Ready, GrantRequest, Grant, GrantRefused, Revoke, RevokeAck,
                           Challenge, KeyProof, DeviceGrant>;

/// What the proofs are for.
inline constexpr std::string_view kAuthProtocol = "host";

inline constexpr std::size_t kMaxFrameBytes = 512;
inline constexpr std::size_t kMaxTextBytes = 400;  ///< Longer texts are cut when they are encoded.

/// An encoded frame.
struct Packet {
    std::array<std::byte, kMaxFrameBytes> bytes{};
    std::size_t length = 0;
    std::span<const std::byte> span() const { return {bytes.data(), length}; }
};

Packet encode(const Frame& frame);

/// Reads hostile bytes. ProtocolError: unknown magic, version or type, a wrong length, an unknown code or kind, a grant
/// of no bytes or past the end of the address space. Texts come out printable.
Result<Frame> decode(std::span<const std::byte> packet);

}  // namespace troupe::host
