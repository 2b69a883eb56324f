#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/endpoint.h"
#include "base/incarnation.h"
#include "base/reactor.h"
#include "base/resolver.h"
#include "base/status.h"
#include "control/control_channel.h"
#include "control/control_handshake.h"

namespace troupe {

/// Asks a control endpoint whether a certain incarnation lives there. For what is done to the dead only: taking over
/// their name, removing their record.
///
/// Everything on the reactor's turn; one question, one answer; destroying it takes the question back.
class IncarnationProbe {
  public:
    enum class Verdict {
        Alive,    ///< It answered.
        Gone,     ///< Proven: nobody listens there, or another incarnation answers.
        Unknown,  ///< No proof: silence, a host that cannot be reached, something that is not Troupe.
    };
    /// `why` says what was found, in words.
    using Answer = std::function<void(Verdict verdict, const std::string& why)>;

    struct Question {
        Endpoint control;
        Incarnation incarnation;
        std::string boot_id;                                ///< Of the machine it lived on; empty: not known.
        Incarnation asking;                                 ///< Who asks, for the Hello.
        Duration timeout{};                                 ///< From now until it is Unknown; 0 or less: at once.
        std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< With a key only a proven answer counts. May be null.
    };

    /// The answer comes in a later turn.
    IncarnationProbe(Reactor& reactor, Question question, Answer answer);
    ~IncarnationProbe();
    IncarnationProbe(const IncarnationProbe&) = delete;
    IncarnationProbe& operator=(const IncarnationProbe&) = delete;

  private:
    void connect(const std::string& host);
    void onFrame(const ControlFrame& frame);
    void ended(const Status& why);
    void conclude(Verdict verdict, const std::string& why);

    Reactor& reactor_;
    const Question question_;
    Answer answer_;  ///< Empty once given.
    const TimePoint deadline_;
    Resolver resolver_;
    std::unique_ptr<ControlChannel> channel_;
    std::unique_ptr<ControlInitiator> greeting_;
    Reactor::TimerId start_timer_ = 0;
    Reactor::TimerId deadline_timer_ = 0;
};

}  // namespace troupe
