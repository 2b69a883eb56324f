#include "actors/hosted_actor.h"

#include <exception>

#include <caf/sec.hpp>
#include <caf/system_messages.hpp>

namespace troupe {

HostedActor::HostedActor(caf::actor_config& config, Loop& loop, Logger log)
    : caf::event_based_actor(config), log_(std::move(log)), loop_(loop) {
    set_default_handler(caf::drop);
    set_exception_handler([this](std::exception_ptr& thrown) -> caf::error {
        logException(*log_, name(), thrown);
        return caf::sec::runtime_error;
    });
    defect_ = caf::make_mailbox_element(nullptr, caf::make_message_id(), caf::no_stages,
                                        caf::exit_msg{address(), caf::make_error(caf::sec::runtime_error)});
}

void HostedActor::endByException() noexcept {
    logException(*log_, name(), std::current_exception());
    // Once: what it does until it hears of it changes nothing.
    if (defect_) enqueue(std::move(defect_), nullptr);
}

void HostedActor::on_exit() {
    HostedActor* const before = std::exchange(loop_.acting_, this);
    try {
        atEnd();
    } catch (...) {
        logException(*log_, name(), std::current_exception());
        fail_state_ = caf::make_error(caf::sec::runtime_error);
    }
    loop_.acting_ = before;
    if (loop_.keeper() == this) loop_.keepBy(nullptr);
}

void HostedActor::finishMessages() {
    after_due_ = false;
    if (mailbox().closed()) return;  // It ended meanwhile.
    busy_ = true;
    guarded([this] { afterMessages(); });
    busy_ = false;
}

void HostedActor::enqueue(caf::mailbox_element_ptr message, caf::execution_unit*) {
    if (loop_.holdBack(*this, message)) return;
    caf::scheduled_actor::enqueue(std::move(message), loop_.hostUnit());
}

void HostedActor::launch(caf::execution_unit*, bool lazy, bool hide) {
    caf::scheduled_actor::launch(loop_.hostUnit(), lazy, hide);
}

caf::resumable::resume_result HostedActor::resume(caf::execution_unit* unit, std::size_t max_throughput) {
    busy_ = true;
    HostedActor* const before = std::exchange(loop_.acting_, this);
    const auto result = caf::event_based_actor::resume(unit, max_throughput);
    loop_.acting_ = before;
    if (result != caf::resumable::done) guarded([this] { afterMessages(); });
    busy_ = false;
    return result;
}

}  // namespace troupe
