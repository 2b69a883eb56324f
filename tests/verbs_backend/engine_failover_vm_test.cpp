// What one link or one transport loses goes on by another. Runs in the VM.

#include <algorithm>
#include <cstdio>

#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;

void printMedian(const char* what, std::vector<long long> all) {
    if (all.empty()) return;
    std::sort(all.begin(), all.end());
    std::printf("%s: p50 %lld ms, worst %lld ms, %zu rounds\n", what, all[all.size() / 2], all.back(), all.size());
}

TEST(VerbsVmFailover, WorkGoesOnOverTheOtherLinkAndComesBackToTheFirst) {
    Engines engines("rxe_0a,rxe_1a", "rxe_0b,rxe_1b", 16u << 20);
    expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 8u << 20)}), 8u << 20);
    std::vector<long long> stalls;
    const int rounds = isLong() ? 20 : 2;
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
        const Opcode opcode = round % 2 == 0 ? Opcode::Write : Opcode::Read;
        engines.local.fillPattern(static_cast<std::uint64_t>(2 * round));
        engines.remote.fillPattern(static_cast<std::uint64_t>(opcode == Opcode::Write ? 2 * round + 1 : 2 * round));
        engines.local.fillPattern(static_cast<std::uint64_t>(opcode == Opcode::Write ? 2 * round : 2 * round + 1));
        const auto requests = engines.pieces(opcode, 2u << 20);
        BatchHolder batch(*engines.a, requests.size());
        const std::string sender = opcode == Opcode::Write ? "r0.a" : "r0.b";
        const std::uint64_t before = sentBy(sender);
        ASSERT_TRUE(batch.submit(requests));
        ASSERT_TRUE(eventually([&] { return sentBy(sender) > before + (1u << 20); }));
        LinkDown down("rxe_0a");
        // From here on the longest time without progress.
        long long stall = 0;
        std::uint64_t seen = 0;
        TimePoint since = Clock::now();
        TransferStatus status;
        ASSERT_TRUE(eventually([&] {
            std::uint64_t arrived = 0;
            for (std::size_t i = 0; i < requests.size(); ++i) arrived += batch.task(i).transferred_bytes;
            stall = std::max(stall, millisecondsSince(since));
            if (arrived != seen) since = Clock::now();
            seen = arrived;
            const auto now = engines.a->getBatchTransferStatus(batch.id());
            if (now) status = *now;
            return status.s != TransferStatusEnum::PENDING && status.s != TransferStatusEnum::WAITING;
        }));
        expectCompleted(status, engines.local.size());
        EXPECT_TRUE(engines.remote.holdsPattern(static_cast<std::uint64_t>(2 * round)));
        EXPECT_TRUE(engines.local.holdsPattern(static_cast<std::uint64_t>(2 * round)));
        stalls.push_back(stall);
        // New work is not held up, either.
        expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)}), 4096);
        down.up();
        const auto active = Clock::now();
        const std::uint64_t returned = sentBy("r0.a");
        EXPECT_TRUE(eventually([&] {
            expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 8u << 20)}), 8u << 20);
            return sentBy("r0.a") > returned + (1u << 20);
        }));
        std::printf("round %d: longest stall %lld ms; the link carried 1 MiB again %lld ms after it was active\n",
                    round, stall, millisecondsSince(active));
    }
    printMedian("stall", stalls);
}

TEST(VerbsVmFailover, WithTheOnlyLinkDownWorkGoesOnByTcpAndReturnsToRdma) {
    Engines engines("rxe_0a", "rxe_0b", 16u << 20, true);
    const auto carrierOf = [&] {
        BatchHolder batch(*engines.a, 1);
        EXPECT_TRUE(batch.submit({engines.request(Opcode::Write, 0, 4096)}));
        expectCompleted(batch.wait(), 4096);
        const auto how = engines.a->explain(batch.id(), 0);
        return how ? how->toString() : how.status().toString();
    };
    EXPECT_EQ(carrierOf().rfind("rdma by rxe_0a", 0), 0u);
    const int rounds = isLong() ? 10 : 2;
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
        const Opcode opcode = round % 2 == 0 ? Opcode::Read : Opcode::Write;
        const auto seed = static_cast<std::uint64_t>(2 * round);
        engines.local.fillPattern(opcode == Opcode::Write ? seed : seed + 1);
        engines.remote.fillPattern(opcode == Opcode::Write ? seed + 1 : seed);
        const auto requests = engines.pieces(opcode, 2u << 20);
        BatchHolder batch(*engines.a, requests.size());
        const std::string sender = opcode == Opcode::Write ? "r0.a" : "r0.b";
        const std::uint64_t before = sentBy(sender);
        ASSERT_TRUE(batch.submit(requests));
        ASSERT_TRUE(eventually([&] { return sentBy(sender) > before + (1u << 20); }));
        LinkDown down("rxe_0a");
        const auto lost = Clock::now();
        expectCompleted(batch.wait(), engines.local.size());
        std::printf("round %d, %s: done %lld ms after the link was lost\n", round,
                    opcode == Opcode::Write ? "writes" : "reads", millisecondsSince(lost));
        EXPECT_TRUE(engines.local.holdsPattern(seed));
        EXPECT_TRUE(engines.remote.holdsPattern(seed));
        const auto how = engines.a->explain(batch.id(), requests.size() - 1);
        ASSERT_TRUE(how) << how.status().toString();
        std::printf("%s\n", how->toString().c_str());
        // New work is not held up.
        EXPECT_NE(carrierOf().find("tcp by tcp0"), std::string::npos);
        down.up();
        const auto active = Clock::now();
        EXPECT_TRUE(eventually([&] { return carrierOf().rfind("rdma by rxe_0a", 0) == 0; }));
        std::printf("by rdma again %lld ms after the port was active\n", millisecondsSince(active));
    }
}

}  // namespace
}  // namespace troupe
