// What breaks, and how it looks: on Soft-RoCE, in the VM.

#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "tests/verbs_backend/vm_support.h"

namespace troupe::verbs {
namespace {

using namespace testing;
using namespace std::chrono_literals;

/// A pair with work in both memories and many requests to keep it busy.
struct BusyPair : VmPair {
    static constexpr std::size_t kSlice = 256u << 10;
    static constexpr std::size_t kSlices = 64;

    explicit BusyPair(const Config& base = {}, const std::string& a_devices = "rxe_0a",
                      const std::string& b_devices = "rxe_0b")
        : VmPair(base, a_devices, b_devices), local(noise(kSlice * kSlices)), remote(kSlice * kSlices) {
        registerAt(a, local);
        registerAt(b, remote);
        open();
    }
    std::vector<WorkRequest> requests(Opcode opcode) const {
        std::vector<WorkRequest> list;
        for (std::size_t i = 0; i < kSlices; ++i)
            list.push_back(request(opcode, local.data() + i * kSlice, remote.data() + i * kSlice, kSlice, i));
        return list;
    }
    /// Posts until the window is full and polls until something is on the wire.
    std::size_t start(Opcode opcode) {
        run({write(local.data(), remote.data(), 1)});
        a.sweep.clear();
        const auto all = requests(opcode);
        const std::size_t posted = nic().post(path, all);
        for (int i = 0; i < 3; ++i) nic().poll(Clock::now(), a.sweep);
        return posted;
    }
    void expectAllEnded(std::size_t posted) {
        ASSERT_TRUE(pump(a, [&] { return endedIn(a.sweep) == posted; }))
            << endedIn(a.sweep) << " of " << posted << " ended";
    }
    void expectWorksAgain() {
        a.sweep.clear();
        // The first tries may meet the back-off or a link that is just coming up.
        const auto limit = Clock::now() + 30s;
        do {
            a.sweep.clear();
            run({write(local.data(), remote.data(), kSlice)});
        } while (!a.sweep.failed.empty() && Clock::now() < limit);
        EXPECT_TRUE(a.sweep.failed.empty()) << failuresOf(a.sweep);
        EXPECT_TRUE(std::equal(remote.begin(), remote.begin() + kSlice, local.begin()));
    }

    std::vector<char> local;
    std::vector<char> remote;
};

TEST(VerbsVmFailure, ResetEndsEverythingQuiescedAndThePathWorksAgain) {
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        BusyPair pair;
        const std::size_t posted = pair.start(opcode);
        pair.nic().resetPath(pair.path, {Code::Timeout, "the deadline passed"});
        pair.expectAllEnded(posted);
        ASSERT_FALSE(pair.a.sweep.failed.empty());
        for (const Failure& failure : pair.a.sweep.failed) {
            EXPECT_EQ(failure.cause.code(), Code::Timeout) << failure.cause.toString();
            EXPECT_TRUE(failure.retryable);
            EXPECT_TRUE(failure.quiesced);
        }
        pair.expectWorksAgain();
    }
}

TEST(VerbsVmFailure, AfterAResetTheLocalBufferMayBeProtected) {
    VmPair pair;
    constexpr std::size_t kBytes = 16u << 20;
    void* const local = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(local, MAP_FAILED);
    const auto remote = noise(kBytes);
    ASSERT_TRUE(pair.a.registerMemory(local, kBytes));
    pair.registerAt(pair.b, remote);
    pair.open();
    pair.run({read(local, remote.data(), 1)});
    pair.a.sweep.clear();
    std::vector<WorkRequest> requests;
    for (std::size_t at = 0; at < kBytes; at += 1u << 20)
        requests.push_back(read(static_cast<char*>(local) + at, remote.data() + at, 1u << 20));
    const std::size_t posted = pair.nic().post(pair.path, requests);
    pair.nic().poll(Clock::now(), pair.a.sweep);
    pair.nic().resetPath(pair.path, {Code::Canceled, "no longer wanted"});
    ASSERT_TRUE(pump(pair.a, [&] { return endedIn(pair.a.sweep) == posted; }));
    // Pinned pages are written by the device through other mappings, so it is the bytes that tell.
    const std::vector<char> now(static_cast<char*>(local), static_cast<char*>(local) + kBytes);
    std::this_thread::sleep_for(200ms);
    EXPECT_TRUE(std::equal(now.begin(), now.end(), static_cast<char*>(local))) << "bytes came after the end";
    pair.a.unregisterMemory(local);
    EXPECT_EQ(::munmap(local, kBytes), 0);
}

TEST(VerbsVmFailure, ClosingAPathIsFinalAndItsIdIsDead) {
    BusyPair pair;
    const std::size_t posted = pair.start(Opcode::Write);
    pair.nic().closePath(pair.path, {Code::PeerDown, "the peer was declared dead"});
    pair.expectAllEnded(posted);
    ASSERT_FALSE(pair.a.sweep.failed.empty());
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::PeerDown);
        EXPECT_FALSE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
    }
    pair.a.sweep.clear();
    pair.run({write(pair.local.data(), pair.remote.data(), 1)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    EXPECT_EQ(pair.a.sweep.failed.front().cause.code(), Code::StaleHandle);
    // A new path to the same peer takes the place of the old one.
    pair.open();
    pair.expectWorksAgain();
}

TEST(VerbsVmFailure, AKeyThatItsOwnerTookBackIsRefusedByTheDeviceAndBystandersAreRetryable) {
    BusyPair pair;
    std::vector<char> doomed(4096);
    pair.registerAt(pair.b, doomed);
    pair.open();  // With a descriptor that has it.
    pair.run({write(pair.local.data(), doomed.data(), 64)});
    ASSERT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    pair.b.unregisterMemory(doomed.data());
    std::fill(doomed.begin(), doomed.end(), 'd');
    pair.a.sweep.clear();
    pair.run({write(pair.local.data(), doomed.data(), 64, 7), write(pair.local.data(), pair.remote.data(), 64, 8)});
    EXPECT_EQ(std::count(doomed.begin(), doomed.end(), 'd'), 4096);
    ASSERT_EQ(pair.a.sweep.failed.size(), 2u) << failuresOf(pair.a.sweep);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::AccessDenied) << failure.cause.toString();
        EXPECT_NE(failure.cause.message().find("rxe_0b"), std::string::npos) << failure.cause.toString();
        EXPECT_EQ(failure.retryable, failure.request.cookie == 8) << failure.request.cookie;
        EXPECT_TRUE(failure.quiesced);
    }
    pair.expectWorksAgain();
}

TEST(VerbsVmFailure, ARestartedPeerIsToldApartByItsIncarnation) {
    BusyPair pair;
    pair.run({write(pair.local.data(), pair.remote.data(), 64)});
    const auto before = pair.b.asPeer();
    pair.b.restart();
    pair.registerAt(pair.b, pair.remote);  // At the same address.
    auto mixed = std::make_shared<SegmentDesc>(*before->desc);
    // The worst case: the old identity and keys with the port of the new process.
    mixed->rdma_port = pair.b.asPeer()->desc->rdma_port;
    auto peer = std::make_shared<Peer>(*before);
    peer->desc = mixed;
    const auto stale = pair.nic().openPath(peer);
    ASSERT_TRUE(stale);
    std::fill(pair.remote.begin(), pair.remote.end(), 'n');
    pair.a.sweep.clear();
    run(pair.a, pair.nic(), *stale, {write(pair.local.data(), pair.remote.data(), 64)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    EXPECT_EQ(pair.a.sweep.failed.front().cause.code(), Code::StaleIncarnation)
        << pair.a.sweep.failed.front().cause.toString();
    EXPECT_FALSE(pair.a.sweep.failed.front().retryable);
    EXPECT_EQ(pair.remote.front(), 'n');
    pair.open();
    pair.expectWorksAgain();
}

TEST(VerbsVmFailure, NobodyListeningIsSaidSoAndIsRetryable) {
    BusyPair pair;
    auto desc = std::make_shared<SegmentDesc>(*pair.b.asPeer()->desc);
    desc->rdma_port = 1;
    auto peer = std::make_shared<Peer>(*pair.b.asPeer());
    peer->desc = desc;
    const auto path = pair.nic().openPath(peer);
    ASSERT_TRUE(path);
    run(pair.a, pair.nic(), *path, {write(pair.local.data(), pair.remote.data(), 64)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    const Failure& failure = pair.a.sweep.failed.front();
    EXPECT_EQ(failure.cause.code(), Code::ConnectionRefused) << failure.cause.toString();
    EXPECT_TRUE(failure.retryable);
    for (const char* part : {"'b'", "rxe_0a", "10.1.0.2:1"})
        EXPECT_NE(failure.cause.message().find(part), std::string::npos) << failure.cause.toString();
}

TEST(VerbsVmFailure, AnOwnPortThatGoesDownEndsItsWorkAtOnceAndIsUsedAgain) {
    BusyPair pair;
    const std::size_t posted = pair.start(Opcode::Write);
    LinkDown down("rxe_0a");
    pair.expectAllEnded(posted);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::ConnectionLost) << failure.cause.toString();
        EXPECT_TRUE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
    }
    // While it is down, work fails at once and says why.
    pair.a.sweep.clear();
    pair.run({write(pair.local.data(), pair.remote.data(), 64)});
    ASSERT_EQ(pair.a.sweep.failed.size(), 1u);
    EXPECT_NE(pair.a.sweep.failed.front().cause.message().find("down"), std::string::npos)
        << pair.a.sweep.failed.front().cause.toString();
    down.up();
    pair.expectWorksAgain();
}

TEST(VerbsVmFailure, APeerThatNothingReachesIsNoticedByTheRetryCounter) {
    Config quick;
    quick.rdma_ack_timeout = 12;
    quick.rdma_retry_count = 3;
    BusyPair pair(quick);
    pair.run({write(pair.local.data(), pair.remote.data(), 1)});
    pair.a.sweep.clear();
    std::size_t posted = 0;
    {
        const Netem nothing("r0.a", "loss 100%");
        posted = pair.nic().post(pair.path, pair.requests(Opcode::Write));
        pair.expectAllEnded(posted);
    }
    EXPECT_EQ(pair.a.sweep.failed.size(), posted);
    for (const Failure& failure : pair.a.sweep.failed) {
        EXPECT_EQ(failure.cause.code(), Code::ConnectionLost) << failure.cause.toString();
        EXPECT_NE(failure.cause.message().find("retry counter"), std::string::npos) << failure.cause.toString();
        EXPECT_TRUE(failure.quiesced && failure.retryable);
    }
    pair.expectWorksAgain();
}

TEST(VerbsVmFailure, LostPacketsCostTimeAndNoBytes) {
    BusyPair pair;
    const Netem lossy("r0.a", "loss 1%");
    auto requests = pair.requests(Opcode::Write);
    // A loss costs a wait of half a second with this ack_timeout.
    if (!isLong()) requests.resize(8);
    pair.run(requests);
    EXPECT_TRUE(pair.a.sweep.failed.empty()) << failuresOf(pair.a.sweep);
    const auto bytes = static_cast<std::ptrdiff_t>(requests.size() * BusyPair::kSlice);
    EXPECT_TRUE(std::equal(pair.local.begin(), pair.local.begin() + bytes, pair.remote.begin()));
}

}  // namespace
}  // namespace troupe::verbs
