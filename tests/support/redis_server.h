#pragma once

#include <gtest/gtest.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/support/child_process.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "metadata_redis/redis_reply.h"

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

/// A port that was free a moment ago. Taken from the kernel's choice, so that tests beside this one get others.
inline std::uint16_t freePort() {
    const auto fd = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    return SocketAddress::local(fd->get())->port();
}

/// redis-server of Debian is a link to a program that goes by its name; the package redis-tools has the program, the
/// package redis-server the link and a service that nobody here wants. So the tests make the link.
inline std::string redisProgram(const TemporaryDirectory& directory, const std::string& name) {
    const std::string link = directory.path() + "/" + name;
    std::error_code error;
    std::filesystem::create_symlink("/usr/bin/redis-check-rdb", link, error);
    return link;
}

/// A real redis-server (or sentinel) on a port of its own, without persistence unless told so; ends with the test.
class RedisServer {
  public:
    struct Options {
        std::vector<std::string> arguments;  ///< More of redis.conf: {"--maxmemory", "4mb"}.
        std::vector<std::string> wrapper;    ///< A program to run it in: {"ip", "netns", "exec", "name"}.
        std::string bind = "127.0.0.1";
        std::string password;  ///< For the test's own commands.
        bool unix_socket = false;
    };

    RedisServer() : RedisServer(Options{}) {}
    explicit RedisServer(Options options) : options_(std::move(options)), port_(freePort()) { start(); }
    ~RedisServer() { kill(); }
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    std::uint16_t port() const { return port_; }
    std::string address() const { return options_.bind + ":" + std::to_string(port_); }
    std::string uri() const { return "redis://" + address(); }
    std::string socketPath() const { return directory_.path() + "/socket"; }
    const std::string& directory() const { return directory_.path(); }
    pid_t pid() const { return child_->pid(); }
    Options& options() { return options_; }

    /// Starts it (again) on its port, and waits until it listens.
    void start() {
        std::vector<std::string> arguments = options_.wrapper;
        for (const std::string& each :
             {redisProgram(directory_, "redis-server"), std::string("--port"), std::to_string(port_),
              std::string("--bind"), options_.bind, std::string("--dir"), directory_.path(), std::string("--save"),
              std::string(""), std::string("--protected-mode"), std::string("no"), std::string("--logfile"),
              directory_.path() + "/log", std::string("--enable-debug-command"), std::string("yes")})
            arguments.push_back(each);
        if (options_.unix_socket) {
            arguments.emplace_back("--unixsocket");
            arguments.push_back(socketPath());
        }
        arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
        auto child = apps::ChildProcess::start(arguments);
        ASSERT_TRUE(child) << child.status().toString();
        child_.emplace(std::move(*child));
        ASSERT_TRUE(eventually([&] { return answers(); })) << log();
    }
    void kill() {
        if (!child_) return;
        child_->signal(SIGKILL);
        child_->signal(SIGCONT);
        static_cast<void>(child_->wait(kRedisPatience));
        child_.reset();
    }
    void stop() { child_->signal(SIGSTOP); }
    void proceed() { child_->signal(SIGCONT); }
    void restart() {
        kill();
        start();
    }

    /// A command over a fresh connection, as a string: "OK", an integer's digits, a string, an error's text; "" for
    /// nil.
    std::string command(const std::vector<std::string>& arguments) const {
        const auto reply = ask(arguments);
        return reply.value_or("(no connection)");
    }

    std::string log() const {
        std::ifstream file(directory_.path() + "/log");
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    /// A figure of INFO.
    long long info(const std::string& key) const {
        const std::string text = command({"INFO", "all"});
        const std::size_t at = text.find("\n" + key + ":");
        return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + key.size() + 2);
    }

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
    /// It speaks, if only to say that it is loading.
    bool answers() const { return ask({"PING"}).has_value(); }

    std::optional<std::string> ask(const std::vector<std::string>& arguments) const {
        const timeval patience{5, 0};
        redisContext* context = redisConnectWithTimeout(options_.bind.c_str(), port_, patience);
        std::optional<std::string> result;
        if (context != nullptr && context->err == 0) {
            redisSetTimeout(context, patience);
            if (!options_.password.empty())
                freeReplyObject(redisCommand(context, "AUTH %s", options_.password.c_str()));
            std::vector<const char*> texts;
            std::vector<std::size_t> lengths;
            for (const std::string& argument : arguments) {
                texts.push_back(argument.data());
                lengths.push_back(argument.size());
            }
            auto* reply = static_cast<redisReply*>(
                redisCommandArgv(context, static_cast<int>(texts.size()), texts.data(), lengths.data()));
            if (reply != nullptr) {
                result = reply->type == REDIS_REPLY_INTEGER ? std::to_string(reply->integer)
                         : reply->str != nullptr            ? std::string(reply->str, reply->len)
                                                            : std::string();
                freeReplyObject(reply);
            }
        }
        if (context != nullptr) redisFree(context);
        return result;
    }

    Options options_;
    TemporaryDirectory directory_;
    std::uint16_t port_;
    std::optional<apps::ChildProcess> child_;
};

}  // namespace troupe::test
