#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/support/child_process.h"
#include "base/status.h"

namespace troupe::apps::faults {

/// A redis-server of our own on a free port of this machine, without persistence; killed with it. Needs the package
/// redis-tools, which has both the server and redis-cli.
class RedisProcess {
  public:
    /// NotFound names the package.
    static Result<std::unique_ptr<RedisProcess>> start();
    ~RedisProcess();
    RedisProcess(const RedisProcess&) = delete;
    RedisProcess& operator=(const RedisProcess&) = delete;

    std::string uri() const;
    void kill();
    /// On its port, empty. Nothing when it runs.
    Status launch();
    void stop();
    void proceed();
    /// Answers nobody for this long.
    Status sleepFor(double seconds);
    Status forget();
    /// A replica of a server that is not there takes no writes.
    Status setReadOnly(bool on);
    /// True when it answers, and holds this key.
    bool holds(const std::string& key);

  private:
    RedisProcess() = default;
    Result<std::string> command(const std::vector<std::string>& words);

    std::string directory_;
    std::uint16_t port_ = 0;
    std::optional<ChildProcess> child_;
};

}  // namespace troupe::apps::faults
