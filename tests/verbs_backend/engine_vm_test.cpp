// Whole engines over Soft-RoCE, in this process and in others. Runs in the VM.

#include <cstring>
#include <optional>
#include <thread>

#include "tests/verbs_backend/vm_engines.h"

namespace troupe {
namespace {

using namespace test;

TEST(VerbsVmEngine, TwoEnginesMoveMemoryBothWaysOverNothingButRdma) {
    Buffer local(8u << 20);
    Buffer remote(8u << 20);
    const auto a = startRdma("rxe_0a");
    const auto b = startRdma("rxe_0b");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    ASSERT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    local.fillPattern(1);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), local.size())}),
                    local.size());
    EXPECT_TRUE(remote.holdsPattern(1));
    local.fill(std::byte{0});
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), remote.address(), local.size())}),
                    local.size());
    EXPECT_TRUE(local.holdsPattern(1));
    // And from the other side, on pairs of its own.
    const auto back = b->openSegment(a->localSegmentName());
    ASSERT_TRUE(back) << back.status().toString();
    remote.fillPattern(2);
    expectCompleted(runBatch(*b, {makeRequest(Opcode::Write, *back, remote.data(), local.address(), local.size())}),
                    local.size());
    EXPECT_TRUE(local.holdsPattern(2));
}

TEST(VerbsVmEngine, WithoutRdmaCmPairsAreMadeOverTheControlConnection) {
    Buffer local(1u << 20);
    auto setup = rdmaSetup("rxe_0a");
    setup.config.rdma_connect = "exchange";
    const auto a = startRdma(setup);
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    auto peer = std::make_unique<ServingProcess>("rxe_0b", local.size());
    const auto segment = a->openSegment(peer->segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    local.fillPattern(5);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), peer->address, local.size())}),
                    local.size());
    local.fill(std::byte{0});
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), peer->address, local.size())}),
                    local.size());
    EXPECT_TRUE(local.holdsPattern(5));
    // The control connection tells of its end; no connection of rdma_cm does.
    {
        BatchHolder batch(*a, 8);
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < 8; ++i)
            requests.push_back(makeRequest(Opcode::Write, *segment, local.data(), peer->address, local.size()));
        ASSERT_TRUE(batch.submit(requests));
        peer->kill();
        static_cast<void>(batch.wait());
        for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(batch.task(i).quiesced);
    }
    // And one that is asked by a peer without rdma_cm, though it has it itself.
    const auto b = startRdma("rxe_0b");
    Buffer remote(65536);
    ASSERT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
    const auto other = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(other) << other.status().toString();
    local.fillPattern(6);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *other, local.data(), remote.address(), 65536)}), 65536);
    EXPECT_TRUE(remote.holdsPattern(6));
    const auto back = b->openSegment(a->localSegmentName());
    ASSERT_TRUE(back) << back.status().toString();
    expectCompleted(runBatch(*b, {makeRequest(Opcode::Read, *back, remote.data(), local.address(), 65536)}), 65536);
}

TEST(VerbsVmEngine, OneLargeRequestUsesBothDevices) {
    const std::size_t bytes = isLong() ? 256u << 20 : 48u << 20;
    Buffer local(bytes);
    const ServingProcess peer("rxe_0b,rxe_1b", bytes);
    const auto a = startRdma("rxe_0a,rxe_1a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto segment = a->openSegment(peer.segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    const auto request = makeRequest(Opcode::Write, *segment, local.data(), peer.address, local.size());
    // Once to have both connected: a device that connects while the other is done with its share carries nothing.
    expectCompleted(runBatch(*a, {request}), local.size());
    const std::uint64_t before[] = {sentBy("r0.a"), sentBy("r1.a")};
    expectCompleted(runBatch(*a, {request}), local.size());
    const std::uint64_t carried[] = {sentBy("r0.a") - before[0], sentBy("r1.a") - before[1]};
    std::printf("carried: %llu and %llu bytes\n", static_cast<unsigned long long>(carried[0]),
                static_cast<unsigned long long>(carried[1]));
    EXPECT_GE(carried[0] * 10, local.size() * 3);
    EXPECT_GE(carried[1] * 10, local.size() * 3);
}

TEST(VerbsVmEngine, AKilledPeerFailsEveryTaskAndItsSuccessorAtTheSameAddressIsUsed) {
    constexpr std::size_t kBytes = 32u << 20;
    // Its successor has the port, and its memory at the same addresses, too: nothing but the incarnation differs.
    auto* const at = reinterpret_cast<void*>(0x5a0000000000);
    Buffer local(kBytes);
    const auto a = startRdma("rxe_0a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    auto peer = std::make_unique<ServingProcess>("rxe_0b", kBytes, 0, at);
    const auto segment = a->openSegment(peer->segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    ASSERT_EQ(peer->address, reinterpret_cast<std::uintptr_t>(at));
    local.fillPattern(3);
    {
        BatchHolder batch(*a, 32);
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < 32; ++i)
            requests.push_back(
                makeRequest(Opcode::Write, *segment, local.data() + (i << 20), peer->address + (i << 20), 1u << 20));
        ASSERT_TRUE(batch.submit(requests));
        // In mid-transfer: the first is over, the last is not.
        while (batch.task(0).s != TransferStatusEnum::COMPLETED && batch.task(0).s != TransferStatusEnum::FAILED)
            std::this_thread::sleep_for(1ms);
        peer->kill();
        const auto killed = Clock::now();
        const TransferStatus ended = batch.wait();
        expectWithin("terminal after the kill (" + ended.error.toString() + ")", since(killed), 1000ms);
        EXPECT_NE(ended.s, TransferStatusEnum::COMPLETED);
        for (std::size_t i = 0; i < 32; ++i) EXPECT_TRUE(batch.task(i).quiesced);
        // The buffer is ours again: nothing of this is found at the end, nor comes here.
        expectNotWritten(local);
    }
    const std::uint16_t port = peer->port();
    peer = std::make_unique<ServingProcess>("rxe_0b", kBytes, port, at);
    const auto restarted = Clock::now();
    ASSERT_EQ(peer->port(), port);
    local.fill(std::byte{4});
    expectCompleted(untilCompleted(*a, makeRequest(Opcode::Write, *segment, local.data(), peer->address, 4096)), 4096);
    std::printf("transfers work %lld ms after the restart\n", millisecondsSince(restarted));
    // What was meant for the first process was never written to the second.
    local.fill(std::byte{9});
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), peer->address, kBytes)}), kBytes);
    EXPECT_TRUE(local.holdsOnly(std::byte{4}, 0, 4096));
    EXPECT_TRUE(local.holdsOnly(std::byte{0}, 4096, kBytes - 4096));
}

TEST(VerbsVmEngine, ARegionRegisteredAfterTheSegmentWasOpenedIsUsable) {
    Buffer local(65536);
    Buffer first(65536);
    Buffer second(65536);
    const auto a = startRdma("rxe_0a");
    const auto b = startRdma("rxe_0b");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    ASSERT_TRUE(b->registerLocalMemory(first.data(), first.size()));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), first.address(), 64)}), 64);
    ASSERT_TRUE(b->registerLocalMemory(second.data(), second.size()));
    ASSERT_TRUE(a->syncSegmentCache());
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), second.address(), 64)}), 64);
}

TEST(VerbsVmEngine, ARegionThatRdmaWasInstalledBesideWhileItsUnregisterFailedIsServed) {
    EngineSetup with_tcp = rdmaSetup("rxe_0b");
    with_tcp.tcp = true;
    // Emulated, opening the devices takes a part of it.
    with_tcp.config.unregister_timeout = 3s;
    Buffer local(65536);
    Buffer remote(65536);
    Buffer other(65536);
    remote.fillPattern(8);
    const auto b = startEngine(with_tcp);
    const auto c = startEngine(with_tcp);
    ASSERT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
    ASSERT_TRUE(c->registerLocalMemory(other.data(), other.size()));
    const auto third = b->openSegment(c->localSegmentName());
    ASSERT_TRUE(third) << third.status().toString();
    const auto request = makeRequest(Opcode::Write, *third, remote.data(), other.address(), other.size());
    expectCompleted(runBatch(*b, {request}), other.size());
    {
        // So that the region is in use until its unregister gives up.
        std::optional<Netem> slow(std::in_place, "lo", "delay 2500ms");
        BatchHolder batch(*b, 1);
        ASSERT_TRUE(batch.submit({request}));
        Status refused;
        std::thread unregistering([&] { refused = b->unregisterLocalMemory(remote.data()); });
        std::this_thread::sleep_for(100ms);
        const auto installed = b->installTransport("rdma");
        EXPECT_TRUE(installed) << installed.status().toString();
        unregistering.join();
        EXPECT_EQ(refused.code(), Code::BatchBusy) << refused.toString();
        slow.reset();
        expectCompleted(batch.wait(), other.size());
    }
    const auto a = startRdma("rxe_0a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), remote.address(), local.size())}),
                    local.size());
    EXPECT_TRUE(local.holdsPattern(8));
}

TEST(VerbsVmEngine, MemoryThatIsMappedReadOnlyIsServedToReaders) {
    Buffer local(65536);
    Buffer remote(65536);
    remote.fillPattern(4);
    remote.protect(PROT_READ);
    const auto a = startRdma("rxe_0a");
    const auto b = startRdma("rxe_0b");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const Status taken = b->registerLocalMemory(remote.data(), remote.size());
    ASSERT_TRUE(taken) << taken.toString();
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment);
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), remote.address(), 65536)}), 65536);
    EXPECT_TRUE(local.holdsPattern(4));
    const auto refused = runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), 65536)});
    EXPECT_EQ(refused.s, TransferStatusEnum::FAILED);
    EXPECT_TRUE(refused.quiesced);
    remote.protect(PROT_READ | PROT_WRITE);
}

TEST(VerbsVmEngine, ASmallerMtuOfOneEndHoldsAtBoth) {
    for (const bool at_initiator : {true, false}) {
        EngineSetup own = rdmaSetup("rxe_0a");
        EngineSetup peers = rdmaSetup("rxe_0b");
        (at_initiator ? own : peers).config.rdma_mtu = 1024;
        Buffer local(1u << 20);
        Buffer remote(1u << 20);
        const auto a = startRdma(own);
        const auto b = startRdma(peers);
        ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
        ASSERT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
        const auto segment = a->openSegment(b->localSegmentName());
        ASSERT_TRUE(segment);
        local.fillPattern(5);
        expectCompleted(
            runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), remote.address(), local.size())}),
            local.size());
        EXPECT_TRUE(remote.holdsPattern(5));
        remote.fillPattern(6);
        expectCompleted(
            runBatch(*a, {makeRequest(Opcode::Read, *segment, local.data(), remote.address(), local.size())}),
            local.size());
        EXPECT_TRUE(local.holdsPattern(6));
    }
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
    if (count == 6 && std::strcmp(arguments[1], "--serve") == 0) return troupe::test::ServingProcess::serve(arguments);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
