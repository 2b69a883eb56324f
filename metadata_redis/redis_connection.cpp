#include "metadata_redis/redis_connection.h"

#include <hiredis/hiredis.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/endpoint.h"
#include "metadata_redis/redis_errors.h"

namespace troupe {

namespace {

// One turn reads at most kReads pieces, so that a large record does not hold the loop.
constexpr std::size_t kPiece = 64u << 10;
constexpr int kReads = 16;

}  // namespace

class RedisConnection::Core : public std::enable_shared_from_this<Core> {
  public:
    Core(Reactor& reactor, UniqueFd fd, RedisConnectionOptions options, RedisConnectionHandlers handlers)
        : reactor_(reactor),
          fd_(std::move(fd)),
          options_(std::move(options)),
          handlers_(std::move(handlers)),
          reader_(options_.replies),
          last_progress_(reactor_.now()) {}

    void begin() {
        connect_timer_ = reactor_.runAt(saturatedAdd(reactor_.now(), options_.connect_timeout), [this] {
            connect_timer_ = 0;
            fail(Status(Code::Timeout, connected_ ? "connected, but no answer in time (redis.connect_timeout)"
                                                  : "no connection in time (redis.connect_timeout)"));
        });
        watch(EPOLLOUT);
    }

    /// Nothing of the owner is called from here on.
    void abandon() {
        abandoned_ = true;
        ended_ = true;
        handlers_ = {};
        letGo();
        open_.clear();
    }

    void command(const std::vector<std::string_view>& arguments, TimePoint deadline, ReplyCallback done) {
        std::size_t bytes = 0;
        for (const std::string_view argument : arguments) bytes += argument.size() + 16;
        Status refused = ended_ ? end_ : Status::ok();
        if (refused.isOk() && (open_.size() >= options_.max_commands || queued_ + bytes > options_.max_queued_bytes))
            refused = Status(Code::CapacityExceeded, server() + "too much waits for the server already (" +
                                                         std::to_string(open_.size()) + " commands, " +
                                                         std::to_string(queued_) + " bytes)");
        if (!refused)
            return reactor_.post([refused, done = std::move(done), weak = weak_from_this()] {
                if (const auto self = weak.lock(); self && !self->abandoned_) done(refused);
            });
        if (const Status sent = append(arguments, deadline, std::move(done)); !sent) return fail(sent);
        if (connected_) flush();
    }

    bool isReady() const { return ready_ && !ended_; }

    void fail(const Status& why) {
        if (std::exchange(ended_, true)) return;
        end_ = why.withContext("redis " + options_.server);
        ready_ = false;
        letGo();
        reactor_.post([self = shared_from_this()] { self->tellTheEnd(); });
    }

  private:
    struct Open {
        std::uint64_t number = 0;
        ReplyCallback done;  ///< Empty once it was called: its deadline passed.
        Reactor::TimerId timer = 0;
    };

    std::string server() const { return "redis " + options_.server + ": "; }

    void tellTheEnd() {
        auto open = std::exchange(open_, {});
        for (Open& entry : open) {
            if (abandoned_) return;
            if (entry.done) entry.done(end_);
        }
        if (abandoned_) return;
        const auto closed = std::exchange(handlers_.onClosed, {});
        handlers_ = {};
        closed(end_);
    }

    void letGo() {
        for (const Open& entry : open_) reactor_.cancelTimer(entry.timer);
        reactor_.cancelTimer(std::exchange(connect_timer_, 0));
        reactor_.cancelTimer(std::exchange(tick_timer_, 0));
        if (fd_) {
            reactor_.unwatch(fd_.get());
            fd_.reset();
        }
        out_.clear();
    }

    void watch(std::uint32_t events) {
        if (std::exchange(watched_, events) == events) return;
        reactor_.watch(fd_.get(), events, [weak = weak_from_this()](std::uint32_t ready) {
            if (const auto self = weak.lock(); self && !self->ended_) self->onEvents(ready);
        });
    }

    void onEvents(std::uint32_t ready) {
        if (!connected_) return onConnected();
        if ((ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive();
        if (!ended_ && (ready & EPOLLOUT) != 0) flush();
    }

    void onConnected() {
        if (const Status outcome = connectOutcome(fd_.get()); !outcome) return fail(outcome);
        connected_ = true;
        last_progress_ = reactor_.now();
        if (options_.greets)
            greet();
        else
            becomeReady();
        if (!ended_) flush();
    }

    // --- greeting --------------------------------------------------------------------------------------------------

    /// AUTH, SELECT and PING in one go.
    void greet() {
        const std::string database = std::to_string(options_.database);
        if (!options_.password.empty()) {
            std::vector<std::string_view> auth{"AUTH"};
            if (!options_.user.empty()) auth.emplace_back(options_.user);
            auth.emplace_back(options_.password);
            greeting(auth, "OK");
        }
        if (options_.database != 0) greeting({"SELECT", database}, "OK");
        greeting({"PING"}, "PONG");
    }

    void greeting(const std::vector<std::string_view>& arguments, std::string_view due) {
        const bool is_auth = arguments.front() == "AUTH";
        const bool is_last = arguments.front() == "PING";
        const Status sent = append(arguments, kForever, [this, due, is_auth, is_last](const Result<RedisReply>& reply) {
            if (!reply || ended_) return;
            // A password more than needed is no reason to stay away: the server may be about to get one.
            const bool fine =
                reply->isStatus(due) || (is_auth && wantsNoPassword(*reply)) || (is_last && isOnlyAboutWrites(*reply));
            if (!fine) return fail(greetingRefused(*reply, due));
            if (is_last) becomeReady();
        });
        if (!sent) fail(sent);
    }

    Status greetingRefused(const RedisReply& reply, std::string_view due) const {
        // A server that repeats the password must not make us say it.
        if (!options_.password.empty() && reply.text.find(options_.password) != std::string::npos)
            return {Code::ProtocolError, "the server answered the greeting with words that hold the password"};
        return wrongReply(reply, due);
    }

    void becomeReady() {
        ready_ = true;
        reactor_.cancelTimer(std::exchange(connect_timer_, 0));
        armTick();
        reactor_.post([weak = weak_from_this()] {
            const auto self = weak.lock();
            if (!self || self->ended_ || !self->handlers_.onReady) return;
            // The handler may end us, and with us itself.
            const auto handler = self->handlers_.onReady;
            handler();
        });
    }

    // --- out -------------------------------------------------------------------------------------------------------

    Status append(const std::vector<std::string_view>& arguments, TimePoint deadline, ReplyCallback done) {
        std::vector<const char*> texts;
        std::vector<std::size_t> lengths;
        for (const std::string_view argument : arguments) {
            texts.push_back(argument.data());
            lengths.push_back(argument.size());
        }
        char* bytes = nullptr;
        const int length =
            redisFormatCommandArgv(&bytes, static_cast<int>(arguments.size()), texts.data(), lengths.data());
        if (length < 0) return {Code::ResourceExhausted, "no memory for a command"};
        out_.emplace_back(bytes, static_cast<std::size_t>(length));
        redisFreeCommand(bytes);
        queued_ += static_cast<std::size_t>(length);
        Open entry{next_number_++, std::move(done), 0};
        if (deadline != kForever)
            entry.timer = reactor_.runAt(deadline, [this, number = entry.number] { expire(number); });
        // The silence that ends the connection counts from the first answer that is due.
        if (open_.empty()) last_progress_ = reactor_.now();
        open_.push_back(std::move(entry));
        if (ready_ && tick_at_ > reactor_.now() + options_.command_timeout) armTick();
        return Status::ok();
    }

    void expire(std::uint64_t number) {
        const auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& e) { return e.number == number; });
        if (found == open_.end() || !found->done) return;
        const auto done = std::exchange(found->done, {});
        done(Status(Code::Timeout, server() + "no answer in time"));
    }

    void flush() {
        const auto self = shared_from_this();
        while (!out_.empty()) {
            const std::string& front = out_.front();
            const ssize_t sent = ::send(fd_.get(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) {
                    stuck_ = true;
                    break;
                }
                return fail(errnoStatus(Code::ConnectionLost, "send", errno));
            }
            // Room where there was none means that the other end takes what we send. That the kernel keeps a small
            // command means nothing, and one a second would hide for ever that nobody is there.
            if (std::exchange(stuck_, false)) last_progress_ = reactor_.now();
            queued_ -= static_cast<std::size_t>(sent);
            sent_ += static_cast<std::size_t>(sent);
            if (sent_ < front.size()) continue;
            out_.pop_front();
            sent_ = 0;
        }
        watch(out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }

    // --- in --------------------------------------------------------------------------------------------------------

    void receive() {
        const auto self = shared_from_this();
        std::array<char, kPiece> piece;
        for (int i = 0; i < kReads; ++i) {
            const ssize_t got = ::recv(fd_.get(), piece.data(), piece.size(), 0);
            if (got < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return;
                return fail(errnoStatus(Code::ConnectionLost, "receive", errno));
            }
            if (got == 0) return fail(Status(Code::ConnectionLost, "the server closed the connection"));
            last_progress_ = reactor_.now();
            if (const Status fed = reader_.feed({piece.data(), static_cast<std::size_t>(got)}); !fed) return fail(fed);
            while (true) {
                auto reply = reader_.next();
                if (!reply) return fail(reply.status());
                if (!reply->has_value()) break;
                deliver(std::move(**reply));
                if (ended_) return;
            }
            if (static_cast<std::size_t>(got) < piece.size()) return;
        }
    }

    void deliver(RedisReply reply) {
        const bool is_message = handlers_.onMessage && reply.type == RedisReply::Type::Array &&
                                !reply.elements.empty() && reply.elements.front().isString() &&
                                reply.elements.front().text == "message";
        if (is_message) {
            // The handler may end us, and with us itself.
            const auto handler = handlers_.onMessage;
            return handler(std::move(reply));
        }
        if (open_.empty()) {
            // What a server says before it closes, such as that it has too many clients.
            return fail(reply.type == RedisReply::Type::Error
                            ? redisErrorStatus(reply.text)
                            : Status(Code::ProtocolError, "the server sent " + describe(reply) + " unasked"));
        }
        Open entry = std::move(open_.front());
        open_.pop_front();
        reactor_.cancelTimer(entry.timer);
        if (entry.done) entry.done(std::move(reply));
    }

    // --- silence ---------------------------------------------------------------------------------------------------

    void armTick() {
        reactor_.cancelTimer(tick_timer_);
        // Twice within the time-out, so that stillDraining has two figures to compare.
        tick_at_ = open_.empty() ? saturatedAdd(last_progress_, options_.keepalive_interval)
                                 : reactor_.now() + options_.command_timeout / 2;
        tick_timer_ = reactor_.runAt(tick_at_, [this] {
            tick_timer_ = 0;
            tick();
        });
    }

    void tick() {
        const TimePoint now = reactor_.now();
        if (open_.empty()) {
            if (now >= saturatedAdd(last_progress_, options_.keepalive_interval)) ping();
        } else if (!stillDraining() && now >= saturatedAdd(last_progress_, options_.command_timeout)) {
            return fail(Status(Code::Timeout, "silent for longer than redis.command_timeout while an answer is due"));
        }
        if (!ended_) armTick();
    }

    /// What the kernel took may still be on its way over a slow line; that is no silence as long as it gets less.
    bool stillDraining() {
        int unsent = 0;
        if (::ioctl(fd_.get(), SIOCOUTQ, &unsent) != 0) return false;
        const bool less = unsent < std::exchange(last_unsent_, unsent);
        if (less) last_progress_ = reactor_.now();
        return less;
    }

    void ping() {
        const Status sent = append({"PING"}, kForever, [this](const Result<RedisReply>& reply) {
            if (!reply || ended_) return;
            // Within a subscription the answer is an array.
            const bool subscribed = reply->type == RedisReply::Type::Array && !reply->elements.empty() &&
                                    reply->elements.front().isString() && reply->elements.front().text == "pong";
            if (!reply->isStatus("PONG") && !subscribed && !isOnlyAboutWrites(*reply)) fail(wrongReply(*reply, "PONG"));
        });
        if (!sent) return fail(sent);
        flush();
    }

    Reactor& reactor_;
    UniqueFd fd_;
    const RedisConnectionOptions options_;
    RedisConnectionHandlers handlers_;
    RedisReplyReader reader_;
    std::uint32_t watched_ = 0;
    bool connected_ = false;
    bool ready_ = false;
    bool ended_ = false;
    bool abandoned_ = false;
    Status end_;
    std::deque<std::string> out_;
    std::size_t sent_ = 0;    ///< Of out_'s first.
    std::size_t queued_ = 0;  ///< Bytes in out_ that are not sent.
    std::deque<Open> open_;   ///< Commands whose reply is due, in order.
    std::uint64_t next_number_ = 1;
    bool stuck_ = false;       ///< The kernel had no room for what is in out_.
    TimePoint last_progress_;  ///< When bytes last came or went, or the first answer became due.
    int last_unsent_ = 0;      ///< Bytes that the peer's kernel had not taken at the last tick.
    TimePoint tick_at_ = kForever;
    Reactor::TimerId connect_timer_ = 0;
    Reactor::TimerId tick_timer_ = 0;
};

RedisConnection::RedisConnection(Reactor& reactor, UniqueFd fd, RedisConnectionOptions options,
                                 RedisConnectionHandlers handlers)
    : core_(std::make_shared<Core>(reactor, std::move(fd), std::move(options), std::move(handlers))) {
    core_->begin();
}

RedisConnection::~RedisConnection() { core_->abandon(); }

void RedisConnection::command(const std::vector<std::string_view>& arguments, TimePoint deadline, ReplyCallback done) {
    core_->command(arguments, deadline, std::move(done));
}

bool RedisConnection::isReady() const { return core_->isReady(); }

void RedisConnection::close(Status reason) { core_->fail(reason); }

}  // namespace troupe
