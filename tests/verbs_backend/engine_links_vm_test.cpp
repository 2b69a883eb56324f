// What becomes of an engine's transfers when links and peers go and come back. Runs in the VM.

#include <dirent.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;

/// Counts what is said, from `info` on.
class Counter final : public spdlog::sinks::base_sink<std::mutex> {
  public:
    std::size_t lines() {
        const std::lock_guard lock(mutex_);
        return lines_;
    }

  private:
    void sink_it_(const spdlog::details::log_msg&) override { ++lines_; }
    void flush_() override {}
    std::size_t lines_ = 0;
};

TEST(VerbsVmLinks, WithBothLinksDownTasksFailWithTheCauseAndWorkAgainAfterwards) {
    const auto counter = std::make_shared<Counter>();
    EngineSetup own = Engines::setup("rxe_0a,rxe_1a", false);
    own.options.log = std::make_shared<spdlog::logger>("counted", counter);
    Engines engines(own, Engines::setup("rxe_0b,rxe_1b", false), 16u << 20);
    expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4u << 20)}), 4u << 20);
    {
        std::optional<LinkDown> first;
        std::optional<LinkDown> second;
        TimePoint down{};
        std::thread cutter([&] {
            first.emplace("rxe_0a");
            second.emplace("rxe_1a");
            down = Clock::now();
        });
        // What is under way when the second goes, and what is submitted just after.
        TransferStatus status;
        TimePoint deadline{};
        do {
            auto requests = engines.pieces(Opcode::Write, 2u << 20);
            deadline = Clock::now() + 5s;
            for (TransferRequest& request : requests) request.deadline = deadline;
            status = runBatch(*engines.a, requests);
        } while (status.s == TransferStatusEnum::COMPLETED);
        const auto ended = Clock::now();
        cutter.join();
        expectWithin("terminal after both were down: " + status.error.toString(),
                     std::chrono::duration_cast<std::chrono::milliseconds>(ended - down), 5s + 500ms);
        expectWithin("terminal after the deadline",
                     std::chrono::duration_cast<std::chrono::milliseconds>(ended - deadline), 500ms);
        expectFailed(status, Code::ConnectionLost);
        EXPECT_TRUE(status.quiesced);
        EXPECT_NE(status.error.message().find("rxe_"), std::string::npos) << status.error.toString();
        const std::size_t before = counter->lines();
        const auto until = Clock::now() + 2s;
        std::size_t tried = 0;
        for (; Clock::now() < until; ++tried) {
            const TransferStatus next = runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)});
            expectFailed(next, Code::ConnectionLost);
            EXPECT_NE(next.error.message().find("rxe_"), std::string::npos) << next.error.toString();
            std::this_thread::sleep_for(20ms);
        }
        // Nobody fills a disk because two cables are out, however often work is tried.
        std::printf("%zu lines of log in 2 s, %zu tries\n", counter->lines() - before, tried);
        EXPECT_LE(counter->lines() - before, 20u);
        engines.expectFree();
    }
    engines.local.fillPattern(5);
    expectCompleted(untilCompleted(*engines.a, engines.request(Opcode::Write, 0, engines.local.size())),
                    engines.local.size());
    EXPECT_TRUE(engines.remote.holdsPattern(5));
}

TEST(VerbsVmLinks, AfterTheOnlyPortWasDownForSecondsTransfersWorkAgain) {
    Engines engines("rxe_0a", "rxe_0b", 1u << 20);
    expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)}), 4096);
    LinkDown down("rxe_0a");
    const auto when = Clock::now();
    const TransferStatus during = runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)});
    expectFailed(during, Code::ConnectionLost);
    EXPECT_NE(during.error.message().find("down"), std::string::npos) << during.error.toString();
    std::this_thread::sleep_until(when + (isLong() ? 8s : 1s));
    down.up();
    const auto active = Clock::now();
    engines.local.fillPattern(6);
    expectCompleted(untilCompleted(*engines.a, engines.request(Opcode::Write, 0, engines.local.size()), 1ms),
                    engines.local.size());
    expectWithin("transfers work after the port was active", since(active), 1000ms);
    EXPECT_TRUE(engines.remote.holdsPattern(6));
}

TEST(VerbsVmLinks, APeerThatIsStoppedEndsByTheDeadlineAndTheBufferIsFree) {
    Buffer local(4u << 20);
    const ServingProcess peer("rxe_0b", local.size());
    const auto a = startRdma("rxe_0a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto segment = a->openSegment(peer.segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    // Nobody answers connection requests from here on. (Pairs that are up its device goes on serving.)
    peer.stop();
    auto request = makeRequest(Opcode::Read, *segment, local.data(), peer.address, local.size());
    request.deadline = Clock::now() + 1s;
    const TransferStatus status = runBatch(*a, {request});
    std::printf("ended %lld ms after its deadline\n", millisecondsSince(request.deadline));
    EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT) << status.error.toString();
    EXPECT_TRUE(status.quiesced);
    expectNotWritten(local);
    peer.goOn();
    // Nor by what reaches it only now.
    expectNotWritten(local);
    request.deadline = kForever;
    expectCompleted(untilCompleted(*a, request), local.size());
    EXPECT_TRUE(local.holdsOnly(std::byte{0}, 0, local.size()));
}

std::size_t entriesOf(const char* folder) {
    DIR* open = ::opendir(folder);
    std::size_t count = 0;
    while (open != nullptr && ::readdir(open) != nullptr) ++count;
    if (open != nullptr) ::closedir(open);
    return count;
}

/// Kinds of things that the devices hold, as the kernel counts them.
std::string heldByDevices() {
    std::string text;
    std::FILE* said = ::popen("rdma resource | sed 's/cm_id [0-9]*//'", "r");
    char line[256];
    while (said != nullptr && std::fgets(line, sizeof line, said) != nullptr) text += line;
    if (said != nullptr) ::pclose(said);
    return text;
}

/// `connect`: rdma.connect of the one that stays.
void expectPeersToLeaveNothing(const std::string& connect) {
    Buffer local(65536);
    local.fillPattern(7);
    auto setup = rdmaSetup("rxe_0a");
    setup.config.rdma_connect = connect;
    const auto a = startRdma(setup);
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto meet = [&](int i) {
        Buffer remote(65536);
        auto peer = startRdma("rxe_0b");
        ASSERT_TRUE(peer->registerLocalMemory(remote.data(), remote.size()));
        const auto segment = a->openSegment(peer->localSegmentName());
        ASSERT_TRUE(segment) << segment.status().toString();
        expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), 65536)}),
                        65536);
        EXPECT_TRUE(remote.holdsPattern(7));
        // It dies before its segment is closed, or after.
        if (i % 2 == 0) peer.reset();
        EXPECT_TRUE(a->closeSegment(*segment));
    };
    meet(0);
    meet(1);
    std::string held;
    ASSERT_TRUE(eventually([&] { return std::exchange(held, heldByDevices()) == held; }));
    const std::size_t descriptors = entriesOf("/proc/self/fd");
    const std::size_t threads = entriesOf("/proc/self/task");
    const int count = isLong() ? 200 : 6;
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) meet(i);
    EXPECT_TRUE(eventually([&] { return heldByDevices() == held; })) << heldByDevices() << "where there was\n" << held;
    EXPECT_TRUE(eventually([&] { return entriesOf("/proc/self/fd") == descriptors; }))
        << entriesOf("/proc/self/fd") << " descriptors where there were " << descriptors;
    EXPECT_EQ(entriesOf("/proc/self/task"), threads);
}

TEST(VerbsVmLinks, PeersComeAndGoAndNothingIsLeft) { expectPeersToLeaveNothing("auto"); }

TEST(VerbsVmLinks, PeersConnectedByExchangeComeAndGoAndNothingIsLeft) { expectPeersToLeaveNothing("exchange"); }

TEST(VerbsVmLinks, APeerThatIsStoppedInMidTransferEndsByTheDeadlineAndTheBufferIsFree) {
    Buffer local(32u << 20);
    const ServingProcess peer("rxe_0b", local.size());
    const auto a = startRdma("rxe_0a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto segment = a->openSegment(peer.segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), peer.address, 4096)}), 4096);
    BatchHolder batch(*a, 32);
    std::vector<TransferRequest> requests;
    for (std::size_t i = 0; i < 32; ++i) {
        requests.push_back(
            makeRequest(Opcode::Write, *segment, local.data() + (i << 20), peer.address + (i << 20), 1u << 20));
        requests.back().deadline = Clock::now() + 3s;
    }
    ASSERT_TRUE(batch.submit(requests));
    while (!isTerminal(batch.task(0).s)) std::this_thread::sleep_for(1ms);
    peer.stop();
    // Its device goes on serving what is connected, so it may as well complete.
    const TransferStatus status = batch.wait();
    expectWithin("terminal after the deadline", since(requests.front().deadline), 1000ms);
    for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_TRUE(batch.task(i).quiesced);
        EXPECT_TRUE(batch.task(i).s == TransferStatusEnum::COMPLETED || !batch.task(i).error.message().empty());
    }
    expectNotWritten(local);
    peer.goOn();
    expectCompleted(untilCompleted(*a, makeRequest(Opcode::Read, *segment, local.data(), peer.address, local.size())),
                    local.size());
    EXPECT_FALSE(holdsOwn(local)) << "bytes were sent after the end";
}

TEST(VerbsVmLinks, FivePercentOfThePacketsLostCostTimeAndNoBytes) {
    EngineSetup own = Engines::setup("rxe_0a", false);
    // A loss costs a wait of that: 67 ms in place of 0.5 s.
    own.config.rdma_ack_timeout = 14;
    Engines engines(own, Engines::setup("rxe_0b", false), isLong() ? 2u << 20 : 256u << 10);
    expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)}), 4096);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        engines.local.fillPattern(opcode == Opcode::Write ? 8 : 9);
        engines.remote.fillPattern(opcode == Opcode::Write ? 9 : 8);
        const Netem one("r0.a", "loss 5%");
        const Netem other("r0.b", "loss 5%");
        const TransferStatus status = runBatch(*engines.a, {engines.request(opcode, 0, engines.local.size())});
        // Seven losses of one packet in a row break the pair, and a retry follows; that may happen twice.
        if (status.s != TransferStatusEnum::COMPLETED) {
            EXPECT_FALSE(status.error.message().empty());
            EXPECT_TRUE(status.quiesced);
            continue;
        }
        EXPECT_TRUE(engines.local.holdsPattern(8));
        EXPECT_TRUE(engines.remote.holdsPattern(8));
    }
}

TEST(VerbsVmLinks, PortsOfDifferentMtuAgreeOnTheSmaller) {
    // Of the device: 1024 for 1500 of the interface.
    shell("ip link set r1.b mtu 1500");
    {
        Engines engines("rxe_1a", "rxe_1b", 4u << 20);
        engines.local.fillPattern(10);
        expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, engines.local.size())}),
                        engines.local.size());
        EXPECT_TRUE(engines.remote.holdsPattern(10));
        engines.local.fill(std::byte{0});
        expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Read, 0, engines.local.size())}),
                        engines.local.size());
        EXPECT_TRUE(engines.local.holdsPattern(10));
    }
    shell("ip link set r1.b mtu 4200");
}

TEST(VerbsVmLinks, ADeviceThatIsDeletedInMidTransferHangsNobody) {
    {
        Engines engines("rxe_1a", "rxe_1b", 16u << 20);
        expectCompleted(runBatch(*engines.a, {engines.request(Opcode::Write, 0, 4096)}), 4096);
        engines.local.fillPattern(11);
        BatchHolder batch(*engines.a, 16);
        ASSERT_TRUE(batch.submit(engines.pieces(Opcode::Write, 1u << 20)));
        while (!isTerminal(batch.task(0).s)) std::this_thread::sleep_for(1ms);
        // Blocks until nobody uses it any more.
        shell("(rdma link delete rxe_1a; echo $? >/tmp/deleted) >/dev/null 2>&1 &");
        TransferStatus status = batch.wait();
        // What runs when it is deleted, and what is submitted later.
        for (int i = 0; i < 2; ++i) {
            std::printf("%s the deletion: %s %s\n", i == 0 ? "during" : "after", toString(status.s),
                        status.error.toString().c_str());
            if (status.s == TransferStatusEnum::COMPLETED)
                EXPECT_TRUE(engines.remote.holdsPattern(11));
            else
                EXPECT_TRUE(status.quiesced && !status.error.message().empty());
            if (i == 1) break;
            std::this_thread::sleep_for(500ms);
            status = runBatch(*engines.a, {engines.request(Opcode::Write, 0, engines.local.size())});
        }
        engines.expectFree();
    }
    EXPECT_TRUE(eventually([] { return ::access("/tmp/deleted", F_OK) == 0; })) << "the device was not let go";
    shell("rdma link add rxe_1a type rxe netdev r1.a && rm /tmp/deleted");
}

}  // namespace
}  // namespace troupe
