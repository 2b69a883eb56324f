#include "engine/engine_core.h"

#include <utility>

#include <caf/atom.hpp>

namespace troupe {

namespace {

EngineOptions withLog(EngineOptions options) {
    if (!options.log) options.log = makeDefaultLogger();
    return options;
}

}  // namespace

EngineCore::EngineCore(EngineOptions engine_options)
    : options(withLog(std::move(engine_options))),
      device_memory(options.config, options.log),
      quarantine(regions, options.log) {
    if (options.config.faults_enabled) faults = std::make_unique<FaultInjector>(options.config.faults_seed);
}

EngineCore::~EngineCore() {
    // Handles before the loops they are hosted on, and both before the system.
    actor_api.reset();
    trackers.clear();
    directory = nullptr;
    supervisor = nullptr;
    data_loops.clear();
    control_loop.reset();
}

Status EngineCore::usable() const {
    // Sequentially consistent, as BatchTable::Submit and what waits for those are.
    switch (life.load(std::memory_order_seq_cst)) {
        case Life::Running: break;
        case Life::Ended:
            return Status(Code::NotInitialised,
                          init_failed.isOk() ? "the engine was freed" : "init failed: " + init_failed.toString());
        default: return Status(Code::NotInitialised, "call init first");
    }
    if (failed.load(std::memory_order_seq_cst)) return fatal;
    return Status::ok();
}

Status EngineCore::mayWait() const {
    if (!Loop::onSomeTurn()) return Status::ok();
    if (onAnyTurn()) return {Code::InvalidArgument, "a blocking call on a loop of the engine would stop it"};
    // That one may be who is waited for: as the peer, or as the owner of a name in the store.
    return {Code::InvalidArgument,
            "a blocking call on a loop of another engine of this process would stop that one; make it from a thread "
            "of your own"};
}

bool EngineCore::onAnyTurn() const {
    if (control_loop && control_loop->onTurn()) return true;
    for (const auto& loop : data_loops)
        if (loop->onTurn()) return true;
    return false;
}

}  // namespace troupe
