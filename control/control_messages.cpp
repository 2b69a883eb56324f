#include "control/control_messages.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/wire_code.h"
#include "control/field_reader.h"

namespace troupe {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kUnchanged = "\"unchanged\"";

/// Bytes that are no UTF-8 become U+FFFD: a name from outside must not make the encoder throw.
std::string frameOf(ControlType type, const Json& body) {
    return encodeControlFrame(type, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json incarnationOrNull(const Incarnation& incarnation) {
    return incarnation.isNull() ? Json(nullptr) : Json(incarnation.toString());
}

/// Cut to a length that stays within kMaxControlText even where every byte becomes a U+FFFD of three bytes.
std::string cutText(const std::string& text) { return text.substr(0, kMaxControlText / 3); }

std::string toHex(const std::string& bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const char c : bytes) {
        text += kDigits[static_cast<unsigned char>(c) >> 4];
        text += kDigits[static_cast<unsigned char>(c) & 15];
    }
    return text;
}

Status checkType(const ControlFrame& frame, ControlType wanted) {
    if (frame.type == wanted) return Status::ok();
    return {Code::ProtocolError, controlTypeName(frame.type) + " frame where " + controlTypeName(wanted) + " is due"};
}

/// A text for people, which ends in errors and the log.
std::string takeText(FieldReader& reader, std::string_view name) {
    return printable(reader.takeString(name, kMaxControlText));
}

/// Decodes `frame` with `fill(reader, message)`.
template <class Message, class Fill>
Result<Message> decodeFields(const ControlFrame& frame, Fill fill) {
    if (auto status = checkType(frame, Message::kType); !status) return status;
    FieldReader reader(frame.body, controlTypeName(Message::kType));
    Message message;
    fill(reader, message);
    if (!reader.status()) return reader.status();
    return message;
}

}  // namespace

std::string Hello::encode() const {
    return frameOf(kType, {{"version", version},
                           {"incarnation", incarnation.toString()},
                           {"name", name},
                           {"expect", incarnationOrNull(expect)},
                           {"auth", auth}});
}

Result<Hello> Hello::decode(const ControlFrame& frame) {
    return decodeFields<Hello>(frame, [](FieldReader& reader, Hello& hello) {
        hello.version = static_cast<std::uint16_t>(reader.takeNumber("version", UINT16_MAX));
        hello.incarnation = reader.takeIncarnation("incarnation");
        hello.name = reader.takeString("name", kMaxControlName);
        hello.expect = reader.takeIncarnationOrNull("expect");
        hello.auth = reader.takeString("auth", kMaxControlText);
    });
}

std::string HelloAck::encode() const {
    return frameOf(
        kType, {{"incarnation", incarnation.toString()}, {"name", name}, {"descriptor_version", descriptor_version}});
}

Result<HelloAck> HelloAck::decode(const ControlFrame& frame) {
    return decodeFields<HelloAck>(frame, [](FieldReader& reader, HelloAck& ack) {
        ack.incarnation = reader.takeIncarnation("incarnation");
        ack.name = reader.takeString("name", kMaxControlName);
        ack.descriptor_version = reader.takeNumber("descriptor_version");
    });
}

std::string Challenge::encode() const {
    return frameOf(kType, {{"incarnation", incarnation.toString()}, {"nonce", nonce}});
}

Result<Challenge> Challenge::decode(const ControlFrame& frame) {
    return decodeFields<Challenge>(frame, [](FieldReader& reader, Challenge& challenge) {
        challenge.incarnation = reader.takeIncarnation("incarnation");
        challenge.nonce = reader.takeString("nonce", kMaxControlText);
    });
}

std::string ProofMessage::encode() const { return frameOf(kType, {{"proof", proof}}); }

Result<ProofMessage> ProofMessage::decode(const ControlFrame& frame) {
    return decodeFields<ProofMessage>(frame, [](FieldReader& reader, ProofMessage& message) {
        message.proof = reader.takeString("proof", kMaxControlText);
    });
}

std::string DescriptorRequest::encode() const { return frameOf(kType, {{"known_version", known_version}}); }

Result<DescriptorRequest> DescriptorRequest::decode(const ControlFrame& frame) {
    return decodeFields<DescriptorRequest>(frame, [](FieldReader& reader, DescriptorRequest& request) {
        request.known_version = reader.takeNumber("known_version");
    });
}

Result<std::string> Descriptor::encode(std::uint64_t max_bytes) const {
    const std::uint64_t bound = std::min<std::uint64_t>(max_bytes, UINT32_MAX - kControlCountedHeaderBytes);
    if (json.size() > bound)
        return {Code::CapacityExceeded, "a descriptor of " + std::to_string(json.size()) + " bytes, at most " +
                                            std::to_string(bound) + " may be sent: register fewer, larger regions"};
    return encodeControlFrame(kType, unchanged() ? kUnchanged : std::string_view(json));
}

Result<Descriptor> Descriptor::decode(ControlFrame&& frame) {
    if (auto status = checkType(frame, kType); !status) return status;
    if (frame.body == kUnchanged) return Descriptor{};
    if (frame.body.empty() || frame.body.front() != '{')
        return {Code::ProtocolError, "Descriptor: neither a JSON object nor \"unchanged\""};
    return Descriptor{std::move(frame.body)};
}

std::string Ping::encode() const { return frameOf(kType, {{"seq", seq}}); }

Result<Ping> Ping::decode(const ControlFrame& frame) {
    return decodeFields<Ping>(frame, [](FieldReader& reader, Ping& ping) { ping.seq = reader.takeNumber("seq"); });
}

std::string Pong::encode() const { return frameOf(kType, {{"seq", seq}}); }

Result<Pong> Pong::decode(const ControlFrame& frame) {
    return decodeFields<Pong>(frame, [](FieldReader& reader, Pong& pong) { pong.seq = reader.takeNumber("seq"); });
}

std::string Goodbye::encode() const { return frameOf(kType, {{"reason", cutText(reason)}}); }

Result<Goodbye> Goodbye::decode(const ControlFrame& frame) {
    return decodeFields<Goodbye>(
        frame, [](FieldReader& reader, Goodbye& goodbye) { goodbye.reason = takeText(reader, "reason"); });
}

std::string TransportQuestion::encode() const {
    return frameOf(kType, {{"id", id}, {"transport", transport}, {"bytes", toHex(bytes)}});
}

Result<TransportQuestion> TransportQuestion::decode(const ControlFrame& frame) {
    return decodeFields<TransportQuestion>(frame, [](FieldReader& reader, TransportQuestion& question) {
        question.id = reader.takeNumber("id");
        question.transport = reader.takeString("transport", kMaxControlName);
        question.bytes = reader.takeBytes("bytes", kMaxControlBytes);
    });
}

std::string TransportAnswer::encode() const {
    return frameOf(
        kType, {{"id", id}, {"code", static_cast<int>(code)}, {"message", cutText(message)}, {"bytes", toHex(bytes)}});
}

Result<TransportAnswer> TransportAnswer::decode(const ControlFrame& frame) {
    return decodeFields<TransportAnswer>(frame, [](FieldReader& reader, TransportAnswer& answer) {
        answer.id = reader.takeNumber("id");
        answer.code = codeFromWire(static_cast<std::uint32_t>(reader.takeNumber("code", INT32_MAX)));
        answer.message = takeText(reader, "message");
        answer.bytes = reader.takeBytes("bytes", kMaxControlBytes);
    });
}

ErrorReply ErrorReply::from(const Status& status) {
    return {status.isOk() ? Code::Internal : status.code(), status.message()};
}

Status ErrorReply::toStatus(std::string_view context) const { return Status(code, message).withContext(context); }

std::string ErrorReply::encode() const {
    return frameOf(kType, {{"code", static_cast<int>(code)}, {"message", cutText(message)}});
}

Result<ErrorReply> ErrorReply::decode(const ControlFrame& frame) {
    return decodeFields<ErrorReply>(frame, [](FieldReader& reader, ErrorReply& error) {
        const auto known = static_cast<Code>(reader.takeNumber("code", INT32_MAX));
        error.code = known == Code::Ok || codeName(known) == "Unknown" ? Code::Internal : known;
        error.message = takeText(reader, "message");
    });
}

}  // namespace troupe
