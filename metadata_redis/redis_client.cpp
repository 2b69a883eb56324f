#include "metadata_redis/redis_client.h"

#include <algorithm>
#include <utility>

#include "metadata_redis/redis_errors.h"

namespace troupe {

namespace {

// Commands that wait for a connection at once.
constexpr std::size_t kMaxWaiting = 1u << 14;

/// Replies to commands: a record, or a page of SCAN.
RedisReplyReader::Limits commandReplies(const Config& settings) {
    return {settings.max_descriptor_bytes + (1u << 20), 1u << 16, 1u << 17};
}

}  // namespace

RedisClient::RedisClient(Reactor& reactor, const RedisUri& uri, const Config& settings, const Logger& log,
                         std::weak_ptr<RedisLife> life, std::function<void()> on_up,
                         std::function<void(const Status&)> on_refused)
    : reactor_(reactor),
      uri_(uri),
      settings_(settings),
      life_(std::move(life)),
      on_up_(std::move(on_up)),
      on_refused_(std::move(on_refused)),
      link_(reactor, uri, settings, log, "commands", commandReplies(settings),
            {[this] { up(); },
             [this](const Status& why) { down(why); },
             {},
             // The first connection is made for somebody who asked, and who hears why there is none.
             [this] { return !link_.wasEverUp(); }}) {
    link_.followMaster();
}

RedisClient::~RedisClient() { stop(); }

void RedisClient::stop() {
    for (const Waiting& entry : waiting_) reactor_.cancelTimer(entry.timer);
    waiting_.clear();
    link_.stop();
}

Status RedisClient::trouble() const {
    if (!link_.trouble().isOk()) return link_.trouble();
    return {Code::Timeout, uri_.toString() + ": not connected yet"};
}

void RedisClient::run(std::vector<std::string> arguments, Duration timeout, ReplyCallback done) {
    const Duration longest = settings_.redis_command_timeout;
    const TimePoint deadline = saturatedAdd(reactor_.now(), std::min(timeout, longest));
    if (connection() != nullptr) return send(arguments, deadline, std::move(done));
    link_.start();
    Status refused;
    if (waiting_.size() >= kMaxWaiting)
        refused = Status(Code::CapacityExceeded,
                         std::to_string(kMaxWaiting) + " requests wait for the store already: " + trouble().toString());
    else if (isLasting(link_.trouble()))
        refused = link_.trouble();
    if (!refused) {
        return reactor_.post([refused, done = std::move(done), life = life_] {
            if (const auto alive = RedisLife::of(life)) done(refused);
        });
    }
    waiting_.push_back({std::move(arguments), deadline, std::move(done), 0});
    const auto entry = std::prev(waiting_.end());
    entry->timer = reactor_.runAt(deadline, [this, entry] { expire(entry); });
}

void RedisClient::send(const std::vector<std::string>& arguments, TimePoint deadline, ReplyCallback done) {
    const std::vector<std::string_view> views(arguments.begin(), arguments.end());
    connection()->command(views, deadline,
                          [this, life = life_, arguments, deadline, done = std::move(done)](Result<RedisReply> reply) {
                              const auto alive = RedisLife::of(life);
                              if (!alive) return;
                              const TimePoint now = reactor_.now();
                              const bool lost = !reply && reply.status().code() != Code::CapacityExceeded;
                              // The connection broke; all commands here may be asked twice, so there is time for
                              // another.
                              if (lost && now < deadline) return run(arguments, deadline - now, done);
                              // Somebody else is the master now; whoever it is, the next attempt finds it.
                              if (reply && isReadOnlyError(*reply)) {
                                  link_.reconnect(wrongReply(*reply, ""));
                                  if (now < deadline) return run(arguments, deadline - now, done);
                              }
                              answer(std::move(reply), done);
                          });
}

void RedisClient::answer(Result<RedisReply> reply, const ReplyCallback& done) {
    if (!reply || reply->type != RedisReply::Type::Error) return done(std::move(reply));
    done(wrongReply(*reply, "").withContext("redis " + link_.server()));
}

void RedisClient::up() {
    const auto alive = RedisLife::of(life_);
    if (!alive) return;
    // None of these calls anybody back at once. What one of them meets may end the connection for those behind it (a
    // server that greets and hangs up), which then wait on.
    for (Waiting& entry : std::exchange(waiting_, {})) {
        reactor_.cancelTimer(entry.timer);
        run(std::move(entry.arguments), entry.deadline - reactor_.now(), std::move(entry.done));
    }
    if (on_up_) on_up_();
}

void RedisClient::down(const Status& why) {
    if (!isLasting(why)) return;
    const auto alive = RedisLife::of(life_);
    if (!alive) return;
    auto waiting = std::exchange(waiting_, {});
    for (const Waiting& entry : waiting) reactor_.cancelTimer(entry.timer);
    for (const Waiting& entry : waiting) {
        if (alive->ended) return;
        entry.done(why);
    }
    if (!alive->ended && on_refused_) on_refused_(why);
}

void RedisClient::expire(std::list<Waiting>::iterator entry) {
    const auto alive = RedisLife::of(life_);
    if (!alive) return;
    const auto done = std::move(entry->done);
    waiting_.erase(entry);
    const Status cause = trouble();
    done(Status(cause.code(), "the store cannot be reached: " + cause.message()));
}

}  // namespace troupe
