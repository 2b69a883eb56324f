#include "actors/hosted_actor.h"

#include <exception>

#include <caf/exit_reason.hpp>
#include <caf/sec.hpp>

namespace troupe {

HostedActor::HostedActor(caf::actor_config& config, Loop& loop, Logger log)
    : caf::event_based_actor(config), log_(std::move(log)), loop_(loop) {
    set_default_handler(caf::drop);
    set_exception_handler([this](std::exception_ptr& thrown) -> caf::error {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::exception& e) {
            log_->critical("actor {} ended by an exception: {}", name(), e.what());
        } catch (...) {
            log_->critical("actor {} ended by an exception", name());
        }
        return caf::sec::runtime_error;
    });
}

void HostedActor::enqueue(caf::mailbox_element_ptr message, caf::execution_unit*) {
    caf::scheduled_actor::enqueue(std::move(message), loop_.hostUnit());
}

void HostedActor::launch(caf::execution_unit*, bool lazy, bool hide) {
    caf::scheduled_actor::launch(loop_.hostUnit(), lazy, hide);
}

caf::resumable::resume_result HostedActor::resume(caf::execution_unit* unit, std::size_t max_throughput) {
    const auto result = caf::event_based_actor::resume(unit, max_throughput);
    if (result != caf::resumable::done) afterMessages();
    return result;
}

}  // namespace troupe
