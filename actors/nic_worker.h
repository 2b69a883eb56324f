#pragma once

#include <memory>
#include <vector>

#include "actors/hosted_actor.h"
#include "actors/worker_logic.h"

namespace troupe {

/// The actor around a WorkerLogic: owns one Nic and polls it on its loop.
class NicWorker final : public HostedActor, private Pollable, private WorkerOutput {
  public:
    NicWorker(caf::actor_config& config, Loop& loop, std::uint32_t index, std::unique_ptr<Nic> nic,
              std::vector<caf::actor> trackers, Quarantine& quarantine, Logger log);

    const char* name() const override { return "troupe.nic_worker"; }

    // For tell().
    void handle(const Train& train) { logic_->onTrain(train); }
    void handle(const ResetPath& reset) { logic_->onReset(reset); }

    /// Its mind, to look at; on the turn, or where no loop runs.
    const WorkerLogic& logic() const { return *logic_; }

  protected:
    caf::behavior make_behavior() override;
    void atEnd() override;

  private:
    bool poll(TimePoint now) override;
    bool arm() override;
    int waitFd() const override { return logic_->nic().waitFd(); }
    TimePoint nextDeadline() const override { return logic_->nextDeadline(); }
    void sendReport(std::uint32_t tracker, SliceReport& report) override;

    std::vector<caf::actor> trackers_;
    std::unique_ptr<WorkerLogic> logic_;
};

}  // namespace troupe
