#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "metadata/metadata_store.h"
#include "metadata_redis/redis_uri.h"
#include "security/cluster_auth.h"

namespace troupe {

/// Segments in Redis: one server, or the master that Sentinels name. docs/redis.md says what is stored and what happens
/// when the server is away.
///
/// One connection for commands and, once somebody watches, one for changes; both come back by themselves. What is asked
/// while there is none waits for it, at most redis.command_timeout, and then fails with the reason. The lease of what
/// was published is renewed at a third of its time; after every reconnect it is renewed at once, and published again if
/// the server lost it.
class RedisStore final : public MetadataStore {
  public:
    /// Begins nothing. The settings are copied. With a key in `auth` (may be null) records are signed, and those that
    /// are not signed with it are refused.
    RedisStore(RedisUri uri, const Config& settings, Logger log, std::shared_ptr<const ClusterAuth> auth = nullptr);
    ~RedisStore() override;
    RedisStore(const RedisStore&) = delete;
    RedisStore& operator=(const RedisStore&) = delete;

    /// InvalidArgument when it is called twice. The connection is made with the first call of the others.
    Status start(Reactor& reactor) override;
    /// Refused as lasting (AlreadyExists, or any other answer of the server) the first time: nothing is kept of it.
    /// What could not be said because the server was away is said when it is back.
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override;
    bool announce(const SegmentEvent& change) override;
    void withdraw(const std::string& name, DoneCallback done) override;
    void resolve(const std::string& name, Duration timeout, ResolveCallback done) override;
    void inspect(const std::string& name, Duration timeout, InspectCallback done) override;
    void evict(const std::string& name, const Incarnation& holder, DoneCallback done) override;
    void list(Duration timeout, ListCallback done) override;
    void watch(WatchCallback changed) override;

  private:
    class Core;
    const RedisUri uri_;
    const Config settings_;
    const Logger log_;
    const std::shared_ptr<const ClusterAuth> auth_;
    std::shared_ptr<Core> core_;  ///< Null before start. Shared with the calls in flight on the reactor.
};

}  // namespace troupe
