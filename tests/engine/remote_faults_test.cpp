// Engines that others may break over the control port, by a connection of their own.

#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include "base/fault_injector.h"
#include "control/fault_asker.h"
#include "security/cluster_auth.h"
#include "tests/support/engine_pair.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

EngineSetup breakable(const std::string& key = "") {
    EngineSetup setup;
    setup.config.faults_enabled = true;
    setup.config.faults_remote = true;
    setup.config.auth_key = key;
    return setup;
}

std::string keyOf(char letter) { return std::string(32, letter); }

std::shared_ptr<const ClusterAuth> proving(const std::string& key) {
    Config config;
    config.auth_key = key;
    const auto auth = ClusterAuth::load(config);
    EXPECT_TRUE(auth) << auth.status().toString();
    return auth ? *auth : nullptr;
}

/// Asks `engine`, from the test's thread.
class Asking {
  public:
    explicit Asking(TransferEngine& engine, const std::string& key = "") {
        const auto desc = engine.getSegmentDescByID(kLocalSegmentID);
        EXPECT_TRUE(desc) << desc.status().toString();
        FaultAsker::Options options;
        options.control = (*desc)->control;
        options.whom = (*desc)->incarnation;
        options.asking = Incarnation::random();
        options.timeout = kPatience;
        options.keepalive = milliseconds(50);
        if (!key.empty()) options.auth = proving(key);
        options_ = options;
    }

    Result<FaultAnswer> ask(const FaultRequest& request) {
        if (!asker_) asker_.emplace(reactor_, options_);
        std::optional<Result<FaultAnswer>> said;
        asker_->ask(request, [&](Result<FaultAnswer> answer) {
            EXPECT_FALSE(said) << "answered twice";
            said = std::move(answer);
        });
        if (!reactor_.runUntil([&] { return said.has_value(); }, kPatience)) return Status(Code::Timeout, "no answer");
        return *said;
    }
    void runFor(Duration time) {
        const TimePoint until = Clock::now() + time;
        static_cast<void>(reactor_.runUntil([&] { return Clock::now() >= until; }, time + seconds(1)));
    }
    FaultAsker::Options& options() { return options_; }
    bool isOpen() const { return asker_ && asker_->isOpen(); }
    void leave() { asker_.reset(); }

  private:
    TestReactor reactor_;
    FaultAsker::Options options_;
    std::optional<FaultAsker> asker_;
};

FaultRequest failing(FaultPoint point) {
    FaultRequest request;
    request.kind = FaultRequest::Kind::Add;
    request.rule.point = point;
    request.rule.fraction = 1;
    request.rule.lasts = kLongestFault;
    return request;
}

FaultRequest freezing(unsigned loop, milliseconds time) {
    FaultRequest request;
    request.kind = FaultRequest::Kind::FreezeLoop;
    request.loop = loop;
    request.time = time;
    return request;
}

void awaitMended(TransferEngine& engine, FaultPoint point) {
    const auto injector = engine.faults();
    ASSERT_TRUE(injector);
    const TimePoint limit = Clock::now() + kPatience;
    while ((*injector)->judge(point, "tcp0 a") && Clock::now() < limit) std::this_thread::yield();
    EXPECT_FALSE((*injector)->judge(point, "tcp0 a"));
}

TEST(RemoteFaultsConfig, AloneTheSettingIsRefused) {
    EngineOptions options;
    options.config.faults_remote = true;
    options.log = makeSilentLogger();
    TransferEngine engine(std::move(options));
    const Status refused = engine.init("p2p", "");
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("faults.enabled"));
}

TEST(RemoteFaultsOfAnEngine, AreDeniedWithoutTheSetting) {
    EngineSetup own = breakable();
    own.config.faults_remote = false;
    for (const EngineSetup& setup : {EngineSetup(), own}) {
        const auto engine = startEngine(setup);
        Asking asking(*engine);
        const auto refused = asking.ask(FaultRequest{});
        expectCode(refused, Code::AccessDenied);
        EXPECT_THAT(refused.status().message(), HasSubstr("faults.remote"));
        EXPECT_TRUE(asking.isOpen()) << "it is the question that is refused";
    }
}

TEST(RemoteFaultsOfAnEngine, AreForWhoHasTheClusterKeyAlone) {
    const auto engine = startEngine(breakable(keyOf('k')));
    for (const std::string& key : {std::string(), keyOf('x')}) {
        Asking stranger(*engine, key);
        expectCode(stranger.ask(failing(FaultPoint::Post)), Code::AccessDenied);
        EXPECT_FALSE(stranger.isOpen());
    }
    const auto injector = engine->faults();
    ASSERT_TRUE(injector);
    EXPECT_FALSE((*injector)->judge(FaultPoint::Post, "tcp0 a"));
    Asking member(*engine, keyOf('k'));
    const auto set = member.ask(failing(FaultPoint::Post));
    ASSERT_TRUE(set) << set.status().toString();
    EXPECT_TRUE((*injector)->judge(FaultPoint::Post, "tcp0 a"));
}

TEST(RemoteFaultsOfAnEngine, AreMeantForOneIncarnation) {
    const auto engine = startEngine(breakable());
    Asking asking(*engine);
    asking.options().whom = Incarnation::random();
    expectCode(asking.ask(FaultRequest{}), Code::StaleIncarnation);
    EXPECT_FALSE(asking.isOpen());
}

TEST(RemoteFaultsOfAnEngine, AFrozenLoopThawsWhenTheAskerGoes) {
    EnginePair pair(breakable());
    Asking asking(*pair.b);
    expectCompleted(pair.write(0, 0, pair.local.size()), pair.local.size());
    ASSERT_TRUE(asking.ask(freezing(0, kLongestFault)));
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    asking.runFor(milliseconds(100));  // What should stand still gets a chance to move.
    EXPECT_EQ(batch.task(0).s, TransferStatusEnum::PENDING);
    asking.leave();
    expectCompleted(batch.wait(), pair.local.size());
}

TEST(RemoteFaultsOfAnEngine, TheyDoNotBefallTheConnectionThatTheyAreMendedBy) {
    const auto engine = startEngine(breakable());
    Asking asking(*engine);
    for (const FaultAction action : {FaultAction::Fail, FaultAction::Lose}) {
        FaultRequest all = failing(FaultPoint::ControlFrame);
        all.rule.action = action;
        const auto set = asking.ask(all);
        ASSERT_TRUE(set) << set.status().toString();
        FaultRequest count;
        count.kind = FaultRequest::Kind::Count;
        count.id = set->id;
        const auto counted = asking.ask(count);
        ASSERT_TRUE(counted) << counted.status().toString();
        EXPECT_EQ(counted->seen, 0u);
        ASSERT_TRUE(asking.ask(FaultRequest{}));
    }
    EXPECT_TRUE(asking.isOpen());
}

TEST(RemoteFaultsOfAnEngine, WhoAskedKeepsTheConnectionAliveAndWhoIsSilentLosesIt) {
    EngineSetup setup = breakable();
    setup.config.keepalive_interval = milliseconds(250);
    setup.config.keepalive_timeout = seconds(1);
    const auto engine = startEngine(setup);
    Asking asking(*engine);
    const auto injector = engine->faults();
    ASSERT_TRUE(injector);
    ASSERT_TRUE(asking.ask(failing(FaultPoint::Post)));
    // Longer than the silence that the engine bears, which is twice its time-out.
    asking.runFor(seconds(3));
    EXPECT_TRUE(asking.isOpen());
    EXPECT_TRUE((*injector)->judge(FaultPoint::Post, "tcp0 a"));
    // Its reactor does not run any more, as when its process is stopped.
    awaitMended(*engine, FaultPoint::Post);
}

TEST(RemoteFaultsOfAnEngine, AFrozenControlLoopAnswersFirstAndGoesOnAfterItsTime) {
    const auto engine = startEngine(breakable());
    Asking asking(*engine);
    ASSERT_TRUE(asking.ask(freezing(FaultInjector::kControlLoop, milliseconds(100))));
    ASSERT_TRUE(asking.ask(FaultRequest{}));
    EXPECT_TRUE(asking.isOpen());
    const TimePoint asked = Clock::now();
    ASSERT_TRUE(asking.ask(freezing(FaultInjector::kControlLoop, seconds(50))));
    EXPECT_LT(Clock::now() - asked, seconds(45)) << "the answer waited for the thaw";
}

}  // namespace
}  // namespace troupe::test
