#include "metadata_redis/redis_publisher.h"

#include <algorithm>
#include <utility>

#include "metadata_redis/redis_errors.h"
#include "security/record_signature.h"

namespace troupe {

namespace {

// Between attempts to write that the server refuses (it is full, it is loading): doubling.
constexpr auto kFirstPause = std::chrono::milliseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(1000);

// Records that one look asks about: some 40 KiB, and some hundred microseconds of the server's time. An engine has one;
// of more, each look takes the next.
constexpr std::size_t kMostLooked = 256;

// A forged record of ours is replaced this often at once; then there are pauses.
constexpr std::uint32_t kMostOverrulings = 3;

std::string milliseconds(Duration span) {
    const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
    return std::to_string(std::max<decltype(count)>(count, 1));
}

}  // namespace

RedisPublisher::RedisPublisher(Reactor& reactor, const Config& settings, Logger log, std::weak_ptr<RedisLife> life,
                               const RedisRecords& records, RedisClient& client,
                               std::shared_ptr<const ClusterAuth> auth)
    : reactor_(reactor),
      settings_(settings),
      log_(std::move(log)),
      life_(std::move(life)),
      records_(records),
      client_(client),
      auth_(std::move(auth)) {}

RedisPublisher::~RedisPublisher() { stop(); }

void RedisPublisher::stop() {
    reactor_.cancelTimer(std::exchange(look_timer_, 0));
    for (const auto& [name, record] : published_) {
        reactor_.cancelTimer(record.answer_timer);
        reactor_.cancelTimer(record.work_timer);
    }
}

RedisPublisher::Record* RedisPublisher::find(const std::string& name, std::uint64_t serial) {
    const auto found = published_.find(name);
    return found != published_.end() && found->second.serial == serial ? &found->second : nullptr;
}

void RedisPublisher::publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) {
    if (Status bad = checkSegmentName(desc.name); !bad)
        return reactor_.post([life = life_, bad = std::move(bad), done = std::move(done)] {
            if (const auto alive = RedisLife::of(life)) done(bad);
        });
    Record& record = published_[desc.name];
    const std::string incarnation = desc.incarnation.toString();
    if (record.serial == 0) record.serial = next_serial_++;
    record.json = signRecord(encodeSegmentDesc(desc), auth_);
    record.incarnation = incarnation;
    record.version = std::to_string(desc.version);
    record.ttl = ttl;
    record.event =
        RedisRecords::encodeEvent({SegmentEvent::Kind::Published, desc.name, desc.version, desc.incarnation});
    record.dirty = true;
    record.waiting.push_back(std::move(done));
    if (record.answer_timer == 0) {
        const auto late = [this, name = desc.name, serial = record.serial] {
            if (Record* self = find(name, serial)) tooLate(name, *self);
        };
        record.answer_timer = reactor_.runAt(reactor_.now() + settings_.redis_command_timeout, late);
    }
    client_.link().start();
    work(desc.name, record);
    if (const Status& trouble = client_.link().trouble(); isLasting(trouble))
        reactor_.post([this, life = life_, trouble] {
            if (const auto alive = RedisLife::of(life)) onRefused(trouble);
        });
}

/// Only while the record is there and ours: what is to be written tells by itself.
bool RedisPublisher::announce(const SegmentEvent& change) {
    RedisConnection* connection = client_.connection();
    const auto found = published_.find(change.name);
    if (connection == nullptr || found == published_.end() || !found->second.claimed || found->second.dirty)
        return false;
    const std::string channel = records_.channel();
    const std::string event = RedisRecords::encodeEvent(change);
    connection->command({"PUBLISH", channel, event}, kForever, [this, life = life_](const Result<RedisReply>& reply) {
        const auto alive = RedisLife::of(life);
        if (!alive || !reply || reply->type == RedisReply::Type::Integer) return;
        log_->debug("redis {}: {}", client_.link().server(), wrongReply(*reply, "a number").toString());
    });
    return true;
}

void RedisPublisher::withdraw(const std::string& name, DoneCallback done) {
    const auto later = [this](Status status, DoneCallback who) {
        reactor_.post([life = life_, status = std::move(status), who = std::move(who)] {
            if (const auto alive = RedisLife::of(life)) who(status);
        });
    };
    const auto found = published_.find(name);
    if (found == published_.end()) return later(Status::ok(), std::move(done));
    Record record = std::move(found->second);
    published_.erase(found);
    reactor_.cancelTimer(record.answer_timer);
    reactor_.cancelTimer(record.work_timer);
    const Status withdrawn(Code::Canceled, "segment '" + name + "' was withdrawn");
    for (auto* callbacks : {&record.waiting, &record.running})
        for (DoneCallback& each : *callbacks) later(withdrawn, std::move(each));
    RedisConnection* connection = client_.connection();
    // Without a connection the record stays until its lease ends.
    if (connection == nullptr) return later(client_.trouble(), std::move(done));
    const auto incarnation = Incarnation::parse(record.incarnation);
    const std::string event =
        RedisRecords::encodeEvent({SegmentEvent::Kind::Withdrawn, name, 0, incarnation ? *incarnation : Incarnation{}});
    const std::string key = records_.key(name);
    const std::string channel = records_.channel();
    connection->command(
        {"EVAL", kRemoveScript, "1", key, record.incarnation, channel, event},
        reactor_.now() + settings_.redis_command_timeout,
        [life = life_, done = std::move(done)](const Result<RedisReply>& reply) {
            const auto alive = RedisLife::of(life);
            if (!alive) return;
            if (!reply) return done(reply.status());
            done(reply->type == RedisReply::Type::Integer ? Status::ok() : wrongReply(*reply, "a number"));
        });
}

void RedisPublisher::onUp() {
    // The server may have lost everything, or be another: renewing finds out, and costs little if not.
    for (auto& [name, record] : published_) work(name, record);
    lookSoon();
}

void RedisPublisher::onRefused(const Status& why) {
    std::vector<DoneCallback> told;
    for (auto& [name, record] : published_) {
        reactor_.cancelTimer(std::exchange(record.answer_timer, 0));
        for (auto* callbacks : {&record.waiting, &record.running})
            for (DoneCallback& each : std::exchange(*callbacks, {})) told.push_back(std::move(each));
    }
    answer(std::move(told), why);
}

// --- writing and renewing ----------------------------------------------------------------------------------------

template <class Handle>
RedisConnection::ReplyCallback RedisPublisher::whileItLasts(const std::string& name, std::uint64_t serial,
                                                            Handle handle) {
    return [this, life = life_, name, serial, handle](const Result<RedisReply>& reply) {
        const auto alive = RedisLife::of(life);
        Record* record = alive ? find(name, serial) : nullptr;
        if (record == nullptr) return;
        record->sent = Sent::Nothing;
        (this->*handle)(name, *record, reply);
    };
}

void RedisPublisher::work(const std::string& name, Record& record) {
    if (record.sent != Sent::Nothing || client_.connection() == nullptr) return;
    reactor_.cancelTimer(std::exchange(record.work_timer, 0));
    if (record.dirty)
        write(name, record);
    else
        renew(name, record);
}

void RedisPublisher::write(const std::string& name, Record& record) {
    record.sent = Sent::Record;
    record.dirty = false;
    std::move(record.waiting.begin(), record.waiting.end(), std::back_inserter(record.running));
    record.waiting.clear();
    const std::string key = records_.key(name);
    const std::string channel = records_.channel();
    const std::string ttl = milliseconds(record.ttl);
    // No deadline of its own: a large record may take long, and silence ends the connection.
    client_.connection()->command({"EVAL", kPublishScript, "1", key, record.json, ttl, record.incarnation,
                                   record.version, channel, record.event, record.overruled},
                                  kForever, whileItLasts(name, record.serial, &RedisPublisher::written));
}

void RedisPublisher::renew(const std::string& name, Record& record) {
    record.sent = Sent::Renewal;
    const std::string key = records_.key(name);
    const std::string ttl = milliseconds(record.ttl);
    client_.connection()->command({"EVAL", kRenewScript, "1", key, ttl, record.incarnation, record.version}, kForever,
                                  whileItLasts(name, record.serial, &RedisPublisher::renewed));
}

void RedisPublisher::written(const std::string& name, Record& record, const Result<RedisReply>& reply) {
    if (!reply) return failed(name, record, reply.status(), true);
    if (reply->isString()) return held(name, record, reply->text);
    if (reply->type == RedisReply::Type::Array && reply->elements.size() == 1 && reply->elements[0].isString())
        return forged(name, record, reply->elements[0].text);
    if (reply->type != RedisReply::Type::Integer || reply->integer != 1) {
        const Status why = wrongReply(*reply, "1").withContext("key '" + records_.key(name) + "'");
        if (isReadOnlyError(*reply)) client_.link().reconnect(why);
        return failed(name, record, why, true);
    }
    if (!record.problem.isOk()) log_->warn("segment {} is published again", name);
    record.claimed = true;
    record.failures = 0;
    record.overruled.clear();
    record.overrulings = 0;
    lookSoon();
    record.problem = Status::ok();
    workAt(name, record, record.ttl / 3);
    auto running = std::exchange(record.running, {});
    if (record.waiting.empty()) reactor_.cancelTimer(std::exchange(record.answer_timer, 0));
    // A later version came meanwhile.
    if (record.dirty) work(name, record);
    answer(std::move(running), Status::ok());
}

void RedisPublisher::renewed(const std::string& name, Record& record, const Result<RedisReply>& reply) {
    if (reply && reply->type == RedisReply::Type::Integer) {
        record.failures = 0;
        if (reply->integer != 1) {
            // A problem is over when that is written.
            if (record.problem.isOk()) log_->info("segment {} is not in the store any more; publishing it again", name);
            record.dirty = true;
        } else if (!std::exchange(record.problem, Status::ok()).isOk()) {
            log_->warn("the lease of segment {} is renewed again", name);
        }
        workAt(name, record, record.ttl / 3);
        if (record.dirty) work(name, record);
        return;
    }
    const Status why = reply ? wrongReply(*reply, "a number") : reply.status();
    if (reply && isReadOnlyError(*reply)) client_.link().reconnect(why);
    failed(name, record, why, false);
}

/// A later version of our incarnation is in the store, and nobody but us makes those. The owner's control connection
/// has the truth for peers, so the record is written as it is, with the lower version.
void RedisPublisher::forged(const std::string& name, Record& record, const std::string& version) {
    if (!std::exchange(record.told_of_overruling, true))
        log_->warn(
            "segment {}: somebody has written version {} of this incarnation, which has made {}, over its record; "
            "it is written again",
            name, version, record.version);
    if (++record.overrulings > kMostOverrulings)
        return failed(name, record,
                      Status(Code::AlreadyExists, "segment '" + name + "': somebody goes on writing over its record"),
                      true);
    record.overruled = version;
    record.dirty = true;
    work(name, record);
}

// --- looking -----------------------------------------------------------------------------------------------------

void RedisPublisher::lookSoon() {
    if (look_timer_ != 0 || published_.empty()) return;
    look_timer_ = reactor_.runAt(reactor_.now() + settings_.redis_keepalive_interval, [this] {
        look_timer_ = 0;
        look();
    });
}

/// A server can lose records and keep the connection: FLUSHALL, eviction, a while as another's replica.
void RedisPublisher::look() {
    // After the return everything is renewed, and looked at from then on.
    if (client_.connection() == nullptr) return;
    std::vector<Looked> asked;
    std::vector<std::string> keys;
    std::vector<std::string> heads;
    auto at = published_.upper_bound(looked_last_);
    for (std::size_t i = 0; i < published_.size() && asked.size() < kMostLooked; ++i, ++at) {
        if (at == published_.end()) at = published_.begin();
        const auto& [name, record] = *at;
        looked_last_ = name;
        // What is to be written is on its way, or has its pause; but for a name that another has.
        const bool waits = record.dirty && record.problem.code() != Code::AlreadyExists;
        if (!record.claimed || record.sent != Sent::Nothing || waits || record.failures != 0) continue;
        asked.push_back({name, record.serial, record.version});
        keys.push_back(records_.key(name));
        heads.insert(heads.end(), {record.incarnation, record.version});
    }
    lookSoon();
    if (asked.empty()) return;
    const std::string count = std::to_string(keys.size());
    std::vector<std::string_view> arguments{"EVAL", kLookScript, count};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    arguments.insert(arguments.end(), heads.begin(), heads.end());
    client_.connection()->command(arguments, kForever,
                                  [this, life = life_, asked = std::move(asked)](const Result<RedisReply>& reply) {
                                      if (const auto alive = RedisLife::of(life)) looked(asked, reply);
                                  });
}

void RedisPublisher::looked(const std::vector<Looked>& asked, const Result<RedisReply>& reply) {
    if (!reply) return;
    if (reply->type != RedisReply::Type::Array)
        return log_->debug("redis {}: {}", client_.link().server(), wrongReply(*reply, "a list").toString());
    const auto count = static_cast<std::int64_t>(asked.size());
    for (const RedisReply& each : reply->elements) {
        if (each.type != RedisReply::Type::Integer || each.integer == 0 || each.integer > count ||
            each.integer < -count)
            continue;
        const bool is_free = each.integer > 0;
        const Looked& lost = asked[static_cast<std::size_t>(is_free ? each.integer : -each.integer) - 1];
        Record* record = find(lost.name, lost.serial);
        if (record == nullptr || record->version != lost.version) continue;
        // Dirty: another had the name.
        if (!record->dirty || is_free) work(lost.name, *record);
    }
}

/// Another incarnation has the name.
void RedisPublisher::held(const std::string& name, Record& record, const std::string& head) {
    const Status status(Code::AlreadyExists, "segment '" + name + "' is held by " + describeHolder(head));
    auto running = std::exchange(record.running, {});
    if (record.claimed) {
        // We had it and lost it while the store was away; it may become free again.
        complain(record, status);
        record.dirty = true;
        workAt(name, record, record.ttl / 3);
    } else {
        std::move(record.waiting.begin(), record.waiting.end(), std::back_inserter(running));
        reactor_.cancelTimer(record.answer_timer);
        reactor_.cancelTimer(record.work_timer);
        published_.erase(published_.find(std::string(name)));
    }
    answer(std::move(running), status);
}

void RedisPublisher::failed(const std::string& name, Record& record, const Status& why, bool wrote) {
    const bool lost = client_.connection() == nullptr;
    if (lost) {
        // Those who wait still may: the connection may be back in time.
        record.dirty = record.dirty || wrote;
        record.waiting.insert(record.waiting.begin(), std::make_move_iterator(record.running.begin()),
                              std::make_move_iterator(record.running.end()));
        record.running.clear();
        return;
    }
    complain(record, why);
    record.dirty = true;
    const Duration pause = std::min<Duration>(kFirstPause * (1 << std::min(record.failures++, 10u)), kLongestPause);
    workAt(name, record, pause);
    auto running = std::exchange(record.running, {});
    if (record.waiting.empty()) reactor_.cancelTimer(std::exchange(record.answer_timer, 0));
    answer(std::move(running), why.withContext("redis " + client_.link().server()));
}

void RedisPublisher::workAt(const std::string& name, Record& record, Duration pause) {
    reactor_.cancelTimer(record.work_timer);
    record.work_timer = reactor_.runAt(saturatedAdd(reactor_.now(), pause), [this, name, serial = record.serial] {
        Record* self = find(name, serial);
        if (self == nullptr) return;
        self->work_timer = 0;
        work(name, *self);
    });
}

// --- answers -----------------------------------------------------------------------------------------------------

void RedisPublisher::tooLate(const std::string& name, Record& record) {
    record.answer_timer = 0;
    auto late = std::exchange(record.waiting, {});
    std::move(record.running.begin(), record.running.end(), std::back_inserter(late));
    record.running.clear();
    const Status why = client_.connection() == nullptr ? client_.trouble()
                       : !record.problem.isOk()        ? record.problem
                                                       : Status(Code::Timeout, "the server has not answered yet");
    answer(std::move(late), Status(why.code(), "segment '" + name + "' is not published yet: " + why.message()));
}

/// Once for each kind of problem.
void RedisPublisher::complain(Record& record, const Status& why) {
    if (std::exchange(record.problem, why).code() != why.code()) log_->warn("{}", why.toString());
}

void RedisPublisher::answer(std::vector<DoneCallback> who, const Status& status) {
    const auto alive = RedisLife::of(life_);
    for (const DoneCallback& each : who) {
        if (!alive || alive->ended) return;
        each(status);
    }
}

}  // namespace troupe
