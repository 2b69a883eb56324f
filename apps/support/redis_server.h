#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/support/child_process.h"
#include "apps/support/free_port.h"
#include "base/status.h"

namespace troupe::apps {

/// A real redis-server on a port of its own, without persistence unless told so; killed with it, and with the thread
/// that started it, however that ends. Needs the package redis-tools. For the faults, the benchmark and the tests. One
/// thread.
class RedisServer {
  public:
    struct Options {
        std::vector<std::string> arguments;  ///< More of redis.conf: {"--maxmemory", "4mb"}.
        std::vector<std::string> wrapper;    ///< A program to run it in: {"ip", "netns", "exec", "name"}.
        std::string bind = "127.0.0.1";
        std::string password;  ///< For `command`.
        bool unix_socket = false;
        std::chrono::milliseconds answer_patience{5000};  ///< Of `command`.
    };

    /// Returns when it speaks, if only to say that it is loading. NotFound names the package.
    static Result<std::unique_ptr<RedisServer>> start(Options options);
    static Result<std::unique_ptr<RedisServer>> start() { return start(Options{}); }
    ~RedisServer();
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    std::uint16_t port() const { return port_; }
    std::string address() const { return options_.bind + ":" + std::to_string(port_); }
    std::string uri() const { return "redis://" + address(); }
    std::string socketPath() const { return directory_ + "/socket"; }
    const std::string& directory() const { return directory_; }
    pid_t pid() const { return child_ ? child_->pid() : -1; }
    /// For the next launch; `password` at once.
    Options& options() { return options_; }

    /// On its port again. Nothing when it runs. Internal: it ended at once; the message has its log.
    Status launch();
    void kill();
    /// SIGSTOP and SIGCONT.
    void stop();
    void proceed();

    /// A command over a fresh connection, its reply as text: "OK", an integer's digits, a string, an error's words; ""
    /// for nil and lists. ConnectionRefused when there is none, ConnectionLost when no answer came.
    Result<std::string> command(const std::vector<std::string>& words) const;
    /// A figure of INFO; -1: there is none.
    long long info(const std::string& key) const;
    std::string log() const;

  private:
    explicit RedisServer(Options options) : options_(std::move(options)) {}

    Options options_;
    std::string directory_;
    std::uint16_t port_ = 0;
    std::optional<ChildProcess> child_;
};

/// A real redis-sentinel that watches one master as "main", and fails over soon. Killed with it, and with the thread
/// that started it.
class RedisSentinel {
  public:
    static Result<std::unique_ptr<RedisSentinel>> start(std::uint16_t master_port);
    ~RedisSentinel();
    RedisSentinel(const RedisSentinel&) = delete;
    RedisSentinel& operator=(const RedisSentinel&) = delete;

    std::uint16_t port() const { return port_; }
    /// The texts of the reply, with a space behind each of a list's; empty without one.
    std::string ask(const std::vector<std::string>& words) const;
    /// The port of the master that it names.
    bool names(std::uint16_t master_port) const;
    /// It knows this replica of the master, which is in step.
    bool knowsReplica(std::uint16_t port) const;

  private:
    RedisSentinel() = default;
    std::string directory_;
    std::uint16_t port_ = 0;
    std::optional<ChildProcess> child_;
};

}  // namespace troupe::apps
