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
