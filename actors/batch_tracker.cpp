#include "actors/batch_tracker.h"

#include <utility>

#include <caf/behavior.hpp>

#include "actors/nic_worker.h"
#include "messages/control_plane.h"

namespace troupe {

BatchTracker::BatchTracker(caf::actor_config& config, Loop& loop, std::uint32_t index, const RegistrationTable& regions,
                           const BatchTable& batches, caf::actor directory, RetryBudget::Limits retries, Logger log)
    : HostedActor(config, loop, std::move(log)),
      batches_(batches),
      directory_(std::move(directory)),
      logic_(index, index, regions, static_cast<TrackerOutput&>(*this), retries) {}

caf::behavior BatchTracker::make_behavior() {
    loop().keepBy(this);
    return {
        [this](const SubmitTasks& submit) { handle(submit); },
        [this](const SliceReport& report) { handle(report); },
        [this](const UsePeer& use) { logic_.onUsePeer(use); },
        [this](const DropPeer& drop) { logic_.onDropPeer(drop); },
        [this](const WorkerJoined& joined) {
            if (workers_.size() <= joined.index) workers_.resize(joined.index + 1);
            workers_[joined.index] = joined.worker;
            logic_.onWorkerJoined(joined);
        },
        [this](const EndTasks& end) { handle(end); },
        [this](const EndAll& end) { logic_.onEndAll(end); },
        [this](const TellHistory& question) { answer(question); },
        [this](const AwaitSourceIdle& wait) { logic_.onAwaitSourceIdle(wait, loop().now()); },
    };
}

void BatchTracker::handle(const SubmitTasks& submit) { logic_.onSubmit(submit, loop().iterationTime()); }

void BatchTracker::handle(const SliceReport& report) {
    last_suspect_ = UINT32_MAX;
    logic_.onReport(report, loop().iterationTime());
}

void BatchTracker::handle(const EndTasks& end) {
    if (const auto batch = batches_.findForTracker(end.batch)) logic_.onEndTasks(end, *batch);
}

void BatchTracker::answer(const TellHistory& question) {
    const auto batch = batches_.findForTracker(question.batch);
    if (!batch) return question.reply(BatchTable::stale(question.batch));
    const Task& task = batch->task(question.task);
    // Before its SubmitTasks it is the submitter's; that message is on its way.
    const bool ours = task.tracked || isTerminal(task.status(std::memory_order_acquire));
    question.reply(ours && task.history ? *task.history : TaskHistory());
}

void BatchTracker::atEnd() {
    loop().cancelTimer(timer_);
    logic_.onEnd();
    workers_.clear();
    directory_ = nullptr;
}

void BatchTracker::sendTrain(std::uint32_t worker, Train& train) {
    if (workers_[worker]) return tell(*caf::actor_cast<NicWorker*>(workers_[worker]), train);
    // It left a moment ago; the flights must not vanish with it.
    SliceReport report;
    report.worker = worker;
    report.paths.push_back({train.peer, false});
    for (const Flight& flight : train.flights) {
        report.failed.push_back(
            {flight, train.peer, Status(Code::TransportMissing, "the transport was uninstalled"), true, true, true});
        report.settled.push_back({flight.batch, flight.first_task, flight.task_count, train.peer, flight.length, 0});
    }
    tell(*this, report);
}

void BatchTracker::sendReset(std::uint32_t worker, ResetPath reset) {
    if (workers_[worker]) tell(*caf::actor_cast<NicWorker*>(workers_[worker]), reset);
}

void BatchTracker::suspectPeer(std::uint32_t peer, const Status& cause) {
    if (std::exchange(last_suspect_, peer) != peer) send(directory_, SuspectPeer{peer, cause});
}

void BatchTracker::wakeAt(TimePoint when) {
    loop().cancelTimer(timer_);
    timer_ = loop().runAt(when, [this] {
        timer_ = 0;
        asHandler([this] { logic_.onTimer(loop().now()); });
    });
}

}  // namespace troupe
