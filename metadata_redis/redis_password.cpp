#include "metadata_redis/redis_password.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"

namespace troupe {

namespace {

constexpr std::size_t kMaxPassword = 4096;

}  // namespace

Result<std::string> readPasswordFile(const std::string& path) {
    const auto unreadable = [&](const std::string& why) {
        return Status(Code::InvalidArgument, "redis.password_file '" + path + "': " + why);
    };
    std::ifstream file(path, std::ios::binary);
    if (!file) return unreadable(std::generic_category().message(errno));
    std::string line(kMaxPassword + 1, '\0');
    file.read(line.data(), static_cast<std::streamsize>(line.size()));
    if (file.bad() || (file.gcount() == 0 && !file.eof())) return unreadable("it cannot be read");
    line.resize(static_cast<std::size_t>(file.gcount()));
    line.resize(std::min(line.size(), line.find('\n')));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) return unreadable("its first line is empty");
    if (line.size() > kMaxPassword) return unreadable("its first line is too long");
    return line;
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
