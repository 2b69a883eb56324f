// The Supervisor and what it does when an actor that cannot be made anew ends by a defect.

#include "actors/supervisor.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>

#include "actors/batch_tracker.h"
#include "base/endpoint.h"
#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::chrono::seconds kPatience{60};

/// One Nic, which keeps what it is given until it is destroyed.
class KeepingTransport final : public Transport {
  public:
    std::string name() const override { return "keeping"; }
    Status install(const TransportContext&) override { return {}; }
    std::vector<PlacedNic> takeNics() override {
        if (throws) throw std::bad_alloc();
        auto nic = std::make_unique<FakeNic>(nicInfo(100, 100, 1000));
        nic->destroyed = &nic_destroyed;
        last_nic = nic.get();
        std::vector<PlacedNic> nics;
        nics.push_back({0, std::move(nic)});
        return nics;
    }
    Status registerMemory(const Region&) override { return {}; }
    Status unregisterMemory(const Region&) override { return {}; }
    void describe(SegmentDesc&) const override {}
    Status reaches(const SegmentDesc&) const override { return {}; }

    bool nic_destroyed = false;   ///< The data loop's.
    FakeNic* last_nic = nullptr;  ///< The same.
    bool throws = false;
};

/// An engine's actors, without the engine.
class SupervisorTest : public testing::TestWithParam<const char*> {
  protected:
    SupervisorTest() {
        EXPECT_TRUE(control_.start());
        EXPECT_TRUE(data_.start());
        Supervisor::Plan plan;
        plan.control_loop = &control_;
        plan.data_loops = {&data_};
        plan.local.name = "self";
        plan.local.incarnation = Incarnation::random();
        plan.local.control = Endpoint{"127.0.0.1", 1};
        plan.listener = makeListener(control_, listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0)).value());
        plan.regions = &regions_;
        plan.batches = &batches_;
        plan.board = &board_;
        plan.quarantine = &quarantine_;
        plan.settings = &settings_;
        plan.on_ended = [this](const Status& held) { ended_.set_value(held); };
        plan.on_fatal = [this](const Status& why) { say("fatal: " + why.toString()); };
        plan.on_data_plane_gone = [this](const Status& why) {
            say(transport_->nic_destroyed ? "gone" : "gone, but for a Nic");
            batches_.endAll(
                why, [this](const ByteRange& source) { return quarantine_.heldIn(source, Clock::now()).isOk(); });
        };
        supervisor_ = spawnHosted<Supervisor>(control_, std::move(plan), silentLog());
        std::promise<Status> installed;
        caf::anon_send(supervisor_,
                       InstallTransport{transport_, 0, [&](const Status& done) { installed.set_value(done); }});
        EXPECT_TRUE(installed.get_future().get());
        tracker_ = root().trackers().at(0);
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(memory_.data()), memory_.size()};
        regions_.commit(regions_.reserve(region)->id);
    }
    ~SupervisorTest() override {
        caf::anon_send(supervisor_, Shutdown{Clock::now()});
        // As freeEngine: a supervisor that ended by a defect has said so by now, or says it once all others have ended.
        auto ended = ended_.get_future();
        EXPECT_EQ(ended.wait_for(kPatience), std::future_status::ready);
        supervisor_ = nullptr;
        tracker_ = nullptr;
        data_.stop();
        control_.stop();
    }

    void say(const std::string& what) {
        const std::lock_guard lock(said_mutex_);
        said_.push_back(what);
    }
    std::vector<std::string> said() {
        const std::lock_guard lock(said_mutex_);
        return said_;
    }
    const Supervisor& root() {
        return *static_cast<const Supervisor*>(caf::actor_cast<caf::abstract_actor*>(supervisor_));
    }
    /// Of all of `memory_`, twice.
    SubmitTasks twoTasks(BatchID id) {
        TaskSpec spec;
        spec.local = memory_.data();
        spec.remote = 0x100000;
        spec.length = 2048;
        spec.segment = kLocalSegmentID;
        return addTasks(batches_, id, {spec, spec}, regions_.regions().version());
    }
    /// A defect of `which`.
    void provoke(const std::string& which) {
        if (which == "nic") return data_.post([this] { transport_->last_nic->throws = true; });
        if (which == "stray_work_of_the_control_loop") return control_.post([] { throw 1; });
        if (which == "stray_work_of_a_data_loop") return data_.post([] { throw std::runtime_error("stray"); });
        if (which == "transport") {
            const auto other = std::make_shared<KeepingTransport>();
            other->throws = true;
            caf::anon_send(supervisor_, InstallTransport{other, 1, [](const Status&) {}});
            return;
        }
        caf::anon_send_exit(actorNamed(which), caf::exit_reason::unhandled_exception);
    }
    void expectGone() {
        const TimePoint limit = Clock::now() + kPatience;
        while (said().size() < 2 && Clock::now() < limit) std::this_thread::yield();
        EXPECT_THAT(said(), testing::ElementsAre(testing::HasSubstr("fatal: Internal"), "gone"));
    }
    caf::actor actorNamed(const std::string& which) {
        if (which == "supervisor") return supervisor_;
        if (which == "directory") return root().directory();
        if (which == "tracker") return root().trackers().at(0);
        std::promise<caf::actor> worker;
        control_.post([&] { worker.set_value(root().workers().at(0)); });
        return worker.get_future().get();
    }

    static caf::actor_system_config& oneThread(caf::actor_system_config& config) {
        config.set("scheduler.max-threads", 1);
        return config;
    }

    caf::actor_system_config config_;
    caf::actor_system system_{oneThread(config_)};
    Loop control_{system_, Loop::Options{"test.ctl", {}, false, {}, nullptr}};
    Loop data_{system_, Loop::Options{"test.data", {}, false, {}, nullptr}};
    const Config settings_;
    RegistrationTable regions_;
    BatchTable batches_{4};
    SegmentBoard board_;
    Quarantine quarantine_{regions_, silentLog()};
    const std::shared_ptr<KeepingTransport> transport_ = std::make_shared<KeepingTransport>();
    std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
    caf::actor supervisor_;
    caf::actor tracker_;
    std::promise<Status> ended_;
    std::mutex said_mutex_;  ///< Guards said_: the test reads what the control loop's thread writes.
    std::vector<std::string> said_;
};

TEST_P(SupervisorTest, ADefectOfWhatCannotBeMadeAnewEndsEveryTransferAndEveryNic) {
    const BatchID id = *batches_.allocate(2, 0);
    caf::anon_send(root().trackers().at(0), twoTasks(id));

    provoke(GetParam());
    EXPECT_TRUE(batches_.find(id)->sleepUntilDone(Clock::now() + kPatience)) << "somebody waits for ever";
    for (std::uint32_t i = 0; i < 2; ++i) {
        const TransferStatus status = batches_.find(id)->taskStatus(i);
        EXPECT_TRUE(isTerminal(status.s));
        EXPECT_TRUE(status.quiesced);
    }
    expectGone();
}

TEST_P(SupervisorTest, WhatASubmitBringsAfterTheDefectEndsWhenTheSubmitIsOver) {
    const BatchID id = *batches_.allocate(4, 0);
    caf::anon_send(root().trackers().at(0), twoTasks(id));
    {
        // It is past its checks, and does nothing until everybody has gone.
        const BatchTable::Submit under_way(batches_);
        provoke(GetParam());
        expectGone();
        const SubmitTasks late = twoTasks(id);
        caf::anon_send(tracker_, late);
        EXPECT_FALSE(batches_.find(id)->done());
    }
    ASSERT_TRUE(batches_.find(id)->sleepUntilDone(Clock::now() + kPatience)) << "somebody waits for ever";
    for (std::uint32_t i = 2; i < 4; ++i) {
        const TransferStatus status = batches_.find(id)->taskStatus(i);
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
        EXPECT_EQ(status.error.code(), Code::Internal);
        EXPECT_TRUE(status.quiesced);
    }
}

INSTANTIATE_TEST_SUITE_P(Of, SupervisorTest,
                         testing::Values("directory", "tracker", "worker", "supervisor", "nic", "transport",
                                         "stray_work_of_the_control_loop", "stray_work_of_a_data_loop"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace troupe::test
