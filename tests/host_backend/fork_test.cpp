// Processes with an engine that fork, as a program does that starts others. The child has copies of the sockets and the
// memory files; it uses none of them, and lives on when its parent dies. Neither end may take it for its parent.

#include <gmock/gmock.h>

#include <thread>

#include "tests/host_backend/host_peer_process.h"

namespace troupe::test {
namespace {

using testing::StartsWith;

enum class Way { Mapped, Vm, Tcp };

class Forked : public testing::TestWithParam<Way> {
  protected:
    Forked() : engine_(startEngine(setup())), peer_(mapped()) {
        if (mapped()) {
            const auto memory = engine_->allocateLocalMemory(kBytes);
            EXPECT_TRUE(memory) << memory.status().toString();
            if (memory) data_ = static_cast<std::byte*>(*memory);
        } else {
            data_ = plain_.data();
            EXPECT_TRUE(engine_->registerLocalMemory(data_, kBytes));
        }
    }
    static bool mapped() { return GetParam() == Way::Mapped; }
    static EngineSetup setup() {
        EngineSetup setup = hostSetup();
        setup.config.host_peers = GetParam() != Way::Tcp;
        // By TCP the silence of a dead peer is all that there is: its child keeps the connections from ending.
        setup.config.keepalive_interval = std::chrono::milliseconds(500);
        setup.config.keepalive_timeout = std::chrono::milliseconds(3000);
        return setup;
    }
    void open() {
        const auto segment = engine_->openSegment(peer_.segment());
        ASSERT_TRUE(segment) << segment.status().toString();
        segment_ = *segment;
        EXPECT_EQ(engine_->explainSegment(segment_)->transport, GetParam() == Way::Tcp ? "tcp" : "host");
    }
    TransferRequest request(Opcode opcode) { return makeRequest(opcode, segment_, data_, peer_.address(), kBytes); }
    std::uint64_t own() const { return reinterpret_cast<std::uint64_t>(data_); }
    Status release() { return mapped() ? engine_->freeLocalMemory(data_) : engine_->unregisterLocalMemory(data_); }

    Buffer plain_{kBytes};
    std::unique_ptr<TransferEngine> engine_;
    HostPeer peer_;
    std::byte* data_ = nullptr;
    SegmentID segment_ = kInvalidSegmentID;
};

INSTANTIATE_TEST_SUITE_P(Ways, Forked, testing::Values(Way::Mapped, Way::Vm, Way::Tcp), [](const auto& way) {
    return way.param == Way::Mapped ? "Mapped" : way.param == Way::Vm ? "Vm" : "Tcp";
});

TEST_P(Forked, EveryByteArrivesInTheParent) {
    open();
    EXPECT_EQ(peer_.ask("open " + engine_->localSegmentName()), "OK");
    // The ways stand before the child is there, and after it both sides write to pages that it shares with its parent.
    for (int round = 0; round < 3; ++round) {
        const int there = 10 + round;
        std::memset(data_, there, kBytes);
        expectCompleted(runBatch(*engine_, {request(Opcode::Write)}), kBytes);
        EXPECT_EQ(peer_.ask("check " + std::to_string(there)), "OK");
        EXPECT_EQ(peer_.ask("fill 77"), "OK");
        expectCompleted(runBatch(*engine_, {request(Opcode::Read)}), kBytes);
        EXPECT_EQ(std::count(data_, data_ + kBytes, std::byte{77}), static_cast<std::ptrdiff_t>(kBytes));
        EXPECT_EQ(peer_.transfer("read", own(), kBytes), "COMPLETED");
        EXPECT_EQ(peer_.ask("fill 78"), "OK");
        EXPECT_EQ(peer_.transfer("write", own(), kBytes), "COMPLETED");
        EXPECT_EQ(std::count(data_, data_ + kBytes, std::byte{78}), static_cast<std::ptrdiff_t>(kBytes));
        EXPECT_EQ(peer_.ask("fork"), "OK");
    }
}

TEST_P(Forked, AnOwnersDeathIsSeenAlthoughItsChildLives) {
    open();
    expectCompleted(runBatch(*engine_, {request(Opcode::Write)}), kBytes);
    EXPECT_EQ(peer_.ask("fork"), "OK");
    const std::vector<TransferRequest> requests(64, request(Opcode::Write));
    BatchHolder batch(*engine_, requests.size());
    ASSERT_TRUE(batch.submit(requests));
    peer_.kill();
    const auto status = batch.wait();
    EXPECT_TRUE(isTerminal(status.s));
    EXPECT_TRUE(status.quiesced);
    // And nobody takes the child's copies for the owner.
    BatchHolder later(*engine_, 1);
    if (!later.submit({request(Opcode::Write)})) return;
    const auto ended = later.wait();
    EXPECT_TRUE(isTerminal(ended.s));
    EXPECT_NE(ended.s, TransferStatusEnum::COMPLETED);
    EXPECT_TRUE(ended.quiesced);
}

TEST_P(Forked, AnInitiatorsDeathFreesTheRegionAlthoughItsChildLives) {
    EXPECT_EQ(peer_.ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_.ask("fill 1"), "OK");
    EXPECT_EQ(peer_.transfer("write", own(), kBytes), "COMPLETED");
    EXPECT_EQ(peer_.ask("loop " + std::to_string(own()) + " " + std::to_string(kBytes)), "OK");
    EXPECT_EQ(peer_.ask("fork"), "OK");
    peer_.kill();
    const Status released = release();
    EXPECT_TRUE(released) << released.toString();
    // The engine goes on with others.
    HostPeer next(mapped());
    Buffer other(4096);
    ASSERT_TRUE(engine_->registerLocalMemory(other.data(), other.size()));
    EXPECT_EQ(next.ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(next.ask("fill 5"), "OK");
    EXPECT_EQ(next.transfer("write", other.address(), other.size()), "COMPLETED");
    EXPECT_TRUE(other.holdsOnly(std::byte{5}, 0, other.size()));
}

TEST_P(Forked, AnInitiatorWithAChildGivesAGrantBack) {
    EXPECT_EQ(peer_.ask("open " + engine_->localSegmentName()), "OK");
    EXPECT_EQ(peer_.transfer("write", own(), kBytes), "COMPLETED");
    EXPECT_EQ(peer_.ask("fork"), "OK");
    EXPECT_EQ(peer_.transfer("write", own(), kBytes), "COMPLETED");
    const Status released = release();
    EXPECT_TRUE(released) << released.toString();
    EXPECT_THAT(peer_.transfer("write", own(), 4096), StartsWith("FAILED AddressNotRegistered"));
}

}  // namespace
}  // namespace troupe::test
