#pragma once

#include <utility>

#include <caf/actor_config.hpp>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>

#include "actors/loop.h"
#include "base/log.h"

namespace troupe {

/// An actor that runs only on its Loop. Base of every actor of the engine.
///
/// Unexpected messages are dropped; an exception that escapes a handler is logged and ends the actor (the
/// Supervisor sees it). It touches CAF internals as CAF's own brokers do (see caf/io/abstract_broker.hpp): `enqueue`
/// and `launch` always schedule on the loop.
class HostedActor : public caf::event_based_actor {
  public:
    HostedActor(caf::actor_config& config, Loop& loop, Logger log);

    using caf::abstract_actor::enqueue;
    void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* unit) final;
    void launch(caf::execution_unit* unit, bool lazy, bool hide) final;
    resume_result resume(caf::execution_unit* unit, std::size_t max_throughput) final;

    Loop& loop() const { return loop_; }

  protected:
    /// Called once after each run of message handlers: the place to send what they gathered, as one message.
    virtual void afterMessages() {}

    Logger log_;

  private:
    friend class Loop;
    Loop& loop_;
    HostedActor* next_in_inbox_ = nullptr;  ///< Link of the loop's inbox; an actor is in it at most once.
};

/// Spawns an actor of class T on `loop`; T's constructor gets (actor_config&, Loop&, args...). Hidden: it does not
/// count for the host's await_all_actors_done.
template <class T, class... Args>
caf::actor spawnHosted(Loop& loop, Args&&... args) {
    caf::actor_config config{loop.hostUnit()};
    return loop.system().spawn_impl<T, caf::hidden>(config, loop, std::forward<Args>(args)...);
}

}  // namespace troupe
