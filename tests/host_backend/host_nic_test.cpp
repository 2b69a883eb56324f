#include "host_backend/host_nic.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

namespace troupe {
namespace {

constexpr std::uint64_t kChunk = 4096;

class HostNicTest : public testing::Test {
  protected:
    HostNicTest() {
        fill(remote_, 1);
        fill(local_, 2);
        region_ = add(remote_.data(), remote_.size());
        path_ = *nic_.openPath(peer(self_));
    }

    static void fill(std::vector<std::byte>& bytes, unsigned seed) {
        std::mt19937 random(seed);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    }
    static NicInfo info() {
        NicInfo result;
        result.name = "host0";
        result.transport = "host";
        result.window_bytes = 1u << 20;
        result.window_requests = 64;
        return result;
    }
    std::shared_ptr<const Peer> peer(const Incarnation& incarnation) {
        auto desc = std::make_shared<SegmentDesc>();
        desc->incarnation = incarnation;
        return std::make_shared<const Peer>(Peer{0, "me", "127.0.0.1", desc});
    }
    std::uint64_t add(void* addr, std::size_t length, bool remote_accessible = true) {
        Region region;
        region.range = {reinterpret_cast<std::uintptr_t>(addr), length};
        region.remote_accessible = remote_accessible;
        const auto reserved = table_.reserve(region);
        EXPECT_TRUE(reserved.isOk()) << reserved.status().toString();
        table_.commit(reserved->id);
        return reserved->id;
    }
    WorkRequest request(Opcode opcode, std::size_t local_at, std::size_t remote_at, std::size_t length,
                        std::uint64_t cookie = 7) {
        return {local_.data() + local_at, reinterpret_cast<std::uintptr_t>(remote_.data()) + remote_at, length, cookie,
                opcode};
    }
    std::size_t post(const WorkRequest& request) { return nic_.post(path_, {&request, 1}); }
    /// Polls until the Nic is idle; returns how many polls moved something.
    int drain() {
        int polls = 0;
        while (nic_.poll(Clock::now(), sweep_)) {
            EXPECT_LT(++polls, 1000000);
            if (polls >= 1000000) break;
        }
        EXPECT_TRUE(nic_.arm());
        return polls;
    }

    RegistrationTable table_;
    const Incarnation self_ = Incarnation::random();
    Config config_ = [] {
        Config config;
        config.host_chunk_bytes = kChunk;
        return config;
    }();
    HostNic nic_{info(), std::make_shared<const host::HostShared>(
                             host::HostShared{config_, table_, self_, makeSilentLogger(), {}, {}})};
    std::vector<std::byte> remote_ = std::vector<std::byte>(1u << 20);
    std::vector<std::byte> local_ = std::vector<std::byte>(1u << 20);
    std::uint64_t region_ = 0;
    PathId path_ = 0;
    Sweep sweep_;
};

TEST_F(HostNicTest, AWriteAndAReadMoveTheBytes) {
    ASSERT_EQ(post(request(Opcode::Write, 100, 5000, 70000, 1)), 1u);
    ASSERT_EQ(post(request(Opcode::Read, 300000, 600000, 12345, 2)), 1u);
    EXPECT_TRUE(sweep_.empty());
    drain();
    ASSERT_EQ(sweep_.completed.size(), 2u);
    EXPECT_EQ(sweep_.completed[0].cookie, 1u);
    EXPECT_EQ(sweep_.completed[0].bytes, 70000u);
    EXPECT_EQ(sweep_.completed[1].bytes, 12345u);
    EXPECT_EQ(std::memcmp(remote_.data() + 5000, local_.data() + 100, 70000), 0);
    EXPECT_EQ(std::memcmp(local_.data() + 300000, remote_.data() + 600000, 12345), 0);
}

TEST_F(HostNicTest, ReachesOnlyItsOwnIncarnation) {
    EXPECT_EQ(nic_.openPath(peer(Incarnation::random())).status().code(), Code::TransportMissing);
    EXPECT_EQ(nic_.openPath(nullptr).status().code(), Code::InvalidArgument);
}

TEST_F(HostNicTest, OnePollCopiesAboutOneChunk) {
    ASSERT_EQ(post(request(Opcode::Write, 0, 0, 100 * kChunk)), 1u);
    EXPECT_FALSE(nic_.arm()) << "sleep with work queued";
    EXPECT_TRUE(nic_.poll(Clock::now(), sweep_));
    EXPECT_TRUE(sweep_.empty());
    EXPECT_EQ(std::memcmp(remote_.data(), local_.data(), kChunk), 0);
    EXPECT_NE(std::memcmp(remote_.data() + kChunk, local_.data() + kChunk, kChunk), 0);
    EXPECT_GE(drain(), 98);
    EXPECT_EQ(sweep_.completed.size(), 1u);
}

TEST_F(HostNicTest, ManySmallRequestsAreBoundedPerPollAndMerged) {
    std::vector<WorkRequest> requests(64, request(Opcode::Write, 0, 0, 8));
    ASSERT_EQ(nic_.post(path_, requests), 64u);
    EXPECT_GT(drain(), 2);
    ASSERT_EQ(sweep_.completed.size(), 1u);
    EXPECT_EQ(sweep_.completed[0].requests, 64u);
    EXPECT_EQ(sweep_.completed[0].bytes, 64u * 8);
}

TEST_F(HostNicTest, TheWindowBoundsWhatIsTakenAndOpensAgain) {
    std::vector<WorkRequest> requests(100, request(Opcode::Write, 0, 0, 8));
    EXPECT_EQ(nic_.post(path_, requests), 64u);
    EXPECT_EQ(nic_.post(path_, requests), 0u);
    drain();
    EXPECT_EQ(nic_.post(path_, requests), 64u);
    drain();
    std::vector<WorkRequest> large(10, request(Opcode::Write, 0, 0, 512u << 10));
    EXPECT_EQ(nic_.post(path_, large), 2u);
    drain();
}

TEST_F(HostNicTest, OverlappingRangesMoveAsMemmoveDoes) {
    // Both sides lie in the registered memory; every shift, in both directions, over many chunks.
    for (const Opcode opcode : {Opcode::Read, Opcode::Write})
        for (const long shift : {-50000l, -4097l, -4096l, -100l, -1l, 0l, 1l, 3l, 4095l, 4096l, 5000l, 70000l}) {
            fill(remote_, 9);
            auto expected = remote_;
            const std::size_t length = 60000;
            const long local_at = 200000, remote_at = local_at + shift;
            if (opcode == Opcode::Read)
                std::memmove(expected.data() + local_at, expected.data() + remote_at, length);
            else
                std::memmove(expected.data() + remote_at, expected.data() + local_at, length);
            const WorkRequest request{remote_.data() + local_at,
                                      reinterpret_cast<std::uintptr_t>(remote_.data() + remote_at), length, 1, opcode};
            ASSERT_EQ(post(request), 1u);
            drain();
            EXPECT_TRUE(remote_ == expected) << "shift " << shift;
        }
    EXPECT_TRUE(sweep_.failed.empty());
}

TEST_F(HostNicTest, ARemoteRangeIsCheckedAsItsOwnerWould) {
    std::vector<std::byte> private_memory(4096);
    add(private_memory.data(), private_memory.size(), false);
    WorkRequest denied = request(Opcode::Read, 0, 0, 10);
    denied.remote = reinterpret_cast<std::uintptr_t>(private_memory.data());
    WorkRequest unknown = request(Opcode::Write, 0, 0, 10);
    unknown.remote = 4096;
    WorkRequest wrapping = request(Opcode::Write, 0, 0, 10);
    wrapping.remote = UINT64_MAX - 3;
    const std::size_t tail = remote_.size() - 5;
    const auto before = local_;
    for (const auto& each : {denied, unknown, wrapping, request(Opcode::Read, 0, tail, 6)}) ASSERT_EQ(post(each), 1u);
    ASSERT_EQ(post(request(Opcode::Read, 100, tail, 5)), 1u);
    drain();
    ASSERT_EQ(sweep_.failed.size(), 4u);
    EXPECT_EQ(sweep_.failed[0].cause.code(), Code::AccessDenied);
    EXPECT_EQ(sweep_.failed[1].cause.code(), Code::AddressNotRegistered);
    EXPECT_EQ(sweep_.failed[2].cause.code(), Code::InvalidArgument);
    EXPECT_EQ(sweep_.failed[3].cause.code(), Code::AddressNotRegistered);
    for (const auto& failure : sweep_.failed) {
        EXPECT_FALSE(failure.retryable);
        EXPECT_TRUE(failure.quiesced);
        EXPECT_NE(failure.cause.message().find("host0"), std::string::npos);
    }
    EXPECT_EQ(sweep_.completed.size(), 1u);
    EXPECT_EQ(std::memcmp(local_.data(), before.data(), 100), 0);
}

TEST_F(HostNicTest, ARegionUnregisteredWhileTheRequestWaitsIsNotTouched) {
    ASSERT_EQ(post(request(Opcode::Write, 0, 0, 1000)), 1u);
    const auto before = remote_;
    ASSERT_TRUE(table_.beginRemoval(reinterpret_cast<std::uintptr_t>(remote_.data())).isOk());
    EXPECT_FALSE(nic_.servesPeerIn({reinterpret_cast<std::uintptr_t>(remote_.data()), remote_.size()}));
    drain();
    ASSERT_EQ(sweep_.failed.size(), 1u);
    EXPECT_EQ(sweep_.failed[0].cause.code(), Code::AddressNotRegistered);
    EXPECT_TRUE(remote_ == before);
}

TEST_F(HostNicTest, ACopyThatBeganHoldsItsRegionUntilItEndsOrIsCut) {
    const ByteRange all{reinterpret_cast<std::uintptr_t>(remote_.data()), remote_.size()};
    ASSERT_EQ(post(request(Opcode::Write, 0, 0, 10 * kChunk)), 1u);
    nic_.poll(Clock::now(), sweep_);
    ASSERT_TRUE(table_.beginRemoval(all.addr).isOk());
    EXPECT_TRUE(nic_.servesPeerIn(all));
    EXPECT_FALSE(nic_.servesPeerIn({all.addr + 500000, 10}));
    drain();
    EXPECT_FALSE(nic_.servesPeerIn(all));
    EXPECT_EQ(sweep_.completed.size(), 1u) << "what began is finished";

    table_.cancelRemoval(region_);
    ASSERT_EQ(post(request(Opcode::Write, 0, 0, 10 * kChunk)), 1u);
    nic_.poll(Clock::now(), sweep_);
    nic_.cutPeersIn(all);
    EXPECT_FALSE(nic_.servesPeerIn(all));
    EXPECT_FALSE(nic_.arm()) << "the failure is still to be told";
    drain();
    ASSERT_EQ(sweep_.failed.size(), 1u);
    EXPECT_EQ(sweep_.failed[0].cause.code(), Code::AddressNotRegistered);
}

TEST_F(HostNicTest, ResetFailsWhatIsPostedAndTheNextPostWorks) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(post(request(Opcode::Write, 0, 0, 10 * kChunk, 10)), 1u);
    nic_.poll(Clock::now(), sweep_);
    nic_.resetPath(path_, Status(Code::Timeout, "deadline"));
    const auto after = remote_;
    drain();
    ASSERT_EQ(sweep_.failed.size(), 3u);
    EXPECT_TRUE(sweep_.failed[0].retryable);
    EXPECT_EQ(sweep_.failed[0].cause.code(), Code::Timeout);
    EXPECT_TRUE(remote_ == after) << "copied on after the reset";
    sweep_.clear();
    ASSERT_EQ(post(request(Opcode::Write, 0, 0, 10 * kChunk)), 1u);
    drain();
    EXPECT_EQ(sweep_.completed.size(), 1u);
    EXPECT_EQ(std::memcmp(remote_.data(), local_.data(), 10 * kChunk), 0);
}

TEST_F(HostNicTest, AResetBringsAHalfDoneCopyOverItsOwnSourceToItsEnd) {
    for (std::size_t i = 0; i < remote_.size(); ++i) remote_[i] = static_cast<std::byte>(i * 31 >> 3);
    const std::size_t length = 20 * kChunk;
    std::vector<std::byte> expected = remote_;
    std::memmove(expected.data() + 1000, expected.data(), length);
    // Within one buffer, forward by less than its length.
    const WorkRequest overlapping{remote_.data(), reinterpret_cast<std::uintptr_t>(remote_.data()) + 1000, length, 1,
                                  Opcode::Write};
    ASSERT_EQ(post(overlapping), 1u);
    ASSERT_EQ(post(request(Opcode::Read, 0, 30 * kChunk, kChunk, 2)), 1u);
    nic_.poll(Clock::now(), sweep_);
    ASSERT_TRUE(sweep_.empty());
    nic_.resetPath(path_, Status(Code::PathReset, "for another's sake"));
    drain();
    ASSERT_EQ(sweep_.completed.size(), 1u);
    EXPECT_EQ(sweep_.completed[0].cookie, 1u);
    EXPECT_TRUE(remote_ == expected);
    ASSERT_EQ(sweep_.failed.size(), 1u);
    EXPECT_EQ(sweep_.failed[0].request.cookie, 2u);
    EXPECT_TRUE(sweep_.failed[0].retryable);
}

TEST_F(HostNicTest, CloseFailsOnlyItsOwnPath) {
    const PathId other = *nic_.openPath(peer(self_));
    EXPECT_NE(other, path_);
    const auto mine = request(Opcode::Write, 0, 0, 10 * kChunk, 1);
    const auto theirs = request(Opcode::Write, 0, 100000, 10 * kChunk, 2);
    ASSERT_EQ(nic_.post(other, {&theirs, 1}), 1u);
    ASSERT_EQ(post(mine), 1u);
    nic_.poll(Clock::now(), sweep_);
    nic_.closePath(path_, Status(Code::Canceled, "closed"));
    ASSERT_EQ(post(mine), 1u) << "a dead path takes work only to fail it";
    drain();
    ASSERT_EQ(sweep_.failed.size(), 2u);
    EXPECT_EQ(sweep_.failed[0].cause.code(), Code::Canceled);
    EXPECT_FALSE(sweep_.failed[0].retryable);
    EXPECT_EQ(sweep_.failed[1].cause.code(), Code::StaleHandle);
    ASSERT_EQ(sweep_.completed.size(), 1u);
    EXPECT_EQ(sweep_.completed[0].cookie, 2u);
    EXPECT_EQ(std::memcmp(remote_.data() + 100000, local_.data(), 10 * kChunk), 0) << "started from the beginning?";
}

TEST_F(HostNicTest, ARequestLongerThanTheWindowIsTakenWhole) {
    std::vector<std::byte> big_remote(3u << 20), big_local(3u << 20);
    fill(big_local, 5);
    add(big_remote.data(), big_remote.size());
    const WorkRequest request{big_local.data(), reinterpret_cast<std::uintptr_t>(big_remote.data()), big_local.size(),
                              1, Opcode::Write};
    ASSERT_EQ(post(request), 1u);
    drain();
    EXPECT_TRUE(big_remote == big_local);
}

}  // namespace
}  // namespace troupe
