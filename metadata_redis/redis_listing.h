#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "metadata/metadata_store.h"
#include "metadata_redis/redis_client.h"
#include "metadata_redis/redis_records.h"
#include "security/cluster_auth.h"

namespace troupe {

/// Reads all records: SCAN for the keys, then each with its time to live, a few at a time. A key that holds no record
/// is listed as one that does not decode. Keeps itself alive until it
/// has called back. `records` and `client` live as long as `life`.
class RedisListing : public std::enable_shared_from_this<RedisListing> {
  public:
    RedisListing(Reactor& reactor, std::weak_ptr<RedisLife> life, const RedisRecords& records, RedisClient& client,
                 std::size_t max_record_bytes, Duration timeout, std::shared_ptr<const ClusterAuth> auth,
                 MetadataStore::ListCallback done);

    void start();

  private:
    void scan(const std::string& cursor);
    void onPage(const RedisReply& page);
    void fetch();
    void onRecord(const std::string& name, const RedisReply& record);
    void onLease(StoredSegment segment, const RedisReply& lease);
    void finish(Result<std::vector<StoredSegment>> result);
    template <class Handle>
    RedisClient::ReplyCallback then(Handle handle);
    Duration left() const { return deadline_ - reactor_.now(); }

    Reactor& reactor_;
    const std::weak_ptr<RedisLife> life_;
    const RedisRecords& records_;
    RedisClient& client_;
    const std::size_t max_record_bytes_;
    const TimePoint deadline_;
    const std::shared_ptr<const ClusterAuth> auth_;
    MetadataStore::ListCallback done_;
    std::set<std::string> names_;  ///< SCAN may name a key twice.
    std::set<std::string>::const_iterator next_;
    std::size_t under_way_ = 0;
    std::vector<StoredSegment> found_;
};

}  // namespace troupe
