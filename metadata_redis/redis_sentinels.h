#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/config.h"
#include "base/endpoint.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/resolver.h"
#include "base/status.h"
#include "metadata_redis/redis_connection.h"
#include "metadata_redis/redis_uri.h"

namespace troupe {

/// What a RedisConnection is told by a URI and the settings. The bounds on replies and on what is queued are the
/// caller's to set.
RedisConnectionOptions connectionOptions(const RedisUri& uri, const Config& settings, const std::string& server);

/// Asks the Sentinels of a URI who the master is. The connection to the one that answered stays for the next question.
///
/// Everything on the reactor's turn; the reactor, the URI and the settings outlive it.
class RedisSentinels {
  public:
    /// The master as a Sentinel named it, or why none did: of several reasons the one that says most.
    using Answer = std::function<void(const Result<Endpoint>&)>;

    RedisSentinels(Reactor& reactor, const RedisUri& uri, const Config& settings, Logger log);
    ~RedisSentinels() = default;
    RedisSentinels(const RedisSentinels&) = delete;
    RedisSentinels& operator=(const RedisSentinels&) = delete;

    /// Asks one after the other, beginning with the one that answered last. A new question takes the place of one that
    /// is open, which is not answered. The answer may come within this call.
    void ask(Answer answer);
    /// Closes the connection; an open question is not answered.
    void hangUp();

  private:
    void next();
    void connect(const std::string& numeric, const Endpoint& sentinel);
    void send(bool authenticated);
    void onReply(const Result<RedisReply>& reply, bool authenticated);
    void authenticate();
    void failed(const Status& why);
    void conclude(const Result<Endpoint>& master);

    Reactor& reactor_;
    const RedisUri& uri_;
    const Config& settings_;
    const Logger log_;
    Answer answer_;               ///< Empty while no question is open.
    std::uint64_t question_ = 0;  ///< Number of the last one: what comes for an earlier one is dropped.
    std::size_t next_ = 0;        ///< Index of the one to ask; stays at one that answered.
    std::size_t asked_ = 0;       ///< For this question.
    Status cause_;                ///< Of those that failed for this question, the one that says most.
    Resolver resolver_;
    std::unique_ptr<RedisConnection> connection_;
};

}  // namespace troupe
