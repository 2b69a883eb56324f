#include "metadata_redis/redis_store.h"

#include <utility>

#include "base/printable.h"
#include "metadata_redis/redis_client.h"
#include "metadata_redis/redis_errors.h"
#include "metadata_redis/redis_listing.h"
#include "metadata_redis/redis_publisher.h"
#include "metadata_redis/redis_records.h"
#include "security/record_signature.h"

namespace troupe {

namespace {

/// Messages about changes are small; so is what a subscription answers.
constexpr RedisReplyReader::Limits kChangeReplies{64u << 10, 64, 64};

}  // namespace

class RedisStore::Core : public RedisLife, public std::enable_shared_from_this<Core> {
  public:
    Core(Reactor& reactor, RedisUri uri, const Config& settings, Logger log, std::shared_ptr<const ClusterAuth> auth)
        : reactor_(reactor),
          uri_(std::move(uri)),
          settings_(settings),
          log_(std::move(log)),
          auth_(std::move(auth)),
          records_(settings.redis_prefix) {}

    void begin() {
        client_ = std::make_unique<RedisClient>(
            reactor_, uri_, settings_, log_, weak_from_this(), [this] { commandsUp(); },
            [this](const Status& why) { publisher_->onRefused(why); });
        publisher_ =
            std::make_unique<RedisPublisher>(reactor_, settings_, log_, weak_from_this(), records_, *client_, auth_);
    }

    /// No callback comes from here on, and the connections are closed. The parts may be on the stack below this call;
    /// whoever is there holds this object.
    void stop() {
        ended = true;
        watcher_ = {};
        if (changes_) changes_->stop();
        publisher_->stop();
        client_->stop();
    }

    RedisPublisher& publisher() { return *publisher_; }
    RedisClient& client() { return *client_; }
    const RedisRecords& records() const { return records_; }

    void resolve(const std::string& name, Duration timeout, ResolveCallback done) {
        const std::size_t most = settings_.max_descriptor_bytes;
        client_->run({"EVAL", std::string(kReadScript), "1", records_.key(name), std::to_string(most)}, timeout,
                     [this, name, most, done = std::move(done)](const Result<RedisReply>& reply) {
                         if (!reply) return done(reply.status());
                         const auto record = decodeRead(*reply, most);
                         if (!record) return done(record.status().withContext(where(name)));
                         if (!record->has_value()) return done(notFound(name));
                         const Status signed_well = judgeRecord(checkRecord(**record, auth_), auth_);
                         if (!signed_well) return done(signed_well.withContext(where(name)));
                         auto desc = decodeSegmentDesc(**record);
                         if (!desc) return done(desc.status().withContext(where(name)));
                         if (desc->name != name)
                             return done(Status(Code::ProtocolError,
                                                where(name) + ": it is the record of '" + printable(desc->name) + "'"));
                         done(std::move(desc));
                     });
    }

    void inspect(const std::string& name, Duration timeout, InspectCallback done) {
        client_->run({"GETRANGE", records_.key(name), "0", std::to_string(kRecordHeadBytes - 1)}, timeout,
                     [this, name, done = std::move(done)](const Result<RedisReply>& reply) {
                         if (!reply) return done(reply.status());
                         if (!reply->isString()) return done(wrongReply(*reply, "a record").withContext(where(name)));
                         if (reply->text.empty()) return done(notFound(name));
                         const auto head = decodeRecordHead(reply->text);
                         done(head ? head : Result<RecordHead>(head.status().withContext(where(name))));
                     });
    }

    void evict(const std::string& name, const Incarnation& holder, DoneCallback done) {
        const std::string event = RedisRecords::encodeEvent({SegmentEvent::Kind::Withdrawn, name, 0, holder});
        client_->run(
            {"EVAL", std::string(kRemoveScript), "1", records_.key(name), holder.toString(), records_.channel(), event},
            settings_.redis_command_timeout,
            [this, name, holder, done = std::move(done)](const Result<RedisReply>& reply) {
                if (!reply) return done(reply.status());
                if (reply->type != RedisReply::Type::Integer) return done(wrongReply(*reply, "a number"));
                if (reply->integer == 1) return done(Status::ok());
                done(Status(Code::NotFound,
                            where(name) + ": incarnation " + holder.toString() + " does not hold it (any more)"));
            });
    }

    void list(Duration timeout, ListCallback done) {
        std::make_shared<RedisListing>(reactor_, weak_from_this(), records_, *client_, settings_.max_descriptor_bytes,
                                       timeout, auth_, std::move(done))
            ->start();
    }

    void watch(WatchCallback changed) {
        watcher_ = std::move(changed);
        if (changes_) return;
        RedisLinkHandlers handlers;
        handlers.onUp = [this] { subscribe(); };
        handlers.onMessage = [this](RedisReply reply) { onMessage(reply); };
        // What keeps both connections away is said once.
        handlers.isToldElsewhere = [this] { return client_->connection() == nullptr; };
        changes_ = std::make_unique<RedisLink>(reactor_, uri_, settings_, log_, "changes", kChangeReplies,
                                               std::move(handlers));
        changes_->start();
    }

  private:
    std::string where(const std::string& name) const {
        return "redis " + client_->link().server() + ", key '" + records_.key(name) + "'";
    }
    Status notFound(const std::string& name) const {
        return {Code::NotFound, "no segment '" + name + "' in " + uri_.toString() + " (key '" + records_.key(name) +
                                    "'); is its engine running, and with this store?"};
    }

    void commandsUp() {
        const auto self = shared_from_this();
        bringTogether();
        publisher_->onUp();
        if (std::exchange(missed_, false)) tellMissed();
    }

    /// After a failover both belong to the new master, also when the old one still answers.
    bool bringTogether() {
        if (!changes_ || changes_->connection() == nullptr || client_->connection() == nullptr ||
            changes_->server() == client_->link().server())
            return false;
        changes_->reconnect(Status(Code::ConnectionLost, "the master is " + client_->link().server() + " now"));
        return true;
    }

    void subscribe() {
        if (bringTogether()) return;
        changes_->connection()->command(
            {"SUBSCRIBE", records_.channel()}, kForever, [weak = weak_from_this()](const Result<RedisReply>& reply) {
                const auto self = weak.lock();
                if (!self || self->ended || !reply) return;
                const bool subscribed = reply->type == RedisReply::Type::Array && !reply->elements.empty() &&
                                        reply->elements.front().isString() &&
                                        reply->elements.front().text == "subscribe";
                if (!subscribed) {
                    const Status why = wrongReply(*reply, "a subscription").withContext(self->records_.channel());
                    return self->changes_->reconnect(why);
                }
                // What happened before this moment was missed. Who is told looks at records; while commands are refused
                // (a password) that would fail at once, and nobody would look again.
                if (!self->client_->link().trouble().isOk())
                    self->missed_ = true;
                else
                    self->tellMissed();
            });
    }

    void onMessage(const RedisReply& reply) {
        if (reply.elements.size() != 3 || !reply.elements[2].isString()) return;
        const auto event = RedisRecords::decodeEvent(reply.elements[2].text);
        if (!event) return log_->debug("redis {}: {}", changes_->server(), event.status().toString());
        tell(*event);
    }

    void tellMissed() { tell({SegmentEvent::Kind::Missed, {}, 0, {}}); }

    void tell(const SegmentEvent& event) {
        const auto self = shared_from_this();
        if (ended) return;
        // The watcher may end the store, and so itself.
        if (const auto watcher = watcher_) watcher(event);
    }

    Reactor& reactor_;
    const RedisUri uri_;
    const Config settings_;
    const Logger log_;
    const std::shared_ptr<const ClusterAuth> auth_;
    const RedisRecords records_;
    std::unique_ptr<RedisClient> client_;
    std::unique_ptr<RedisPublisher> publisher_;
    std::unique_ptr<RedisLink> changes_;
    WatchCallback watcher_;
    bool missed_ = false;  ///< To be told when commands have a connection.
};

RedisStore::RedisStore(RedisUri uri, const Config& settings, Logger log, std::shared_ptr<const ClusterAuth> auth)
    : uri_(std::move(uri)), settings_(settings), log_(std::move(log)), auth_(std::move(auth)) {}

RedisStore::~RedisStore() {
    if (core_) core_->stop();
}

Status RedisStore::start(Reactor& reactor) {
    if (core_) return {Code::InvalidArgument, "this store was started before"};
    core_ = std::make_shared<Core>(reactor, uri_, settings_, log_, auth_);
    core_->begin();
    return Status::ok();
}

void RedisStore::publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) {
    core_->publisher().publish(desc, ttl, std::move(done));
}

bool RedisStore::announce(const SegmentEvent& change) { return core_->publisher().announce(change); }

void RedisStore::withdraw(const std::string& name, DoneCallback done) {
    core_->publisher().withdraw(name, std::move(done));
}

void RedisStore::resolve(const std::string& name, Duration timeout, ResolveCallback done) {
    core_->resolve(name, timeout, std::move(done));
}

void RedisStore::inspect(const std::string& name, Duration timeout, InspectCallback done) {
    core_->inspect(name, timeout, std::move(done));
}

void RedisStore::evict(const std::string& name, const Incarnation& holder, DoneCallback done) {
    core_->evict(name, holder, std::move(done));
}

void RedisStore::list(Duration timeout, ListCallback done) { core_->list(timeout, std::move(done)); }

void RedisStore::watch(WatchCallback changed) { core_->watch(std::move(changed)); }

}  // namespace troupe
