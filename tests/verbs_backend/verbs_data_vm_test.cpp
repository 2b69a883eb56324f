// Data over Soft-RoCE: what was asked for arrives, and nothing else. Runs in the VM.

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "tests/verbs_backend/vm_support.h"

namespace troupe::verbs {
namespace {

using namespace testing;

TEST(VerbsVmData, WritesAndReadsOfEverySizeArriveAsTheyAre) {
    VmPair pair;
    std::vector<std::size_t> sizes = {1, 2, 7, 64, 65, 4096, 4097, 65536, 1048577};
    if (isLong()) sizes.insert(sizes.end(), {16u << 20, 64u << 20});
    const std::size_t most = sizes.back();
    const auto source = noise(most + 64);
    std::vector<char> remote(most + 128, 'r');
    std::vector<char> back(most + 64, 'b');
    pair.registerAt(pair.a, source);
    pair.registerAt(pair.a, back);
    pair.registerAt(pair.b, remote);
    pair.open();
    for (const std::size_t size : sizes) {
        std::fill(remote.begin(), remote.end(), 'r');
        std::fill(back.begin(), back.end(), 'b');
        // Nothing is aligned.
        pair.run(pair.sliced(write(source.data() + 3, remote.data() + 5, size)));
        ASSERT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
        ASSERT_TRUE(
            std::equal(remote.begin() + 5, remote.begin() + 5 + static_cast<std::ptrdiff_t>(size), source.begin() + 3))
            << size;
        EXPECT_EQ(remote[4], 'r');
        EXPECT_EQ(remote[5 + size], 'r');
        pair.run(pair.sliced(read(back.data() + 1, remote.data() + 5, size)));
        ASSERT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
        ASSERT_TRUE(
            std::equal(back.begin() + 1, back.begin() + 1 + static_cast<std::ptrdiff_t>(size), source.begin() + 3))
            << size;
        EXPECT_EQ(back[0], 'b');
        EXPECT_EQ(back[1 + size], 'b');
    }
}

TEST(VerbsVmData, RandomRequestsAcrossChunksAndScatteredRegionsArrive) {
    Config config;
    config.rdma_max_chunk_bytes = 8192;
    config.rdma_lanes = 2;
    VmPair pair(config);
    constexpr std::size_t kBytes = 1u << 20;
    // Regions that touch: a request may begin in one and end in the next, on both sides.
    std::vector<char> local(kBytes);
    std::vector<char> remote(kBytes);
    const std::size_t cuts[] = {0, 20000, 20001, 300007, kBytes};
    for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
        ASSERT_TRUE(pair.a.registerMemory(local.data() + cuts[i], cuts[i + 1] - cuts[i]));
        ASSERT_TRUE(pair.b.registerMemory(remote.data() + cuts[i], cuts[i + 1] - cuts[i]));
    }
    pair.open();
    std::vector<char> expected_remote = remote;
    std::vector<char> expected_local;
    std::mt19937 random(7);
    const int rounds = isLong() ? 1000 : 10;
    for (int round = 0; round < rounds; ++round) {
        const auto fresh = noise(kBytes, static_cast<unsigned>(round));
        std::copy(fresh.begin(), fresh.end(), local.begin());
        expected_local = local;
        // Disjoint slots, so that the order of a round's requests does not matter.
        constexpr std::size_t kSlots = 16;
        constexpr std::size_t kSlot = kBytes / kSlots;
        std::vector<WorkRequest> requests;
        for (std::size_t slot = 0; slot < kSlots; ++slot) {
            const std::size_t length = 1 + random() % std::min<std::size_t>(kSlot, pair.nic().info().slice_bytes);
            const std::size_t offset = slot * kSlot + random() % (kSlot - length + 1);
            const bool is_write = random() % 2 == 0;
            const auto at = static_cast<std::ptrdiff_t>(offset);
            const auto end = static_cast<std::ptrdiff_t>(offset + length);
            if (is_write)
                std::copy(local.begin() + at, local.begin() + end, expected_remote.begin() + at);
            else
                std::copy(remote.begin() + at, remote.begin() + end, expected_local.begin() + at);
            requests.push_back(request(is_write ? Opcode::Write : Opcode::Read, local.data() + offset,
                                       remote.data() + offset, length, slot));
        }
        pair.run(requests);
        ASSERT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
        ASSERT_TRUE(remote == expected_remote) << "round " << round;
        ASSERT_TRUE(local == expected_local) << "round " << round;
    }
}

TEST(VerbsVmData, ARemoteRangeIsCheckedBeforeAnythingIsSent) {
    VmPair pair;
    std::vector<char> local(65536);
    std::vector<char> remote(65536);
    std::vector<char> secret(4096, 's');
    std::vector<char> nowhere(4096);
    pair.registerAt(pair.a, local);
    ASSERT_TRUE(pair.b.registerMemory(remote.data(), 32768));
    ASSERT_TRUE(pair.b.registerMemory(secret.data(), secret.size(), /*remote=*/false));
    pair.open();
    pair.run({write(local.data(), nowhere.data(), 16, 1), read(local.data(), secret.data(), 16, 2),
              write(local.data(), remote.data() + 32000, 769, 3), write(local.data(), remote.data() + 32000, 768, 4)});
    ASSERT_EQ(completedIn(pair.a.sweep), 1u);
    EXPECT_EQ(pair.a.sweep.completed.front().cookie, 4u);
    ASSERT_EQ(pair.a.sweep.failed.size(), 3u);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), failure.request.cookie == 2 ? Code::AccessDenied : Code::AddressNotRegistered)
            << failure.cause.toString();
        EXPECT_FALSE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
    }
}

TEST(VerbsVmData, TheKeyOfLocalOnlyMemoryOpensNothing) {
    VmPair pair;
    std::vector<char> local(4096, 'l');
    std::vector<char> secret(4096, 's');
    pair.registerAt(pair.a, local);
    ASSERT_TRUE(pair.b.registerMemory(secret.data(), secret.size(), /*remote=*/false));
    EXPECT_TRUE(pair.b.asPeer()->desc->buffers.front().rkeys.empty());
    // A peer that guesses: the keys of local-only memory are as numerous as any, and an initiator forges a descriptor.
    auto forged = std::make_shared<SegmentDesc>(*pair.b.asPeer()->desc);
    forged->buffers.front().remote_accessible = true;
    const auto peer = std::make_shared<Peer>(*pair.b.asPeer());
    // rxe's keys count up from small indices; the device must refuse whichever is meant.
    for (std::uint32_t index = 1; index < 4; ++index) {
        forged->buffers.front().rkeys = {index << 8};
        auto forger = std::make_shared<Peer>(*peer);
        forger->desc = std::make_shared<SegmentDesc>(*forged);
        const auto path = pair.nic().openPath(forger);
        ASSERT_TRUE(path);
        pair.a.sweep.clear();
        testing::run(pair.a, pair.nic(), *path, {write(local.data(), secret.data(), 64)});
        EXPECT_EQ(pair.a.sweep.failed.size(), 1u);
        pair.nic().closePath(*path, {Code::Canceled, "done"});
    }
    EXPECT_EQ(std::count(secret.begin(), secret.end(), 's'), 4096);
}

TEST(VerbsVmData, ManySmallWritesAreCountedExactly) {
    Config config;
    config.rdma_completion_queue = 64;  // Less than the send queue, so that it is the bound.
    VmPair pair(config);
    constexpr std::size_t kCount = 5000;
    auto local = noise(kCount * 8);
    std::vector<char> remote(local.size());
    pair.registerAt(pair.a, local);
    pair.registerAt(pair.b, remote);
    pair.open();
    std::vector<WorkRequest> requests;
    for (std::size_t i = 0; i < kCount; ++i)
        requests.push_back(write(local.data() + 8 * i, remote.data() + 8 * i, 8, i));
    pair.run(requests);
    EXPECT_EQ(completedIn(pair.a.sweep), kCount);
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    EXPECT_TRUE(local == remote);
}

TEST(VerbsVmData, ASleepingNicIsWokenByACompletion) {
    VmPair pair;
    auto local = noise(1u << 20);
    std::vector<char> remote(local.size());
    pair.registerAt(pair.a, local);
    pair.registerAt(pair.b, remote);
    pair.open();
    pair.run({write(local.data(), remote.data(), 1)});
    const int rounds = isLong() ? 50 : 5;
    for (int round = 0; round < rounds; ++round) {
        pair.a.sweep.clear();
        ASSERT_EQ(pair.nic().post(pair.path, std::vector{write(local.data(), remote.data(), local.size())}), 1u);
        int sleeps = 0;
        while (endedIn(pair.a.sweep) == 0) {
            pair.nic().poll(Clock::now(), pair.a.sweep);
            if (endedIn(pair.a.sweep) != 0 || !pair.nic().arm()) continue;
            ++sleeps;
            pollfd watched{pair.nic().waitFd(), POLLIN, 0};
            ASSERT_EQ(::poll(&watched, 1, 60000), 1) << "slept on and on";
        }
        EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
        // A descriptor that stays readable would keep the loop awake for ever.
        EXPECT_LT(sleeps, 20);
    }
}

TEST(VerbsVmData, ARegionRegisteredLaterIsUsableOnceItsDescriptorCame) {
    VmPair pair;
    std::vector<char> local(4096, 'l');
    std::vector<char> first(4096);
    std::vector<char> second(4096);
    pair.registerAt(pair.a, local);
    pair.registerAt(pair.b, first);
    pair.open();
    pair.registerAt(pair.b, second);
    pair.run({write(local.data(), second.data(), 64)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    EXPECT_EQ(pair.a.sweep.failed.front().cause.code(), Code::AddressNotRegistered);
    pair.a.sweep.clear();
    pair.nic().updatePeer(pair.path, pair.b.asPeer());
    pair.run({write(local.data(), second.data(), 64)});
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    EXPECT_EQ(second.front(), 'l');
}

TEST(VerbsVmRegistration, ALimitOnLockedMemoryIsNamedWithTheNeedAndTheRemedy) {
    VmPair pair;
    std::vector<char> memory(4u << 20);
    // Root may lock what it likes, so the limit is tried by somebody else.
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        rlimit limit{1u << 20, 1u << 20};
        if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
        VmPair own;
        const Status status = own.a.registerMemory(memory.data(), memory.size());
        const std::string text = status.toString();
        const bool good = status.code() == Code::ResourceExhausted && text.find("1048576 bytes") != std::string::npos &&
                          text.find("4194304") != std::string::npos && text.find("ulimit -l") != std::string::npos;
        if (!good) std::fprintf(stderr, "%s\n", text.c_str());
        // And what failed left nothing behind.
        ::_exit(good && own.a.registerMemory(memory.data(), 4096).isOk() ? 0 : 1);
    }
    int ended = 0;
    ASSERT_EQ(::waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

TEST(VerbsVmRegistration, WithoutAccessToTheDevicesInstallSaysSoOfEach) {
    shell("chmod 600 /dev/infiniband/uverbs*");
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
        Config config;
        config.rdma_devices = "rxe_0a,rxe_0b";
        RegistrationTable table;
        VerbsTransport transport;
        const Status refused =
            transport.install({config, table, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()});
        const std::string text = refused.toString();
        bool good = refused.code() == Code::TransportMissing;
        for (const char* part : {"rxe_0a", "rxe_0b", "no access to its /dev/infiniband/uverbs", "errno 13"})
            good = good && text.find(part) != std::string::npos;
        if (!good) std::fprintf(stderr, "%s\n", text.c_str());
        ::_exit(good ? 0 : 1);
    }
    int ended = 0;
    ASSERT_EQ(::waitpid(child, &ended, 0), child);
    shell("chmod 666 /dev/infiniband/uverbs*");
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

}  // namespace
}  // namespace troupe::verbs
