#include "bench/redis_server.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <utility>

namespace troupe::bench {

namespace {

constexpr auto kTimeout = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<RedisServer>> RedisServer::start() {
    std::unique_ptr<RedisServer> server(new RedisServer());
    std::string directory = (std::filesystem::temp_directory_path() / "troupe_bench_XXXXXX").string();
    if (::mkdtemp(directory.data()) == nullptr) return {Code::ResourceExhausted, "no temporary directory"};
    server->directory_ = directory;
    // The package redis-tools has the server under this name; the link gives it its own.
    std::error_code ignored;
    std::filesystem::create_symlink("/usr/bin/redis-check-rdb", directory + "/redis-server", ignored);
    server->port_ = freeLoopbackPort();
    if (const Status launched = server->launch(); !launched) return launched;
    return server;
}

Status RedisServer::launch() {
    ChildProcess::Options options;
    options.argv = {directory_ + "/redis-server",
                    "--port",
                    std::to_string(port_),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--dir",
                    directory_,
                    "--logfile",
                    directory_ + "/log"};
    auto child = ChildProcess::start(options);
    if (!child) return child.status();
    child_ = std::move(*child);
    if (!waitForListener(port_, kTimeout))
        return {Code::NotFound, "redis-server does not start; is the package redis-tools installed?"};
    return Status::ok();
}

RedisServer::~RedisServer() {
    if (child_.pid() > 0) ::kill(child_.pid(), SIGCONT);
    child_ = ChildProcess();
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

std::string RedisServer::uri() const { return fmt::format("redis://127.0.0.1:{}", port_); }

void RedisServer::kill() {
    if (child_.pid() > 0) ::kill(child_.pid(), SIGKILL);
    child_ = ChildProcess();
}

Status RedisServer::restart() {
    kill();
    return launch();
}

void RedisServer::stop() { ::kill(child_.pid(), SIGSTOP); }

void RedisServer::proceed() { ::kill(child_.pid(), SIGCONT); }

}  // namespace troupe::bench
