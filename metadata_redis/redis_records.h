#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "metadata/metadata_store.h"
#include "metadata_redis/redis_reply.h"

namespace troupe {

/// How segments lie in Redis: docs/redis.md.
///
///     key      <prefix><segment>     the descriptor's JSON, with a time to live
///     channel  <prefix>#changes      {"kind": "published" | "withdrawn", "name", "incarnation", "version"}
class RedisRecords {
  public:
    explicit RedisRecords(std::string prefix) : prefix_(std::move(prefix)) {}

    std::string key(const std::string& segment) const { return prefix_ + segment; }
    std::string channel() const { return prefix_ + "#changes"; }
    /// The segment of a key; empty when the key is not one of ours.
    std::string_view segmentOf(std::string_view key) const {
        return key.substr(0, prefix_.size()) == prefix_ ? key.substr(prefix_.size()) : std::string_view();
    }
    /// What SCAN matches all keys with: the prefix with its wildcards escaped, and "*".
    std::string pattern() const;

    static std::string encodeEvent(const SegmentEvent& event);
    /// Hostile text; ProtocolError.
    static Result<SegmentEvent> decodeEvent(std::string_view text);

  private:
    const std::string prefix_;
};

/// InvalidArgument for a name that JSON cannot carry: bytes that are no UTF-8.
Status checkSegmentName(const std::string& name);

// The scripts, each atomic in the server. KEYS[1] is the record. They look only at the head of a record, where
// encodeSegmentDesc puts incarnation and version.

/// ARGV: record, TTL in ms, incarnation, version, channel, event, overruled. Writes the record and tells the channel,
/// if the name is free or ours. 1: done; an array of one text: that later version of ours is there, and it is not the
/// overruled one (as digits; empty: none); else the head of the holder's record.
extern const std::string_view kPublishScript;
/// ARGV: TTL in ms, incarnation, version. 1: the lease is renewed; 0: the record is gone, or is not this version of
/// ours.
extern const std::string_view kRenewScript;
/// KEYS: records; ARGV: incarnation and version of each. The numbers, from 1, of those that are not there any more;
/// negative: there is something else.
extern const std::string_view kLookScript;
/// ARGV: incarnation, channel, event. 1: removed and told; 0: that incarnation does not have it.
extern const std::string_view kRemoveScript;
/// ARGV: the most bytes that a record may have. Reads it without ever sending more than that. Nil: there is none;
/// READONLY if this server is a replica, as its master may well have it (that is found out by removing what is not
/// there); otherwise for decodeRead.
extern const std::string_view kReadScript;

/// What kReadScript answered, which is no error: the record, or none. ProtocolError: the key holds something else;
/// CapacityExceeded: it is too large.
Result<std::optional<std::string>> decodeRead(const RedisReply& reply, std::size_t max_bytes);

/// Bytes of a holder's record that kPublishScript answers with.
inline constexpr std::size_t kHolderBytes = 1024;

/// "incarnation ..., control 10.0.0.1:7000" from the head of a record.
std::string describeHolder(std::string_view head);

}  // namespace troupe
