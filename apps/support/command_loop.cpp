#include "apps/support/command_loop.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

namespace troupe::apps {

CommandLoop::CommandLoop() : system_config_(std::make_unique<caf::actor_system_config>()) {
    system_config_->set("scheduler.policy", caf::atom("sharing"));
    system_config_->set("scheduler.max-threads", 1);
    system_ = std::make_unique<caf::actor_system>(*system_config_);
}

Result<std::unique_ptr<CommandLoop>> CommandLoop::start(const std::string& thread) {
    std::unique_ptr<CommandLoop> made(new CommandLoop());
    made->loop_ = std::make_unique<Loop>(*made->system_, Loop::Options{thread, {}, false, {}});
    if (const Status started = made->loop_->start(); !started) return started;
    return made;
}

CommandLoop::~CommandLoop() {
    if (loop_) loop_->stop();
}

}  // namespace troupe::apps
