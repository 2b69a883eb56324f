#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

/// One reply of a Redis server, protocol version 2.
struct RedisReply {
    enum class Type { Nil, Status, Error, Integer, String, Array };
    Type type = Type::Nil;
    std::string text;  ///< Of Status, Error and String; any bytes.
    std::int64_t integer = 0;
    std::vector<RedisReply> elements;

    bool isString() const { return type == Type::String; }
    bool isStatus(std::string_view expected) const { return type == Type::Status && text == expected; }
};

/// "an array of 3", "a string of 20 bytes", "the error 'ERR no'": for messages about replies of the wrong type. Never
/// the contents of strings.
std::string describe(const RedisReply& reply);

/// Cuts a server's bytes into replies: hiredis's reader under bounds, as the server may be hostile, broken or none.
class RedisReplyReader {
  public:
    struct Limits {
        std::size_t reply_bytes = 1u << 20;     ///< One reply with all its parts, as it travels.
        std::size_t elements = 1u << 16;        ///< Of one array.
        std::size_t total_elements = 1u << 17;  ///< Of a reply with all its arrays.
    };

    explicit RedisReplyReader(const Limits& limits);
    ~RedisReplyReader();
    RedisReplyReader(const RedisReplyReader&) = delete;
    RedisReplyReader& operator=(const RedisReplyReader&) = delete;

    /// Takes bytes as they come, once next() has given out all that is whole. CapacityExceeded: one reply has more than
    /// it may have; no more is held than that and what was fed at once.
    Status feed(std::string_view bytes);
    /// The next whole reply, or none yet. ProtocolError: this is not Redis; CapacityExceeded: it is too large. After an
    /// error the reader is of no use.
    Result<std::optional<RedisReply>> next();

  private:
    struct Build;  ///< hiredis's callbacks.
    Status tooLarge() const;
    const Limits limits_;
    std::size_t pending_ = 0;   ///< Bytes fed and not yet part of a reply that was given out.
    std::size_t elements_ = 0;  ///< Of the reply that is being read.
    void* reader_ = nullptr;    ///< redisReader, whose header stays out of here.
};

}  // namespace troupe
