// What registering and unregistering memory accepts and refuses.

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "base/byte_range.h"
#include "base/fault_injector.h"
#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"
#include "topology/topology.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPage = 4096;

class Registration : public testing::Test {
  protected:
    std::unique_ptr<TransferEngine> engine_ = startEngine();
    Buffer memory_{16 * kPage};
    std::byte* at(std::size_t page) { return memory_.data() + page * kPage; }
    /// With null alone, which moves nothing and so takes memory of all kinds.
    void onlyNull() {
        for (const char* each : {"host", "tcp", "null"}) {
            if (engine_->getTransport(each) == nullptr) continue;
            ASSERT_TRUE(engine_->uninstallTransport(each));
        }
        ASSERT_TRUE(engine_->installTransport("null"));
    }
};

TEST_F(Registration, ZeroLengthIsInvalid) {
    expectCode(engine_->registerLocalMemory(memory_.data(), 0), Code::InvalidArgument);
}

TEST_F(Registration, NullIsInvalid) { expectCode(engine_->registerLocalMemory(nullptr, kPage), Code::InvalidArgument); }

TEST_F(Registration, ARangeThatWrapsIsInvalid) {
    expectCode(engine_->registerLocalMemory(memory_.data(), SIZE_MAX), Code::InvalidArgument);
    expectCode(engine_->registerLocalMemory(memory_.data(), SIZE_MAX - memory_.address() + 1), Code::InvalidArgument);
}

TEST_F(Registration, MemoryThatIsNotMappedIsRefusedWithTheFirstMissingAddress) {
    Buffer gone(4 * kPage);
    std::byte* const begin = gone.data();
    const auto expectHole = [&](std::byte* addr, std::size_t length, const std::byte* hole) {
        for (const Status& refused : {engine_->registerLocalMemory(addr, length),
                                      engine_->registerLocalMemoryBatch({{memory_.data(), kPage}, {addr, length}})}) {
            expectCode(refused, Code::InvalidArgument);
            EXPECT_THAT(refused.message(),
                        HasSubstr("no memory at " + hexAddress(reinterpret_cast<std::uint64_t>(hole)) + ";"));
        }
    };
    // A hole in the middle, which no look at the first and the last page would find.
    ASSERT_EQ(::munmap(begin + 2 * kPage, kPage), 0);
    expectHole(begin, 4 * kPage, begin + 2 * kPage);
    expectHole(begin + kPage + 7, kPage, begin + 2 * kPage);
    expectHole(begin + 2 * kPage + 5, 1, begin + 2 * kPage + 5);
    EXPECT_TRUE(engine_->registerLocalMemory(begin + 3 * kPage, kPage)) << "behind it";
    EXPECT_TRUE(engine_->registerLocalMemory(begin + 7, 2 * kPage - 7)) << "up to its first byte";
    // The kernel's half of the address space, and all of ours from here on.
    expectHole(reinterpret_cast<std::byte*>(~std::uint64_t{0} << 47), kPage,
               reinterpret_cast<std::byte*>(~std::uint64_t{0} << 47));
    expectCode(engine_->registerLocalMemory(begin, std::size_t{1} << 46), Code::InvalidArgument);
    // All of one mapping is looked at by one step, however large: nothing of it comes into being.
    constexpr std::size_t kHuge = std::size_t{1} << 40;
    void* const reserved =
        ::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(reserved, MAP_FAILED);
    EXPECT_TRUE(engine_->registerLocalMemory(reserved, kHuge));
    EXPECT_TRUE(engine_->unregisterLocalMemory(reserved));
    ::munmap(reserved, kHuge);
    EXPECT_EQ((*engine_->getSegmentDescByID(kLocalSegmentID))->buffers.size(), 2u);
    // Before the pages that are gone belong to somebody else.
    EXPECT_TRUE(engine_->unregisterLocalMemoryBatch({begin + 3 * kPage, begin + 7}));
}

TEST_F(Registration, ALocationThatNobodyKnowsIsRefusedByItsName) {
    for (const char* bad : {"", "cpu", "cpu:", "cpu:x", "cpu:-1", "cpu:0 ", "CPU:0", "cuda", "cuda:", "cuda:1x",
                            "gpu:0", "numa0", "**", "cpu:123456", "cpu:00", "segments:4096", "segments:0:0"}) {
        for (const Status& refused :
             {engine_->registerLocalMemory(at(0), kPage, bad), engine_->registerLocalMemoryBatch({{at(0), kPage}}, bad),
              engine_->allocateLocalMemory(kPage, bad).status()}) {
            expectCode(refused, Code::InvalidArgument);
            EXPECT_THAT(refused.message(), HasSubstr("location '" + std::string(bad) + "'"));
        }
    }
    EXPECT_TRUE(engine_->registerLocalMemory(at(0), kPage, "*"));
}

TEST_F(Registration, ANumaNodeThatTheMachineDoesNotHaveIsRefusedAndThoseItHasAreNamed) {
    const auto nodes = discoverTopology().nodes;
    ASSERT_FALSE(nodes.empty());
    ASSERT_LE(nodes.size(), memory_.size() / kPage);
    for (std::size_t i = 0; i < nodes.size(); ++i)
        EXPECT_TRUE(engine_->registerLocalMemory(at(i), kPage, "cpu:" + std::to_string(nodes[i].id)));
    const std::string missing = "cpu:" + std::to_string(nodes.back().id + 1);
    Buffer other(kPage);
    for (const std::string& bad : {missing, std::string("cpu:9999"), std::string("segments:4096:0,9999")}) {
        for (const Status& refused : {engine_->registerLocalMemory(other.data(), kPage, bad),
                                      engine_->registerLocalMemoryBatch({{other.data(), kPage}}, bad),
                                      engine_->allocateLocalMemory(kPage, bad).status()}) {
            expectCode(refused, Code::InvalidArgument);
            EXPECT_THAT(refused.message(), HasSubstr("location '" + bad + "'"));
            for (const NumaNode& node : nodes)
                EXPECT_THAT(refused.message(), HasSubstr("cpu:" + std::to_string(node.id)));
        }
    }
    EXPECT_TRUE(engine_->registerLocalMemory(other.data(), kPage));
}

TEST_F(Registration, ARegionMayLieInPartsOnSeveralNodes) {
    const std::string node = std::to_string(discoverTopology().nodes.front().id);
    const std::string parts = "segments:4096:" + node + "," + node;
    ASSERT_TRUE(engine_->registerLocalMemory(at(0), 4 * kPage, parts));
    EXPECT_EQ((*engine_->getSegmentDescByID(kLocalSegmentID))->buffers[0].location, parts);
    expectCode(engine_->registerLocalMemory(at(8), kPage, parts + std::string(300, '0')), Code::InvalidArgument);
}

TEST_F(Registration, OverlapWithARegisteredRangeIsRefused) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(4), 4 * kPage));
    struct Case {
        std::byte* addr;
        std::size_t length;
        const char* what;
    };
    const Case cases[] = {
        {at(4), 4 * kPage, "the same range"},
        {at(5), kPage, "inside"},
        {at(0), 16 * kPage, "around"},
        {at(3), kPage + 1, "one byte at the front"},
        {at(8) - 1, kPage, "one byte at the end"},
        {at(4), 1, "its first byte"},
        {at(8) - 1, 1, "its last byte"},
        {at(4), 8 * kPage, "the same base, longer"},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(c.what);
        expectCode(engine_->registerLocalMemory(c.addr, c.length), Code::AddressOverlapped);
    }
}

TEST_F(Registration, OverlapIsRefusedWhileAnotherThreadRegistersTheSameRange) {
    // Whoever comes second meets a registered or an in-flight range; exactly one may succeed.
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> accepted{0};
        std::atomic<int> overlapped{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&, i] {
                const Status done = engine_->registerLocalMemory(at(static_cast<std::size_t>(i)), 8 * kPage);
                if (done)
                    ++accepted;
                else if (done.code() == Code::AddressOverlapped)
                    ++overlapped;
            });
        for (auto& thread : threads) thread.join();
        EXPECT_EQ(accepted, 1);
        EXPECT_EQ(overlapped, 3);
        int removed = 0;
        for (std::size_t i = 0; i < 4; ++i)
            if (engine_->unregisterLocalMemory(at(i))) ++removed;
        EXPECT_EQ(removed, 1);
    }
}

TEST_F(Registration, TouchingRangesAreAccepted) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(4), kPage));
    EXPECT_TRUE(engine_->registerLocalMemory(at(3), kPage));
    EXPECT_TRUE(engine_->registerLocalMemory(at(5), kPage));
}

TEST_F(Registration, UnknownBaseAndInteriorAddressAreNotRegistered) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(4), 4 * kPage));
    expectCode(engine_->unregisterLocalMemory(at(0)), Code::AddressNotRegistered);
    expectCode(engine_->unregisterLocalMemory(at(5)), Code::AddressNotRegistered);
    expectCode(engine_->unregisterLocalMemory(at(4) + 1), Code::AddressNotRegistered);
    expectCode(engine_->unregisterLocalMemory(nullptr), Code::AddressNotRegistered);
    EXPECT_TRUE(engine_->unregisterLocalMemory(at(4)));
    expectCode(engine_->unregisterLocalMemory(at(4)), Code::AddressNotRegistered);
}

TEST_F(Registration, ARangeCanBeRegisteredAgainAfterItWasUnregistered) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(0), 4 * kPage));
    ASSERT_TRUE(engine_->unregisterLocalMemory(at(0)));
    EXPECT_TRUE(engine_->registerLocalMemory(at(1), 8 * kPage));
}

TEST_F(Registration, MemoryOfTheHostIsNotTakenForThatOfAGpu) {
    // Whether there is a driver here or not, and which transports there are; with one it says what the memory is.
    onlyNull();
    const Status refused = engine_->registerLocalMemory(at(0), kPage, "cuda:0");
    EXPECT_TRUE(refused.code() == Code::Unsupported || refused.code() == Code::InvalidArgument) << refused.toString();
    EXPECT_THAT(refused.message(), HasSubstr("cuda:0"));
    expectCode(engine_->unregisterLocalMemory(at(0)), Code::AddressNotRegistered);
    EXPECT_TRUE(engine_->registerLocalMemory(at(0), kPage, "cpu:0"));
    EXPECT_EQ((*engine_->getSegmentDescByID(kLocalSegmentID))->buffers.size(), 1u);
}

TEST_F(Registration, ABatchIsAllOrNothing) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(8), kPage));
    expectCode(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), kPage}, {at(8), kPage}}),
               Code::AddressOverlapped);
    expectCode(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), 0}}), Code::InvalidArgument);
    expectCode(engine_->registerLocalMemoryBatch({{at(0), 2 * kPage}, {at(1), kPage}}), Code::AddressOverlapped);
    EXPECT_FALSE(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), kPage}}, "cuda:0"));
    EXPECT_EQ((*engine_->getSegmentDescByID(kLocalSegmentID))->buffers.size(), 1u);
    EXPECT_TRUE(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), kPage}}));
    EXPECT_TRUE(engine_->registerLocalMemoryBatch({}));
    EXPECT_EQ((*engine_->getSegmentDescByID(kLocalSegmentID))->buffers.size(), 3u);
}

TEST_F(Registration, UnregisteringABatchStopsAtTheFirstError) {
    ASSERT_TRUE(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), kPage}, {at(4), kPage}}));
    expectCode(engine_->unregisterLocalMemoryBatch({at(0), at(1), at(2)}), Code::AddressNotRegistered);
    expectCode(engine_->unregisterLocalMemory(at(0)), Code::AddressNotRegistered);
    EXPECT_TRUE(engine_->unregisterLocalMemoryBatch({at(2), at(4)}));
    EXPECT_TRUE(engine_->unregisterLocalMemoryBatch({}));
}

TEST_F(Registration, UnregisteringABatchTwiceTheSameIsAnErrorAtTheSecond) {
    ASSERT_TRUE(engine_->registerLocalMemoryBatch({{at(0), kPage}, {at(2), kPage}}));
    expectCode(engine_->unregisterLocalMemoryBatch({at(0), at(0), at(2)}), Code::AddressNotRegistered);
    EXPECT_TRUE(engine_->unregisterLocalMemory(at(2))) << "it was not reached";
}

TEST(Unregister, ThousandsOfRegionsGoInOneCallAndTheirPeersSeeIt) {
    constexpr std::size_t kRegions = 3000;
    EnginePair pair({}, kRegions * 2 * kPage);
    ASSERT_TRUE(pair.b->unregisterLocalMemory(pair.remote.data()));
    std::vector<BufferEntry> entries;
    std::vector<void*> addrs;
    // With gaps, so that no two are one range.
    for (std::size_t i = 0; i < kRegions; ++i) {
        addrs.push_back(pair.remote.data() + i * 2 * kPage);
        entries.push_back({addrs.back(), kPage});
    }
    for (int round = 0; round < 2; ++round) {
        ASSERT_TRUE(pair.b->registerLocalMemoryBatch(entries));
        expectCompleted(pair.write(0, (kRegions - 1) * 2 * kPage, kPage), kPage);
        ASSERT_TRUE(pair.b->unregisterLocalMemoryBatch(addrs));
        EXPECT_TRUE((*pair.b->getSegmentDescByID(kLocalSegmentID))->buffers.empty());
        expectFailed(pair.write(0, (kRegions - 1) * 2 * kPage, kPage), Code::AddressNotRegistered);
        expectFailed(pair.write(0, 0, kPage), Code::AddressNotRegistered);
    }
}

TEST(Unregister, OfABatchStopsAtTheRegionThatIsInUseAndLeavesTheRestUsable) {
    EngineSetup setup;
    setup.config.unregister_timeout = std::chrono::milliseconds(50);
    setup.config.faults_enabled = true;
    EnginePair pair(setup, 64 * kPage);
    ASSERT_TRUE(pair.a->unregisterLocalMemory(pair.local.data()));
    std::vector<BufferEntry> entries;
    std::vector<void*> addrs;
    for (std::size_t i = 0; i < 32; ++i) {
        addrs.push_back(pair.local.data() + i * 2 * kPage);
        entries.push_back({addrs.back(), kPage});
    }
    ASSERT_TRUE(pair.a->registerLocalMemoryBatch(entries));
    FaultRule lost;
    lost.point = FaultPoint::Completion;
    lost.action = FaultAction::Lose;
    lost.nth = 1;
    ASSERT_TRUE((*pair.a->faults())->add(lost));
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 20 * 2 * kPage, 0, kPage)}));
    const Status busy = pair.a->unregisterLocalMemoryBatch(addrs);
    expectCode(busy, Code::BatchBusy);
    EXPECT_THAT(busy.message(), HasSubstr(hexAddress(pair.local.address(20 * 2 * kPage))));
    EXPECT_THAT(busy.message(), HasSubstr("batch " + std::to_string(batch.id())));
    EXPECT_EQ((*pair.a->getSegmentDescByID(kLocalSegmentID))->buffers.size(), 12u);
    BatchHolder next(*pair.a, 1);
    expectCode(next.submit({pair.request(Opcode::Write, 19 * 2 * kPage, 0, kPage)}), Code::AddressNotRegistered);
    ASSERT_TRUE(pair.a->cancelTransfer(batch.id()));
    batch.wait();
    expectCompleted(pair.write(20 * 2 * kPage, 0, kPage), kPage);
    EXPECT_TRUE(pair.a->unregisterLocalMemoryBatch({addrs.begin() + 20, addrs.end()}));
}

TEST_F(Registration, NewWorkOnAnUnregisteredRegionIsRefused) {
    ASSERT_TRUE(engine_->registerLocalMemory(at(0), kPage));
    ASSERT_TRUE(engine_->registerLocalMemory(at(2), kPage));
    const auto request = makeRequest(Opcode::Write, kLocalSegmentID, at(0), memory_.address(2 * kPage), 16);
    expectCompleted(runBatch(*engine_, {request}), 16);
    ASSERT_TRUE(engine_->unregisterLocalMemory(at(0)));
    BatchHolder batch(*engine_, 1);
    expectCode(batch.submit({request}), Code::AddressNotRegistered);
}

TEST(Unregister, WaitsForTheTransfersThatUseTheRegion) {
    EnginePair pair({}, 32u << 20);
    for (int round = 0; round < 10; ++round) {
        BatchHolder batch(*pair.a, 1);
        ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
        // Accepted before, so it ends first: the source may vanish as soon as unregister returns.
        ASSERT_TRUE(pair.a->unregisterLocalMemory(pair.local.data()));
        const auto status = pair.a->getBatchTransferStatus(batch.id());
        ASSERT_TRUE(status);
        EXPECT_TRUE(isTerminal(status->s));
        pair.local.protect(PROT_NONE);
        pair.local.protect(PROT_READ | PROT_WRITE);
        expectCompleted(*status, pair.local.size());
        ASSERT_TRUE(pair.a->registerLocalMemory(pair.local.data(), pair.local.size()));
    }
}

TEST(Unregister, ByTheOwnerWhilePeersWriteLeavesTheMemoryAloneAfterwards) {
    EnginePair pair({}, 8u << 20);
    for (int round = 0; round < 5; ++round) {
        BatchHolder batch(*pair.a, 64);
        std::vector<TransferRequest> requests(64, pair.request(Opcode::Write, 0, 0, pair.local.size()));
        ASSERT_TRUE(batch.submit(requests));
        ASSERT_TRUE(pair.b->unregisterLocalMemory(pair.remote.data()));
        // A late write would now be a fault.
        pair.remote.protect(PROT_NONE);
        const auto status = batch.wait();
        pair.remote.protect(PROT_READ | PROT_WRITE);
        if (status.s != TransferStatusEnum::COMPLETED) expectFailed(status, Code::AddressNotRegistered);
        ASSERT_TRUE(pair.b->registerLocalMemory(pair.remote.data(), pair.remote.size()));
    }
}

/// Counts what is published.
class CountingStore final : public InprocStore {
  public:
    CountingStore(std::shared_ptr<InprocDirectory> directory, std::atomic<int>& published, std::atomic<int>& buffers)
        : InprocStore(std::move(directory)), published_(published), buffers_(buffers) {}
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override {
        buffers_ = static_cast<int>(desc.buffers.size());
        ++published_;
        InprocStore::publish(desc, ttl, std::move(done));
    }

  private:
    std::atomic<int>& published_;
    std::atomic<int>& buffers_;
};

TEST(UpdateMetadata, WithoutItTheStoreHearsOfAChangeOnlyWithTheNextUpdate) {
    std::atomic<int> published{0};
    std::atomic<int> buffers{-1};
    EngineOptions options;
    options.config = EngineSetup().config;
    options.log = makeSilentLogger();
    options.inproc_store = [&, directory = std::make_shared<InprocDirectory>()] {
        return std::make_unique<CountingStore>(directory, published, buffers);
    };
    TransferEngine engine(std::move(options));
    ASSERT_TRUE(engine.init("inproc://", "self", "127.0.0.1"));
    Buffer memory(4096);
    int before = published;
    ASSERT_TRUE(engine.registerLocalMemory(memory.data(), 4096, "*", true, /*update_metadata=*/false));
    // It has the directory handle whatever was sent to it.
    ASSERT_TRUE(engine.syncSegmentCache());
    EXPECT_EQ((*engine.getSegmentDescByID(kLocalSegmentID))->buffers.size(), 1u) << "peers that ask see it";
    EXPECT_EQ(published, before);
    ASSERT_TRUE(engine.updateLocalSegmentDesc());
    EXPECT_EQ(published, before + 1);
    EXPECT_EQ(buffers, 1);

    before = published;
    ASSERT_TRUE(engine.unregisterLocalMemory(memory.data(), /*update_metadata=*/false));
    ASSERT_TRUE(engine.syncSegmentCache());
    EXPECT_EQ(published, before);
    EXPECT_EQ(buffers, 1);
    ASSERT_TRUE(engine.updateLocalSegmentDesc());
    EXPECT_EQ(published, before + 1);
    EXPECT_EQ(buffers, 0);
}

}  // namespace
}  // namespace troupe::test
