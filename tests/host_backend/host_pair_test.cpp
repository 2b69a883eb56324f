// Two HostNics that are two processes to each other, polled by the test: grants, their end, and what goes wrong.

#include <sys/mman.h>

#include <random>

#include "tests/host_backend/nic_pair.h"
#include "tests/support/descriptor_limit.h"

namespace troupe::test {
namespace {

constexpr std::size_t kBytes = 1u << 20;

class HostPair : public testing::TestWithParam<bool> {
  protected:
    HostPair() { path_ = *a_.nic->openPath(b_.asPeer()); }

    bool mapped() const { return GetParam(); }
    bool pump(const std::function<bool()>& done) { return pumpNodes(done, a_, b_); }
    WorkRequest request(Opcode opcode, std::size_t local_at, std::uint64_t remote, std::size_t length,
                        std::uint64_t cookie = 1) {
        return {local_.data() + local_at, remote, length, cookie, opcode};
    }
    /// Runs one request to its end; its failure, or Ok.
    Status run(const WorkRequest& work) {
        a_.sweep.clear();
        EXPECT_EQ(a_.nic->post(path_, {&work, 1}), 1u);
        EXPECT_TRUE(pump([&] { return a_.ended(); }));
        if (a_.sweep.failed.empty()) return Status::ok();
        EXPECT_TRUE(a_.sweep.failed[0].quiesced);
        return a_.sweep.failed[0].cause;
    }

    HostNode b_;
    HostNode a_;
    Buffer local_{kBytes};
    PathId path_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, HostPair, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Mapped" : "Vm"; });

TEST_P(HostPair, BytesGoBothWays) {
    OwnerMemory memory(b_, mapped(), kBytes);
    local_.fillPattern(3);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), kBytes)));
    EXPECT_EQ(std::memcmp(memory.data, local_.data(), kBytes), 0);
    for (std::size_t i = 0; i < kBytes; ++i) memory.data[i] ^= std::byte{0x5a};
    EXPECT_TRUE(run(request(Opcode::Read, 0, memory.at(), kBytes)));
    EXPECT_EQ(std::memcmp(memory.data, local_.data(), kBytes), 0);
    EXPECT_EQ(b_.nic->server()->grants(), 1u);
}

TEST_P(HostPair, ManyScatteredRequestsEachMoveTheirOwnBytes) {
    OwnerMemory memory(b_, mapped(), kBytes);
    local_.fillPattern(4);
    constexpr std::size_t kCount = 1000;
    std::mt19937 random(7);
    std::vector<WorkRequest> requests;
    std::vector<std::size_t> slots(kBytes / 1024);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::shuffle(slots.begin(), slots.end(), random);
    for (std::size_t i = 0; i < kCount; ++i)
        requests.push_back(request(Opcode::Write, i * 1024, memory.at(slots[i] * 1024), 1 + random() % 1024, i));
    ASSERT_EQ(a_.nic->post(path_, requests), kCount);
    ASSERT_TRUE(pump([&] { return a_.completed() == kCount; }));
    for (const WorkRequest& work : requests)
        ASSERT_EQ(std::memcmp(reinterpret_cast<const void*>(work.remote), work.local, work.length), 0);
}

TEST_P(HostPair, TheEdgesOfARegionAreExactAndWhatLiesBeyondIsRefused) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 1)));
    EXPECT_TRUE(run(request(Opcode::Read, 0, memory.at(kBytes - 1), 1)));
    local_.fill(std::byte{9});
    memory.data[kBytes - 1] = std::byte{1};
    EXPECT_EQ(run(request(Opcode::Write, 0, memory.at(kBytes - 1), 2)).code(), Code::AddressNotRegistered);
    EXPECT_EQ(run(request(Opcode::Write, 0, memory.at() - 1, 2)).code(), Code::AddressNotRegistered);
    EXPECT_EQ(run(request(Opcode::Write, 0, UINT64_MAX - 10, 100)).code(), Code::InvalidArgument);
    EXPECT_EQ(memory.data[kBytes - 1], std::byte{1}) << "a refused request must not be applied in part";
}

TEST_P(HostPair, ARequestAcrossTwoTouchingRegionsWorksAndOneThatIsNotAccessibleIsRefused) {
    Buffer both(3 * 4096);
    b_.add(both.data(), 4096);
    b_.add(both.data() + 4096, 4096);
    b_.add(both.data() + 8192, 4096, false);
    local_.fillPattern(5);
    EXPECT_TRUE(run(request(Opcode::Write, 0, both.address(100), 8000)));
    EXPECT_EQ(std::memcmp(both.data() + 100, local_.data(), 8000), 0);
    EXPECT_EQ(run(request(Opcode::Write, 0, both.address(8192), 1)).code(), Code::AccessDenied);
    EXPECT_EQ(run(request(Opcode::Read, 0, both.address(8000), 200)).code(), Code::AccessDenied);
}

TEST_P(HostPair, MemoryThatIsReadOnlyIsReadAndNeverWritten) {
    Buffer memory(8192);
    Region region;
    region.range = {memory.address(), memory.size()};
    region.writable = false;
    const auto reserved = b_.table.reserve(region);
    ASSERT_TRUE(reserved);
    b_.table.commit(reserved->id);
    local_.fill(std::byte{3});
    EXPECT_EQ(run(request(Opcode::Write, 0, memory.address(), 4096)).code(), Code::AccessDenied);
    EXPECT_TRUE(run(request(Opcode::Read, 0, memory.address(), 4096)));
    local_.fill(std::byte{3});
    EXPECT_EQ(run(request(Opcode::Write, 0, memory.address(), 4096)).code(), Code::AccessDenied) << "granted to read";
    EXPECT_TRUE(memory.holdsOnly(std::byte{0}, 0, 8192));
}

TEST_P(HostPair, ManyRegionsAreAskedForInParallelAndEachOnce) {
    constexpr std::size_t kRegions = 300;
    Buffer many(2 * kRegions * 4096);
    std::vector<WorkRequest> requests;
    for (std::size_t i = 0; i < kRegions; ++i) {
        b_.add(many.data() + 2 * i * 4096, 4096);
        requests.push_back(request(Opcode::Write, 0, many.address(2 * i * 4096), 4096, i));
    }
    ASSERT_EQ(a_.nic->post(path_, requests), kRegions);
    ASSERT_TRUE(pump([&] { return a_.completed() == kRegions; }));
    EXPECT_EQ(b_.nic->server()->grants(), kRegions);
}

TEST_P(HostPair, ARevokedGrantIsNotUsedAgain) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    const ByteRange range{memory.at(), kBytes};
    EXPECT_TRUE(b_.nic->servesPeerIn(range));
    ASSERT_TRUE(b_.table.beginRemoval(memory.at()));
    b_.nic->revokeIn(range);
    EXPECT_TRUE(b_.nic->servesPeerIn(range)) << "until it is acknowledged";
    EXPECT_EQ(b_.nic->heldIn(range).code(), Code::BatchBusy);
    ASSERT_TRUE(pump([&] { return !b_.nic->servesPeerIn(range); }));
    EXPECT_TRUE(b_.nic->heldIn(range));
    b_.table.remove(memory.id);
    ASSERT_EQ(::mprotect(memory.data, kBytes, PROT_NONE), 0);
    EXPECT_EQ(run(request(Opcode::Write, 0, memory.at(), 64)).code(), Code::AddressNotRegistered);
    ASSERT_EQ(::mprotect(memory.data, kBytes, PROT_READ | PROT_WRITE), 0);
}

TEST_P(HostPair, OneThatWasStoppedSinceItsLastLookHearsItsPeerBeforeItCopiesOn) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    a_.sweep.clear();
    local_.fill(std::byte{7});
    const std::vector<std::byte> before(memory.data, memory.data + kBytes);
    std::vector<WorkRequest> requests(64, request(Opcode::Write, 0, memory.at(), 4096));
    ASSERT_EQ(a_.nic->post(path_, requests), requests.size());
    ASSERT_TRUE(b_.table.beginRemoval(memory.at()));
    b_.nic->revokeIn(ByteRange{memory.at(), kBytes});
    // The poll began, by its clock, a second ago, and then the process stood still: too soon for another look.
    a_.nic->poll(Clock::now() - std::chrono::seconds(1), a_.sweep);
    EXPECT_EQ(std::memcmp(memory.data, before.data(), kBytes), 0) << "it copied under a grant that was taken back";
    ASSERT_TRUE(pump([&] { return a_.sweep.failed.size() == requests.size(); }));
    EXPECT_TRUE(b_.nic->heldIn({memory.at(), kBytes}));
    EXPECT_EQ(std::memcmp(memory.data, before.data(), kBytes), 0);
}

TEST_P(HostPair, OneThatIsClosedToPeersTakesBackWhatTheyHoldAndGivesNothingUntilItIsOpened) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    constexpr ByteRange kEverything{0, UINT64_MAX};
    b_.nic->closeToPeers();
    EXPECT_EQ(b_.nic->heldIn(kEverything).code(), Code::BatchBusy);
    ASSERT_TRUE(pump([&] { return b_.nic->heldIn(kEverything).isOk(); }));
    local_.fill(std::byte{7});
    const std::vector<std::byte> before(memory.data, memory.data + kBytes);
    // Neither one that is in nor one that comes now gets anything, and both are told to look for another transport.
    a_.sweep.clear();
    const auto work = request(Opcode::Write, 0, memory.at(), kBytes);
    HostNode late;
    const PathId late_path = *late.nic->openPath(b_.asPeer());
    ASSERT_EQ(a_.nic->post(path_, {&work, 1}), 1u);
    ASSERT_EQ(late.nic->post(late_path, {&work, 1}), 1u);
    ASSERT_TRUE(pump([&] {
        late.poll();
        EXPECT_TRUE(b_.nic->heldIn(kEverything));
        return a_.ended() && late.ended();
    }));
    for (const HostNode* node : {&a_, &late}) {
        ASSERT_EQ(node->sweep.failed.size(), 1u);
        EXPECT_EQ(node->sweep.failed[0].cause.code(), Code::ConnectionLost);
        EXPECT_TRUE(node->sweep.failed[0].retryable);
        EXPECT_THAT(node->sweep.failed[0].cause.message(), testing::HasSubstr("about to end"));
        ASSERT_FALSE(node->sweep.paths.empty());
        EXPECT_FALSE(node->sweep.paths.back().usable);
    }
    EXPECT_EQ(std::memcmp(memory.data, before.data(), kBytes), 0);
    b_.nic->openToPeers();
    const TimePoint limit = Clock::now() + kPatience;
    while (!run(work) && Clock::now() < limit) {
    }
    ASSERT_FALSE(a_.sweep.paths.empty());
    EXPECT_TRUE(a_.sweep.paths.back().usable);
    // Without work it is dialed when there is news of the peer.
    late.nic->updatePeer(late_path, b_.asPeer());
    EXPECT_TRUE(pump([&] {
        late.poll();
        return late.sweep.paths.back().usable;
    }));
    EXPECT_EQ(std::memcmp(memory.data, local_.data(), kBytes), 0);
}

TEST_P(HostPair, ARevokeInTheMiddleOfACopyEndsItAtAChunkBorder) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    a_.sweep.clear();
    local_.fill(std::byte{7});
    const auto work = request(Opcode::Write, 0, memory.at(), kBytes);
    ASSERT_EQ(a_.nic->post(path_, {&work, 1}), 1u);
    a_.poll();
    ASSERT_TRUE(a_.sweep.empty()) << "one poll must not copy it all";
    const ByteRange range{memory.at(), kBytes};
    ASSERT_TRUE(b_.table.beginRemoval(memory.at()));
    b_.nic->revokeIn(range);
    // The initiator copies on until it hears of it, at most for the time between two looks.
    while (b_.nic->servesPeerIn(range)) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        a_.poll();
        b_.poll();
    }
    const std::vector<std::byte> after(memory.data, memory.data + kBytes);
    ASSERT_TRUE(pump([&] { return a_.ended(); }));
    ASSERT_EQ(a_.sweep.failed.size(), 1u);
    EXPECT_EQ(a_.sweep.failed[0].cause.code(), Code::AddressNotRegistered);
    EXPECT_EQ(std::memcmp(memory.data, after.data(), kBytes), 0);
    EXPECT_EQ(memory.data[kBytes - 1], std::byte{0}) << "the copy cannot have been done so soon";
}

TEST_P(HostPair, ARegionThatStaysAfterAllIsGrantedAnew) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    ASSERT_TRUE(b_.table.beginRemoval(memory.at()));
    b_.nic->revokeIn(ByteRange{memory.at(), 1});
    b_.table.cancelRemoval(memory.id);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64))) << "before or after the revoke was heard";
    ASSERT_TRUE(pump([&] { return b_.nic->heldIn({memory.at(), 1}).code() == Code::BatchBusy; }));
    EXPECT_TRUE(run(request(Opcode::Read, 0, memory.at(), 64)));
}

TEST_P(HostPair, ClosingThePathGivesEveryGrantBack) {
    OwnerMemory memory(b_, mapped(), kBytes);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), 64)));
    a_.nic->closePath(path_, Status(Code::Canceled, "closed"));
    EXPECT_TRUE(pump([&] { return b_.nic->server()->connections() == 0; }));
    EXPECT_FALSE(b_.nic->servesPeerIn({memory.at(), kBytes}));
}

TEST_P(HostPair, AResetEndsWhatWaitsAndThePathGoesOn) {
    OwnerMemory memory(b_, mapped(), kBytes);
    const auto work = request(Opcode::Write, 0, memory.at(), kBytes);
    ASSERT_EQ(a_.nic->post(path_, {&work, 1}), 1u);
    for (int i = 0; i < 3; ++i) a_.poll();  // It greets, or waits for its grant.
    a_.nic->resetPath(path_, Status(Code::Canceled, "reset"));
    a_.poll();
    ASSERT_EQ(a_.sweep.failed.size(), 1u);
    EXPECT_TRUE(a_.sweep.failed[0].retryable);
    EXPECT_TRUE(run(request(Opcode::Write, 0, memory.at(), kBytes)));
}

TEST_P(HostPair, AnOwnerThatGoesAwayFailsTheWorkAndItsSuccessorIsAnother) {
    auto owner = std::make_unique<HostNode>();
    OwnerMemory memory(*owner, mapped(), kBytes);
    const PathId path = *a_.nic->openPath(owner->asPeer());
    const auto work = request(Opcode::Write, 0, memory.at(), kBytes);
    ASSERT_EQ(a_.nic->post(path, {&work, 1}), 1u);
    const TimePoint limit = Clock::now() + kPatience;
    while (owner->nic->server()->grants() == 0 && Clock::now() < limit) {
        a_.poll();
        owner->poll();
    }
    // Nobody polls the initiator, so the owner's end waits for it, and no longer than its bound.
    owner.reset();
    ASSERT_TRUE(pump([&] { return a_.ended(); }));
    if (!a_.sweep.failed.empty()) {
        EXPECT_EQ(a_.sweep.failed[0].cause.code(), Code::ConnectionLost);
    }
    a_.sweep.clear();
    ASSERT_EQ(a_.nic->post(path, {&work, 1}), 1u);
    ASSERT_TRUE(pump([&] { return a_.ended(); }));
    ASSERT_EQ(a_.sweep.failed.size(), 1u);
    EXPECT_EQ(a_.sweep.failed[0].cause.code(), Code::ConnectionRefused);
    EXPECT_TRUE(a_.sweep.failed[0].retryable);
}

TEST_P(HostPair, AnotherIncarnationOnTheSocketIsToldApart) {
    auto desc = std::make_shared<SegmentDesc>(*b_.asPeer()->desc);
    desc->incarnation = Incarnation::random();
    const PathId path = *a_.nic->openPath(std::make_shared<const Peer>(Peer{3, "other", "127.0.0.1", desc}));
    const auto work = request(Opcode::Write, 0, 4096, 64);
    ASSERT_EQ(a_.nic->post(path, {&work, 1}), 1u);
    ASSERT_TRUE(pump([&] { return a_.ended(); }));
    ASSERT_EQ(a_.sweep.failed.size(), 1u);
    EXPECT_EQ(a_.sweep.failed[0].cause.code(), Code::StaleIncarnation);
    EXPECT_FALSE(a_.sweep.failed[0].retryable);
}

TEST_P(HostPair, MemoryThatIsRegisteredButProtectedIsATypedFailureAndOthersGoOn) {
    OwnerMemory memory(b_, mapped(), kBytes);
    ASSERT_EQ(::mprotect(memory.data + 4096, 4096, PROT_NONE), 0);
    const std::vector<WorkRequest> requests = {request(Opcode::Read, 0, memory.at(0), 4096, 1),
                                               request(Opcode::Read, 8192, memory.at(4096), 4096, 2),
                                               request(Opcode::Read, 16384, memory.at(8192), 4096, 3)};
    ASSERT_EQ(a_.nic->post(path_, requests), 3u);
    ASSERT_TRUE(pump([&] { return a_.completed() + a_.sweep.failed.size() == 3; }));
    // A mapping of one's own does not care how the owner protects its.
    if (mapped()) {
        EXPECT_TRUE(a_.sweep.failed.empty());
        return;
    }
    ASSERT_EQ(a_.sweep.failed.size(), 1u);
    EXPECT_EQ(a_.sweep.failed[0].request.cookie, 2u);
    EXPECT_EQ(a_.sweep.failed[0].cause.code(), Code::AccessDenied);
    EXPECT_TRUE(a_.sweep.failed[0].quiesced);
}

TEST_P(HostPair, AGrantWhoseDescriptorCannotBeTakenSaysSoAndMayBeTriedAgain) {
    TROUPE_NEEDS_DESCRIPTOR_LIMIT();
    const OwnerMemory first(b_, mapped(), 4096);
    const OwnerMemory memory(b_, mapped(), 4096);
    EXPECT_TRUE(run(request(Opcode::Read, 0, first.at(), 4096)));
    {
        const DescriptorLimit limit(0);
        const Status status = run(request(Opcode::Read, 0, memory.at(), 4096));
        // Without a mapping no descriptor comes with a grant.
        EXPECT_EQ(status.code(), mapped() ? Code::ResourceExhausted : Code::Ok) << status.toString();
        if (mapped()) {
            EXPECT_THAT(status.message(), testing::HasSubstr("RLIMIT_NOFILE"));
            EXPECT_TRUE(a_.sweep.failed.front().retryable);
        }
    }
    EXPECT_TRUE(run(request(Opcode::Read, 0, memory.at(), 4096)));
}

TEST_P(HostPair, CopiesWithinTheProcessGoOnBesideThem) {
    OwnerMemory memory(b_, mapped(), kBytes);
    Buffer own(kBytes);
    a_.add(own.data(), kBytes);
    const PathId inner = *a_.nic->openPath(a_.asPeer());
    std::vector<WorkRequest> there(8, request(Opcode::Write, 0, memory.at(), kBytes, 1));
    std::vector<WorkRequest> here(8, request(Opcode::Write, 0, own.address(), kBytes, 2));
    ASSERT_EQ(a_.nic->post(path_, there), 8u);
    ASSERT_EQ(a_.nic->post(inner, here), 8u);
    ASSERT_TRUE(pump([&] { return a_.completed() == 16; }));
    ASSERT_FALSE(a_.sweep.completed.empty());
    // Neither waited for the other to be done with everything.
    std::size_t changes = 0;
    for (std::size_t i = 1; i < a_.sweep.completed.size(); ++i)
        if (a_.sweep.completed[i].cookie != a_.sweep.completed[i - 1].cookie) ++changes;
    EXPECT_GE(changes, 2u);
}

}  // namespace
}  // namespace troupe::test
