#include "metadata_redis/redis_password.h"

#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "base/small_file.h"

namespace troupe {

namespace {

constexpr std::size_t kMaxPassword = 4096;

}  // namespace

Result<std::string> readPasswordFile(const std::string& path) {
    auto line = readFirstLine(path, kMaxPassword);
    return line ? line : Result<std::string>(line.status().withContext("redis.password_file '" + path + "'"));
}

/// Shared with the thread that reads, which writes `found` and then `done`.
struct RedisPasswordFile::Reading {
    std::thread thread;  ///< Of the owner's.
    std::optional<Result<std::string>> found;
    std::atomic<bool> done{false};
};

RedisPasswordFile::RedisPasswordFile(std::string path, std::string password)
    : path_(std::move(path)), password_(std::move(password)) {}

RedisPasswordFile::~RedisPasswordFile() {
    takeOver();
    if (reading_) reading_->thread.detach();
}

const std::string& RedisPasswordFile::password() {
    takeOver();
    return password_;
}

void RedisPasswordFile::refused() {
    takeOver();
    if (reading_) return;
    auto reading = std::make_shared<Reading>();
    auto thread = startQuietThread("troupe.passwd", [reading, path = path_] {
        reading->found = readPasswordFile(path);
        reading->done.store(true, std::memory_order_release);
    });
    // With no thread to be had the next refusal tries again.
    if (!thread) return;
    reading->thread = std::move(*thread);
    reading_ = std::move(reading);
}

void RedisPasswordFile::takeOver() {
    if (!reading_ || !reading_->done.load(std::memory_order_acquire)) return;
    reading_->thread.join();
    // While somebody writes it anew it may be empty or gone.
    if (*reading_->found) password_ = **reading_->found;
    reading_.reset();
}

}  // namespace troupe
