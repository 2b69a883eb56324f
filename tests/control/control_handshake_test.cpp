#include "control/control_handshake.h"

#include <gmock/gmock.h>

#include "tests/security/auth_keys.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

/// The frames of a text of frames.
std::vector<ControlFrame> framesOf(const std::string& bytes) {
    ControlFrameReader reader;
    std::vector<ControlFrame> frames;
    EXPECT_TRUE(reader.feed(std::as_bytes(std::span(bytes.data(), bytes.size())), frames));
    return frames;
}

ControlFrame frameOf(const std::string& bytes) {
    const auto frames = framesOf(bytes);
    EXPECT_EQ(frames.size(), 1u);
    return frames.empty() ? ControlFrame{} : frames.front();
}

class Handshake : public testing::Test {
  protected:
    Hello hello() const {
        Hello message;
        message.incarnation = here_;
        message.name = "a";
        message.expect = there_;
        return message;
    }

    /// One whole greeting; what each end says of it.
    struct Outcome {
        Status initiator;
        Status responder;
        std::size_t frames = 0;
    };
    Outcome greet(const std::string& initiators, const std::string& responders) {
        initiator_auth_ = authOf(initiators);
        responder_auth_ = authOf(responders);
        ControlInitiator initiator(initiator_auth_, hello());
        ControlResponder responder(responder_auth_, there_);
        Outcome outcome;
        std::string says = initiator.hello();
        while (!says.empty()) {
            std::string answer;
            for (const ControlFrame& frame : framesOf(says)) {
                ++outcome.frames;
                const auto progress = responder.onFrame(frame);
                if (!progress) {
                    outcome.responder = progress.status();
                    answer = responder.seal(ErrorReply::from(progress.status()).encode());
                } else if (progress->done) {
                    EXPECT_EQ(responder.hello().incarnation, here_);
                    answer = responder.seal(HelloAck{there_, "b", 0}.encode());
                } else {
                    answer = progress->send;
                }
            }
            says.clear();
            for (const ControlFrame& frame : framesOf(answer)) {
                ++outcome.frames;
                const auto progress = initiator.onFrame(frame);
                if (!progress) {
                    outcome.initiator = progress.status();
                    return outcome;
                }
                if (progress->ack) {
                    EXPECT_EQ(progress->ack->incarnation, there_);
                    return outcome;
                }
                says += progress->send;
            }
        }
        ADD_FAILURE() << "the greeting has no end";
        return outcome;
    }

    const Incarnation here_ = Incarnation::random();
    const Incarnation there_ = Incarnation::random();
    std::shared_ptr<const ClusterAuth> initiator_auth_;
    std::shared_ptr<const ClusterAuth> responder_auth_;
};

TEST_F(Handshake, WithoutKeysIsOneRoundTrip) {
    const Outcome outcome = greet("", "");
    EXPECT_TRUE(outcome.initiator);
    EXPECT_TRUE(outcome.responder);
    EXPECT_EQ(outcome.frames, 2u);
}

TEST_F(Handshake, WithOneKeyAtBothEndsEachProvesIt) {
    for (const auto& [a, b] :
         {std::pair("a", "a"), std::pair("a", "ba"), std::pair("ab", "b"), std::pair("ab", "ba")}) {
        const Outcome outcome = greet(a, b);
        const bool works =
            std::string(b).find(a[0]) != std::string::npos && std::string(a).find(b[0]) != std::string::npos;
        EXPECT_EQ(outcome.initiator.isOk() && outcome.responder.isOk(), works) << a << " " << b;
    }
    EXPECT_TRUE(greet("a", "a").initiator);
    EXPECT_EQ(greet("a", "a").frames, 5u);
    EXPECT_EQ(initiator_auth_->counts().accepted, 1u);
    EXPECT_EQ(responder_auth_->counts().accepted, 1u);
}

TEST_F(Handshake, AMissingKeyIsRefusedAtBothEndsAndCounted) {
    Outcome outcome = greet("", "a");
    EXPECT_EQ(outcome.initiator.code(), Code::AccessDenied);
    EXPECT_EQ(outcome.responder.code(), Code::AccessDenied);
    EXPECT_THAT(outcome.initiator.message(), HasSubstr("asks for the cluster key"));
    EXPECT_EQ(responder_auth_->counts().of(AuthRefusal::NoProof), 1u);

    outcome = greet("a", "");
    EXPECT_EQ(outcome.initiator.code(), Code::AccessDenied);
    EXPECT_EQ(outcome.responder.code(), Code::AccessDenied);
    EXPECT_THAT(outcome.initiator.message(), HasSubstr("uses no cluster key"));
    EXPECT_EQ(responder_auth_->counts().of(AuthRefusal::UnusedKey), 1u);
    EXPECT_EQ(initiator_auth_->counts().of(AuthRefusal::NoProof), 1u);
}

TEST_F(Handshake, AnotherKeyIsRefusedAtBothEndsAndCounted) {
    const Outcome outcome = greet("a", "b");
    EXPECT_EQ(outcome.initiator.code(), Code::AccessDenied);
    EXPECT_EQ(outcome.responder.code(), Code::AccessDenied);
    EXPECT_THAT(outcome.initiator.message(), HasSubstr("the cluster keys differ"));
    EXPECT_EQ(responder_auth_->counts().of(AuthRefusal::WrongProof), 1u);
}

TEST_F(Handshake, ARecordedConversationIsOfNoUse) {
    const auto auth = authOf("a");
    // What the real initiator said once.
    ControlInitiator real(auth, hello());
    ControlResponder first(auth, there_);
    const std::string recorded_hello = real.hello();
    const auto challenge = first.onFrame(frameOf(recorded_hello));
    ASSERT_TRUE(challenge);
    const auto proof = real.onFrame(frameOf(challenge->send));
    ASSERT_TRUE(proof);
    const std::string recorded_proof = proof->send;
    ASSERT_TRUE(first.onFrame(frameOf(recorded_proof)));

    ControlResponder second(auth, there_);
    ASSERT_TRUE(second.onFrame(frameOf(recorded_hello)));
    EXPECT_EQ(second.onFrame(frameOf(recorded_proof)).status().code(), Code::AccessDenied);
    EXPECT_EQ(auth->counts().of(AuthRefusal::WrongProof), 1u);

    // And what the real responder said, to an initiator that asks again.
    const std::string recorded_answer = first.seal(HelloAck{there_, "b", 0}.encode());
    ControlInitiator again(auth, hello());
    ASSERT_TRUE(again.onFrame(frameOf(challenge->send)));
    const auto frames = framesOf(recorded_answer);
    ASSERT_TRUE(again.onFrame(frames[0]));
    EXPECT_EQ(again.onFrame(frames[1]).status().code(), Code::AccessDenied);
}

TEST_F(Handshake, AProofIsNotTakenBackByItsMaker) {
    const auto auth = authOf("a");
    // An attacker without the key connects to an engine that connects to it, and gives back what it gets.
    ControlInitiator victim(auth, hello());
    ControlResponder same_victim(auth, here_);
    const auto challenge = same_victim.onFrame(frameOf(victim.hello()));
    ASSERT_TRUE(challenge);
    const auto proof = victim.onFrame(frameOf(challenge->send));
    ASSERT_TRUE(proof);
    // As the responder's own proof, after an answer of the attacker's.
    ASSERT_TRUE(victim.onFrame(frameOf(HelloAck{there_, "b", 0}.encode())));
    EXPECT_EQ(victim.onFrame(frameOf(proof->send)).status().code(), Code::AccessDenied);
}

TEST_F(Handshake, TheWayDownIsClosed) {
    const auto auth = authOf("a");
    ControlInitiator initiator(auth, hello());
    // Somebody in the middle, or in the place of the peer, leaves the challenge out.
    const auto plain = initiator.onFrame(frameOf(HelloAck{there_, "b", 0}.encode()));
    EXPECT_EQ(plain.status().code(), Code::AccessDenied);
    EXPECT_THAT(plain.status().message(), HasSubstr("without a proof"));
    EXPECT_EQ(auth->counts().of(AuthRefusal::NoProof), 1u);

    // Or takes the nonce out of the hello.
    ControlResponder responder(auth, there_);
    EXPECT_EQ(responder.onFrame(frameOf(hello().encode())).status().code(), Code::AccessDenied);
}

TEST_F(Handshake, ChangedFramesAreNotBelieved) {
    const auto auth = authOf("a");
    ControlInitiator initiator(auth, hello());
    ControlResponder responder(auth, there_);
    ControlFrame changed = frameOf(initiator.hello());
    changed.body.replace(changed.body.find("\"a\""), 3, "\"z\"");
    const auto challenge = responder.onFrame(changed);
    ASSERT_TRUE(challenge);
    const auto proof = initiator.onFrame(frameOf(challenge->send));
    ASSERT_TRUE(proof);
    EXPECT_EQ(responder.onFrame(frameOf(proof->send)).status().code(), Code::AccessDenied);
}

TEST_F(Handshake, AnErrorThatOthersActOnNeedsAProof) {
    const auto auth = authOf("a");
    const Status stale(Code::StaleIncarnation, "somebody else lives here");
    const std::string error = ErrorReply::from(stale).encode();
    ControlInitiator before(auth, hello());
    EXPECT_EQ(before.onFrame(frameOf(error)).status().code(), Code::AccessDenied);

    ControlInitiator after(auth, hello());
    ControlResponder responder(auth, there_);
    const auto challenge = responder.onFrame(frameOf(after.hello()));
    const auto proof = after.onFrame(frameOf(challenge->send));
    ASSERT_TRUE(responder.onFrame(frameOf(proof->send)));
    const auto frames = framesOf(responder.seal(error));
    ASSERT_EQ(frames.size(), 2u);
    ASSERT_TRUE(after.onFrame(frames[0]));
    EXPECT_EQ(after.onFrame(frames[1]).status().code(), Code::StaleIncarnation);
}

TEST_F(Handshake, FramesOutOfPlaceEndIt) {
    const auto auth = authOf("a");
    const std::string proof = ProofMessage{std::string(64, '0')}.encode();
    ControlInitiator keyless(nullptr, hello());
    EXPECT_EQ(keyless.onFrame(frameOf(Challenge{there_, std::string(64, '0')}.encode())).status().code(),
              Code::ProtocolError);
    EXPECT_EQ(keyless.onFrame(frameOf(proof)).status().code(), Code::ProtocolError);
    EXPECT_EQ(keyless.onFrame(frameOf(Ping{1}.encode())).status().code(), Code::ProtocolError);
    ControlInitiator keyed(auth, hello());
    EXPECT_EQ(keyed.onFrame(frameOf(Challenge{there_, "nonce"}.encode())).status().code(), Code::ProtocolError);
    EXPECT_TRUE(keyed.onFrame(frameOf(Challenge{there_, std::string(64, '0')}.encode())));
    EXPECT_EQ(keyed.onFrame(frameOf(Challenge{there_, std::string(64, '0')}.encode())).status().code(),
              Code::ProtocolError);
    ControlResponder responder(auth, there_);
    EXPECT_EQ(responder.onFrame(frameOf(proof)).status().code(), Code::ProtocolError);
    Hello odd = hello();
    odd.auth = "nonce";
    EXPECT_EQ(responder.onFrame(frameOf(odd.encode())).status().code(), Code::ProtocolError);
}

}  // namespace
}  // namespace troupe::test
