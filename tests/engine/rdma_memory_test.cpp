// Memory that an RDMA device does not give back, as the application sees it: whole engines on the software device.

#include <gmock/gmock.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "tests/support/engine_pair.h"
#include "tests/verbs_backend/soft_system.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using verbs::testing::SoftVerbs;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 16 * kPage;

/// An engine on the devices a0 and a1, and a peer on b0, with nothing but RDMA between them.
class RdmaMemory : public testing::Test {
  protected:
    void SetUp() override {
        a_ = start("a0,a1");
        b_ = start("b0");
        memory_.fillPattern(1);
        peers_.fillPattern(2);
        ASSERT_TRUE(a_->registerLocalMemory(memory_.data(), kBytes));
        ASSERT_TRUE(b_->registerLocalMemory(peers_.data(), kBytes));
        to_b_ = *a_->openSegment(b_->localSegmentName());
        to_a_ = *b_->openSegment(a_->localSegmentName());
    }
    void TearDown() override {
        a_.reset();
        b_.reset();
        EXPECT_EQ(soft_->leftovers(), "");
        for (const std::string& violation : soft_->violations()) ADD_FAILURE() << violation;
    }
    static std::unique_ptr<TransferEngine> start(const std::string& devices) {
        EngineSetup setup;
        setup.tcp = false;
        setup.config.rdma_devices = devices;
        setup.config.rdma_drain_timeout = std::chrono::milliseconds(50);
        auto engine = startEngine(setup);
        const auto rdma = engine->installTransport("rdma");
        EXPECT_TRUE(rdma) << rdma.status().toString();
        return engine;
    }
    static std::string range(const Buffer& memory) { return ByteRange{memory.address(), kBytes}.toString(); }
    TransferRequest outgoing(Opcode opcode) {
        return makeRequest(opcode, to_b_, memory_.data(), peers_.address(), kBytes);
    }
    TransferRequest incoming(Opcode opcode) {
        return makeRequest(opcode, to_a_, peers_.data(), memory_.address(), kBytes);
    }
    /// The range is neither the engine's to use nor anybody's to register.
    void expectClaimed(const Buffer& memory) {
        for (const auto& [begin, length] : {std::pair<std::size_t, std::size_t>{0, kBytes}, {kPage, 1}, {0, kPage}})
            expectCode(a_->registerLocalMemory(memory.data() + begin, length), Code::AddressOverlapped);
        BatchHolder batch(*a_, 1);
        expectCode(batch.submit({makeRequest(Opcode::Write, to_b_, memory.data(), peers_.address(), kBytes)}),
                   Code::AddressNotRegistered);
        const auto desc = a_->getSegmentDescByID(kLocalSegmentID);
        for (const BufferDesc& buffer : (*desc)->buffers)
            EXPECT_NE(buffer.addr, memory.address()) << "peers are told of it";
    }

    std::shared_ptr<SoftVerbs> soft_ = std::make_shared<SoftVerbs>(std::vector<std::string>{"a0", "a1", "b0"});
    verbs::testing::SoftSystem system_{soft_};
    Buffer memory_{kBytes};
    Buffer peers_{kBytes};
    std::unique_ptr<TransferEngine> a_;
    std::unique_ptr<TransferEngine> b_;
    SegmentID to_b_ = kInvalidSegmentID;
    SegmentID to_a_ = kInvalidSegmentID;
};

TEST_F(RdmaMemory, WhatTakesMoreWorkRequestsThanAQueuePairHasGoesByTheNextTransportOrSaysWhatToChange) {
    EngineSetup setup;
    setup.tcp = false;
    setup.config.rdma_devices = "b0";
    setup.config.rdma_max_chunk_bytes = kPage;
    b_ = startEngine(setup);
    ASSERT_TRUE(b_->installTransport("rdma"));
    setup.config.rdma_devices = "a0";
    setup.config.rdma_max_chunk_bytes = 1u << 30;
    setup.config.rdma_queue_depth = 16;
    a_ = startEngine(setup);
    ASSERT_TRUE(a_->installTransport("rdma"));
    Buffer local(32 * kPage);
    Buffer remote(32 * kPage);
    local.fillPattern(3);
    ASSERT_TRUE(a_->registerLocalMemory(local.data(), local.size()));
    ASSERT_TRUE(b_->registerLocalMemory(remote.data(), remote.size()));
    const SegmentID segment = *a_->openSegment(b_->localSegmentName());
    const auto few = makeRequest(Opcode::Write, segment, local.data(), remote.address(), 8 * kPage);
    const auto many = makeRequest(Opcode::Write, segment, local.data(), remote.address(), local.size());
    expectCompleted(runBatch(*a_, {few}), 8 * kPage);
    const auto refused = runBatch(*a_, {many});
    EXPECT_EQ(refused.s, TransferStatusEnum::FAILED);
    for (const char* part : {"32 work requests", "takes 16", "covers 4096 bytes", "rdma.max_chunk_bytes"})
        EXPECT_THAT(refused.error.message(), HasSubstr(part));
    ASSERT_TRUE(b_->installTransport("tcp"));
    ASSERT_TRUE(a_->installTransport("tcp"));
    ASSERT_TRUE(a_->syncSegmentCache());
    expectCompleted(runUntilCompleted(*a_, many), local.size());
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), local.size()), 0);
}

TEST_F(RdmaMemory, WhatADeviceKeepsIsBusyNamesItAndStaysClaimedUntilALaterUnregister) {
    expectCompleted(runBatch(*a_, {outgoing(Opcode::Write)}), kBytes);
    expectCompleted(runBatch(*b_, {incoming(Opcode::Read)}), kBytes);
    // The second of its two devices, twice.
    for (const int taken_back : {1, 0}) {
        soft_->fail("deregMr", EBUSY, 1, taken_back);
        const Status kept = a_->unregisterLocalMemory(memory_.data());
        expectCode(kept, Code::BatchBusy);
        for (const std::string& part :
             {std::string("transport 'rdma'"), std::string("device a1"), range(memory_), std::string("errno 16")})
            EXPECT_THAT(kept.message(), HasSubstr(part));
        EXPECT_EQ(soft_->count("mr"), 2u) << "one of it, one of the peer";
        expectClaimed(memory_);
        // The peer has its old key, of a device that keeps the registration, too: it is not led there any more.
        peers_.fillPattern(3);
        ASSERT_TRUE(b_->syncSegmentCache());
        expectFailed(runBatch(*b_, {incoming(Opcode::Write)}), Code::AddressNotRegistered);
        EXPECT_TRUE(memory_.holdsPattern(1));
    }
    EXPECT_TRUE(a_->unregisterLocalMemory(memory_.data()));
    EXPECT_EQ(soft_->count("mr"), 1u);
    expectCode(a_->unregisterLocalMemory(memory_.data()), Code::AddressNotRegistered);
    // And now it is memory as any other.
    ASSERT_TRUE(a_->registerLocalMemory(memory_.data(), kBytes));
    expectCompleted(runBatch(*a_, {outgoing(Opcode::Write)}), kBytes);
    EXPECT_TRUE(peers_.holdsPattern(1));
}

TEST_F(RdmaMemory, ABatchStopsAtWhatADeviceKeepsAndTheRestIsAsItWas) {
    Buffer second(kBytes);
    Buffer third(kBytes);
    for (Buffer* more : {&second, &third}) ASSERT_TRUE(a_->registerLocalMemory(more->data(), kBytes));
    // Of the second one neither device lets go, and when the batch asks for it once more, by itself, the first one not.
    soft_->fail("deregMr", EIO, 3, 2);
    const Status kept = a_->unregisterLocalMemoryBatch({memory_.data(), second.data(), third.data()});
    expectCode(kept, Code::BatchBusy);
    EXPECT_THAT(kept.message(), HasSubstr("device a0"));
    EXPECT_THAT(kept.message(), HasSubstr(range(second)));
    EXPECT_TRUE(a_->registerLocalMemory(memory_.data(), kBytes)) << "the first one is free";
    expectClaimed(second);
    third.fillPattern(4);
    expectCompleted(runBatch(*a_, {makeRequest(Opcode::Write, to_b_, third.data(), peers_.address(), kBytes)}), kBytes);
    EXPECT_TRUE(peers_.holdsPattern(4));
    EXPECT_TRUE(a_->unregisterLocalMemoryBatch({second.data(), third.data()}));
    EXPECT_EQ(soft_->count("mr"), 3u);
}

TEST_F(RdmaMemory, FreeLocalMemoryLeavesMappedWhatADeviceKeeps) {
    const auto allocated = a_->allocateLocalMemory(kBytes);
    ASSERT_TRUE(allocated) << allocated.status().toString();
    auto* const bytes = static_cast<unsigned char*>(*allocated);
    std::memset(bytes, 7, kBytes);
    soft_->fail("deregMr", EBUSY, 1);
    const Status kept = a_->freeLocalMemory(*allocated);
    expectCode(kept, Code::BatchBusy);
    EXPECT_THAT(kept.message(), HasSubstr("device a0"));
    EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](unsigned char byte) { return byte == 7; }));
    EXPECT_TRUE(a_->freeLocalMemory(*allocated));
    expectCode(a_->freeLocalMemory(*allocated), Code::AddressNotRegistered);
    EXPECT_EQ(soft_->count("mr"), 3u);
}

TEST_F(RdmaMemory, WhatIsLeftOfARefusedRegistrationStaysClaimedUntilItIsUnregistered) {
    Buffer refused(kBytes);
    soft_->fail("regMr", ENOMEM, 1, 1);
    // When it is undone, and when it is tried once more.
    soft_->fail("deregMr", EIO, 2);
    const Status status = a_->registerLocalMemory(refused.data(), kBytes);
    expectCode(status, Code::ResourceExhausted);
    for (const char* part : {"device a1", "limit on locked memory", "device a0", "does not take back"})
        EXPECT_THAT(status.message(), HasSubstr(part));
    expectClaimed(refused);
    EXPECT_EQ(soft_->count("mr"), 4u);
    EXPECT_TRUE(a_->unregisterLocalMemory(refused.data()));
    EXPECT_EQ(soft_->count("mr"), 3u);
    EXPECT_TRUE(a_->registerLocalMemory(refused.data(), kBytes));
}

TEST_F(RdmaMemory, TheEndOfTheEngineTriesOnceMore) {
    soft_->fail("deregMr", EIO, 1);
    expectCode(a_->unregisterLocalMemory(memory_.data()), Code::BatchBusy);
    EXPECT_EQ(soft_->count("mr"), 2u);
    EXPECT_TRUE(a_->freeEngine());
    EXPECT_EQ(soft_->count("mr"), 1u) << "that of the peer";
}

}  // namespace
}  // namespace troupe::test
