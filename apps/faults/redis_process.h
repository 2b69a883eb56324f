#pragma once

#include <memory>
#include <string>
#include <utility>

#include "apps/support/redis_server.h"
#include "base/status.h"

namespace troupe::apps::faults {

/// A redis-server of our own, and what the scenarios do to it.
class RedisProcess {
  public:
    /// NotFound names the package.
    static Result<std::unique_ptr<RedisProcess>> start();

    std::string uri() const { return server_->uri(); }
    void kill() { server_->kill(); }
    /// On its port, empty. Nothing when it runs.
    Status launch() { return server_->launch(); }
    void stop() { server_->stop(); }
    void proceed() { server_->proceed(); }
    /// Answers nobody for this long.
    Status sleepFor(double seconds);
    Status forget();
    /// A replica of a server that is not there takes no writes.
    Status setReadOnly(bool on);
    /// True when it answers, and holds this key.
    bool holds(const std::string& key);

  private:
    explicit RedisProcess(std::unique_ptr<RedisServer> server) : server_(std::move(server)) {}
    const std::unique_ptr<RedisServer> server_;
};

}  // namespace troupe::apps::faults
