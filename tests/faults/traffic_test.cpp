// What `troupe faults` finds by: that its traffic sees a wrong byte, a touched buffer and a failure for what they are.

#include "apps/faults/traffic.h"

#include <gmock/gmock.h>

#include "base/fault_injector.h"
#include "tests/support/engine_pair.h"

namespace troupe::apps::faults {
namespace {

using test::EnginePair;
using test::kPatience;
using testing::HasSubstr;

class TrafficTest : public testing::Test {
  protected:
    static Traffic::Options options() {
        Traffic::Options options;
        options.block = 16u << 10;
        options.inflight = 4;
        options.deadline = kPatience;
        return options;
    }
    TrafficTest() : pair_({}, Traffic::localBytes(options())) {
        traffic_.emplace(*pair_.a, std::span(pair_.local.data(), pair_.local.size()), options());
        traffic_->aim(pair_.segment, {pair_.remote.address(0), pair_.remote.size()});
    }
    void runUntil(const std::function<bool()>& done) {
        const auto limit = Clock::now() + kPatience;
        while (!done() && Clock::now() < limit) {
            traffic_->step(Clock::now());
            if (const auto oldest = traffic_->oldest())
                static_cast<void>(pair_.a->waitTransfer(*oldest, std::chrono::milliseconds(1)));
        }
        ASSERT_TRUE(done());
    }
    void settle() {
        const auto limit = Clock::now() + kPatience;
        while (!traffic_->drain(Clock::now()) && Clock::now() < limit)
            static_cast<void>(pair_.a->waitTransfer(*traffic_->oldest(), std::chrono::milliseconds(1)));
    }
    const Tally& tally() const { return traffic_->tally(); }

    EnginePair pair_;
    std::optional<Traffic> traffic_;
};

TEST_F(TrafficTest, FindsNothingWhereNothingIsWrong) {
    runUntil([&] { return tally().completed >= 500; });
    EXPECT_EQ(tally().wrong, 0u) << tally().first_wrong;
    EXPECT_EQ(tally().failures() + tally().refused + tally().hung + tally().quarantined, 0u);
    EXPECT_EQ(tally().bytes, tally().completed * options().block);
}

TEST_F(TrafficTest, SeesOneWrongByteAtTheTarget) {
    // Every block is known after this many.
    runUntil([&] { return tally().completed >= 300; });
    settle();
    for (std::size_t i = 0; i < traffic_->blocks(); ++i) pair_.remote.data()[i * options().block + 77] ^= std::byte{1};
    runUntil([&] { return tally().wrong > 0; });
    EXPECT_THAT(tally().first_wrong, HasSubstr("wrong byte at 77"));
}

TEST_F(TrafficTest, AfterAFailedWriteABlockMayHoldEitherButNothingElse) {
    runUntil([&] { return tally().completed >= 300; });
    traffic_->setStorm(Traffic::Storm::Cancels);
    runUntil([&] { return tally().failures() >= 50; });
    traffic_->setStorm(Traffic::Storm::None);
    const auto before = tally().completed;
    runUntil([&] { return tally().completed >= before + 300; });
    EXPECT_EQ(tally().wrong, 0u) << tally().first_wrong;
    EXPECT_GT(tally().failed.at("Canceled"), 0u);
}

TEST_F(TrafficTest, WhatIsUnderWayWhenTheMemoryIsForgottenIsNotJudgedByIt) {
    for (int round = 0; round < 50; ++round) {
        const auto before = tally().completed;
        runUntil([&] { return tally().completed >= before + 40; });
        traffic_->step(Clock::now());
        // As another process with its own memory at the same place would.
        traffic_->forget();
        std::fill_n(pair_.remote.data(), pair_.remote.size(), std::byte{0});
        settle();
    }
    EXPECT_EQ(tally().wrong, 0u) << tally().first_wrong;
    EXPECT_EQ(tally().failures() + tally().refused, 0u);
}

TEST_F(TrafficTest, SeesABufferThatIsTouchedAfterItsEnd) {
    // Nothing of this is registered there, so all of it fails, and the buffers rest.
    traffic_->aim(pair_.segment, {pair_.remote.address(0) + pair_.remote.size(), pair_.remote.size()});
    runUntil([&] { return tally().failures() > 0; });
    settle();
    for (std::size_t i = 0; i < pair_.local.size(); i += options().block) pair_.local.data()[i] ^= std::byte{1};
    runUntil([&] { return tally().wrong > 0; });
    EXPECT_THAT(tally().first_wrong, HasSubstr("after its operation had ended"));
}

TEST(TrafficToADamagingTarget, AWriteThatFailedMayHaveLeftAnyByteAndOthersMayNot) {
    test::EngineSetup setup;
    setup.config.faults_enabled = true;
    setup.config.tcp_crc = true;
    setup.config.retry_count = 0;
    Traffic::Options options;
    options.block = 16u << 10;
    options.inflight = 4;
    options.deadline = kPatience;
    EnginePair pair(setup, Traffic::localBytes(options));
    FaultRule damage;
    damage.point = FaultPoint::Payload;
    damage.action = FaultAction::Corrupt;
    damage.fraction = 0.2;
    const auto injector = pair.b->faults();
    ASSERT_TRUE(injector && (*injector)->add(damage));
    for (const bool is_expected : {true, false}) {
        Traffic traffic(*pair.a, std::span(pair.local.data(), pair.local.size()), options);
        traffic.aim(pair.segment, {pair.remote.address(0), pair.remote.size()});
        if (is_expected) traffic.expectDamage();
        const auto limit = Clock::now() + kPatience;
        const auto is_done = [&] {
            return is_expected ? traffic.tally().failures() >= 200 : traffic.tally().wrong > 0;
        };
        while (!is_done() && Clock::now() < limit) {
            traffic.step(Clock::now());
            if (const auto oldest = traffic.oldest())
                static_cast<void>(pair.a->waitTransfer(*oldest, std::chrono::milliseconds(1)));
        }
        ASSERT_TRUE(is_done());
        EXPECT_EQ(traffic.tally().wrong > 0, !is_expected) << traffic.tally().first_wrong;
        EXPECT_GT(traffic.tally().failed.at("ChecksumMismatch"), 0u);
    }
}

TEST_F(TrafficTest, TellsDetectionEndAndRecovery) {
    runUntil([&] { return tally().completed >= 20; });
    traffic_->step(Clock::now());
    const TimePoint fault = Clock::now();
    traffic_->markFault(fault);
    ASSERT_TRUE(pair_.b->uninstallTransport("tcp"));
    runUntil([&] { return traffic_->firstFailure() && traffic_->allEnded(); });
    EXPECT_GE(*traffic_->firstFailure(), fault);
    ASSERT_TRUE(pair_.b->installTransport("tcp"));
    traffic_->markHealed(Clock::now());
    runUntil([&] { return traffic_->firstSuccess().has_value(); });
    EXPECT_GE(*traffic_->firstSuccess(), *traffic_->firstFailure());
    EXPECT_EQ(tally().wrong, 0u) << tally().first_wrong;
}

}  // namespace
}  // namespace troupe::apps::faults
