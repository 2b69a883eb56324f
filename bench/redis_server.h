#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "bench/child_process.h"
#include "bench/row.h"

namespace troupe::bench {

/// A redis-server without persistence on a free loopback port; ends with this.
class RedisServer {
  public:
    static Result<std::unique_ptr<RedisServer>> start();
    ~RedisServer();
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    int port() const { return port_; }
    std::string uri() const;

    void kill();
    /// Starts it again, empty, on its port; returns when it listens.
    Status restart();
    /// SIGSTOP and SIGCONT.
    void stop();
    void proceed();

  private:
    RedisServer() = default;
    Status launch();

    std::string directory_;
    int port_ = 0;
    ChildProcess child_;
};

/// A part of redisRows: what an outage of the server costs.
std::vector<Row> redisOutageRows();

}  // namespace troupe::bench
