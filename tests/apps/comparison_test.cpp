// What bench and replay compare in the end must not have been there before: else a transfer that moves nothing passes.

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "apps/bench_row.h"
#include "apps/replay.h"
#include "tests/support/engine_pair.h"

namespace troupe::apps {
namespace {

class Comparison : public testing::Test {
  protected:
    void SetUp() override {
        auto stop = StopSignal::install();
        ASSERT_TRUE(stop) << stop.status().toString();
        stop_ = std::make_unique<StopSignal>(std::move(*stop));
        console_.stop = stop_.get();
    }

    std::unique_ptr<StopSignal> stop_;
    Console console_;
};

TEST_F(Comparison, ARowOfWritesFindsNothingOfWhatItExpectsInTheRemoteMemory) {
    constexpr std::uint64_t kBlock = 4096;
    test::EnginePair pair({}, kBlock);
    BenchOptions options;
    options.verify = true;
    options.seconds = 0.02;
    options.warmup = 0;
    const RowPlan plan{.write = true, .block_size = kBlock, .batch_size = 1, .threads = 1, .share = kBlock};
    const BenchMemory memory{{pair.local.data(), kBlock},
                             {pair.segment, "remote", {pair.remote.address(), kBlock}, "tcp"}};
    const auto contents = [&] {
        // On a machine that is busy a row may be over before its first write.
        for (std::uint64_t batches = 0; batches == 0;) {
            const auto row = runRow(options, plan, *pair.a, memory, console_, [](double) {});
            EXPECT_TRUE(row && row->verified) << row.status().toString();
            batches = row ? row->batches : 1;
        }
        return std::vector<std::byte>(pair.remote.data(), pair.remote.data() + kBlock);
    };
    // The same row once more, by another transport say, as the demo has it: what is there already is of no use to it.
    const auto first = contents();
    EXPECT_NE(first, contents());
}

TEST_F(Comparison, AReplayWhoseReadsMoveNothingFails) {
    test::EngineSetup setup;
    setup.tcp = false;
    const auto served = test::startEngine(setup);
    ASSERT_TRUE(served->installTransport("null"));
    test::Buffer memory(1u << 20);
    ASSERT_TRUE(served->registerLocalMemory(memory.data(), memory.size()));
    ReplayOptions options;
    options.engine.transport = "null";
    options.engine.common.settings = {"host.peers=off"};
    options.target = served->localSegmentName();
    options.bytes_per_token = 1;
    options.as_fast_as_possible = true;
    // Stored from the very memory that it is then fetched to.
    TraceRequest request;
    request.input_tokens = 1;
    request.output_tokens = 1;
    request.hash_ids = {7};
    options.read = std::make_shared<const std::vector<TraceRequest>>(2, request);
    ReplayReport before;
    const auto report = replay(options, console_, &before);
    ASSERT_FALSE(report) << report->toString();
    EXPECT_EQ(report.status().code(), Code::ChecksumMismatch) << report.status().toString();
    EXPECT_EQ(before.requests, 1u);
}

}  // namespace
}  // namespace troupe::apps
