#pragma once

#include <vector>

#include "actors/hosted_actor.h"
#include "actors/tracker_logic.h"

namespace troupe {

/// The actor around a TrackerLogic: one per data loop. Knows the workers by index.
class BatchTracker final : public HostedActor, private TrackerOutput {
  public:
    BatchTracker(caf::actor_config& config, Loop& loop, std::uint32_t index, const RegistrationTable& regions,
                 const BatchTable& batches, caf::actor directory, RetryBudget::Limits retries, Logger log);

    const char* name() const override { return "troupe.batch_tracker"; }

    // For tell().
    void handle(const SubmitTasks& submit);
    void handle(const SliceReport& report);
    void handle(const EndTasks& end);

    /// Its mind, to look at; on the turn, or where no loop runs.
    const TrackerLogic& logic() const { return logic_; }

  protected:
    caf::behavior make_behavior() override;
    void afterMessages() override { logic_.flush(); }
    void atEnd() override;

  private:
    void answer(const TellHistory& question);
    void sendTrain(std::uint32_t worker, Train& train) override;
    void sendReset(std::uint32_t worker, ResetPath reset) override;
    void suspectPeer(std::uint32_t peer, const Status& cause) override;
    void wakeAt(TimePoint when) override;

    const BatchTable& batches_;
    caf::actor directory_;
    std::vector<caf::actor> workers_;
    TrackerLogic logic_;
    Reactor::TimerId timer_ = 0;
    std::uint32_t last_suspect_ = UINT32_MAX;  ///< Told to the directory in this run of messages.
};

}  // namespace troupe
