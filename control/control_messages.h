#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/incarnation.h"
#include "base/status.h"
#include "control/control_frame.h"

namespace troupe {

/// The messages of a control connection. `encode` gives the whole frame, ready to send; `decode` takes a frame of
/// that type and gives ProtocolError, naming message and field, when the body is not exactly what it should be
/// (missing or doubled field, wrong type, out of range, too long). Unknown fields are ignored, so that later versions
/// may add some. Decoding a frame of another type is a ProtocolError too.

/// Longest name in a message, bytes. Longer ones do not decode.
inline constexpr std::size_t kMaxControlName = 1024;
/// Longest human text in a message, bytes; encode cuts longer ones. What is decoded is printable.
inline constexpr std::size_t kMaxControlText = 4096;

/// First frame of the connecting end.
struct Hello {
    static constexpr ControlType kType = ControlType::Hello;
    std::uint16_t version = kControlVersion;  ///< Highest version that the sender speaks.
    Incarnation incarnation;                  ///< Of the sender.
    std::string name;                         ///< The sender's segment; may be empty.
    Incarnation expect;                       ///< Whom the sender means to reach; null: whoever answers.
    std::string auth;                         ///< A nonce in hexadecimal: has a cluster key. Empty: has none.

    std::string encode() const;
    static Result<Hello> decode(const ControlFrame& frame);
    bool operator==(const Hello&) const = default;
};

/// The accepting end's answer to a Hello with a nonce: prove that you have the cluster key. See control_handshake.h.
struct Challenge {
    static constexpr ControlType kType = ControlType::Challenge;
    Incarnation incarnation;  ///< Of the accepting end.
    std::string nonce;        ///< Hexadecimal.

    std::string encode() const;
    static Result<Challenge> decode(const ControlFrame& frame);
    bool operator==(const Challenge&) const = default;
};

/// The connecting end's answer to a Challenge, and what the accepting end sends after its HelloAck or Error.
struct ProofMessage {
    static constexpr ControlType kType = ControlType::KeyProof;
    std::string proof;  ///< Hexadecimal.

    std::string encode() const;
    static Result<ProofMessage> decode(const ControlFrame& frame);
    bool operator==(const ProofMessage&) const = default;
};

/// The accepting end's answer to a Hello it agrees with; otherwise it answers with Error and closes.
struct HelloAck {
    static constexpr ControlType kType = ControlType::HelloAck;
    Incarnation incarnation;  ///< Of the accepting end.
    std::string name;         ///< Its segment.
    std::uint64_t descriptor_version = 0;

    std::string encode() const;
    static Result<HelloAck> decode(const ControlFrame& frame);
    bool operator==(const HelloAck&) const = default;
};

struct DescriptorRequest {
    static constexpr ControlType kType = ControlType::DescriptorRequest;
    std::uint64_t known_version = 0;  ///< What the sender has; 0: nothing.

    std::string encode() const;
    static Result<DescriptorRequest> decode(const ControlFrame& frame);
    bool operator==(const DescriptorRequest&) const = default;
};

/// The answer to a DescriptorRequest. On the wire the body is the segment descriptor's own JSON, or the string
/// "unchanged"; what the descriptor says is checked by decodeSegmentDesc, not here.
struct Descriptor {
    static constexpr ControlType kType = ControlType::Descriptor;
    std::string json;  ///< As encodeSegmentDesc made it; empty: unchanged since `known_version`.

    bool unchanged() const { return json.empty(); }
    /// CapacityExceeded when `json` is longer than `max_bytes`, which the other end would refuse.
    Result<std::string> encode(std::uint64_t max_bytes) const;
    /// Takes the frame's body over without a copy.
    static Result<Descriptor> decode(ControlFrame&& frame);
    bool operator==(const Descriptor&) const = default;
};

struct Ping {
    static constexpr ControlType kType = ControlType::Ping;
    std::uint64_t seq = 0;

    std::string encode() const;
    static Result<Ping> decode(const ControlFrame& frame);
    bool operator==(const Ping&) const = default;
};

/// Answers a Ping with its number.
struct Pong {
    static constexpr ControlType kType = ControlType::Pong;
    std::uint64_t seq = 0;

    std::string encode() const;
    static Result<Pong> decode(const ControlFrame& frame);
    bool operator==(const Pong&) const = default;
};

/// Longest bytes of a TransportQuestion or its answer. Longer ones do not decode.
inline constexpr std::size_t kMaxControlBytes = 16u << 10;

/// What a transport of the sender asks the same transport of the receiver. The bytes, hexadecimal on the wire, are
/// between the two.
struct TransportQuestion {
    static constexpr ControlType kType = ControlType::Question;
    std::uint64_t id = 0;
    std::string transport;
    std::string bytes;

    std::string encode() const;
    static Result<TransportQuestion> decode(const ControlFrame& frame);
    bool operator==(const TransportQuestion&) const = default;
};

/// Answers a TransportQuestion with its id: with bytes, or with a code that is not Ok and a message.
struct TransportAnswer {
    static constexpr ControlType kType = ControlType::Answer;
    std::uint64_t id = 0;
    Code code = Code::Ok;  ///< A number that this build does not know decodes as Internal.
    std::string message;   ///< For people.
    std::string bytes;

    std::string encode() const;
    static Result<TransportAnswer> decode(const ControlFrame& frame);
    bool operator==(const TransportAnswer&) const = default;
};

/// The sender ends on purpose; the connection closes next.
struct Goodbye {
    static constexpr ControlType kType = ControlType::Goodbye;
    std::string reason;  ///< For people.

    std::string encode() const;
    static Result<Goodbye> decode(const ControlFrame& frame);
    bool operator==(const Goodbye&) const = default;
};

/// The sender refuses what it got; the connection closes next.
struct ErrorReply {
    static constexpr ControlType kType = ControlType::Error;
    Code code = Code::Internal;  ///< Never Ok. A number that this build does not know decodes as Internal.
    std::string message;

    static ErrorReply from(const Status& status);
    /// The status it stands for, with `context` (who said it) before its message.
    Status toStatus(std::string_view context) const;

    std::string encode() const;
    static Result<ErrorReply> decode(const ControlFrame& frame);
    bool operator==(const ErrorReply&) const = default;
};

}  // namespace troupe
