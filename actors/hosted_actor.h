#pragma once

#include <type_traits>
#include <utility>

#include <caf/actor_cast.hpp>
#include <caf/actor_config.hpp>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/mailbox_element.hpp>

#include "actors/log_exception.h"
#include "actors/loop.h"
#include "base/log.h"

namespace troupe {

/// An actor that runs only on its Loop. Base of every actor of the engine.
///
/// Unexpected messages are dropped. An exception that escapes a handler, or anything else that the loop calls for the
/// actor (see Loop), is logged and ends it (the Supervisor sees it). It touches CAF internals as CAF's own brokers do
/// (see caf/io/abstract_broker.hpp): `enqueue` and `launch` always schedule on the loop.
class HostedActor : public caf::event_based_actor {
  public:
    HostedActor(caf::actor_config& config, Loop& loop, Logger log);

    using caf::abstract_actor::enqueue;
    void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* unit) final;
    void launch(caf::execution_unit* unit, bool lazy, bool hide) final;
    resume_result resume(caf::execution_unit* unit, std::size_t max_throughput) final;

    Loop& loop() const { return loop_; }

    /// For replies: has work done as this actor's by whoever holds it, on any thread. It does not keep the actor alive,
    /// so the work has to ask what there is left of it.
    class Home {
      public:
        explicit Home(const HostedActor& actor) : loop_(&actor.loop()), owner_(actor.ctrl()) {}
        /// On a turn of the loop that follows.
        void post(std::function<void()> work) const { loop_->postFor(owner_, std::move(work)); }
        /// Now; on the loop's turn. What escapes ends this actor, and not the one that calls.
        template <class Work>
        void run(Work&& work) const {
            loop_->run(Loop::Owned<Work&>{owner_, work});
        }

      private:
        Loop* loop_;
        caf::weak_actor_ptr owner_;
    };
    Home home() const { return Home(*this); }

    /// When afterMessages follows a message that was handled in place.
    enum class After {
        Now,
        NextIteration,  ///< Other messages will come before it, and share it.
    };

    /// Calls `handler` in place of sending the message it handles, where nobody could tell the difference: on the
    /// loop's turn, while no handler of this actor runs and its mailbox holds nothing that was sent before. Spares the
    /// mailbox and the dispatch, most of what a small message costs. False: nothing was done, send the message.
    template <class Handler>
    bool handleInPlace(Handler&& handler, After after = After::Now) {
        if (!loop_.onTurn() || busy_ || !mailbox().blocked()) return false;
        asHandler(std::forward<Handler>(handler), after);
        return true;
    }

  protected:
    /// Called once after each run of message handlers: the place to send what they gathered, as one message.
    virtual void afterMessages() {}
    /// The actor ends: it gives back what it has. What escapes is logged, and makes its end one by a defect.
    virtual void atEnd() {}

    /// An exception ends the actor, as one that escapes from a CAF handler does. On the turn.
    template <class Work>
    void guarded(Work&& work) {
        HostedActor* const before = std::exchange(loop_.acting_, this);
        try {
            work();
        } catch (...) {
            endByException();
        }
        loop_.acting_ = before;
    }

    /// Runs `work` as a message handler is run: what a timer of the actor's does. On the turn, not from a handler.
    template <class Work>
    void asHandler(Work&& work, After after = After::Now) {
        busy_ = true;
        guarded(std::forward<Work>(work));
        if (after == After::Now)
            guarded([this] { afterMessages(); });
        else
            loop_.runAfterMessages(this);
        busy_ = false;
    }

    Logger log_;

  private:
    friend class Loop;
    void on_exit() final;
    void endByException() noexcept;
    /// The rest of After::NextIteration.
    void finishMessages();

    Loop& loop_;
    caf::mailbox_element_ptr defect_;       ///< Tells it to end; made before there is no memory for it any more.
    bool busy_ = false;                     ///< A handler or afterMessages runs. On the turn.
    bool after_due_ = false;                ///< In the loop's list of actors whose afterMessages is due. On the turn.
    HostedActor* next_in_inbox_ = nullptr;  ///< Link of the loop's inbox; an actor is in it at most once.
};

template <class Function, class... Args>
void Loop::run(const Owned<Function>& callback, const Args&... args) {
    // Held while it runs: what it does may be the end of the actor.
    caf::strong_actor_ptr whose = callback.owner.lock();
    if (!whose && keeper_ != nullptr) whose = keeper_->ctrl();
    if (whose)
        return static_cast<HostedActor*>(caf::actor_cast<caf::abstract_actor*>(whose))->guarded([&] {
            callback.work(args...);
        });
    if (!options_.log) return callback.work(args...);
    try {
        callback.work(args...);
    } catch (...) {
        logException(*options_.log, "work of an actor that has ended", std::current_exception());
    }
}

/// Hands `message` to `to`, which has `handle(const Message&)`: in place when that can be, otherwise through its
/// mailbox. The message is moved from only when it goes through the mailbox. Any thread.
template <class Actor, class Message>
void tell(Actor& to, Message& message, HostedActor::After after = HostedActor::After::Now) {
    static_assert(std::is_base_of_v<HostedActor, Actor>);
    if (to.handleInPlace([&] { to.handle(std::as_const(message)); }, after)) return;
    to.enqueue(caf::make_mailbox_element(nullptr, caf::make_message_id(), caf::no_stages, std::move(message)), nullptr);
}

/// Spawns an actor of class T on `loop`; T's constructor gets (actor_config&, Loop&, args...). Hidden: it does not
/// count for the host's await_all_actors_done.
template <class T, class... Args>
caf::actor spawnHosted(Loop& loop, Args&&... args) {
    caf::actor_config config{loop.hostUnit()};
    return loop.system().spawn_impl<T, caf::hidden>(config, loop, std::forward<Args>(args)...);
}

}  // namespace troupe
