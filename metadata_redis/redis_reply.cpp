#include "metadata_redis/redis_reply.h"

#include <hiredis/read.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/printable.h"

namespace troupe {

namespace {

/// A header line ("$123", "*3", "-ERR ...", "+OK") longer than this is none. It also bounds how often hiredis looks
/// through the same bytes for the line's end.
constexpr std::size_t kMaxLine = 64u << 10;

redisReader* of(void* reader) { return static_cast<redisReader*>(reader); }

}  // namespace

/// What hiredis calls while it reads. Objects are RedisReply, owned by their parent or, at the top, by the reader.
/// C code calls it: nothing may be thrown (running out of memory here ends the process, as elsewhere).
struct RedisReplyReader::Build {
    static RedisReply* place(const redisReadTask* task) noexcept {
        if (task->parent == nullptr) return new RedisReply();
        // createArray has made room for all, so the address of an element is stable.
        auto* parent = static_cast<RedisReply*>(task->parent->obj);
        return &parent->elements[static_cast<std::size_t>(task->idx)];
    }
    static void* string(const redisReadTask* task, char* bytes, std::size_t length) noexcept {
        RedisReply* reply = place(task);
        reply->type = task->type == REDIS_REPLY_ERROR    ? RedisReply::Type::Error
                      : task->type == REDIS_REPLY_STATUS ? RedisReply::Type::Status
                                                         : RedisReply::Type::String;
        reply->text.assign(bytes, length);
        return reply;
    }
    static void* array(const redisReadTask* task, int count) noexcept {
        auto& reader = *static_cast<RedisReplyReader*>(task->privdata);
        const auto elements = static_cast<std::size_t>(std::max(count, 0));
        // Null is what hiredis takes for "out of memory"; next() tells them apart.
        if (elements > reader.limits_.elements) return nullptr;
        reader.elements_ += elements;
        if (reader.elements_ > reader.limits_.total_elements) return nullptr;
        RedisReply* reply = place(task);
        reply->type = RedisReply::Type::Array;
        reply->elements.resize(elements);
        return reply;
    }
    static void* integer(const redisReadTask* task, long long value) noexcept {
        RedisReply* reply = place(task);
        reply->type = RedisReply::Type::Integer;
        reply->integer = value;
        return reply;
    }
    static void* nil(const redisReadTask* task) noexcept { return place(task); }
    /// Of the top only: hiredis frees what it has begun and not given out.
    static void release(void* reply) noexcept { delete static_cast<RedisReply*>(reply); }

    static redisReplyObjectFunctions* functions() {
        static redisReplyObjectFunctions table{string, array, integer, nil, release};
        return &table;
    }
};

RedisReplyReader::RedisReplyReader(const Limits& limits)
    : limits_(limits), reader_(redisReaderCreateWithFunctions(Build::functions())) {
    if (reader_ != nullptr) of(reader_)->privdata = this;
}

RedisReplyReader::~RedisReplyReader() {
    if (reader_ != nullptr) redisReaderFree(of(reader_));
}

Status RedisReplyReader::tooLarge() const {
    return {Code::CapacityExceeded,
            "a reply of more than " + std::to_string(limits_.reply_bytes) + " bytes is being sent"};
}

Status RedisReplyReader::feed(std::string_view bytes) {
    if (reader_ == nullptr) return {Code::ResourceExhausted, "no memory for a reply"};
    // All whole replies were taken, so what is pending is of one; the bytes that come may end it and hold others.
    if (pending_ > limits_.reply_bytes) return tooLarge();
    pending_ += bytes.size();
    if (redisReaderFeed(of(reader_), bytes.data(), bytes.size()) != REDIS_OK)
        return {Code::ProtocolError, of(reader_)->errstr};
    return Status::ok();
}

Result<std::optional<RedisReply>> RedisReplyReader::next() {
    redisReader* const reader = of(reader_);
    if (reader == nullptr) return {Code::ResourceExhausted, "no memory for a reply"};
    void* object = nullptr;
    if (redisReaderGetReply(reader, &object) != REDIS_OK) {
        // Ours is the only reason why an object is not made.
        const bool bound = reader->err == REDIS_ERR_OOM;
        return Status(Code::ProtocolError, bound ? "an array of more elements than any answer has"
                                                 : "not the Redis protocol: " + std::string(reader->errstr));
    }
    const std::size_t after = reader->len - reader->pos;
    if (object == nullptr) {
        if (after > kMaxLine && std::memchr(reader->buf + reader->pos, '\n', kMaxLine) == nullptr)
            return Status(Code::ProtocolError, "not the Redis protocol: a line of more than 64 KiB");
        return std::optional<RedisReply>();
    }
    const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(object));
    const std::size_t size = std::exchange(pending_, after) - after;
    elements_ = 0;
    if (size > limits_.reply_bytes) return tooLarge();
    return std::optional<RedisReply>(std::move(*reply));
}

std::string describe(const RedisReply& reply) {
    switch (reply.type) {
        case RedisReply::Type::Nil: return "nothing (nil)";
        case RedisReply::Type::Status: return "the status '" + printable(reply.text.substr(0, 100)) + "'";
        case RedisReply::Type::Error: return "the error '" + printable(reply.text.substr(0, 200)) + "'";
        case RedisReply::Type::Integer: return "the integer " + std::to_string(reply.integer);
        case RedisReply::Type::String: return "a string of " + std::to_string(reply.text.size()) + " bytes";
        case RedisReply::Type::Array: return "an array of " + std::to_string(reply.elements.size());
    }
    return "?";
}

}  // namespace troupe
