#include "apps/support/redis_server.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <stdlib.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/endpoint.h"

namespace troupe::apps {

namespace {

// Debian's redis-server and redis-sentinel are links to a program that goes by its name; the package redis-tools has
// the program, others have the links and services, which nobody needs here.
constexpr const char* kProgram = "/usr/bin/redis-check-rdb";
/// Long enough for a loaded machine and a sanitizer.
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kSentinelPatience{5000};

Result<std::string> makeDirectory() {
    if (!std::filesystem::exists(kProgram))
        return {Code::NotFound, fmt::format("no {}; install the package redis-tools", kProgram)};
    std::string path = (std::filesystem::temp_directory_path() / "troupe_redis_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return {Code::ResourceExhausted, "no temporary directory"};
    return path;
}

void removeDirectory(const std::string& path) {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
}

std::string linkedProgram(const std::string& directory, const std::string& name) {
    const std::string link = directory + "/" + name;
    std::error_code exists;
    std::filesystem::create_symlink(kProgram, link, exists);
    return link;
}

std::string flat(const redisReply& reply) {
    if (reply.type == REDIS_REPLY_INTEGER) return std::to_string(reply.integer);
    std::string text(reply.str != nullptr ? std::string(reply.str, reply.len) : "");
    for (std::size_t i = 0; i < reply.elements; ++i) text += flat(*reply.element[i]) + " ";
    return text;
}

Result<std::string> ask(const std::string& host, std::uint16_t port, const std::string& password,
                        std::chrono::milliseconds within, const std::vector<std::string>& words) {
    const timeval patience{within.count() / 1000, within.count() % 1000 * 1000};
    const std::unique_ptr<redisContext, decltype(&redisFree)> context(
        redisConnectWithTimeout(host.c_str(), port, patience), &redisFree);
    if (!context || context->err != 0) return {Code::ConnectionRefused, "redis " + host + ": no connection"};
    redisSetTimeout(context.get(), patience);
    if (!password.empty()) freeReplyObject(redisCommand(context.get(), "AUTH %s", password.c_str()));
    std::vector<const char*> texts;
    std::vector<std::size_t> lengths;
    for (const std::string& word : words) {
        texts.push_back(word.data());
        lengths.push_back(word.size());
    }
    const std::unique_ptr<redisReply, decltype(&freeReplyObject)> reply(
        static_cast<redisReply*>(
            redisCommandArgv(context.get(), static_cast<int>(texts.size()), texts.data(), lengths.data())),
        &freeReplyObject);
    if (!reply) return {Code::ConnectionLost, "redis " + host + ": no answer"};
    return flat(*reply);
}

void end(std::optional<ChildProcess>& child) {
    if (!child) return;
    child->signal(SIGKILL);
    child->signal(SIGCONT);
    static_cast<void>(child->wait(kPatience));
    child.reset();
}

}  // namespace

// --- server ------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<RedisServer>> RedisServer::start(Options options) {
    std::unique_ptr<RedisServer> server(new RedisServer(std::move(options)));
    auto directory = makeDirectory();
    if (!directory) return directory.status();
    server->directory_ = std::move(*directory);
    const auto port = freePort();
    if (!port) return port.status();
    server->port_ = *port;
    if (const Status launched = server->launch(); !launched) return launched;
    return server;
}

RedisServer::~RedisServer() {
    kill();
    removeDirectory(directory_);
}

Status RedisServer::launch() {
    if (child_) return Status::ok();
    std::vector<std::string> arguments = options_.wrapper;
    for (const std::string& each :
         {linkedProgram(directory_, "redis-server"), std::string("--port"), std::to_string(port_),
          std::string("--bind"), options_.bind, std::string("--dir"), directory_, std::string("--save"),
          std::string(""), std::string("--protected-mode"), std::string("no"), std::string("--logfile"),
          directory_ + "/log", std::string("--enable-debug-command"), std::string("yes")})
        arguments.push_back(each);
    if (options_.unix_socket) {
        arguments.emplace_back("--unixsocket");
        arguments.push_back(socketPath());
    }
    arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
    // Whatever ends this process, nobody would end the server then.
    auto child = ChildProcess::start(arguments, {.stderr_path = {}, .environment = {}, .dies_with_us = true});
    if (!child) return child.status();
    child_.emplace(std::move(*child));
    const TimePoint limit = Clock::now() + kPatience;
    // Nothing says when it listens.
    while (!command({"PING"})) {
        if (const auto ended = child_->wait(std::chrono::milliseconds(0))) {
            child_.reset();
            return {Code::Internal, fmt::format("redis-server ended with {}: {}", *ended, log())};
        }
        if (Clock::now() > limit) return {Code::Timeout, "redis-server did not start in time: " + log()};
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Status::ok();
}

void RedisServer::kill() { end(child_); }

void RedisServer::stop() {
    if (child_) child_->signal(SIGSTOP);
}

void RedisServer::proceed() {
    if (child_) child_->signal(SIGCONT);
}

Result<std::string> RedisServer::command(const std::vector<std::string>& words) const {
    return ask(options_.bind, port_, options_.password, options_.answer_patience, words);
}

long long RedisServer::info(const std::string& key) const {
    const auto text = command({"INFO", "all"});
    const std::size_t at = text ? text->find("\n" + key + ":") : std::string::npos;
    return at == std::string::npos ? -1 : std::atoll(text->c_str() + at + key.size() + 2);
}

std::string RedisServer::log() const {
    std::ifstream file(directory_ + "/log");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// --- sentinel ----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<RedisSentinel>> RedisSentinel::start(std::uint16_t master_port) {
    std::unique_ptr<RedisSentinel> sentinel(new RedisSentinel());
    auto directory = makeDirectory();
    if (!directory) return directory.status();
    sentinel->directory_ = std::move(*directory);
    const auto port = freePort();
    if (!port) return port.status();
    sentinel->port_ = *port;
    const std::string& at = sentinel->directory_;
    const std::string config = at + "/sentinel.conf";
    std::ofstream(config) << fmt::format(
        "port {}\nbind 127.0.0.1\ndir {}\nlogfile {}/log\nsentinel monitor main 127.0.0.1 {} 1\n"
        "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
        *port, at, at, master_port);
    auto child = ChildProcess::start({linkedProgram(at, "redis-sentinel"), config},
                                     {.stderr_path = {}, .environment = {}, .dies_with_us = true});
    if (!child) return child.status();
    sentinel->child_.emplace(std::move(*child));
    return sentinel;
}

RedisSentinel::~RedisSentinel() {
    end(child_);
    removeDirectory(directory_);
}

std::string RedisSentinel::ask(const std::vector<std::string>& words) const {
    const auto reply = apps::ask("127.0.0.1", port_, {}, kSentinelPatience, words);
    return reply ? *reply : std::string();
}

bool RedisSentinel::names(std::uint16_t master_port) const {
    const std::string named = ask({"SENTINEL", "get-master-addr-by-name", "main"});
    return named.find(" " + std::to_string(master_port) + " ") != std::string::npos;
}

bool RedisSentinel::knowsReplica(std::uint16_t port) const {
    const std::string replicas = ask({"SENTINEL", "replicas", "main"});
    return replicas.find(" " + std::to_string(port) + " ") != std::string::npos &&
           replicas.find("master-link-status ok") != std::string::npos;
}

}  // namespace troupe::apps
