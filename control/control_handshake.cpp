#include "control/control_handshake.h"

#include <utility>

namespace troupe {

namespace {

constexpr std::string_view kProtocol = "control";

std::span<const std::byte> asBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string_view bodyOf(std::string_view frame) { return frame.substr(kControlHeaderBytes); }

Status outOfPlace(ControlType type) {
    return {Code::ProtocolError, controlTypeName(type) + " has no place in a greeting"};
}

/// What an end may say that has not proven who it is: only that it will not talk, and why. What others would act on (a
/// restart, say) needs a proof.
bool needsNoProof(Code code) {
    return code == Code::AccessDenied || code == Code::CapacityExceeded || code == Code::ProtocolError;
}

}  // namespace

ControlInitiator::ControlInitiator(std::shared_ptr<const ClusterAuth> auth, Hello hello) : auth_(std::move(auth)) {
    if (hasKey(auth_)) hello.auth = toHex(randomNonce());
    hello_ = hello.encode();
}

Result<ControlInitiator::Progress> ControlInitiator::onFrame(const ControlFrame& frame) {
    switch (frame.type) {
        case ControlType::Challenge: return onChallenge(frame);
        case ControlType::HelloAck:
        case ControlType::Error: return onAnswer(frame);
        case ControlType::KeyProof: return onProof(frame);
        default: return outOfPlace(frame.type);
    }
}

Result<ControlInitiator::Progress> ControlInitiator::onChallenge(const ControlFrame& frame) {
    if (!hasKey(auth_) || !challenge_.empty()) return outOfPlace(frame.type);
    const auto challenge = Challenge::decode(frame);
    if (!challenge) return challenge.status();
    if (!bytesFromHex(challenge->nonce))
        return Status(Code::ProtocolError, "Challenge: its nonce is not 64 hexadecimal digits");
    challenge_ = frame.body;
    const Proof proof = auth_->prove(AuthRole::Initiator, kProtocol, {asBytes(bodyOf(hello_)), asBytes(challenge_)});
    return Progress{ProofMessage{toHex(proof)}.encode(), std::nullopt};
}

Result<ControlInitiator::Progress> ControlInitiator::onAnswer(const ControlFrame& frame) {
    if (answer_) return outOfPlace(frame.type);
    if (!hasKey(auth_)) {
        if (frame.type == ControlType::HelloAck) {
            auto ack = HelloAck::decode(frame);
            if (!ack) return ack.status();
            return Progress{{}, std::move(*ack)};
        }
        const auto error = ErrorReply::decode(frame);
        return error ? Status(error->code, error->message) : error.status();
    }
    if (frame.type == ControlType::Error) {
        const auto error = ErrorReply::decode(frame);
        if (!error) return error.status();
        if (error->code == Code::AccessDenied) auth_->count(AuthRefusal::NoProof);
        if (needsNoProof(error->code)) return Status(error->code, error->message);
    }
    if (challenge_.empty()) {
        // An engine without a key, of a version that does not look at ours, or somebody in its place.
        auth_->count(AuthRefusal::NoProof);
        return Status(Code::AccessDenied,
                      "it answers without a proof of the cluster key; is auth.key_file set there? (docs/security.md)");
    }
    answer_ = frame;
    return Progress{};
}

Result<ControlInitiator::Progress> ControlInitiator::onProof(const ControlFrame& frame) {
    if (!answer_) return outOfPlace(frame.type);
    const auto message = ProofMessage::decode(frame);
    if (!message) return message.status();
    const auto proof = bytesFromHex(message->proof);
    if (!proof || !auth_->accepts(AuthRole::Responder, kProtocol,
                                  {asBytes(bodyOf(hello_)), asBytes(challenge_), asBytes(answer_->body)}, *proof)) {
        auth_->count(AuthRefusal::WrongProof);
        return otherKey("this engine");
    }
    auth_->countAccepted();
    const ControlFrame answer = std::move(*answer_);
    if (answer.type == ControlType::Error) {
        const auto error = ErrorReply::decode(answer);
        return error ? Status(error->code, error->message) : error.status();
    }
    auto ack = HelloAck::decode(answer);
    if (!ack) return ack.status();
    return Progress{{}, std::move(*ack)};
}

ControlResponder::ControlResponder(std::shared_ptr<const ClusterAuth> auth, const Incarnation& own)
    : auth_(std::move(auth)), own_(own) {}

Result<ControlResponder::Progress> ControlResponder::onFrame(const ControlFrame& frame) {
    if (proven_) return outOfPlace(frame.type);
    if (hello_.empty()) {
        auto hello = Hello::decode(frame);
        if (!hello) return hello.status();
        if (!hello->auth.empty() && !bytesFromHex(hello->auth))
            return Status(Code::ProtocolError, "Hello: auth is not 64 hexadecimal digits");
        if (!hasKey(auth_) && !hello->auth.empty()) {
            countRefusal(auth_, AuthRefusal::UnusedKey);
            return hasNoKey("this engine");
        }
        message_ = std::move(*hello);
        hello_ = frame.body;
        if (!hasKey(auth_)) {
            proven_ = true;
            return Progress{{}, true};
        }
        if (message_.auth.empty()) {
            auth_->count(AuthRefusal::NoProof);
            return needsKey("this engine");
        }
        std::string challenge = Challenge{own_, toHex(randomNonce())}.encode();
        challenge_ = bodyOf(challenge);
        return Progress{std::move(challenge), false};
    }
    const auto message = ProofMessage::decode(frame);
    if (!message) return message.status();
    const auto proof = bytesFromHex(message->proof);
    if (!proof || !auth_->accepts(AuthRole::Initiator, kProtocol, {asBytes(hello_), asBytes(challenge_)}, *proof)) {
        auth_->count(AuthRefusal::WrongProof);
        return otherKey("this engine");
    }
    auth_->countAccepted();
    proven_ = true;
    return Progress{{}, true};
}

std::string ControlResponder::seal(std::string answer) const {
    if (!proven_ || !hasKey(auth_)) return answer;
    const Proof proof =
        auth_->prove(AuthRole::Responder, kProtocol, {asBytes(hello_), asBytes(challenge_), asBytes(bodyOf(answer))});
    answer += ProofMessage{toHex(proof)}.encode();
    return answer;
}

}  // namespace troupe
