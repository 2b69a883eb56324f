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

// A kind of trouble that comes and goes is said this often.
constexpr auto kSamePause = std::chrono::seconds(10);

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
      jitter_(std::random_device{}() | 1u) {
    if (uri_.kind == RedisUri::Kind::Sentinel)
        sentinels_ = std::make_unique<RedisSentinels>(reactor_, uri_, settings_, log_);
}

RedisLink::~RedisLink() { stop(); }

void RedisLink::stop() {
    stopped_ = true;
    up_ = false;
    handlers_ = {};
    for (Reactor::TimerId* timer : {&retry_timer_, &lasting_timer_, &look_timer_})
        reactor_.cancelTimer(std::exchange(*timer, 0));
    resolver_.reset();
    sentinels_.reset();
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
        case RedisUri::Kind::Sentinel: return askSentinels();
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
    RedisConnectionOptions options = connectionOptions(uri_, settings_, server);
    options.replies = replies_;
    // One record, and room for many small commands.
    options.max_queued_bytes = settings_.max_descriptor_bytes + (8u << 20);
    return options;
}

void RedisLink::onReady() {
    up_ = true;
    up_since_ = reactor_.now();
    lasting_timer_ = reactor_.runAt(up_since_ + kLasting, [this] { lasts(); });
    if (sentinels_ && follows_master_) lookForMaster();
    was_up_ = true;
    trouble_ = Status::ok();
    // The handler may end us, and with us itself.
    if (const auto handler = handlers_.onUp) handler();
}

// --- sentinels ---------------------------------------------------------------------------------------------------

void RedisLink::askSentinels() {
    sentinels_->ask([this](const Result<Endpoint>& master) {
        if (!follows_master_) sentinels_->hangUp();
        if (!master) return failed(master.status());
        master_ = *master;
        connectByName(*master);
    });
}

void RedisLink::lookForMaster() {
    look_timer_ = reactor_.runAt(reactor_.now() + settings_.redis_keepalive_interval, [this] {
        look_timer_ = 0;
        sentinels_->ask([this](const Result<Endpoint>& master) {
            if (!up_) return;
            if (master && *master != master_)
                return reconnect(Status(Code::ConnectionLost,
                                        "the Sentinel says that the master is " + master->toString() + " now"));
            // Sentinels that are away are no trouble while the server is there.
            if (!master) log_->debug("{}", master.status().toString());
            lookForMaster();
        });
    });
}

// --- trouble -----------------------------------------------------------------------------------------------------

void RedisLink::failed(const Status& why) {
    const TimePoint now = reactor_.now();
    const bool was_up = std::exchange(up_, false);
    connection_.reset();
    server_.clear();
    if (why.code() == Code::AccessDenied && uri_.password_file) uri_.password_file->refused();
    reactor_.cancelTimer(std::exchange(lasting_timer_, 0));
    reactor_.cancelTimer(std::exchange(look_timer_, 0));
    if (was_up) {
        // A connection that did not last is part of the outage.
        if (!return_is_due_) down_since_ = now;
        if (now - up_since_ >= kLasting) failures_ = 0;
    }
    const bool is_told_elsewhere = handlers_.isToldElsewhere && handlers_.isToldElsewhere();
    if (!is_told_elsewhere && isNews(why.code())) {
        log_->warn("{} ({}); trying again", why.toString(), purpose_);
        return_is_due_ = true;
    } else {
        log_->debug("{} ({})", why.toString(), purpose_);
    }
    trouble_ = why;
    schedule();
    const Status told = why;
    if (const auto handler = handlers_.onDown) handler(told);
}

/// Once for each kind of trouble in an outage, not for each attempt, and not for each of many short outages.
bool RedisLink::isNews(Code code) {
    const TimePoint now = reactor_.now();
    const auto known = logged_.find(code);
    if (known != logged_.end() && (known->second.in_this_outage || now - known->second.when < kSamePause)) return false;
    logged_[code] = {now, true};
    return true;
}

/// It has been up for a while: the outage is over.
void RedisLink::lasts() {
    lasting_timer_ = 0;
    for (auto& [code, logged] : logged_) logged.in_this_outage = false;
    if (!std::exchange(return_is_due_, false)) return;
    const auto away = std::chrono::duration_cast<std::chrono::milliseconds>(up_since_ - down_since_);
    log_->warn("redis {} ({}): back after {} ms", server_, purpose_, away.count());
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
