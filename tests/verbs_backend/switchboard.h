#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "transports/control_exchange.h"
#include "transports/transport.h"

namespace troupe::verbs::testing {

/// The control connections between the nodes of a test.
class Switchboard : public std::enable_shared_from_this<Switchboard> {
  public:
    /// What passes may be looked at and changed; with false it is lost.
    using Tap = std::function<bool(std::string&)>;
    void tapQuestions(Tap tap) {
        const std::lock_guard lock(mutex_);
        on_question_ = std::move(tap);
    }
    void tapReplies(Tap tap) {
        const std::lock_guard lock(tap_mutex_);
        on_reply_ = std::move(tap);
    }

    std::unique_ptr<ControlExchange> join(const Incarnation& who) {
        const std::lock_guard lock(mutex_);
        connections_[who] = ++last_connection_;
        return std::make_unique<Line>(shared_from_this(), who);
    }
    void serve(const Incarnation& who, Transport& transport) {
        const std::lock_guard lock(mutex_);
        transports_[who] = &transport;
    }
    void leave(const Incarnation& who) {
        const std::lock_guard lock(mutex_);
        transports_.erase(who);
        hangUpLocked(who);
    }
    /// The connections that `who` asks over end, and it makes new ones.
    void hangUp(const Incarnation& who) {
        const std::lock_guard lock(mutex_);
        hangUpLocked(who);
        connections_[who] = ++last_connection_;
        // No test has more than one peer, or gives one an index.
        if (const auto own = transports_.find(who); own != transports_.end()) own->second->peerLeft(0);
    }
    std::size_t questions() const {
        const std::lock_guard lock(mutex_);
        return questions_;
    }

  private:
    struct Line final : ControlExchange {
        Line(std::shared_ptr<Switchboard> of, const Incarnation& who) : board(std::move(of)), own(who) {}
        void ask(std::uint32_t, const Incarnation& whom, const std::string&, std::string question, TimePoint,
                 Answered answered) override {
            board->ask(own, whom, std::move(question), answered);
        }
        std::shared_ptr<Switchboard> board;
        Incarnation own;
    };

    void ask(const Incarnation& own, const Incarnation& whom, std::string question,
             const ControlExchange::Answered& answered) {
        std::unique_lock lock(mutex_);
        ++questions_;
        const auto found = transports_.find(whom);
        if (found == transports_.end() || connections_.count(own) == 0) {
            lock.unlock();
            return answered(Status(Code::PeerDown, "nobody there"));
        }
        if (on_question_ && !on_question_(question)) return;
        found->second->answer({own, connections_[own]}, std::move(question),
                              [answered, self = shared_from_this()](Result<std::string> reply) {
                                  if (reply) {
                                      const std::lock_guard tap(self->tap_mutex_);
                                      if (self->on_reply_ && !self->on_reply_(*reply)) return;
                                  }
                                  answered(std::move(reply));
                              });
    }
    void hangUpLocked(const Incarnation& who) {
        const auto found = connections_.find(who);
        if (found == connections_.end()) return;
        for (const auto& [other, transport] : transports_) transport->askerLeft(found->second);
        connections_.erase(found);
    }

    mutable std::mutex mutex_;
    std::mutex tap_mutex_;  ///< Of on_reply_.
    Tap on_question_;
    Tap on_reply_;
    std::map<Incarnation, Transport*> transports_;
    std::map<Incarnation, std::uint64_t> connections_;
    std::uint64_t last_connection_ = 0;
    std::size_t questions_ = 0;
};

}  // namespace troupe::verbs::testing
