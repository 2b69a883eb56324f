// The owner checks every remote range.

#include <gmock/gmock.h>

#include "base/byte_range.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPage = 4096;

/// Both ways to reach memory whose owner checks: another engine over tcp, and the own segment.
enum class Where { OtherEngine, OwnSegment };

class RemoteRange : public testing::TestWithParam<Where> {
  protected:
    RemoteRange() : remote_(64 * kPage) {
        // Regions: [0,8) and [8,16) touch; [20,24) is not remotely accessible; [24,28) touches that one.
        for (const auto& [page, pages, open] :
             {std::tuple{0u, 8u, true}, {8u, 8u, true}, {20u, 4u, false}, {24u, 4u, true}}) {
            const Status done = owner().registerLocalMemory(remote_.data() + page * kPage, pages * kPage, "*", open);
            EXPECT_TRUE(done) << done.toString();
        }
    }
    TransferEngine& owner() { return GetParam() == Where::OtherEngine ? *pair_.b : *pair_.a; }
    SegmentID target() const { return GetParam() == Where::OtherEngine ? pair_.segment : kLocalSegmentID; }

    TransferStatus transfer(Opcode opcode, std::uint64_t offset, std::size_t length) {
        return runBatch(*pair_.a, {makeRequest(opcode, target(), pair_.local.data(), offset, length)});
    }
    void expectRefused(std::uint64_t offset, std::size_t length, Code code) {
        for (const Opcode opcode : {Opcode::Read, Opcode::Write}) {
            SCOPED_TRACE(opcode == Opcode::Read ? "read" : "write");
            pair_.local.fill(std::byte{0x11});
            remote_.fill(std::byte{0x22});
            expectFailed(transfer(opcode, offset, length), code);
            EXPECT_TRUE(pair_.local.holdsOnly(std::byte{0x11}, 0, pair_.local.size()));
            EXPECT_TRUE(remote_.holdsOnly(std::byte{0x22}, 0, remote_.size()));
        }
    }

    EnginePair pair_;
    Buffer remote_;
};

TEST_P(RemoteRange, NotRegisteredIsRefusedByTheOwner) {
    expectRefused(remote_.address(30 * kPage), 16, Code::AddressNotRegistered);
    expectRefused(0, 16, Code::AddressNotRegistered);
    expectRefused(pair_.local.address() - kPage * 1024, kPage, Code::AddressNotRegistered);
}

TEST_P(RemoteRange, OneByteBeyondEitherEdgeIsRefused) {
    expectRefused(remote_.address() - 1, 1, Code::AddressNotRegistered);
    expectRefused(remote_.address() - 1, 2, Code::AddressNotRegistered);
    expectRefused(remote_.address(16 * kPage), 1, Code::AddressNotRegistered);
    expectRefused(remote_.address(16 * kPage) - 1, 2, Code::AddressNotRegistered);
}

TEST_P(RemoteRange, PartialOverlapIsRefused) {
    expectRefused(remote_.address(15 * kPage), 2 * kPage, Code::AddressNotRegistered);
    expectRefused(remote_.address(15 * kPage), 10 * kPage, Code::AddressNotRegistered);
}

TEST_P(RemoteRange, TheFirstAndTheLastByteAreReachable) {
    remote_.fill(std::byte{0});
    pair_.local.fill(std::byte{5});
    expectCompleted(transfer(Opcode::Write, remote_.address(), 1), 1);
    expectCompleted(transfer(Opcode::Write, remote_.address(16 * kPage) - 1, 1), 1);
    EXPECT_EQ(remote_.data()[0], std::byte{5});
    EXPECT_EQ(remote_.data()[16 * kPage - 1], std::byte{5});
    EXPECT_TRUE(remote_.holdsOnly(std::byte{0}, 1, 16 * kPage - 2));
    EXPECT_TRUE(remote_.holdsOnly(std::byte{0}, 16 * kPage, remote_.size() - 16 * kPage));
}

TEST_P(RemoteRange, AWrappingRangeIsRefused) {
    expectRefused(UINT64_MAX, 2, Code::InvalidArgument);
    expectRefused(UINT64_MAX - 15, 64, Code::InvalidArgument);
    expectRefused(UINT64_MAX - 15, pair_.local.size(), Code::InvalidArgument);
}

TEST_P(RemoteRange, NotRemotelyAccessibleIsDenied) {
    expectRefused(remote_.address(20 * kPage), 16, Code::AccessDenied);
    expectRefused(remote_.address(24 * kPage) - 8, 16, Code::AccessDenied);
}

TEST_P(RemoteRange, MemoryThatIsMappedReadOnlyCanBeReadAndIsNeverWritten) {
    // As weights are: registered while they can only be read.
    Buffer weights(4 * kPage);
    weights.fillPattern(4);
    weights.protect(PROT_READ);
    ASSERT_TRUE(owner().registerLocalMemory(weights.data(), weights.size()));
    pair_.local.fill(std::byte{0});
    expectCompleted(transfer(Opcode::Read, weights.address(), weights.size()), weights.size());
    EXPECT_EQ(std::memcmp(weights.data(), pair_.local.data(), weights.size()), 0);
    for (const std::size_t length : {std::size_t{1}, std::size_t{64}, weights.size()})
        expectFailed(transfer(Opcode::Write, weights.address(), length), Code::AccessDenied);
    EXPECT_TRUE(weights.holdsPattern(4));
    // Nor by its owner's own reads.
    const auto batch = owner().allocateBatchID(1);
    ASSERT_TRUE(batch);
    EXPECT_EQ(
        owner()
            .submitTransfer(*batch, {makeRequest(Opcode::Read, kLocalSegmentID, weights.data(), remote_.address(), 64)})
            .code(),
        Code::AccessDenied);
    EXPECT_TRUE(owner().freeBatchID(*batch));
    EXPECT_TRUE(owner().unregisterLocalMemory(weights.data()));
    weights.protect(PROT_READ | PROT_WRITE);
}

TEST_P(RemoteRange, CrossingTwoTouchingRegionsWorks) {
    remote_.fill(std::byte{0});
    pair_.local.fillPattern(3);
    expectCompleted(transfer(Opcode::Write, remote_.address(4 * kPage), 8 * kPage), 8 * kPage);
    EXPECT_EQ(std::memcmp(remote_.data() + 4 * kPage, pair_.local.data(), 8 * kPage), 0);
    pair_.local.fill(std::byte{0});
    expectCompleted(transfer(Opcode::Read, remote_.address(4 * kPage), 8 * kPage), 8 * kPage);
    EXPECT_EQ(std::memcmp(remote_.data() + 4 * kPage, pair_.local.data(), 8 * kPage), 0);
}

TEST_P(RemoteRange, TheWholeOfTwoAdjacentRegionsWorks) {
    pair_.local.fillPattern(9);
    expectCompleted(transfer(Opcode::Write, remote_.address(), 16 * kPage), 16 * kPage);
    EXPECT_EQ(std::memcmp(remote_.data(), pair_.local.data(), 16 * kPage), 0);
}

TEST_P(RemoteRange, TheSourceMayBeProtectedAtOnceAfterARefusedWrite) {
    // Large enough that bytes are under way when the refusal comes.
    for (int round = 0; round < 100; ++round) {
        const auto status = transfer(Opcode::Write, remote_.address(10 * kPage), pair_.local.size());
        pair_.local.protect(PROT_NONE);
        pair_.local.protect(PROT_READ | PROT_WRITE);
        expectFailed(status, Code::AddressNotRegistered);
    }
    // The connection lives on.
    expectCompleted(transfer(Opcode::Write, remote_.address(), kPage), kPage);
}

TEST_P(RemoteRange, TheDestinationMayBeProtectedAtOnceAfterARefusedRead) {
    for (int round = 0; round < 100; ++round) {
        const auto status = transfer(Opcode::Read, remote_.address(10 * kPage), pair_.local.size());
        pair_.local.protect(PROT_NONE);
        pair_.local.protect(PROT_READ | PROT_WRITE);
        expectFailed(status, Code::AddressNotRegistered);
    }
}

TEST_P(RemoteRange, OfAContiguousBatchOnlyTheRequestOutOfRangeFails) {
    // Adjacent on both sides, so they travel merged where the transport merges; the last one leaves the region.
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        BatchHolder batch(*pair_.a, 17);
        std::vector<TransferRequest> requests;
        pair_.local.fillPattern(7);
        remote_.fillPattern(8);
        for (std::size_t i = 0; i < 17; ++i)
            requests.push_back(
                makeRequest(opcode, target(), pair_.local.data() + i * kPage, remote_.address(i * kPage), kPage));
        ASSERT_TRUE(batch.submit(requests));
        expectFailed(batch.wait(), Code::AddressNotRegistered);
        for (std::size_t i = 0; i < 16; ++i) expectCompleted(batch.task(i), kPage);
        expectFailed(batch.task(16), Code::AddressNotRegistered);
        EXPECT_EQ(std::memcmp(remote_.data(), pair_.local.data(), 16 * kPage), 0);
        EXPECT_NE(std::memcmp(remote_.data() + 16 * kPage, pair_.local.data() + 16 * kPage, kPage), 0);
    }
}

TEST_P(RemoteRange, OfAContiguousBatchOnlyTheDeniedRequestsInItsMiddleFail) {
    BatchHolder batch(*pair_.a, 12);
    std::vector<TransferRequest> requests;
    // Pages 16..28: 16 to 19 unregistered, 20 to 23 denied, 24 to 27 open.
    for (std::size_t i = 0; i < 12; ++i)
        requests.push_back(makeRequest(Opcode::Write, target(), pair_.local.data() + i * kPage,
                                       remote_.address((16 + i) * kPage), kPage));
    ASSERT_TRUE(batch.submit(requests));
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::FAILED);
    for (std::size_t i = 0; i < 4; ++i) expectFailed(batch.task(i), Code::AddressNotRegistered);
    for (std::size_t i = 4; i < 8; ++i) expectFailed(batch.task(i), Code::AccessDenied);
    for (std::size_t i = 8; i < 12; ++i) expectCompleted(batch.task(i), kPage);
}

TEST_P(RemoteRange, AnUnregisteredRegionIsOutOfReachAtOnce) {
    expectCompleted(transfer(Opcode::Write, remote_.address(), kPage), kPage);
    ASSERT_TRUE(owner().unregisterLocalMemory(remote_.data()));
    expectRefused(remote_.address(), kPage, Code::AddressNotRegistered);
    ASSERT_TRUE(owner().registerLocalMemory(remote_.data(), 8 * kPage));
    expectCompleted(transfer(Opcode::Write, remote_.address(), kPage), kPage);
}

/// What a transfer of `length` bytes says whose first `good` bytes lie in a region.
std::string refusalOf(EnginePair& pair, SegmentID target, const Buffer& remote, Opcode opcode, std::size_t good,
                      std::size_t length) {
    TransferEngine& owner = target == kLocalSegmentID ? *pair.a : *pair.b;
    EXPECT_TRUE(owner.registerLocalMemory(remote.data(), good));
    const auto status = runBatch(*pair.a, {makeRequest(opcode, target, pair.local.data(), remote.address(), length)});
    EXPECT_TRUE(owner.unregisterLocalMemory(remote.data()));
    expectFailed(status, Code::AddressNotRegistered);
    EXPECT_LE(status.transferred_bytes, good) << "a part may have been moved, but none outside";
    return status.error.message();
}

TEST(RemoteRefusal, NamesTheRangeThatWasAskedForAndTheFirstAddressThatIsNotRegisteredByEveryTransport) {
    constexpr std::size_t kGood = 1u << 20;
    constexpr std::size_t kLength = 3u << 20;
    const Buffer remote(kLength);
    const std::string range = ByteRange{remote.address(), kLength}.toString();
    const std::string missing = hexAddress(remote.address(kGood)) + " is not registered";
    EngineSetup by_host;
    by_host.config.host_peers = true;
    for (const bool host : {false, true}) {
        EnginePair pair(host ? by_host : EngineSetup(), kLength);
        for (const SegmentID target : {pair.segment, kLocalSegmentID}) {
            const auto& owner = target == kLocalSegmentID ? pair.a : pair.b;
            for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
                const std::string said = refusalOf(pair, target, remote, opcode, kGood, kLength);
                const std::string what = opcode == Opcode::Write ? "write to " : "read of ";
                EXPECT_THAT(said, testing::StartsWith(what + range + ": segment '" + owner->localSegmentName() + "'"));
                EXPECT_THAT(said, testing::EndsWith(": " + missing));
                EXPECT_THAT(said, HasSubstr(target == kLocalSegmentID || host ? "through host" : "through tcp"));
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Owners, RemoteRange, testing::Values(Where::OtherEngine, Where::OwnSegment),
                         [](const auto& param) {
                             return param.param == Where::OtherEngine ? "OtherEngine" : "OwnSegment";
                         });

}  // namespace
}  // namespace troupe::test
