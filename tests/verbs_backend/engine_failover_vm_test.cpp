// What one link or one transport loses goes on by another. Runs in the VM.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;

constexpr std::size_t kPiece = 128u << 10;

/// Times in us. In the long form the median must be less than `bound`.
void expectMedian(const char* what, std::vector<long long> all, std::chrono::milliseconds bound) {
    if (all.empty()) return;
    std::sort(all.begin(), all.end());
    const long long median = all[all.size() / 2];
    std::printf("%s: p50 %lld us, worst %lld us, %zu of them\n", what, median, all.back(), all.size());
    if (isLong()) {
        EXPECT_LT(median, std::chrono::microseconds(bound).count()) << what;
    }
}

long long microseconds(Duration time) { return std::chrono::duration_cast<std::chrono::microseconds>(time).count(); }

/// Moves both halves of the memory in turn, one while the other is looked at, so that a link goes down during a
/// transfer; every byte has to arrive each time.
class Traffic {
  public:
    Traffic(Engines& engines, Opcode opcode)
        : engines_(engines),
          opcode_(opcode),
          from_(opcode == Opcode::Write ? engines.local : engines.remote),
          to_(opcode == Opcode::Write ? engines.remote : engines.local),
          half_(to_.size() / 2) {
        from_.fillPattern(1);
    }

    void moveWhileLost(std::optional<LinkDown>& down, const std::string& device) {
        std::atomic<bool> is_down{false};
        std::thread cutter([&] {
            down.emplace(device);
            is_down = true;
        });
        start(0);
        start(1);
        // Once more without the link.
        for (int more = 4, i = 0; more > 0; i = 1 - i) {
            if (is_down || testing::Test::HasFailure()) --more;
            finish(i);
            start(i);
        }
        finish(0);
        finish(1);
        cutter.join();
    }

    std::size_t moved = 0;              ///< Tasks of which something came back.
    std::vector<long long> to_sent;     ///< From the error until something was sent again, us.
    std::vector<long long> to_arrived;  ///< From the error until something arrived, us.
    std::string story;                  ///< Of the last of those tasks.

  private:
    void start(int which) {
        const std::size_t at = static_cast<std::size_t>(which) * half_;
        std::memset(to_.data() + at, 0, half_);
        std::vector<TransferRequest> requests;
        for (std::size_t done = 0; done < half_; done += kPiece)
            requests.push_back(engines_.request(opcode_, at + done, kPiece));
        batches_[which] = std::make_unique<BatchHolder>(*engines_.a, requests.size());
        EXPECT_TRUE(batches_[which]->submit(requests));
    }
    void finish(int which) {
        const std::size_t at = static_cast<std::size_t>(which) * half_;
        expectCompleted(batches_[which]->wait(), half_);
        EXPECT_EQ(std::memcmp(from_.data() + at, to_.data() + at, half_), 0);
        for (std::size_t i = 0; i < half_ / kPiece; ++i) {
            const auto how = engines_.a->explain(batches_[which]->id(), i);
            ASSERT_TRUE(how) << how.status().toString();
            if (how->attempts.empty()) continue;
            ++moved;
            story = how->toString();
            for (const auto& attempt : how->attempts)
                (attempt.cause.isOk() ? to_arrived : to_sent).push_back(microseconds(attempt.pause));
        }
        batches_[which].reset();
    }

    Engines& engines_;
    const Opcode opcode_;
    Buffer& from_;
    Buffer& to_;
    const std::size_t half_;
    std::unique_ptr<BatchHolder> batches_[2];
};

TEST(VerbsVmFailover, WorkGoesOnOverTheOtherLinkAndComesBackToTheFirst) {
    Engines engines("rxe_0a,rxe_1a", "rxe_0b,rxe_1b", 16u << 20);
    // The kernel lists first what was added first, and what one device has room for goes by the first of them.
    const std::uint64_t before = sentBy("r0.a");
    expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4u << 20)}), 4u << 20);
    const bool is_rail_0 = sentBy("r0.a") > before + (1u << 20);
    const std::string device = is_rail_0 ? "rxe_0a" : "rxe_1a";
    const std::string link = is_rail_0 ? "r0.a" : "r1.a";
    std::vector<long long> to_sent;
    std::vector<long long> to_arrived;
    const int rounds = isLong() ? 20 : 2;
    for (int round = 0, tries = 0; round < rounds && !testing::Test::HasFailure(); ++tries) {
        ASSERT_LT(tries, 5 * rounds) << "nothing was lost";
        Traffic traffic(engines, round % 2 == 0 ? Opcode::Write : Opcode::Read);
        std::optional<LinkDown> down;
        traffic.moveWhileLost(down, device);
        to_sent.insert(to_sent.end(), traffic.to_sent.begin(), traffic.to_sent.end());
        if (!traffic.to_arrived.empty())
            to_arrived.push_back(*std::min_element(traffic.to_arrived.begin(), traffic.to_arrived.end()));
        down.reset();
        const auto active = Clock::now();
        const std::uint64_t returned = sentBy(link);
        EXPECT_TRUE(eventually([&] {
            expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4u << 20)}), 4u << 20);
            return sentBy(link) > returned + (1u << 20);
        }));
        if (testing::Test::HasFailure())
            std::printf(
                "Whether a port is deaf to connections (docs/rdma.md) shows with VM_TEST_LOG=debug: then one end "
                "says 'no answer to the connection request' each time, and the other 'serves Nic 0 lane 0'.\n");
        if (traffic.moved == 0) continue;
        std::printf("round %d: %zu tasks moved; 1 MiB by the link %lld ms after it was active\n%s\n", round++,
                    traffic.moved, millisecondsSince(active), traffic.story.c_str());
    }
    expectMedian("from the error until sent again", to_sent, 50ms);
    expectMedian("from the error until the first of the lost bytes arrived by the other device", to_arrived, 50ms);
}

/// What lies beyond the own port dies, and the port stays up: no event says so, only retry counters that run out, one
/// for each queue pair. `opcode` of the tasks; they may be retried once, as ever.
void expectNoTaskFailsWhereARailDiesUnseen(std::uint32_t lanes, Opcode opcode) {
    EngineSetup own = Engines::setup("rxe_0a,rxe_1a", false);
    own.config.rdma_lanes = lanes;
    own.config.rdma_ack_timeout = 14;
    // What one device has room for goes by that alone.
    own.config.rdma_window_bytes = 1u << 20;
    EngineSetup others = Engines::setup("rxe_0b,rxe_1b", false);
    Engines engines(own, others, 8u << 20);
    Buffer& from = opcode == Opcode::Write ? engines.local : engines.remote;
    Buffer& to = opcode == Opcode::Write ? engines.remote : engines.local;
    from.fillPattern(12);
    const auto requests = engines.pieces(opcode, kPiece);
    // Until both rails carry: of READs it is the peer that sends.
    const std::string end = opcode == Opcode::Write ? ".a" : ".b";
    const auto carryBoth = [&] {
        const std::uint64_t before[] = {sentBy("r0" + end), sentBy("r1" + end)};
        expectCompleted(runBatch(*engines.a, requests), to.size());
        return sentBy("r0" + end) > before[0] + (1u << 20) && sentBy("r1" + end) > before[1] + (1u << 20);
    };
    ASSERT_TRUE(eventually(carryBoth));
    std::size_t moved = 0;
    {
        std::optional<Netem> dead;
        for (int tries = 0; moved == 0 && !testing::Test::HasFailure(); ++tries) {
            ASSERT_LT(tries, 20) << "nothing was lost";
            to.fill(std::byte{0});
            BatchHolder batch(*engines.a, requests.size());
            ASSERT_TRUE(batch.submit(requests));
            if (!dead) dead.emplace("r0.a", "loss 100%");
            expectCompleted(batch.wait(), to.size());
            EXPECT_TRUE(to.holdsPattern(12));
            for (std::size_t i = 0; i < requests.size(); ++i) {
                const auto how = engines.a->explain(batch.id(), i);
                ASSERT_TRUE(how) << how.status().toString();
                if (!how->attempts.empty() && moved++ == 0) std::printf("%s\n", how->toString().c_str());
            }
        }
        // And goes on so while it is dead.
        for (int more = 0; more < 3; ++more) expectCompleted(runBatch(*engines.a, requests), to.size());
    }
    std::printf("%u lanes: %zu tasks moved\n", lanes, moved);
    EXPECT_TRUE(eventually(carryBoth)) << "the rail is back and is not used";
}

TEST(VerbsVmFailover, WhereARailDiesAndTheOwnPortIsUpNoTaskFails) {
    for (const std::uint32_t lanes : {1u, 4u})
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) expectNoTaskFailsWhereARailDiesUnseen(lanes, opcode);
}

TEST(VerbsVmFailover, WithTheOnlyLinkDownWorkGoesOnByTcpAndReturnsToRdma) {
    Engines engines("rxe_0a", "rxe_0b", 16u << 20, true);
    const auto carrier = [&] {
        BatchHolder batch(*engines.a, 1);
        EXPECT_TRUE(batch.submit({engines.request(Opcode::Write, 0, 4096)}));
        expectCompleted(batch.wait(), 4096);
        const auto how = engines.a->explain(batch.id(), 0);
        return how ? how->toString() : how.status().toString();
    };
    EXPECT_EQ(carrier().rfind("rdma by rxe_0a; ", 0), 0u);
    const int rounds = isLong() ? 10 : 2;
    for (int round = 0, tries = 0; round < rounds && !testing::Test::HasFailure(); ++tries) {
        ASSERT_LT(tries, 5 * rounds) << "nothing was lost";
        Traffic traffic(engines, round % 2 == 0 ? Opcode::Read : Opcode::Write);
        std::optional<LinkDown> down;
        traffic.moveWhileLost(down, "rxe_0a");
        EXPECT_NE(carrier().find("tcp by tcp0"), std::string::npos) << "new work is not held up";
        down.reset();
        const auto active = Clock::now();
        EXPECT_TRUE(eventually([&] { return carrier().rfind("rdma by rxe_0a; ", 0) == 0; })) << carrier();
        if (traffic.moved == 0) continue;
        std::printf("round %d: %zu tasks moved; by rdma again %lld ms after the port was active\n%s\n", round++,
                    traffic.moved, millisecondsSince(active), traffic.story.c_str());
    }
}

}  // namespace
}  // namespace troupe
