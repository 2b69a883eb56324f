#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "metadata/metadata_store.h"
#include "metadata_redis/redis_client.h"
#include "metadata_redis/redis_records.h"
#include "security/cluster_auth.h"

namespace troupe {

/// Keeps the records of this engine in Redis: writes them, renews their leases, and writes them again when the server
/// lost them: it looks at them at each redis.keepalive_interval. Everything on the reactor's turn. `life` as in
/// RedisClient.
class RedisPublisher {
  public:
    using DoneCallback = MetadataStore::DoneCallback;

    RedisPublisher(Reactor& reactor, const Config& settings, Logger log, std::weak_ptr<RedisLife> life,
                   const RedisRecords& records, RedisClient& client, std::shared_ptr<const ClusterAuth> auth);
    ~RedisPublisher();
    RedisPublisher(const RedisPublisher&) = delete;
    RedisPublisher& operator=(const RedisPublisher&) = delete;

    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done);
    bool announce(const SegmentEvent& change);
    void withdraw(const std::string& name, DoneCallback done);
    /// Nothing is called from here on. The records stay until their leases end.
    void stop();
    /// There is a connection again.
    void onUp();
    /// The server will not have us: those who wait are told; the records are kept for another day.
    void onRefused(const Status& why);

  private:
    enum class Sent { Nothing, Record, Renewal };
    struct Record {
        std::uint64_t serial = 0;  ///< Tells it from a later record of the same name.
        std::string json;
        std::string incarnation;
        std::string version;
        Duration ttl{};
        std::string event;
        bool dirty = true;     ///< Not (all) in the store.
        bool claimed = false;  ///< It was in the store once: the name is ours to defend.
        Sent sent = Sent::Nothing;
        std::vector<DoneCallback> waiting;  ///< For a publish that has not been sent.
        std::vector<DoneCallback> running;  ///< For the one that was.
        Reactor::TimerId answer_timer = 0;  ///< When the waiting are told that it takes too long.
        Reactor::TimerId work_timer = 0;    ///< The next renewal, or the next attempt.
        std::uint32_t failures = 0;         ///< In a row.
        std::string overruled;              ///< A version that we never made, which the next write replaces.
        std::uint32_t overrulings = 0;      ///< In a row.
        bool told_of_overruling = false;    ///< The log was.
        Status problem;                     ///< Of the last attempt; said in the log.
    };
    using Records = std::map<std::string, Record>;
    /// A record that the server is asked about.
    struct Looked {
        std::string name;
        std::uint64_t serial;
        std::string version;
    };

    Record* find(const std::string& name, std::uint64_t serial);
    void work(const std::string& name, Record& record);
    void write(const std::string& name, Record& record);
    void renew(const std::string& name, Record& record);
    void written(const std::string& name, Record& record, const Result<RedisReply>& reply);
    void renewed(const std::string& name, Record& record, const Result<RedisReply>& reply);
    void lookSoon();
    void look();
    void looked(const std::vector<Looked>& asked, const Result<RedisReply>& reply);
    void forged(const std::string& name, Record& record, const std::string& version);
    void held(const std::string& name, Record& record, const std::string& head);
    void failed(const std::string& name, Record& record, const Status& why, bool wrote);
    void workAt(const std::string& name, Record& record, Duration pause);
    void tooLate(const std::string& name, Record& record);
    void complain(Record& record, const Status& why);
    void answer(std::vector<DoneCallback> who, const Status& status);
    /// Guards a reply's handler against the end of the owner, and of the record.
    template <class Handle>
    RedisConnection::ReplyCallback whileItLasts(const std::string& name, std::uint64_t serial, Handle handle);

    Reactor& reactor_;
    const Config& settings_;
    const Logger log_;
    const std::weak_ptr<RedisLife> life_;
    const RedisRecords& records_;
    RedisClient& client_;
    const std::shared_ptr<const ClusterAuth> auth_;
    Records published_;
    std::uint64_t next_serial_ = 1;
    Reactor::TimerId look_timer_ = 0;
    std::string looked_last_;  ///< Where the next look goes on.
};

}  // namespace troupe
