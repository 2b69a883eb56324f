// The Supervisor and what it does when an actor that cannot be made anew ends by a defect.

#include "actors/supervisor.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <mutex>
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
        auto nic = std::make_unique<FakeNic>(nicInfo(100, 100, 1000));
        nic->destroyed = &nic_destroyed;
        std::vector<PlacedNic> nics;
        nics.push_back({0, std::move(nic)});
        return nics;
    }
    Status registerMemory(const Region&) override { return {}; }
    Status unregisterMemory(const Region&) override { return {}; }
    void describe(SegmentDesc&) const override {}
    Status reaches(const SegmentDesc&) const override { return {}; }

    bool nic_destroyed = false;  ///< The data loop's.
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
            batches_.endAll(why);
        };
        supervisor_ = spawnHosted<Supervisor>(control_, std::move(plan), silentLog());
        std::promise<Status> installed;
        caf::anon_send(supervisor_,
                       InstallTransport{transport_, 0, [&](const Status& done) { installed.set_value(done); }});
        EXPECT_TRUE(installed.get_future().get());
    }
    ~SupervisorTest() override {
        caf::anon_send(supervisor_, Shutdown{Clock::now()});
        auto ended = ended_.get_future();
        EXPECT_EQ(ended.wait_for(kPatience), std::future_status::ready);
        supervisor_ = nullptr;
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
    caf::actor actorNamed(const std::string& which) {
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
    caf::actor supervisor_;
    std::promise<Status> ended_;
    std::mutex said_mutex_;  ///< Guards said_: the test reads what the control loop's thread writes.
    std::vector<std::string> said_;
};

TEST_P(SupervisorTest, ADefectOfWhatCannotBeMadeAnewEndsEveryTransferAndEveryNic) {
    std::vector<std::byte> memory(4096);
    Region region;
    region.range = {reinterpret_cast<std::uint64_t>(memory.data()), memory.size()};
    regions_.commit(regions_.reserve(region)->id);
    TaskSpec spec;
    spec.local = memory.data();
    spec.remote = 0x100000;
    spec.length = 2048;
    spec.segment = kLocalSegmentID;
    const BatchID id = *batches_.allocate(2, 0);
    const SubmitTasks submit = addTasks(batches_, id, {spec, spec}, regions_.regions().version());
    caf::anon_send(root().trackers().at(0), submit);

    caf::anon_send_exit(actorNamed(GetParam()), caf::exit_reason::unhandled_exception);
    EXPECT_TRUE(batches_.find(id)->sleepUntilDone(Clock::now() + kPatience)) << "somebody waits for ever";
    for (std::uint32_t i = 0; i < 2; ++i) {
        const TransferStatus status = batches_.find(id)->taskStatus(i);
        EXPECT_TRUE(isTerminal(status.s));
        EXPECT_TRUE(status.quiesced);
    }
    const TimePoint limit = Clock::now() + kPatience;
    while (said().size() < 2 && Clock::now() < limit) std::this_thread::yield();
    EXPECT_THAT(said(), testing::ElementsAre(testing::HasSubstr("fatal: Internal"), "gone"));
}

INSTANTIATE_TEST_SUITE_P(Of, SupervisorTest, testing::Values("directory", "tracker", "worker"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace troupe::test
