#include "actors/nic_worker.h"

#include <utility>

#include <caf/behavior.hpp>

#include "actors/batch_tracker.h"

namespace troupe {

NicWorker::NicWorker(caf::actor_config& config, Loop& loop, std::uint32_t index, std::unique_ptr<Nic> nic,
                     std::vector<caf::actor> trackers, Quarantine& quarantine, Logger log)
    : HostedActor(config, loop, std::move(log)),
      trackers_(std::move(trackers)),
      logic_(std::make_unique<WorkerLogic>(index, std::move(nic), quarantine, static_cast<WorkerOutput&>(*this))) {}

caf::behavior NicWorker::make_behavior() {
    loop().addPollable(this);
    return {
        [this](const Train& train) { handle(train); },
        [this](const ResetPath& reset) { handle(reset); },
        [this](const UsePeer& use) { logic_->onUsePeer(use); },
        [this](const DropPeer& drop) { logic_->onDropPeer(drop); },
        [this](const AwaitPeersIdle& wait) { logic_->onAwaitPeersIdle(wait, loop().now()); },
        [this](const CloseToPeers& wait) { logic_->onCloseToPeers(wait, loop().now()); },
        [this](const OpenToPeers&) { logic_->onOpenToPeers(); },
        [this](const AwaitFlights& wait) { logic_->onAwaitFlights(wait, loop().now()); },
    };
}

void NicWorker::atEnd() {
    loop().removePollable(this);
    try {
        logic_->abandon(Status(Code::TransportMissing, "the transport was uninstalled or the engine ended"));
    } catch (...) {
        // Who hears that this one has ended takes it that the Nic has.
        logic_.reset();
        throw;
    }
    trackers_.clear();
}

bool NicWorker::poll(TimePoint now) {
    bool moved = true;
    guarded([&] { moved = logic_->poll(now); });
    return moved;
}

bool NicWorker::arm() {
    // Not armed, the loop goes on, and comes to the end of an actor whose Nic has thrown.
    bool quiet = false;
    guarded([&] { quiet = logic_->arm(); });
    return quiet;
}

void NicWorker::sendReport(std::uint32_t tracker, SliceReport& report) {
    tell(*caf::actor_cast<BatchTracker*>(trackers_[tracker]), report);
}

}  // namespace troupe
