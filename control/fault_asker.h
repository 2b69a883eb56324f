#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/endpoint.h"
#include "base/incarnation.h"
#include "base/reactor.h"
#include "base/status.h"
#include "control/control_channel.h"
#include "control/control_handshake.h"
#include "control/fault_request.h"

namespace troupe {

/// Breaks another engine on purpose, over a control connection of its own: what was broken by it is mended over there
/// when it ends, however it does. That engine allows it by `faults.remote`.
///
/// Everything on the reactor's turn.
class FaultAsker {
  public:
    struct Options {
        Endpoint control;      ///< Of the engine; its host is numeric.
        Incarnation whom;      ///< Who has to live there.
        Incarnation asking;    ///< Who asks, for the Hello.
        Duration timeout{};    ///< To connect and greet, and for each answer.
        Duration keepalive{};  ///< Between the frames by which that engine knows that this end lives.
        std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< May be null.
    };
    /// The answer, or why there is none: AccessDenied (`faults.remote` is off, or a cluster key is missing or wrong),
    /// what FaultInjector refuses, Timeout, StaleIncarnation, or why the connection ended.
    using Answered = std::function<void(Result<FaultAnswer>)>;

    /// Connects.
    FaultAsker(Reactor& reactor, Options options);
    /// Ends the connection. What is asked stays unanswered.
    ~FaultAsker();
    FaultAsker(const FaultAsker&) = delete;
    FaultAsker& operator=(const FaultAsker&) = delete;

    /// `answered` is called once, possibly before this returns; it must not destroy the asker.
    void ask(const FaultRequest& request, Answered answered);
    /// False once the connection has ended; another asker may try again.
    bool isOpen() const { return ended_.isOk(); }

  private:
    struct Pending {
        Answered answered;
        Reactor::TimerId timer = 0;
    };

    void onFrame(ControlFrame frame);
    void onGreeting(const ControlFrame& frame);
    void onAnswer(const ControlFrame& frame);
    void keepAlive();
    void end(const Status& why);

    Reactor& reactor_;
    const Options options_;
    std::unique_ptr<ControlChannel> channel_;
    std::unique_ptr<ControlInitiator> greeting_;  ///< Until it is over.
    std::deque<std::string> waiting_;             ///< Frames, while it is not.
    std::map<std::uint64_t, Pending> pending_;
    std::uint64_t asked_ = 0;
    std::uint64_t pings_ = 0;
    Reactor::TimerId keepalive_timer_ = 0;
    Status ended_;  ///< Ok: it has not.
};

}  // namespace troupe
