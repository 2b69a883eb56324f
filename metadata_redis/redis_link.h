#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "base/endpoint.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/resolver.h"
#include "base/status.h"
#include "metadata_redis/redis_connection.h"
#include "metadata_redis/redis_sentinels.h"
#include "metadata_redis/redis_uri.h"

namespace troupe {

/// What a RedisLink tells its owner, on the reactor's turn, never from within a call that the owner makes to it.
struct RedisLinkHandlers {
    std::function<void()> onUp;
    std::function<void(const Status&)> onDown;  ///< The connection broke, or an attempt failed.
    std::function<void(RedisReply)> onMessage;  ///< Empty: no pub/sub here.
    /// True when somebody else says in the log, or tells a caller, why there is no connection.
    std::function<bool()> isToldElsewhere;
};

/// Keeps one connection to the server that a URI means: looks names up, asks the sentinels who the master is, connects,
/// and after any trouble tries again for ever, with a doubling, jittered pause.
///
/// Everything on the reactor's turn; the reactor and the settings outlive it.
class RedisLink {
  public:
    RedisLink(Reactor& reactor, const RedisUri& uri, const Config& settings, Logger log, std::string purpose,
              RedisReplyReader::Limits replies, RedisLinkHandlers handlers);
    ~RedisLink();
    RedisLink(const RedisLink&) = delete;
    RedisLink& operator=(const RedisLink&) = delete;

    void start();
    /// Closes the connection and tries no more; nothing is called from here on.
    void stop();
    /// Null unless it is up. Not to be kept.
    RedisConnection* connection() { return up_ && connection_->isReady() ? connection_.get() : nullptr; }
    /// Why it is not up; Ok while it is, and before the first attempt ended.
    const Status& trouble() const { return trouble_; }
    /// The server that the connection goes to, numeric; empty while down.
    const std::string& server() const { return server_; }
    /// Ends the connection and finds the server anew; `why` is the trouble meanwhile.
    void reconnect(Status why);
    /// Before start: with Sentinels, while it is up one of them is asked at each redis.keepalive_interval whether this
    /// is still the master, and if not the link goes to the one it names. A master that is replaced in an orderly way
    /// answers as before for some ten seconds.
    void followMaster() { follows_master_ = true; }
    bool wasEverUp() const { return was_up_; }

  private:
    void attempt();
    void attemptSoon();
    void connectByName(const Endpoint& host);
    void connectTo(const SocketAddress& address, const std::string& name);
    void askSentinels();
    void lookForMaster();
    void lasts();
    bool isNews(Code code);
    void onReady();
    void failed(const Status& why);
    void schedule();
    RedisConnectionOptions options(const std::string& server) const;

    Reactor& reactor_;
    const RedisUri& uri_;
    const Config& settings_;
    Logger log_;
    const std::string purpose_;  ///< For the log: "commands", "changes".
    const RedisReplyReader::Limits replies_;
    RedisLinkHandlers handlers_;
    std::unique_ptr<Resolver> resolver_;  ///< Null once stopped.
    std::unique_ptr<RedisConnection> connection_;
    std::unique_ptr<RedisSentinels> sentinels_;  ///< Null once stopped, and without Sentinels.
    bool up_ = false;
    bool stopped_ = true;
    std::string server_;
    Status trouble_;
    /// What the log has of each kind of trouble.
    struct Logged {
        TimePoint when;
        bool in_this_outage;
    };
    std::map<Code, Logged> logged_;
    bool return_is_due_ = false;  ///< The log has a trouble, and not its end.
    bool follows_master_ = false;
    Endpoint master_;  ///< As the Sentinel named it.
    TimePoint up_since_{};
    TimePoint down_since_{};
    bool was_up_ = false;
    std::uint32_t failures_ = 0;  ///< In a row.
    Reactor::TimerId retry_timer_ = 0;
    Reactor::TimerId lasting_timer_ = 0;
    Reactor::TimerId look_timer_ = 0;
    std::uint64_t jitter_;
};

}  // namespace troupe
