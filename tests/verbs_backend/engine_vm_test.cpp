// Whole engines over Soft-RoCE, in this process and in others. Runs in the VM.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/engine_pair.h"

namespace troupe {
namespace {

using namespace test;
using namespace std::chrono_literals;

std::unique_ptr<TransferEngine> startRdma(const std::string& devices, std::uint16_t port = 0) {
    EngineSetup setup;
    setup.tcp = false;
    setup.config.rdma_devices = devices;
    // Emulated processors answer late.
    setup.config.rdma_ack_timeout = 17;
    auto engine = startEngine(setup, port);
    const auto rdma = engine->installTransport("rdma");
    EXPECT_TRUE(rdma) << rdma.status().toString();
    return engine;
}

/// An engine in another process with one region of `bytes`, filled with a pattern.
class ServingProcess {
  public:
    ServingProcess(const std::string& devices, std::size_t bytes, std::uint16_t port = 0) {
        int ends[2];
        EXPECT_EQ(::pipe(ends), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::dup2(ends[1], 1);
            ::execl("/proc/self/exe", "serve", "--serve", devices.c_str(), std::to_string(bytes).c_str(),
                    std::to_string(port).c_str(), nullptr);
            ::_exit(127);
        }
        ::close(ends[1]);
        std::FILE* said = ::fdopen(ends[0], "r");
        char name[256] = "";
        EXPECT_EQ(std::fscanf(said, "%255s %lx", name, &address), 2);
        std::fclose(said);
        segment = name;
    }
    ~ServingProcess() { kill(); }
    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    std::uint16_t port() const {
        return static_cast<std::uint16_t>(std::atoi(segment.c_str() + segment.rfind(':') + 1));
    }

    std::string segment;
    unsigned long address = 0;

  private:
    pid_t pid_ = 0;
};

std::uint64_t sentBy(const std::string& netdev) {
    std::ifstream file("/sys/class/net/" + netdev + "/statistics/tx_bytes");
    std::uint64_t bytes = 0;
    file >> bytes;
    return bytes;
}

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

TEST(VerbsVmEngine, OneLargeRequestUsesBothDevices) {
    Buffer local(64u << 20);
    const ServingProcess peer("rxe_0b,rxe_1b", 64u << 20);
    const auto a = startRdma("rxe_0a,rxe_1a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    const auto segment = a->openSegment(peer.segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    const std::uint64_t before[] = {sentBy("r0.a"), sentBy("r1.a")};
    expectCompleted(runBatch(*a, {makeRequest(Opcode::Write, *segment, local.data(), peer.address, local.size())}),
                    local.size());
    const std::uint64_t carried[] = {sentBy("r0.a") - before[0], sentBy("r1.a") - before[1]};
    std::printf("carried: %llu and %llu bytes\n", static_cast<unsigned long long>(carried[0]),
                static_cast<unsigned long long>(carried[1]));
    EXPECT_GE(carried[0] * 10, local.size() * 3);
    EXPECT_GE(carried[1] * 10, local.size() * 3);
}

TEST(VerbsVmEngine, AKilledPeerFailsEveryTaskAndItsSuccessorOnTheSamePortIsUsed) {
    Buffer local(32u << 20);
    const auto a = startRdma("rxe_0a");
    ASSERT_TRUE(a->registerLocalMemory(local.data(), local.size()));
    auto peer = std::make_unique<ServingProcess>("rxe_0b", local.size());
    const auto segment = a->openSegment(peer->segment);
    ASSERT_TRUE(segment) << segment.status().toString();
    local.fillPattern(3);
    {
        BatchHolder batch(*a, 32);
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < 32; ++i)
            requests.push_back(
                makeRequest(Opcode::Read, *segment, local.data() + (i << 20), peer->address + (i << 20), 1u << 20));
        ASSERT_TRUE(batch.submit(requests));
        peer->kill();
        const auto killed = Clock::now();
        const TransferStatus ended = batch.wait();
        const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed).count();
        std::printf("terminal %lld ms after the kill: %s\n", static_cast<long long>(took),
                    ended.error.toString().c_str());
        EXPECT_NE(ended.s, TransferStatusEnum::COMPLETED);
        for (std::size_t i = 0; i < 32; ++i) EXPECT_TRUE(batch.task(i).quiesced);
        // The buffer is ours again.
        local.protect(PROT_NONE);
        local.protect(PROT_READ | PROT_WRITE);
    }
    const std::uint16_t port = peer->port();
    peer = std::make_unique<ServingProcess>("rxe_0b", local.size(), port);
    local.fillPattern(4);
    TransferStatus status;
    Status submitted;
    const auto limit = Clock::now() + kPatience;
    do {
        // Until the monitor has found it, the segment is down.
        std::this_thread::sleep_for(50ms);
        BatchHolder batch(*a, 1);
        submitted = batch.submit({makeRequest(Opcode::Write, *segment, local.data(), peer->address, 4096)});
        if (submitted) status = batch.wait();
        // Its descriptor may have been fetched in the moment before it installed its transport.
        if (submitted.code() == Code::TransportMissing) static_cast<void>(a->syncSegmentCache());
    } while (status.s != TransferStatusEnum::COMPLETED && Clock::now() < limit);
    expectCompleted(status, 4096);
    EXPECT_TRUE(submitted) << submitted.toString();
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

int serve(char** arguments) {
    const auto engine = startRdma(arguments[2], static_cast<std::uint16_t>(std::atoi(arguments[4])));
    const Buffer memory(std::strtoul(arguments[3], nullptr, 10));
    if (!engine->registerLocalMemory(memory.data(), memory.size())) return 1;
    std::printf("%s %lx\n", engine->localSegmentName().c_str(), static_cast<unsigned long>(memory.address()));
    std::fflush(stdout);
    for (;;) ::pause();
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
    if (count == 5 && std::strcmp(arguments[1], "--serve") == 0) return troupe::serve(arguments);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
