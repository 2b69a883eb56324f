#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "metadata_redis/redis_link.h"

namespace troupe {

/// What the parts of a store hold of it. A callback of the store's user may end the store; it then lives on, ended,
/// until that callback has returned.
struct RedisLife {
    bool ended = false;

    /// Null when it has ended.
    static std::shared_ptr<RedisLife> of(const std::weak_ptr<RedisLife>& life) {
        auto alive = life.lock();
        return alive && !alive->ended ? alive : nullptr;
    }
};

/// The command connection, with room for those that ask while it is away: they wait for it, each to its own time.
///
/// Everything on the reactor's turn.
class RedisClient {
  public:
    using ReplyCallback = RedisConnection::ReplyCallback;

    /// `on_refused`: the server was reached and will not have us (isLasting); who waits for it waits in vain.
    RedisClient(Reactor& reactor, const RedisUri& uri, const Config& settings, const Logger& log,
                std::weak_ptr<RedisLife> life, std::function<void()> on_up,
                std::function<void(const Status&)> on_refused);
    ~RedisClient();
    RedisClient(const RedisClient&) = delete;
    RedisClient& operator=(const RedisClient&) = delete;

    /// Sends it when there is a connection. `done` comes once, never within this call: with a reply that is no error,
    /// or with the reason why there is none, at `timeout` (or redis.command_timeout if that is less) at the latest.
    void run(std::vector<std::string> arguments, Duration timeout, ReplyCallback done);

    /// Nothing is called from here on.
    void stop();

    /// Null while there is no connection.
    RedisConnection* connection() { return link_.connection(); }
    RedisLink& link() { return link_; }
    /// Why there is no connection, for a message. Never Ok.
    Status trouble() const;

  private:
    struct Waiting {
        std::vector<std::string> arguments;
        TimePoint deadline;
        ReplyCallback done;
        Reactor::TimerId timer = 0;
    };

    void send(const std::vector<std::string>& arguments, TimePoint deadline, ReplyCallback done);
    void up();
    void down(const Status& why);
    void expire(std::list<Waiting>::iterator entry);
    /// A reply that is an error becomes its status.
    void answer(Result<RedisReply> reply, const ReplyCallback& done);

    Reactor& reactor_;
    const RedisUri& uri_;
    const Config& settings_;
    const std::weak_ptr<RedisLife> life_;
    const std::function<void()> on_up_;
    const std::function<void(const Status&)> on_refused_;
    std::list<Waiting> waiting_;
    RedisLink link_;
};

}  // namespace troupe
