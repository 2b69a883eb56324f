#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/hosted_actor.h"
#include "base/config.h"
#include "base/endpoint.h"
#include "base/resolver.h"
#include "control/control_channel.h"
#include "control/control_handshake.h"
#include "control/control_messages.h"
#include "messages/control_plane.h"

namespace troupe {

/// Watches one peer over one control connection: connects, checks who answers, fetches the descriptor, pings, and
/// reports to the SegmentDirectory. Lives on the control loop as long as the segment is open.
///
/// unknown -> connecting -> up -> suspect (connection lost, trying again) -> up or down. While down it goes on trying
/// with a growing, jittered pause, so that a peer that comes back is found without anybody asking; it is connecting
/// again once somebody answers there.
class PeerMonitor final : public HostedActor {
  public:
    struct Target {
        std::uint32_t index = 0;  ///< Peer index; in every report.
        Endpoint control;         ///< Host may be a name.
        Incarnation expect;       ///< Null: whoever answers (p2p).
        std::string own_name;     ///< Of the local segment, for the Hello.
        Incarnation own;
        std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< May be null.
    };

    PeerMonitor(caf::actor_config& config, Loop& loop, Target target, const Config& settings, caf::actor directory,
                Logger log);

    const char* name() const override { return "troupe.peer_monitor"; }

  protected:
    caf::behavior make_behavior() override;
    void atEnd() override;

  private:
    struct PendingPing {
        std::uint64_t seq;
        Reactor::TimerId timer;
        std::function<void(Status)> reply;
    };

    struct PendingQuestion {
        std::uint64_t id;
        Reactor::TimerId timer;
        ControlExchange::Answered answered;
    };

    void connect();
    void connectTo(const std::string& host);
    void onFrame(const ControlFrame& frame);
    void onGreeting(const ControlFrame& frame);
    void onHelloAck(const HelloAck& ack);
    void onDescriptor(ControlFrame frame);
    void requestDescriptor();
    void trouble(const Status& why);
    void scheduleRetry();
    void keepAlive();
    void ping(std::function<void(Status)> reply, TimePoint deadline);
    /// Every ping and question that waits, also for a connection.
    void answerAll(const Status& status);
    /// Answers one ping; unknown numbers are ignored.
    void answerPing(std::uint64_t seq, const Status& status);
    void scheduleTick();
    /// When it has been silent for as long as it may be.
    TimePoint silentAt() const;
    /// When the descriptor that is on its way has not begun to arrive for as long as that.
    TimePoint overdueAt() const;
    void ask(AskPeer request);
    /// Unknown numbers are ignored: their time was over.
    void answerQuestion(std::uint64_t id, Result<std::string> answer);

    const Target target_;
    const Config& settings_;
    caf::actor directory_;
    Resolver resolver_;
    std::unique_ptr<ControlChannel> channel_;
    std::unique_ptr<ControlInitiator> greeter_;  ///< Of the current connection.
    std::string host_;                           ///< Numeric, of the current connection.
    PeerState state_ = PeerState::Unknown;
    Status trouble_;         ///< Why it is down.
    Incarnation answering_;  ///< Who answered the last handshake.
    std::string peer_name_;
    std::shared_ptr<const SegmentDesc> desc_;  ///< Last one fetched.
    bool resolving_ = false;                   ///< The host name is being looked up.
    bool greeting_ = false;                    ///< Connected, and not answered yet.
    bool fetching_ = false;
    bool fetch_again_ = false;    ///< Asked for while one was on its way.
    TimePoint fetching_since_{};  ///< Of the one that is on its way.
    std::uint32_t failures_ = 0;  ///< In a row.
    std::uint64_t next_seq_ = 1;
    std::vector<PendingPing> pings_;
    std::vector<PendingQuestion> questions_;
    std::vector<AskPeer> held_;  ///< Until the connection that was lost is there again, or the peer down.
    Reactor::TimerId retry_timer_ = 0;
    Reactor::TimerId tick_timer_ = 0;
    TimePoint pinged_at_{};
    std::uint64_t jitter_state_;
};

}  // namespace troupe
