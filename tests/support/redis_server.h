#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/support/redis_server.h"
#include "base/clock.h"

namespace troupe::test {

/// Long enough for a loaded machine and a sanitizer; a test that waits this long has failed.
inline constexpr std::chrono::seconds kRedisPatience{60};

/// A directory that is gone with its owner.
class TemporaryDirectory {
  public:
    TemporaryDirectory() {
        std::string path = (std::filesystem::temp_directory_path() / "troupe_redis_XXXXXX").string();
        EXPECT_NE(::mkdtemp(path.data()), nullptr);
        path_ = path;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// What must be had for a test to be one; GoogleTest reports the exception as its failure.
template <class T>
T must(Result<T> result) {
    if (!result) throw std::runtime_error(result.status().toString());
    return std::move(result).value();
}

inline std::uint16_t freePort() { return must(apps::freePort()); }

/// apps::RedisServer for tests, which need one that starts.
class RedisServer {
  public:
    using Options = apps::RedisServer::Options;

    RedisServer() : RedisServer(Options{}) {}
    explicit RedisServer(Options options) : server_(must(apps::RedisServer::start(std::move(options)))) {}

    std::uint16_t port() const { return server_->port(); }
    std::string address() const { return server_->address(); }
    std::string uri() const { return server_->uri(); }
    std::string socketPath() const { return server_->socketPath(); }
    const std::string& directory() const { return server_->directory(); }
    pid_t pid() const { return server_->pid(); }
    Options& options() { return server_->options(); }

    /// Again, on its port.
    void start() {
        const Status launched = server_->launch();
        ASSERT_TRUE(launched) << launched.toString();
    }
    void kill() { server_->kill(); }
    void stop() { server_->stop(); }
    void proceed() { server_->proceed(); }
    void restart() {
        kill();
        start();
    }

    std::string command(const std::vector<std::string>& words) const {
        const auto reply = server_->command(words);
        return reply ? *reply : "(no connection)";
    }
    std::string log() const { return server_->log(); }
    long long info(const std::string& key) const { return server_->info(key); }

    template <class Done>
    static bool eventually(Done&& done) {
        const TimePoint limit = Clock::now() + kRedisPatience;
        while (!done()) {
            if (Clock::now() > limit) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
    }

  private:
    std::unique_ptr<apps::RedisServer> server_;
};

}  // namespace troupe::test
