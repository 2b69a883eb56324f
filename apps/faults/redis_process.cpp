#include "apps/faults/redis_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/endpoint.h"

namespace troupe::apps::faults {

namespace {

// Debian's redis-server is a link to a program that goes by its name; the package redis-tools has the program, the
// package redis-server the link and a service, which nobody needs here.
constexpr const char* kServer = "/usr/bin/redis-check-rdb";
constexpr const char* kClient = "/usr/bin/redis-cli";
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kAsk{500};

/// Free a moment ago, by the kernel's choice.
Result<std::uint16_t> freePort() {
    const auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    if (!listener) return listener.status();
    const auto local = SocketAddress::local(listener->get());
    if (!local) return local.status();
    return local->port();
}

}  // namespace

Result<std::unique_ptr<RedisProcess>> RedisProcess::start() {
    for (const char* program : {kServer, kClient})
        if (!std::filesystem::exists(program))
            return {Code::NotFound,
                    fmt::format("no {}; install the package redis-tools, or leave this scenario out", program)};
    std::unique_ptr<RedisProcess> redis(new RedisProcess());
    std::string directory = (std::filesystem::temp_directory_path() / "troupe_faults_XXXXXX").string();
    if (::mkdtemp(directory.data()) == nullptr) return {Code::ResourceExhausted, "no temporary directory"};
    redis->directory_ = directory;
    std::error_code error;
    std::filesystem::create_symlink(kServer, directory + "/redis-server", error);
    const auto port = freePort();
    if (!port) return port.status();
    redis->port_ = *port;
    if (const Status launched = redis->launch(); !launched) return launched;
    return redis;
}

RedisProcess::~RedisProcess() {
    kill();
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

std::string RedisProcess::uri() const { return fmt::format("redis://127.0.0.1:{}", port_); }

Status RedisProcess::launch() {
    if (child_) return Status::ok();
    auto child =
        ChildProcess::start({directory_ + "/redis-server", "--port", std::to_string(port_), "--bind", "127.0.0.1",
                             "--save", "", "--dir", directory_, "--logfile", directory_ + "/log"});
    if (!child) return child.status();
    child_.emplace(std::move(*child));
    const TimePoint limit = Clock::now() + kPatience;
    while (Clock::now() < limit) {
        if (const auto pong = command({"PING"}); pong && *pong == "PONG\n") return Status::ok();
        // Nothing says when it listens.
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {Code::Timeout, "redis-server did not start in time"};
}

void RedisProcess::kill() {
    if (!child_) return;
    child_->signal(SIGKILL);
    static_cast<void>(child_->wait(kPatience));
    child_.reset();
}

void RedisProcess::stop() {
    if (child_) child_->signal(SIGSTOP);
}

void RedisProcess::proceed() {
    if (child_) child_->signal(SIGCONT);
}

Result<std::string> RedisProcess::command(const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {kClient, "-p", std::to_string(port_)};
    arguments.insert(arguments.end(), words.begin(), words.end());
    auto client = ChildProcess::start(arguments, {.stderr_path = "/dev/null", .environment = {}});
    if (!client) return client.status();
    client->closeInput();
    return client->readAll(kAsk);
}

Status RedisProcess::sleepFor(double seconds) {
    // It pauses every client's commands, and answers this one first.
    return command({"CLIENT", "PAUSE", fmt::format("{:.0f}", seconds * 1000), "ALL"}).status();
}

Status RedisProcess::forget() { return command({"FLUSHALL"}).status(); }

Status RedisProcess::setReadOnly(bool on) {
    // Nobody listens on the discard port.
    return on ? command({"REPLICAOF", "127.0.0.1", "9"}).status() : command({"REPLICAOF", "NO", "ONE"}).status();
}

bool RedisProcess::holds(const std::string& key) {
    const auto answer = command({"EXISTS", key});
    return answer && *answer == "1\n";
}

}  // namespace troupe::apps::faults
