#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/incarnation.h"
#include "base/status.h"
#include "control/control_frame.h"
#include "control/control_messages.h"
#include "security/cluster_auth.h"

namespace troupe {

/// How a control connection begins. Without a cluster key at both ends:
///
///     initiator                    responder
///        Hello ------------------>
///              <------------------ HelloAck, or Error
///
/// With one, each proves to the other that it has it, for one round trip more:
///
///        Hello with a nonce ------>
///              <------------------ Challenge with a nonce
///        Proof ------------------->            over the bodies of Hello and Challenge
///              <------------------ HelloAck or Error, and Proof
///                                              over the bodies of Hello, Challenge and that answer
///
/// An end without a key refuses one that has one, and the other way round: there is no way down. The responder proves
/// nothing to whom has proven nothing. Bodies, hence bytes as they were sent: names, incarnations and nonces are in
/// them.
///
/// Neither part does I/O; the owners of the channels send what these give. Thread: the owner's.

/// The connecting end.
class ControlInitiator {
  public:
    /// What a frame brought. Both empty: wait for the next.
    struct Progress {
        std::string send;             ///< A frame to send.
        std::optional<HelloAck> ack;  ///< The greeting is over, and the other end is who it should be.
    };

    /// `auth` may be null.
    ControlInitiator(std::shared_ptr<const ClusterAuth> auth, Hello hello);

    /// The first frame.
    const std::string& hello() const { return hello_; }

    /// Takes HelloAck, Error, Challenge and Proof. An error ends the connection: what the other end said (proven, or
    /// one that needs no proof), AccessDenied, or ProtocolError.
    Result<Progress> onFrame(const ControlFrame& frame);

  private:
    Result<Progress> onChallenge(const ControlFrame& frame);
    Result<Progress> onAnswer(const ControlFrame& frame);
    Result<Progress> onProof(const ControlFrame& frame);

    const std::shared_ptr<const ClusterAuth> auth_;
    std::string hello_;
    std::string challenge_;               ///< Body; empty before it came.
    std::optional<ControlFrame> answer_;  ///< Waits for its proof.
};

/// The accepting end.
class ControlResponder {
  public:
    struct Progress {
        std::string send;   ///< A frame to send.
        bool done = false;  ///< The Hello is proven, where that is due: look at it, then seal an answer.
    };

    /// `auth` may be null. `own` is said in the challenge.
    ControlResponder(std::shared_ptr<const ClusterAuth> auth, const Incarnation& own);

    /// Takes Hello, then Proof. AccessDenied: no proof, or a wrong one; ProtocolError.
    Result<Progress> onFrame(const ControlFrame& frame);
    /// Of onFrame: who greets.
    const Hello& hello() const { return message_; }

    /// An encoded HelloAck or Error, and its proof where one is due.
    std::string seal(std::string answer) const;

  private:
    const std::shared_ptr<const ClusterAuth> auth_;
    const Incarnation own_;
    Hello message_;
    std::string hello_;      ///< Body; empty before it came.
    std::string challenge_;  ///< Body; empty when none was sent.
    bool proven_ = false;
};

}  // namespace troupe
