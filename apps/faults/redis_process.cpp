#include "apps/faults/redis_process.h"

#include <fmt/format.h>

#include <chrono>

namespace troupe::apps::faults {

Result<std::unique_ptr<RedisProcess>> RedisProcess::start() {
    RedisServer::Options options;
    // Whoever asks looks again.
    options.answer_patience = std::chrono::milliseconds(500);
    auto server = RedisServer::start(std::move(options));
    if (!server) return Status(server.status().code(), server.status().message() + ", or leave this scenario out");
    return std::unique_ptr<RedisProcess>(new RedisProcess(std::move(*server)));
}

Status RedisProcess::sleepFor(double seconds) {
    // It pauses every client's commands, and answers this one first.
    return server_->command({"CLIENT", "PAUSE", fmt::format("{:.0f}", seconds * 1000), "ALL"}).status();
}

Status RedisProcess::forget() { return server_->command({"FLUSHALL"}).status(); }

Status RedisProcess::setReadOnly(bool on) {
    // Nobody listens on the discard port.
    return on ? server_->command({"REPLICAOF", "127.0.0.1", "9"}).status()
              : server_->command({"REPLICAOF", "NO", "ONE"}).status();
}

bool RedisProcess::holds(const std::string& key) {
    const auto answer = server_->command({"EXISTS", key});
    return answer && *answer == "1";
}

}  // namespace troupe::apps::faults
