#include "metadata_redis/redis_link.h"

#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "base/endpoint.h"
#include "metadata_redis/redis_errors.h"

namespace troupe {

namespace {

// The first attempt after a loss comes at once; then the pause doubles from here to there, plus or minus a quarter. The
// longest, and one attempt, fit well into the two seconds within which everything must be as before.
constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(500);

// A connection that lasted less did not end the trouble: the pause goes on growing.
constexpr auto kLasting = std::chrono::seconds(1);

/// A sentinel's answer is an address.
constexpr RedisReplyReader::Limits kSentinelReplies{16u << 10, 64, 64};

SocketAddress unixAddress(const std::string& path) {
    SocketAddress result;
    auto* address = reinterpret_cast<sockaddr_un*>(&result.storage);
    address->sun_family = AF_UNIX;
    // RedisUri::parse has seen to the length.
    std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
    result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    return result;
}

}  // namespace

RedisLink::RedisLink(Reactor& reactor, const RedisUri& uri, const Config& settings, Logger log, std::string purpose,
                     RedisReplyReader::Limits replies, RedisLinkHandlers handlers)
    : reactor_(reactor),
      uri_(uri),
      settings_(settings),
      log_(std::move(log)),
      purpose_(std::move(purpose)),
      replies_(replies),
      handlers_(std::move(handlers)),
      resolver_(std::make_unique<Resolver>(reactor)),
      jitter_(std::random_device{}() | 1u) {}

RedisLink::~RedisLink() { stop(); }

void RedisLink::stop() {
    stopped_ = true;
    up_ = false;
    handlers_ = {};
    reactor_.cancelTimer(std::exchange(retry_timer_, 0));
    resolver_.reset();
    sentinel_.reset();
    connection_.reset();
}

void RedisLink::start() {
    if (!resolver_ || !std::exchange(stopped_, false)) return;
    down_since_ = reactor_.now();
    attemptSoon();
}

void RedisLink::reconnect(Status why) {
    if (!up_) return;
    // Open commands are answered, and then the next attempt begins.
    connection_->close(std::move(why));
}

/// In another turn: an attempt may fail at once, which the owner must not hear of within its own call.
void RedisLink::attemptSoon() {
    reactor_.cancelTimer(retry_timer_);
    retry_timer_ = reactor_.runAt(reactor_.now(), [this] { attempt(); });
}

// --- one attempt -------------------------------------------------------------------------------------------------

void RedisLink::attempt() {
    retry_timer_ = 0;
    switch (uri_.kind) {
        case RedisUri::Kind::Unix: return connectTo(unixAddress(uri_.path), uri_.path);
        case RedisUri::Kind::Server: return connectByName(uri_.hosts.front());
        case RedisUri::Kind::Sentinel:
            sentinels_asked_ = 0;
            sentinel_cause_ = Status::ok();
            return askSentinel();
    }
}

void RedisLink::connectByName(const Endpoint& host) {
    resolver_->resolve(host.host, reactor_.now() + settings_.redis_connect_timeout,
                       [this, host](const Result<std::string>& numeric) {
                           if (!numeric) return failed(numeric.status().withContext("redis " + host.toString()));
                           const auto address = SocketAddress::fromNumeric(*numeric, host.port);
                           if (!address) return failed(address.status());
                           connectTo(*address, address->toString());
                       });
}

void RedisLink::connectTo(const SocketAddress& address, const std::string& name) {
    auto fd = startConnect(address);
    if (!fd) return failed(fd.status().withContext("redis " + name));
    server_ = name;
    RedisConnectionHandlers handlers;
    handlers.onReady = [this] { onReady(); };
    handlers.onMessage = handlers_.onMessage;
    handlers.onClosed = [this](const Status& why) { failed(why); };
    connection_ = std::make_unique<RedisConnection>(reactor_, std::move(*fd), options(name), std::move(handlers));
}

RedisConnectionOptions RedisLink::options(const std::string& server) const {
    RedisConnectionOptions options;
    options.server = server;
    options.user = uri_.user;
    options.password = uri_.password;
    options.database = uri_.database;
    options.connect_timeout = settings_.redis_connect_timeout;
    options.command_timeout = settings_.redis_command_timeout;
    options.keepalive_interval = settings_.redis_keepalive_interval;
    options.replies = replies_;
    // One record, and room for many small commands.
    options.max_queued_bytes = settings_.max_descriptor_bytes + (8u << 20);
    return options;
}

void RedisLink::onReady() {
    up_ = true;
    up_since_ = reactor_.now();
    const auto away = std::chrono::duration_cast<std::chrono::milliseconds>(up_since_ - down_since_);
    if (std::exchange(logged_, Code::Ok) != Code::Ok)
        log_->warn("redis {} ({}): back after {} ms", server_, purpose_, away.count());
    was_up_ = true;
    trouble_ = Status::ok();
    // The handler may end us, and with us itself.
    if (const auto handler = handlers_.onUp) handler();
}

// --- sentinels ---------------------------------------------------------------------------------------------------

void RedisLink::askSentinel() {
    const Endpoint sentinel = uri_.hosts[next_sentinel_ % uri_.hosts.size()];
    resolver_->resolve(sentinel.host, reactor_.now() + settings_.redis_connect_timeout,
                       [this, sentinel](const Result<std::string>& numeric) {
                           if (!numeric) return sentinelFailed(numeric.status());
                           askSentinelAt(*numeric, sentinel);
                       });
}

void RedisLink::askSentinelAt(const std::string& numeric, const Endpoint& sentinel) {
    const auto address = SocketAddress::fromNumeric(numeric, sentinel.port);
    if (!address) return sentinelFailed(address.status());
    auto fd = startConnect(*address);
    if (!fd) return sentinelFailed(fd.status());
    RedisConnectionOptions opts = options(address->toString());
    opts.greets = false;
    opts.replies = kSentinelReplies;
    RedisConnectionHandlers handlers;
    handlers.onReady = [this] { ask(false); };
    handlers.onClosed = [this](const Status& why) { sentinelFailed(why); };
    sentinel_ = std::make_unique<RedisConnection>(reactor_, std::move(*fd), std::move(opts), std::move(handlers));
}

void RedisLink::ask(bool authenticated) {
    sentinel_->command(
        {"SENTINEL", "get-master-addr-by-name", uri_.master_name}, reactor_.now() + settings_.redis_connect_timeout,
        [this, authenticated](const Result<RedisReply>& answer) { onSentinelAnswer(answer, authenticated); });
}

void RedisLink::onSentinelAnswer(const Result<RedisReply>& answer, bool authenticated) {
    // With the connection's end comes onClosed too, which looks further; here only what it answered, or a time-out.
    if (!answer) {
        if (answer.status().code() == Code::Timeout && sentinel_ && sentinel_->isReady())
            sentinelFailed(answer.status());
        return;
    }
    if (answer->type == RedisReply::Type::Error && answer->text.rfind("NOAUTH", 0) == 0 && !authenticated &&
        !uri_.password.empty()) {
        // A sentinel that asks for a password is given the same as the server.
        std::vector<std::string_view> auth{"AUTH"};
        if (!uri_.user.empty()) auth.emplace_back(uri_.user);
        auth.emplace_back(uri_.password);
        sentinel_->command(auth, reactor_.now() + settings_.redis_connect_timeout, [this](const Result<RedisReply>& r) {
            if (!r) return;
            if (r->isStatus("OK")) return ask(true);
            sentinelFailed(wrongReply(*r, "OK"));
        });
        return;
    }
    if (answer->type == RedisReply::Type::Error && answer->text.rfind("ERR unknown command", 0) == 0)
        return sentinelFailed(Status(Code::Unsupported,
                                     "this is a Redis server and no Sentinel; its URI is redis://host:port, or give "
                                     "the Sentinels' port (26379)"));
    if (answer->type == RedisReply::Type::Nil)
        return sentinelFailed(Status(Code::NotFound, "it knows no master '" + uri_.master_name + "'"));
    const auto& parts = answer->elements;
    if (answer->type != RedisReply::Type::Array || parts.size() != 2 || !parts[0].isString() || !parts[1].isString())
        return sentinelFailed(wrongReply(*answer, "an address"));
    const auto master =
        Endpoint::parse(parts[0].text.find(':') == std::string::npos ? parts[0].text + ":" + parts[1].text
                                                                     : "[" + parts[0].text + "]:" + parts[1].text);
    if (!master || master->port == 0)
        return sentinelFailed(Status(Code::ProtocolError, "the address it gave for the master is none"));
    sentinel_.reset();
    connectByName(*master);
}

/// The next one is asked at once; after the last the attempt has failed.
void RedisLink::sentinelFailed(const Status& why) {
    const Endpoint& sentinel = uri_.hosts[next_sentinel_ % uri_.hosts.size()];
    const Status cause = why.withContext("sentinel " + sentinel.toString());
    sentinel_.reset();
    ++next_sentinel_;
    // One that answers and refuses says more than one that is not there.
    if (sentinel_cause_.isOk() || (isLasting(cause) && !isLasting(sentinel_cause_))) sentinel_cause_ = cause;
    if (++sentinels_asked_ < uri_.hosts.size()) {
        log_->debug("{}", cause.toString());
        return askSentinel();
    }
    failed(std::exchange(sentinel_cause_, Status::ok()));
}

// --- trouble -----------------------------------------------------------------------------------------------------

void RedisLink::failed(const Status& why) {
    const TimePoint now = reactor_.now();
    const bool was_up = std::exchange(up_, false);
    connection_.reset();
    server_.clear();
    if (was_up) {
        down_since_ = now;
        if (now - up_since_ >= kLasting) failures_ = 0;
    }
    // Once for each kind of trouble, not for each attempt.
    if (logged_ == why.code() || (handlers_.isToldElsewhere && handlers_.isToldElsewhere())) {
        log_->debug("{} ({})", why.toString(), purpose_);
    } else {
        log_->warn("{} ({}); trying again", why.toString(), purpose_);
        logged_ = why.code();
    }
    trouble_ = why;
    schedule();
    const Status told = why;
    if (const auto handler = handlers_.onDown) handler(told);
}

void RedisLink::schedule() {
    Duration pause{};
    if (failures_ > 0) {
        pause = std::min<Duration>(kFirstPause * (1 << std::min(failures_ - 1, 10u)), kLongestPause);
        // xorshift64: spreads the clients of a restarted server over time; nothing depends on its quality.
        jitter_ ^= jitter_ << 13;
        jitter_ ^= jitter_ >> 7;
        jitter_ ^= jitter_ << 17;
        pause = pause * 3 / 4 + pause * static_cast<Duration::rep>(jitter_ % 1024) / 2048;
    }
    ++failures_;
    retry_timer_ = reactor_.runAt(reactor_.now() + pause, [this] { attempt(); });
}

}  // namespace troupe
