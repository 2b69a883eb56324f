#include "metadata_redis/redis_sentinels.h"

#include <utility>
#include <vector>

#include "metadata_redis/redis_errors.h"

namespace troupe {

namespace {

/// A sentinel's answer is an address.
constexpr RedisReplyReader::Limits kSentinelReplies{16u << 10, 64, 64};

/// The address in an answer to get-master-addr-by-name.
Result<Endpoint> masterIn(const RedisReply& reply, const std::string& name) {
    if (reply.type == RedisReply::Type::Error && reply.text.rfind("ERR unknown command", 0) == 0)
        return Status(Code::Unsupported,
                      "this is a Redis server and no Sentinel; its URI is redis://host:port, or give the Sentinels' "
                      "port (26379)");
    if (reply.type == RedisReply::Type::Nil) return Status(Code::NotFound, "it knows no master '" + name + "'");
    const auto& parts = reply.elements;
    if (reply.type != RedisReply::Type::Array || parts.size() != 2 || !parts[0].isString() || !parts[1].isString())
        return wrongReply(reply, "an address");
    const bool is_v6 = parts[0].text.find(':') != std::string::npos;
    auto master =
        Endpoint::parse(is_v6 ? "[" + parts[0].text + "]:" + parts[1].text : parts[0].text + ":" + parts[1].text);
    if (!master || master->port == 0) return Status(Code::ProtocolError, "the address it gave for the master is none");
    return master;
}

}  // namespace

RedisConnectionOptions connectionOptions(const RedisUri& uri, const Config& settings, const std::string& server) {
    RedisConnectionOptions options;
    options.server = server;
    options.user = uri.user;
    options.password = uri.currentPassword();
    options.database = uri.database;
    options.connect_timeout = settings.redis_connect_timeout;
    options.command_timeout = settings.redis_command_timeout;
    options.keepalive_interval = settings.redis_keepalive_interval;
    return options;
}

RedisSentinels::RedisSentinels(Reactor& reactor, const RedisUri& uri, const Config& settings, Logger log)
    : reactor_(reactor), uri_(uri), settings_(settings), log_(std::move(log)), resolver_(reactor) {}

void RedisSentinels::ask(Answer answer) {
    answer_ = std::move(answer);
    ++question_;
    asked_ = 0;
    cause_ = Status::ok();
    if (connection_ && connection_->isReady()) return send(false);
    next();
}

void RedisSentinels::hangUp() {
    answer_ = {};
    ++question_;
    connection_.reset();
}

void RedisSentinels::next() {
    connection_.reset();
    const Endpoint sentinel = uri_.hosts[next_ % uri_.hosts.size()];
    resolver_.resolve(sentinel.host, reactor_.now() + settings_.redis_connect_timeout,
                      [this, sentinel, question = question_](const Result<std::string>& numeric) {
                          if (question != question_) return;
                          if (!numeric) return failed(numeric.status());
                          connect(*numeric, sentinel);
                      });
}

void RedisSentinels::connect(const std::string& numeric, const Endpoint& sentinel) {
    const auto address = SocketAddress::fromNumeric(numeric, sentinel.port);
    if (!address) return failed(address.status());
    auto fd = startConnect(*address);
    if (!fd) return failed(fd.status());
    RedisConnectionOptions options = connectionOptions(uri_, settings_, address->toString());
    options.greets = false;
    options.replies = kSentinelReplies;
    RedisConnectionHandlers handlers;
    handlers.onReady = [this] { send(false); };
    handlers.onClosed = [this](const Status& why) {
        // Between questions it is no trouble: the next one makes another.
        if (answer_) return failed(why);
        connection_.reset();
    };
    connection_ = std::make_unique<RedisConnection>(reactor_, std::move(*fd), std::move(options), std::move(handlers));
}

void RedisSentinels::send(bool authenticated) {
    connection_->command({"SENTINEL", "get-master-addr-by-name", uri_.master_name},
                         reactor_.now() + settings_.redis_connect_timeout,
                         [this, authenticated, question = question_](const Result<RedisReply>& reply) {
                             if (question == question_ && answer_) onReply(reply, authenticated);
                         });
}

void RedisSentinels::onReply(const Result<RedisReply>& reply, bool authenticated) {
    // With the connection's end comes onClosed too, which looks further; here only what it answered, or a time-out.
    if (!reply) {
        if (reply.status().code() == Code::Timeout && connection_ && connection_->isReady()) failed(reply.status());
        return;
    }
    if (reply->type == RedisReply::Type::Error && reply->text.rfind("NOAUTH", 0) == 0 && !authenticated &&
        !uri_.currentPassword().empty())
        return authenticate();
    const auto master = masterIn(*reply, uri_.master_name);
    if (!master) return failed(master.status());
    conclude(master);
}

/// A sentinel that asks for a password is given the same as the server.
void RedisSentinels::authenticate() {
    std::vector<std::string_view> auth{"AUTH"};
    if (!uri_.user.empty()) auth.emplace_back(uri_.user);
    auth.emplace_back(uri_.currentPassword());
    connection_->command(auth, reactor_.now() + settings_.redis_connect_timeout,
                         [this, question = question_](const Result<RedisReply>& reply) {
                             if (!reply || question != question_ || !answer_) return;
                             if (reply->isStatus("OK")) return send(true);
                             failed(wrongReply(*reply, "OK"));
                         });
}

/// The next one is asked at once; after the last there is no answer.
void RedisSentinels::failed(const Status& why) {
    const Status cause = why.withContext("sentinel " + uri_.hosts[next_ % uri_.hosts.size()].toString());
    connection_.reset();
    ++next_;
    // One that answers and refuses says more than one that is not there.
    if (cause_.isOk() || (isLasting(cause) && !isLasting(cause_))) cause_ = cause;
    if (++asked_ < uri_.hosts.size()) {
        log_->debug("{}", cause.toString());
        return next();
    }
    conclude(std::exchange(cause_, Status::ok()));
}

void RedisSentinels::conclude(const Result<Endpoint>& master) {
    const auto answer = std::exchange(answer_, {});
    if (answer) answer(master);
}

}  // namespace troupe
