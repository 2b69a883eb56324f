#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/reactor.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "metadata_redis/redis_reply.h"

namespace troupe {

/// How a RedisConnection behaves.
struct RedisConnectionOptions {
    std::string server;  ///< Whom it reaches, for messages: "10.0.0.1:6379".
    std::string user;    ///< Empty: only the password is sent.
    std::string password;
    unsigned database = 0;
    bool greets = true;             ///< AUTH, SELECT and PING before it is ready; a sentinel needs none of them.
    Duration connect_timeout{};     ///< Until it is ready.
    Duration command_timeout{};     ///< Silence, while an answer is due, that ends the connection.
    Duration keepalive_interval{};  ///< Quiet time after which a PING asks whether anybody is there.
    RedisReplyReader::Limits replies;
    std::size_t max_queued_bytes = 1u << 20;  ///< Of commands that the socket has not taken.
    std::size_t max_commands = 1u << 16;      ///< That wait for their answer.
};

/// What a RedisConnection tells its owner, on the reactor's turn, never from within a call that the owner makes to it.
/// The owner may call anything from them, destroy the connection included.
struct RedisConnectionHandlers {
    std::function<void()> onReady;
    std::function<void(RedisReply)> onMessage;  ///< A pub/sub message (the whole array); empty: none is expected.
    /// The connection ended, once, after the callbacks of all open commands were called with the same status. Never Ok.
    std::function<void(const Status&)> onClosed;
};

/// One connection to a Redis server: commands out through a bounded queue, replies back in their order, each with a
/// deadline, and a PING when it has been quiet. It owns the socket and blocks never.
///
/// The bytes are made and read by hiredis; the socket, the order of replies and the deadlines are ours, because
/// hiredis 0.14's own asynchronous context ends the process (assert) on replies that nobody asked for, has no
/// deadlines, and an output buffer without bound.
///
/// Thread rule: everything, construction and destruction included, happens on the reactor's turn. The reactor outlives
/// it.
class RedisConnection {
  public:
    using ReplyCallback = std::function<void(Result<RedisReply>)>;

    /// Takes over `fd`, a stream socket, connected or connecting.
    RedisConnection(Reactor& reactor, UniqueFd fd, RedisConnectionOptions options, RedisConnectionHandlers handlers);
    /// Closes the socket; neither handlers nor callbacks are called any more.
    ~RedisConnection();
    RedisConnection(const RedisConnection&) = delete;
    RedisConnection& operator=(const RedisConnection&) = delete;

    /// Sends one command, once it is ready; arguments may hold any bytes. `done` is called once: with the reply, which
    /// may be an error of the server; Timeout at `deadline` (the connection lives on, a late reply is dropped);
    /// CapacityExceeded when too much waits; or the status that the connection ends with.
    void command(const std::vector<std::string_view>& arguments, TimePoint deadline, ReplyCallback done);

    bool isReady() const;
    /// Ends it; onClosed follows with `reason`.
    void close(Status reason);

  private:
    class Core;
    std::shared_ptr<Core> core_;  ///< Shared with the calls in flight on the reactor, which may outlive the connection.
};

}  // namespace troupe
