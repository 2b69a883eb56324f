#include "control/control_frame.h"

#include <algorithm>
#include <cstring>

namespace troupe {

namespace {

std::uint64_t loadLittleEndian(const std::byte* bytes, std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
}

void appendLittleEndian(std::string& out, std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

/// Null for a number that is no type. The compiler asks for every type's name, and what has one is known.
const char* nameOf(ControlType type) {
    switch (type) {
        case ControlType::Hello: return "Hello";
        case ControlType::HelloAck: return "HelloAck";
        case ControlType::DescriptorRequest: return "DescriptorRequest";
        case ControlType::Descriptor: return "Descriptor";
        case ControlType::Ping: return "Ping";
        case ControlType::Pong: return "Pong";
        case ControlType::Goodbye: return "Goodbye";
        case ControlType::Error: return "Error";
        case ControlType::Challenge: return "Challenge";
        case ControlType::KeyProof: return "KeyProof";
        case ControlType::Question: return "Question";
        case ControlType::Answer: return "Answer";
    }
    return nullptr;
}

bool isKnown(ControlType type) { return nameOf(type) != nullptr; }

}  // namespace

std::string controlTypeName(ControlType type) {
    const char* const name = nameOf(type);
    return name != nullptr ? name : "type " + std::to_string(static_cast<unsigned>(type));
}

std::string encodeControlFrame(ControlType type, std::string_view body) {
    std::string frame;
    frame.reserve(kControlHeaderBytes + body.size());
    appendLittleEndian(frame, kControlCountedHeaderBytes + body.size(), 4);
    appendLittleEndian(frame, kControlVersion, 2);
    appendLittleEndian(frame, static_cast<std::uint16_t>(type), 2);
    frame.append(body);
    return frame;
}

Status ControlFrameReader::checkHeader() {
    const std::uint64_t length = loadLittleEndian(header_, 4);
    const std::uint64_t version = loadLittleEndian(header_ + 4, 2);
    type_ = static_cast<ControlType>(loadLittleEndian(header_ + 6, 2));
    if (version != kControlVersion)
        return {Code::ProtocolError, "control frame of version " + std::to_string(version) + ", this end speaks " +
                                         std::to_string(kControlVersion)};
    if (!isKnown(type_)) return {Code::ProtocolError, "control frame of unknown " + controlTypeName(type_)};
    if (length < kControlCountedHeaderBytes)
        return {Code::ProtocolError, "control frame of length " + std::to_string(length) + ", less than its header"};
    const std::uint64_t body = length - kControlCountedHeaderBytes;
    const std::uint64_t bound = type_ == ControlType::Descriptor ? max_descriptor_bytes_ : kMaxControlBody;
    if (body > bound)
        return {Code::ProtocolError, controlTypeName(type_) + " frame with a body of " + std::to_string(body) +
                                         " bytes, at most " + std::to_string(bound) + " are accepted"};
    body_length_ = static_cast<std::size_t>(body);
    return Status::ok();
}

Status ControlFrameReader::feed(std::span<const std::byte> bytes, std::vector<ControlFrame>& frames) {
    if (!failed_) return failed_;
    while (!bytes.empty()) {
        if (header_size_ < kControlHeaderBytes) {
            const std::size_t take = std::min(bytes.size(), kControlHeaderBytes - header_size_);
            std::memcpy(header_ + header_size_, bytes.data(), take);
            header_size_ += take;
            bytes = bytes.subspan(take);
            if (header_size_ < kControlHeaderBytes) break;
            failed_ = checkHeader();
            if (!failed_) return failed_;
        }
        const std::size_t take = std::min(bytes.size(), body_length_ - body_.size());
        body_.append(reinterpret_cast<const char*>(bytes.data()), take);
        bytes = bytes.subspan(take);
        if (body_.size() == body_length_) {
            frames.push_back({type_, std::move(body_)});
            body_ = {};
            header_size_ = 0;
        }
    }
    return Status::ok();
}

}  // namespace troupe
