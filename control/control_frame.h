#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

/// What a control frame carries. The numbers are on the wire.
enum class ControlType : std::uint16_t {
    Hello = 1,
    HelloAck = 2,
    DescriptorRequest = 3,
    Descriptor = 4,
    Ping = 5,
    Pong = 6,
    Goodbye = 7,
    Error = 8,
    Challenge = 9,
    KeyProof = 10,
    Question = 11,
    Answer = 12,
};

/// "Hello"; "type 77" for a number that is none.
std::string controlTypeName(ControlType type);

/// Version of the frames of this build; a frame of another version is refused.
inline constexpr std::uint16_t kControlVersion = 1;
/// u32 length, u16 version, u16 type, all little-endian; the length counts all that follows it.
inline constexpr std::size_t kControlHeaderBytes = 8;
/// The part of the header that the length counts.
inline constexpr std::size_t kControlCountedHeaderBytes = 4;
/// Longest body of every frame but Descriptor: none of them has a reason to pass a few kilobytes.
inline constexpr std::size_t kMaxControlBody = 64u << 10;

/// One frame, taken apart but not yet decoded.
struct ControlFrame {
    ControlType type = ControlType::Error;
    std::string body;  ///< JSON text, as it came.
};

/// Header and body as bytes to send. `body` must be within the bound of its type (Descriptor: below 4 GiB - 4); the
/// encoders in control_messages.h see to that.
std::string encodeControlFrame(ControlType type, std::string_view body);

/// Cuts a byte stream into frames. The bytes are hostile: a wrong version, type or length is refused as soon as the
/// header is there, and memory grows only with bytes that arrived, never with what a length announces.
///
/// Not thread-safe.
class ControlFrameReader {
  public:
    /// `max_descriptor_bytes` bounds the body of a Descriptor frame; 0 refuses them, for an end that asks for none.
    explicit ControlFrameReader(std::uint64_t max_descriptor_bytes = 0) : max_descriptor_bytes_(max_descriptor_bytes) {}

    /// Takes the next bytes of the stream, split anywhere, and appends the frames they complete to `frames`.
    /// ProtocolError names the header field and its value; the frames before it are appended all the same, and every
    /// later call gives the same error.
    Status feed(std::span<const std::byte> bytes, std::vector<ControlFrame>& frames);

    /// True when the stream may end here: no frame is half read.
    bool atFrameBorder() const { return header_size_ == 0; }
    /// Bytes held for the frame that is being read.
    std::size_t bufferedBytes() const { return header_size_ + body_.size(); }

  private:
    Status checkHeader();

    std::uint64_t max_descriptor_bytes_;
    std::byte header_[kControlHeaderBytes];
    std::size_t header_size_ = 0;  ///< Bytes of header_ that are filled.
    std::size_t body_length_ = 0;  ///< Known once the header is complete.
    ControlType type_ = ControlType::Error;
    std::string body_;
    Status failed_;
};

}  // namespace troupe
