// A control connection that is lost under pairs that were made over it: whole engines on the software device.

#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fault_injector.h"
#include "tests/support/engine_pair.h"
#include "tests/verbs_backend/soft_system.h"

namespace troupe::test {
namespace {

using verbs::testing::SoftVerbs;

constexpr std::size_t kTask = 4096;
constexpr std::size_t kTasks = 16;

EngineSetup onDevices(const std::string& devices) {
    EngineSetup setup;
    setup.tcp = false;
    setup.config.rdma_devices = devices;
    setup.config.rdma_connect = "exchange";
    setup.config.rdma_drain_timeout = std::chrono::milliseconds(50);
    // One loss would be one too many.
    setup.config.retry_count = 0;
    setup.config.faults_enabled = true;
    return setup;
}

/// The initiator's queue pairs that those of the peer belong to.
std::pair<std::uint32_t, std::uint32_t> peersOf(const SoftVerbs& soft) {
    return {soft.lastRoute("b0").dest_qp_num, soft.lastRoute("b1").dest_qp_num};
}

TEST(RdmaControl, AControlConnectionThatIsLostUnderPairsMadeOverItFailsNoTask) {
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"a0", "a1", "b0", "b1"});
        {
            const verbs::testing::SoftSystem system{soft};
            Buffer local(2 * kTask * kTasks);
            Buffer remote(2 * kTask * kTasks);
            local.fillPattern(opcode == Opcode::Write ? 1 : 2);
            remote.fillPattern(opcode == Opcode::Write ? 2 : 1);
            const auto a = startEngine(onDevices("a0,a1"));
            const auto b = startEngine(onDevices("b0,b1"));
            for (TransferEngine* const engine : {a.get(), b.get()}) {
                const auto rdma = engine->installTransport("rdma");
                ASSERT_TRUE(rdma) << rdma.status().toString();
            }
            ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
            ASSERT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
            const auto segment = a->openSegment(b->localSegmentName());
            ASSERT_TRUE(segment) << segment.status().toString();
            std::vector<TransferRequest> requests;
            // Apart from each other, so that none is merged with the next.
            for (std::size_t at = 0; at < local.size(); at += 2 * kTask)
                requests.push_back(makeRequest(opcode, *segment, local.data() + at, remote.address(at), kTask));
            // Both rails have pairs that work.
            expectCompleted(runBatch(*a, requests), kTask * kTasks);
            const auto before = peersOf(*soft);
            ASSERT_NE(soft->pairsOn("b0") + soft->pairsOn("b1"), 0u);

            soft->hold(true);
            BatchHolder batch(*a, requests.size());
            ASSERT_TRUE(batch.submit(requests));
            const auto limit = Clock::now() + kPatience;
            // But for those behind the first of a pair that is on trial.
            while (soft->held() < kTasks / 2 && Clock::now() < limit) std::this_thread::yield();
            ASSERT_GE(soft->held(), kTasks / 2);
            FaultRule rule;
            rule.point = FaultPoint::ControlFrame;
            rule.action = FaultAction::Fail;
            rule.where = "Ping";
            rule.nth = 1;
            const auto cut = (*a->faults())->add(rule);
            ASSERT_TRUE(cut) << cut.status().toString();
            Status alive;
            do alive = a->probePeerAliveByID(*segment, std::chrono::milliseconds(500));
            while ((*a->faults())->count(*cut)->fired == 0 && Clock::now() < limit);
            // The peer has ended its pairs by now, or has others.
            while (soft->pairsOn("b0") + soft->pairsOn("b1") != 0 && peersOf(*soft) == before && Clock::now() < limit)
                std::this_thread::yield();
            soft->hold(false);
            const TransferStatus status = batch.wait();
            EXPECT_EQ(status.s, TransferStatusEnum::COMPLETED) << status.error.toString();
            for (std::size_t i = 0; i < requests.size(); ++i)
                EXPECT_EQ(batch.task(i).s, TransferStatusEnum::COMPLETED) << batch.task(i).error.toString();
            for (std::size_t at = 0; at < local.size(); at += 2 * kTask)
                EXPECT_EQ(std::memcmp(local.data() + at, remote.data() + at, kTask), 0) << at;
        }
        EXPECT_EQ(soft->leftovers(), "");
        for (const std::string& violation : soft->violations()) ADD_FAILURE() << violation;
    }
}

}  // namespace
}  // namespace troupe::test
