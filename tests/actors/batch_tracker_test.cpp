// The actor around a TrackerLogic: what it does on its loop's turn, and on whose thread.

#include "actors/batch_tracker.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/exit_reason.hpp>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::chrono::seconds kPatience{60};

class TrackerActor : public testing::Test {
  protected:
    TrackerActor() {
        Loop::Options options;
        options.name = "test.loop";
        options.drivable = true;
        loop_ = std::make_unique<Loop>(system_, options);
        EXPECT_TRUE(loop_->start());
        tracker_ = spawnHosted<BatchTracker>(*loop_, 0u, std::cref(regions_), std::cref(table_), caf::actor(),
                                             RetryBudget::Limits{}, silentLog());
    }
    ~TrackerActor() override {
        caf::anon_send_exit(tracker_, caf::exit_reason::user_shutdown);
        tracker_ = nullptr;
        loop_->stop();
    }
    BatchTracker& tracker() { return *caf::actor_cast<BatchTracker*>(tracker_); }

    static caf::actor_system_config& oneThread(caf::actor_system_config& config) {
        config.set("scheduler.max-threads", 1);
        return config;
    }

    caf::actor_system_config config_;
    caf::actor_system system_{oneThread(config_)};
    RegistrationTable regions_;
    BatchTable table_{4};
    std::unique_ptr<Loop> loop_;
    caf::actor tracker_;
};

/// A batch that this thread has pinned and another is about to free.
class PinnedWhileFreed {
  public:
    explicit PinnedWhileFreed(BatchTable& table) : id(*table.allocate(1, 0)), pinned_(table.find(id)) {
        freer_ = std::thread([&table, this] { freed_ = table.free(id); });
        while (table.findForTracker(id)) std::this_thread::yield();
    }
    Status free() {
        pinned_.reset();
        freer_.join();
        return freed_;
    }

    const BatchID id;

  private:
    std::optional<BatchTable::Pinned> pinned_;
    std::thread freer_;
    Status freed_;
};

TEST_F(TrackerActor, ACancelIsDeliveredByAThreadThatHoldsThePinWhichAFreeWaitsFor) {
    PinnedWhileFreed batch(table_);
    // As cancelTransfer does: in place, on this thread.
    loop_->deliver(Clock::now(), tracker(),
                   EndTasks{batch.id, EndTasks::kAllTasks, Status(Code::Canceled, "canceled by the caller")});
    EXPECT_TRUE(batch.free());
}

TEST_F(TrackerActor, AHistoryIsToldWhileAThreadHoldsThePinWhichAFreeWaitsFor) {
    PinnedWhileFreed batch(table_);
    std::promise<Status> told;
    caf::anon_send(tracker_, TellHistory{batch.id, 0,
                                         [&](const Result<TaskHistory>& so_far) { told.set_value(so_far.status()); }});
    auto answer = told.get_future();
    ASSERT_EQ(answer.wait_for(kPatience), std::future_status::ready);
    EXPECT_EQ(answer.get().code(), Code::StaleHandle);
    EXPECT_TRUE(batch.free());
}

}  // namespace
}  // namespace troupe::test
