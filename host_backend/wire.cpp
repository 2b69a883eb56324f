#include "host_backend/wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/byte_range.h"
#include "base/printable.h"

namespace troupe::host {

namespace {

constexpr std::uint32_t kMagic = 0x48505254;  // "TRPH"
constexpr std::uint16_t kVersion = 3;
constexpr std::size_t kHeaderBytes = 8;
constexpr auto kLastCode = static_cast<std::uint32_t>(Code::Internal);

class Writer {
  public:
    explicit Writer(Packet& packet) : packet_(packet) {}

    template <class Number>
    void number(Number value) {
        for (std::size_t i = 0; i < sizeof value; ++i)
            packet_.bytes[packet_.length++] = static_cast<std::byte>(value >> (8 * i) & 0xff);
    }
    void incarnation(const Incarnation& value) {
        std::memcpy(packet_.bytes.data() + packet_.length, value.bytes.data(), value.bytes.size());
        packet_.length += value.bytes.size();
    }
    void bytes(std::span<const std::byte> value) {
        std::copy(value.begin(), value.end(), packet_.bytes.data() + packet_.length);
        packet_.length += value.size();
    }
    void text(const std::string& value) {
        const std::size_t count = std::min(value.size(), kMaxTextBytes);
        std::memcpy(packet_.bytes.data() + packet_.length, value.data(), count);
        packet_.length += count;
    }

  private:
    Packet& packet_;
};

/// Reads past the end give zeros; `good` tells at the end whether the length was right.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    template <class Number>
    Number number() {
        Number value = 0;
        if (!has(sizeof value)) return 0;
        for (std::size_t i = 0; i < sizeof value; ++i)
            value = static_cast<Number>(value | static_cast<Number>(static_cast<Number>(bytes_[at_++]) << (8 * i)));
        return value;
    }
    Incarnation incarnation() {
        Incarnation value;
        if (!has(value.bytes.size())) return value;
        std::memcpy(value.bytes.data(), bytes_.data() + at_, value.bytes.size());
        at_ += value.bytes.size();
        return value;
    }
    template <std::size_t Size>
    std::array<std::byte, Size> bytes() {
        std::array<std::byte, Size> value{};
        if (!has(Size)) return value;
        std::copy_n(bytes_.data() + at_, Size, value.data());
        at_ += Size;
        return value;
    }
    bool atEnd() const { return at_ == bytes_.size(); }
    Code code() {
        const auto value = number<std::uint32_t>();
        // An error that claims to be none is none of ours.
        if (value == 0 || value > kLastCode) good_ = false;
        return static_cast<Code>(value);
    }
    std::string text() {
        const std::size_t count = bytes_.size() - at_;
        if (count > kMaxTextBytes) good_ = false;
        const auto* const from = reinterpret_cast<const char*>(bytes_.data() + at_);
        at_ += count;
        return printable({from, count});
    }
    bool flag() {
        const auto value = number<std::uint32_t>();
        require(value <= 1);
        return value == 1;
    }
    void require(bool condition) { good_ = good_ && condition; }
    bool good() const { return good_ && at_ == bytes_.size(); }

  private:
    bool has(std::size_t count) {
        if (bytes_.size() - at_ >= count) return true;
        good_ = false;
        at_ = bytes_.size();
        return false;
    }

    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    bool good_ = true;
};

void write(Writer& out, const Hello& frame) {
    out.incarnation(frame.initiator);
    out.incarnation(frame.owner);
    if (frame.nonce) out.bytes(*frame.nonce);
}
void write(Writer& out, const Welcome& frame) {
    out.incarnation(frame.owner);
    out.number(frame.nonce);
    out.number(frame.word);
    out.number(std::uint32_t{frame.all_mapped});
}
void write(Writer& out, const Refuse& frame) {
    out.number(static_cast<std::uint32_t>(frame.code));
    out.text(frame.text);
}
void write(Writer& out, const Ready& frame) { out.number(frame.nonce); }
void write(Writer& out, const GrantRequest& frame) {
    out.number(frame.id);
    out.number(frame.addr);
    out.number(frame.length);
    out.number(std::uint32_t{frame.write});
}
void write(Writer& out, const Grant& frame) {
    out.number(frame.id);
    out.number(frame.region);
    out.number(frame.base);
    out.number(frame.length);
    out.number(frame.offset);
    out.number(static_cast<std::uint32_t>(frame.kind));
    out.number(std::uint32_t{frame.writable});
}
void write(Writer& out, const DeviceGrant& frame) {
    out.number(frame.id);
    out.number(frame.region);
    out.number(frame.base);
    out.number(frame.length);
    out.number(static_cast<std::uint32_t>(frame.kind));
    out.number(frame.allocation);
    out.number(frame.allocation_bytes);
    out.bytes(std::as_bytes(std::span(frame.handle)));
}
void write(Writer& out, const GrantRefused& frame) {
    out.number(frame.id);
    out.number(static_cast<std::uint32_t>(frame.code));
    out.text(frame.text);
}
void write(Writer& out, const Revoke& frame) { out.number(frame.region); }
void write(Writer& out, const RevokeAck& frame) { out.number(frame.region); }
void write(Writer& out, const Challenge& frame) {
    out.incarnation(frame.owner);
    out.bytes(frame.nonce);
}
void write(Writer& out, const KeyProof& frame) { out.bytes(frame.proof); }

void read(Reader& in, Hello& frame) {
    frame.initiator = in.incarnation();
    frame.owner = in.incarnation();
    if (!in.atEnd()) frame.nonce = in.bytes<kNonceBytes>();
}
void read(Reader& in, Welcome& frame) {
    frame.owner = in.incarnation();
    frame.nonce = in.number<std::uint64_t>();
    frame.word = in.number<std::uint64_t>();
    frame.all_mapped = in.flag();
}
void read(Reader& in, Refuse& frame) {
    frame.code = in.code();
    frame.text = in.text();
}
void read(Reader& in, Ready& frame) { frame.nonce = in.number<std::uint64_t>(); }
void read(Reader& in, GrantRequest& frame) {
    frame.id = in.number<std::uint64_t>();
    frame.addr = in.number<std::uint64_t>();
    frame.length = in.number<std::uint64_t>();
    frame.write = in.flag();
}
void read(Reader& in, Grant& frame) {
    frame.id = in.number<std::uint64_t>();
    frame.region = in.number<std::uint64_t>();
    frame.base = in.number<std::uint64_t>();
    frame.length = in.number<std::uint64_t>();
    frame.offset = in.number<std::uint64_t>();
    const auto kind = in.number<std::uint32_t>();
    in.require(kind <= static_cast<std::uint32_t>(Grant::Kind::Mapped));
    frame.kind = static_cast<Grant::Kind>(kind);
    frame.writable = in.flag();
    in.require(frame.length != 0 && !ByteRange{frame.base, frame.length}.wraps() &&
               !ByteRange{frame.offset, frame.length}.wraps());
}
void read(Reader& in, DeviceGrant& frame) {
    frame.id = in.number<std::uint64_t>();
    frame.region = in.number<std::uint64_t>();
    frame.base = in.number<std::uint64_t>();
    frame.length = in.number<std::uint64_t>();
    const auto kind = in.number<std::uint32_t>();
    in.require(kind >= static_cast<std::uint32_t>(device::ShareKind::Ipc) &&
               kind <= static_cast<std::uint32_t>(device::ShareKind::Fabric));
    frame.kind = static_cast<device::ShareKind>(kind);
    frame.allocation = in.number<std::uint64_t>();
    frame.allocation_bytes = in.number<std::uint64_t>();
    const auto handle = in.bytes<device::kShareHandleBytes>();
    std::memcpy(frame.handle.data(), handle.data(), handle.size());
    const ByteRange allocation{frame.allocation, frame.allocation_bytes};
    in.require(frame.length != 0 && !allocation.wraps() && allocation.contains({frame.base, frame.length}));
}
void read(Reader& in, GrantRefused& frame) {
    frame.id = in.number<std::uint64_t>();
    frame.code = in.code();
    frame.text = in.text();
}
void read(Reader& in, Revoke& frame) { frame.region = in.number<std::uint64_t>(); }
void read(Reader& in, RevokeAck& frame) { frame.region = in.number<std::uint64_t>(); }
void read(Reader& in, Challenge& frame) {
    frame.owner = in.incarnation();
    frame.nonce = in.bytes<kNonceBytes>();
}
void read(Reader& in, KeyProof& frame) { frame.proof = in.bytes<kProofBytes>(); }

Status bad(const std::string& what) { return {Code::ProtocolError, "a frame on the host socket " + what}; }

/// Reads into `frame` what the type says it is.
template <std::size_t Index = 0>
Status readType(std::size_t type, Reader& in, Frame& frame) {
    if constexpr (Index == std::variant_size_v<Frame>) {
        return bad("has the unknown type " + std::to_string(type + 1));
    } else {
        if (type != Index) return readType<Index + 1>(type, in, frame);
        read(in, frame.emplace<Index>());
        return in.good() ? Status::ok() : bad("of type " + std::to_string(type + 1) + " is malformed");
    }
}

}  // namespace

Packet encode(const Frame& frame) {
    Packet packet;
    Writer out(packet);
    out.number(kMagic);
    out.number(kVersion);
    out.number(static_cast<std::uint16_t>(frame.index() + 1));
    std::visit([&](const auto& content) { write(out, content); }, frame);
    return packet;
}

Result<Frame> decode(std::span<const std::byte> packet) {
    if (packet.size() < kHeaderBytes || packet.size() > kMaxFrameBytes)
        return bad("has " + std::to_string(packet.size()) + " bytes");
    Reader in(packet);
    if (in.number<std::uint32_t>() != kMagic) return bad("does not begin like one");
    if (const auto version = in.number<std::uint16_t>(); version != kVersion)
        return bad("has version " + std::to_string(version) + ", this is " + std::to_string(kVersion));
    const auto type = in.number<std::uint16_t>();
    // Type 0 wraps to the largest and is as unknown as that.
    Result<Frame> frame{Frame()};
    const Status read = readType(static_cast<std::uint16_t>(type - 1), in, *frame);
    return read ? frame : Result<Frame>(read);
}

}  // namespace troupe::host
