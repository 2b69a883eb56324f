#include "tcp_backend/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/wire_code.h"

namespace troupe::tcp {

namespace {

constexpr std::uint8_t kFlagCrc = 1;

template <class T>
T swapped(T value) {
    T result = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
        result = static_cast<T>(result << 8 | (value & 0xff));
        value = static_cast<T>(value >> 8);
    }
    return result;
}

template <class T>
void put(std::byte* out, T value) {
    if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) value = swapped(value);
    std::memcpy(out, &value, sizeof value);
}

template <class T>
T get(const std::byte* in) {
    T value;
    std::memcpy(&value, in, sizeof value);
    if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) value = swapped(value);
    return value;
}

void putIncarnation(std::byte* out, const Incarnation& incarnation) {
    std::memcpy(out, incarnation.bytes.data(), incarnation.bytes.size());
}

Incarnation getIncarnation(const std::byte* in) {
    Incarnation incarnation;
    std::memcpy(incarnation.bytes.data(), in, incarnation.bytes.size());
    return incarnation;
}

Status checkPreamble(const std::byte* in) {
    if (get<std::uint32_t>(in) != kMagic) return {Code::ProtocolError, "the first bytes are not a Troupe greeting"};
    const auto version = get<std::uint16_t>(in + 4);
    if (version != kVersion)
        return {Code::ProtocolError,
                "protocol version " + std::to_string(version) + ", this side speaks " + std::to_string(kVersion)};
    return {};
}

}  // namespace

void encodeHello(const Hello& hello, std::byte* out) {
    std::memset(out, 0, kHelloBytes);
    put<std::uint32_t>(out, kMagic);
    put<std::uint16_t>(out + 4, kVersion);
    put<std::uint16_t>(out + 6, hello.crc ? kFlagCrc : 0);
    putIncarnation(out + 8, hello.lane.initiator);
    putIncarnation(out + 24, hello.target);
    put<std::uint32_t>(out + 40, hello.lane.nic);
    put<std::uint32_t>(out + 44, hello.lane.lane);
    put<std::uint64_t>(out + 48, hello.attempt);
    // 56: length of the authentication that follows. 60..79: reserved, 0.
    put<std::uint32_t>(out + 56, hello.has_nonce ? std::uint32_t{kAuthBytes} : 0);
}

Result<Hello> decodeHello(const std::byte* in) {
    if (const Status status = checkPreamble(in); !status) return status;
    const auto flags = get<std::uint16_t>(in + 6);
    if ((flags & ~kFlagCrc) != 0) return {Code::ProtocolError, "unknown flags in the greeting"};
    const auto auth = get<std::uint32_t>(in + 56);
    if (auth != 0 && auth != kAuthBytes)
        return {Code::Unsupported, "the greeting announces an authentication of " + std::to_string(auth) + " bytes"};
    if (std::any_of(in + 60, in + kHelloBytes, [](std::byte b) { return b != std::byte{0}; }))
        return {Code::ProtocolError, "reserved bytes of the greeting are set"};
    Hello hello;
    hello.lane = {getIncarnation(in + 8), get<std::uint32_t>(in + 40), get<std::uint32_t>(in + 44)};
    hello.target = getIncarnation(in + 24);
    hello.attempt = get<std::uint64_t>(in + 48);
    hello.crc = (flags & kFlagCrc) != 0;
    hello.has_nonce = auth != 0;
    return hello;
}

bool startsLikeHello(const std::byte* in, std::size_t have) {
    std::byte start[6];
    put<std::uint32_t>(start, kMagic);
    put<std::uint16_t>(start + 4, kVersion);
    return std::memcmp(in, start, std::min(have, sizeof start)) == 0;
}

void encodeHelloReply(const HelloReply& reply, std::byte* out) {
    std::memset(out, 0, kHelloReplyBytes);
    put<std::uint32_t>(out, kMagic);
    put<std::uint16_t>(out + 4, kVersion);
    put<std::uint32_t>(out + 8, static_cast<std::uint32_t>(reply.code));
    put<std::uint32_t>(out + 12, reply.has_auth ? std::uint32_t{kAuthBytes} : 0);
    putIncarnation(out + 16, reply.target);
}

Result<HelloReply> decodeHelloReply(const std::byte* in) {
    if (const Status status = checkPreamble(in); !status) return status;
    const auto auth = get<std::uint32_t>(in + 12);
    if (auth != 0 && auth != kAuthBytes)
        return {Code::ProtocolError,
                "the greeting was answered with an authentication of " + std::to_string(auth) + " bytes"};
    return HelloReply{getIncarnation(in + 16), codeFromWire(get<std::uint32_t>(in + 8)), auth != 0};
}

void encodeRequest(const RequestHeader& header, std::byte* out) {
    put<std::uint8_t>(out, static_cast<std::uint8_t>(header.op));
    put<std::uint8_t>(out + 1, header.crc ? kFlagCrc : 0);
    put<std::uint16_t>(out + 2, 0);
    put<std::uint32_t>(out + 4, header.crc32c);
    put<std::uint64_t>(out + 8, header.id);
    put<std::uint64_t>(out + 16, header.addr);
    put<std::uint64_t>(out + 24, header.length);
}

bool decodeRequest(const std::byte* in, RequestHeader& header) {
    const auto op = get<std::uint8_t>(in);
    const auto flags = get<std::uint8_t>(in + 1);
    if ((op != static_cast<std::uint8_t>(Op::Read) && op != static_cast<std::uint8_t>(Op::Write)) ||
        (flags & ~kFlagCrc) != 0 || get<std::uint16_t>(in + 2) != 0)
        return false;
    header.op = static_cast<Op>(op);
    header.crc = (flags & kFlagCrc) != 0;
    header.crc32c = get<std::uint32_t>(in + 4);
    header.id = get<std::uint64_t>(in + 8);
    header.addr = get<std::uint64_t>(in + 16);
    header.length = get<std::uint64_t>(in + 24);
    return header.length <= (header.crc ? kMaxCheckedBytes : kMaxRequestBytes);
}

void encodeResponse(const ResponseHeader& header, std::byte* out) {
    put<std::uint8_t>(out, static_cast<std::uint8_t>(header.kind));
    put<std::uint8_t>(out + 1, header.crc ? kFlagCrc : 0);
    put<std::uint16_t>(out + 2, 0);
    put<std::uint32_t>(out + 4, header.value);
    put<std::uint64_t>(out + 8, header.id);
    put<std::uint64_t>(out + 16, header.length);
}

bool decodeResponse(const std::byte* in, ResponseHeader& header) {
    const auto kind = get<std::uint8_t>(in);
    const auto flags = get<std::uint8_t>(in + 1);
    if ((flags & ~kFlagCrc) != 0 || get<std::uint16_t>(in + 2) != 0) return false;
    header.crc = (flags & kFlagCrc) != 0;
    header.value = get<std::uint32_t>(in + 4);
    header.id = get<std::uint64_t>(in + 8);
    header.length = get<std::uint64_t>(in + 16);
    switch (kind) {
        case static_cast<std::uint8_t>(ResponseKind::WriteAck):
            header.kind = ResponseKind::WriteAck;
            return header.length == 0 && header.value != 0;
        case static_cast<std::uint8_t>(ResponseKind::ReadData):
            header.kind = ResponseKind::ReadData;
            return header.length <= kMaxRequestBytes;
        case static_cast<std::uint8_t>(ResponseKind::Error):
            header.kind = ResponseKind::Error;
            return header.length <= kMaxMessageBytes && header.value != 0;
        default: return false;
    }
}

namespace {

std::string refusalOf(const RangeFault& fault) {
    switch (fault.code) {
        case Code::ChecksumMismatch: return "it arrived damaged: the CRC32C of its bytes differs";
        case Code::CapacityExceeded:
            return "it and the READs before it are more than one peer may have asked for (peer.tcp_bytes)";
        default: return fault.toString();
    }
}

}  // namespace

std::size_t refusalText(const RangeFault& fault, char* out) {
    const std::string text = refusalOf(fault);
    const std::size_t length = std::min(text.size(), kMaxMessageBytes - 1);
    std::copy_n(text.data(), length, out);
    return length;
}

}  // namespace troupe::tcp
