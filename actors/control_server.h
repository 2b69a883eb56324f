#pragma once

#include <list>
#include <memory>
#include <set>
#include <string>

#include "actors/hosted_actor.h"
#include "base/config.h"
#include "base/incarnation.h"
#include "base/rare_word.h"
#include "base/stream.h"
#include "control/control_channel.h"
#include "control/control_handshake.h"
#include "security/refusal_log.h"

namespace troupe {

/// Answers the control port: handshake, descriptor, ping. Lives on the control loop.
class ControlServer final : public HostedActor {
  public:
    struct Identity {
        Incarnation incarnation;
        std::string name;                                   ///< Of the local segment.
        std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< May be null.
    };

    /// `listener` is the Supervisor's, too: a restarted server goes on listening on the same port.
    ControlServer(caf::actor_config& config, Loop& loop, std::shared_ptr<Listener> listener, Identity identity,
                  const Config& settings, caf::actor directory, Logger log);

    const char* name() const override { return "troupe.control_server"; }

  protected:
    caf::behavior make_behavior() override;
    void atEnd() override;

  private:
    struct Client {
        std::unique_ptr<ControlChannel> channel;
        std::unique_ptr<ControlResponder> greeter;  ///< Until it has greeted.
        bool greeted = false;
        std::string host;        ///< The peer's address, without the port.
        Incarnation peer;        ///< Once it has greeted.
        double frames_left = 0;  ///< That it may send at once, as of `counted_at`.
        TimePoint counted_at{};
        std::uint64_t descriptor_bytes = 0;  ///< Of the last descriptor sent: what its queue may hold.
        std::uint64_t asker = 0;             ///< Asker::connection; 0: it never asked.
        unsigned asking = 0;                 ///< Questions that are not answered.
        bool describing = false;             ///< A descriptor is on its way; one at a time bounds the queue.
    };
    using ClientPtr = std::shared_ptr<Client>;

    void acceptAll();
    void onFrame(const ClientPtr& client, const ControlFrame& frame);
    Status greet(Client& client, const ControlFrame& frame);
    bool makeRoom(const std::string& host);
    void turnAway(const ClientPtr& client, const Status& why);
    Status countFrame(Client& client);
    void describe(const ClientPtr& client, const ControlFrame& frame);
    void sendDescriptor(Client& client, const std::shared_ptr<const std::string>& json);
    void answer(const ClientPtr& client, const ControlFrame& frame);
    void forget(const Client& client);
    void refuse(Client& client, const Status& why);
    void sayEnd(const Client& client, const Status& why);
    void remove(const ClientPtr& client);
    void dropSilent();

    std::shared_ptr<Listener> listener_;
    const Identity identity_;
    const Config& settings_;
    caf::actor directory_;
    std::list<ClientPtr> clients_;
    std::uint64_t askers_ = 0;
    Reactor::TimerId silence_timer_ = 0;
    Reactor::TimerId accept_timer_ = 0;
    RareWord accept_word_;
    RareWord refused_word_;
    RefusalLog refusals_;
    std::set<std::string, std::less<>> strangers_;  ///< Addresses of which the log has a word.
};

}  // namespace troupe
