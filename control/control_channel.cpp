#include "control/control_channel.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "base/fault_injector.h"

namespace troupe {

namespace {

constexpr std::size_t kReadPerTurn = 64u << 10;
constexpr std::size_t kWritePerTurn = 1u << 20;
constexpr std::size_t kFramesPerWrite = 32;
/// What a queued frame costs beyond its bytes, so that many tiny frames are bounded too.
constexpr std::uint64_t kQueueOverhead = 64;

std::string inMilliseconds(Duration span) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(span).count()) + " ms";
}

}  // namespace

/// The channel's state, kept alive by the event that is being handled, so that a handler may destroy the channel.
class ControlChannel::Core : public std::enable_shared_from_this<Core> {
  public:
    Core(Reactor& reactor, std::unique_ptr<Stream> stream, ControlChannelOptions options,
         ControlChannelHandlers handlers)
        : reactor_(reactor),
          stream_(std::move(stream)),
          options_(std::move(options)),
          handlers_(std::make_shared<const ControlChannelHandlers>(std::move(handlers))),
          faults_(reactor.faults()),
          reader_(options_.max_descriptor_bytes),
          last_received_(reactor.now()) {}

    void start();
    void abandon();
    Status send(std::shared_ptr<const std::string> frame);
    void handshakeDone() { stopTimer(); }
    void spareFromFaults();
    void end(Status reason);
    void finish(Status reason);

    bool isOpen() const { return state_ == State::Connecting || state_ == State::Open; }
    TimePoint lastReceived() const { return last_received_; }
    bool isMidFrame() const { return !reader_.atFrameBorder(); }
    std::uint64_t queuedBytes() const { return queued_bytes_; }
    const std::string& peer() const { return options_.peer; }

  private:
    enum class State { Connecting, Open, Finishing, Closed };

    void onReady(std::uint32_t events);
    void onConnectOutcome();
    void onReadable();
    void deliver(std::span<const std::byte> bytes);
    void onEndOfStream();
    void onSocketError(std::string_view call, int error);
    bool isBrokenByFault(const std::string& frame);
    void holdBack(Duration time);
    void flush();
    void dropSent(std::size_t bytes);
    void wantEvents();
    void startTimer(Duration after, Code code, std::string message);
    void stopTimer();

    Reactor& reactor_;
    std::unique_ptr<Stream> stream_;
    const ControlChannelOptions options_;
    /// Replaced by null when the channel is destroyed; a copy is held while one of them runs.
    std::shared_ptr<const ControlChannelHandlers> handlers_;
    FaultInjector* faults_;  ///< Null: there are none, or it is spared.
    ControlFrameReader reader_;
    TimePoint last_received_;
    State state_ = State::Open;
    Status reason_;  ///< Of finish() or of the end.
    std::uint32_t watched_events_ = 0;
    Reactor::TimerId timer_ = 0;  ///< Connect, handshake or linger: never two of them at once.
    std::deque<std::shared_ptr<const std::string>> queue_;
    std::size_t sent_of_front_ = 0;
    std::uint64_t queued_bytes_ = 0;
    TimePoint held_until_{};  ///< Nothing is sent before; a fault's doing.
};

void ControlChannel::Core::start() {
    if (options_.connecting) {
        state_ = State::Connecting;
        startTimer(options_.connect_timeout, Code::Timeout,
                   "connecting to " + peer() + " took longer than " + inMilliseconds(options_.connect_timeout));
    } else {
        startTimer(options_.handshake_timeout, Code::Timeout,
                   peer() + " did not end its handshake within " + inMilliseconds(options_.handshake_timeout));
    }
    wantEvents();
}

void ControlChannel::Core::abandon() {
    handlers_.reset();
    end(Status(Code::Canceled, "the channel to " + peer() + " was destroyed"));
}

void ControlChannel::Core::startTimer(Duration after, Code code, std::string message) {
    stopTimer();
    if (after <= Duration::zero()) return;
    timer_ =
        reactor_.runAt(saturatedAdd(reactor_.now(), after), [weak = weak_from_this(), code, text = std::move(message)] {
            const auto self = weak.lock();
            if (!self || self->state_ == State::Closed) return;
            self->timer_ = 0;
            self->end(self->state_ == State::Finishing ? self->reason_ : Status(code, text));
        });
}

void ControlChannel::Core::stopTimer() {
    if (timer_ != 0) reactor_.cancelTimer(std::exchange(timer_, 0));
}

/// Writability is watched only while something waits for it, or the loop would spin.
void ControlChannel::Core::wantEvents() {
    if (state_ == State::Closed) return;
    std::uint32_t events = state_ == State::Connecting ? 0u : static_cast<std::uint32_t>(EPOLLIN);
    const bool is_held = faults_ != nullptr && reactor_.now() < held_until_;
    if (state_ == State::Connecting || (!queue_.empty() && !is_held)) events |= EPOLLOUT;
    if (events == watched_events_) return;
    watched_events_ = events;
    stream_->watch(events, [weak = weak_from_this()](std::uint32_t ready) {
        if (const auto self = weak.lock()) self->onReady(ready);
    });
}

void ControlChannel::Core::end(Status reason) {
    if (state_ == State::Closed) return;
    state_ = State::Closed;
    reason_ = reason.isOk() ? Status(Code::Canceled, "closed by this end") : std::move(reason);
    stopTimer();
    stream_.reset();
    queue_.clear();
    queued_bytes_ = 0;
    if (!handlers_) return;
    // Deferred, so that the owner never hears of the end in the middle of its own call.
    reactor_.post([weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        const auto handlers = std::exchange(self->handlers_, nullptr);
        if (handlers && handlers->onClosed) handlers->onClosed(self->reason_);
    });
}

void ControlChannel::Core::finish(Status reason) {
    if (state_ == State::Connecting) return end(std::move(reason));
    if (state_ != State::Open) return;
    state_ = State::Finishing;
    reason_ = reason.isOk() ? Status(Code::Canceled, "closed by this end") : std::move(reason);
    startTimer(std::max<Duration>(options_.linger_timeout, std::chrono::milliseconds(1)), Code::Timeout, {});
    flush();
}

Status ControlChannel::Core::send(std::shared_ptr<const std::string> frame) {
    if (!isOpen()) return reason_;
    if (faults_ != nullptr && isBrokenByFault(*frame)) return isOpen() ? Status::ok() : reason_;
    const std::uint64_t cost = frame->size() + kQueueOverhead;
    if (cost > options_.max_queued_bytes || queued_bytes_ > options_.max_queued_bytes - cost) {
        end(Status(Code::CapacityExceeded, peer() + " reads too slowly: " + std::to_string(queued_bytes_) +
                                               " bytes wait for it and " + std::to_string(cost) +
                                               " more would pass the bound of " +
                                               std::to_string(options_.max_queued_bytes)));
        return reason_;
    }
    queue_.push_back(std::move(frame));
    queued_bytes_ += cost;
    // With others queued before it, the socket is full and its writability is watched already.
    if (state_ == State::Open && queue_.size() == 1) flush();
    return state_ == State::Closed ? reason_ : Status::ok();
}

void ControlChannel::Core::spareFromFaults() {
    faults_ = nullptr;
    if (state_ == State::Open) flush();
}

/// True: it is not to be sent.
bool ControlChannel::Core::isBrokenByFault(const std::string& frame) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint16_t>(static_cast<unsigned char>(frame[i])); };
    const auto type = static_cast<ControlType>(at(kControlHeaderBytes - 2) | at(kControlHeaderBytes - 1) << 8);
    const auto verdict = faults_->judge(FaultPoint::ControlFrame, controlTypeName(type) + " " + peer());
    if (!verdict) return false;
    if (verdict->action == FaultAction::Delay) {
        holdBack(verdict->delay);
        return false;
    }
    if (verdict->action == FaultAction::Fail) end(verdict->cause);
    return true;
}

void ControlChannel::Core::holdBack(Duration time) {
    held_until_ = std::max(held_until_, saturatedAdd(reactor_.now(), time));
    reactor_.runAt(held_until_, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && (self->state_ == State::Open || self->state_ == State::Finishing)) self->flush();
    });
}

void ControlChannel::Core::flush() {
    if (faults_ != nullptr && reactor_.now() < held_until_) return wantEvents();
    std::size_t budget = kWritePerTurn;
    while (!queue_.empty() && budget > 0) {
        std::array<iovec, kFramesPerWrite> parts{};
        std::size_t count = 0;
        std::size_t skip = sent_of_front_;
        for (auto it = queue_.begin(); it != queue_.end() && count < parts.size(); ++it) {
            // sendmsg takes its input as non-const; it does not write to it.
            parts[count++] = {const_cast<char*>((*it)->data()) + skip, (*it)->size() - skip};
            skip = 0;
        }
        const ssize_t sent = stream_->send({parts.data(), count});
        if (sent == -EINTR) continue;
        if (sent == -EAGAIN || sent == -EWOULDBLOCK) break;
        if (sent < 0) return onSocketError("send to ", static_cast<int>(-sent));
        dropSent(static_cast<std::size_t>(sent));
        budget -= std::min(budget, static_cast<std::size_t>(sent));
    }
    if (queue_.empty() && state_ == State::Finishing) stream_->endOutput();
    wantEvents();
}

void ControlChannel::Core::dropSent(std::size_t bytes) {
    while (!queue_.empty() && bytes >= queue_.front()->size() - sent_of_front_) {
        bytes -= queue_.front()->size() - sent_of_front_;
        queued_bytes_ -= queue_.front()->size() + kQueueOverhead;
        queue_.pop_front();
        sent_of_front_ = 0;
    }
    sent_of_front_ += bytes;
}

void ControlChannel::Core::onReady(std::uint32_t events) {
    if (state_ == State::Connecting) return onConnectOutcome();
    if (state_ != State::Closed && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) onReadable();
    if (state_ != State::Closed && (events & EPOLLOUT) != 0) flush();
}

void ControlChannel::Core::onConnectOutcome() {
    if (auto status = stream_->connectOutcome(); !status) return end(status.withContext("connect to " + peer()));
    state_ = State::Open;
    last_received_ = reactor_.now();
    startTimer(options_.handshake_timeout, Code::Timeout,
               peer() + " did not end its handshake within " + inMilliseconds(options_.handshake_timeout));
    const auto handlers = handlers_;
    if (handlers && handlers->onConnected) handlers->onConnected();
    if (state_ == State::Open) flush();
}

void ControlChannel::Core::onReadable() {
    std::array<std::byte, kReadPerTurn> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by recv.
    const ssize_t got = stream_->receive(buffer);
    if (got == 0) return onEndOfStream();
    if (got < 0) {
        if (got == -EAGAIN || got == -EWOULDBLOCK || got == -EINTR) return;
        return onSocketError("receive from ", static_cast<int>(-got));
    }
    last_received_ = reactor_.now();
    if (state_ == State::Open) deliver({buffer.data(), static_cast<std::size_t>(got)});
}

void ControlChannel::Core::deliver(std::span<const std::byte> bytes) {
    std::vector<ControlFrame> frames;
    const Status status = reader_.feed(bytes, frames);
    // A handler may close or destroy the channel, which clears handlers_; this copy lives until they all returned.
    const auto handlers = handlers_;
    for (auto& frame : frames) {
        if (state_ != State::Open || !handlers_) return;
        if (handlers->onFrame) handlers->onFrame(std::move(frame));
    }
    if (!status && state_ == State::Open) end(status.withContext(peer()));
}

void ControlChannel::Core::onEndOfStream() {
    if (state_ == State::Finishing) return end(Status(reason_));
    end(Status(Code::ConnectionLost, peer() + (reader_.atFrameBorder() ? " closed its control connection"
                                                                       : " closed its control connection in the "
                                                                         "middle of a frame")));
}

void ControlChannel::Core::onSocketError(std::string_view call, int error) {
    if (state_ == State::Finishing) return end(Status(reason_));
    end(errnoStatus(Code::ConnectionLost, std::string(call) + peer(), error));
}

ControlChannel::ControlChannel(Reactor& reactor, std::unique_ptr<Stream> stream, ControlChannelOptions options,
                               ControlChannelHandlers handlers)
    : core_(std::make_shared<Core>(reactor, std::move(stream), std::move(options), std::move(handlers))) {
    core_->start();
}

ControlChannel::ControlChannel(Reactor& reactor, UniqueFd fd, ControlChannelOptions options,
                               ControlChannelHandlers handlers)
    : ControlChannel(reactor, makeStream(reactor, std::move(fd)), std::move(options), std::move(handlers)) {}

ControlChannel::~ControlChannel() { core_->abandon(); }

Status ControlChannel::send(std::string frame) {
    return core_->send(std::make_shared<const std::string>(std::move(frame)));
}

Status ControlChannel::send(std::shared_ptr<const std::string> frame) { return core_->send(std::move(frame)); }

void ControlChannel::handshakeDone() { core_->handshakeDone(); }

void ControlChannel::spareFromFaults() { core_->spareFromFaults(); }

void ControlChannel::close(Status reason) { core_->end(std::move(reason)); }

void ControlChannel::finish(Status reason) { core_->finish(std::move(reason)); }

bool ControlChannel::isOpen() const { return core_->isOpen(); }

TimePoint ControlChannel::lastReceived() const { return core_->lastReceived(); }

bool ControlChannel::isMidFrame() const { return core_->isMidFrame(); }

std::uint64_t ControlChannel::queuedBytes() const { return core_->queuedBytes(); }

const std::string& ControlChannel::peer() const { return core_->peer(); }

}  // namespace troupe
