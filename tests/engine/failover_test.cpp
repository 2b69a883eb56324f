// Between transports: what one loses goes on by the next.

#include <gmock/gmock.h>

#include <thread>

#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTasks = 64;
constexpr std::size_t kPiece = 256u << 10;

/// Two engines of this process that reach each other by host and by tcp.
class Failover : public testing::Test {
  protected:
    Failover() {
        EngineSetup setup;
        setup.config.host_peers = true;
        a_ = startEngine(setup);
        b_ = startEngine(setup);
        EXPECT_TRUE(a_->registerLocalMemory(local_.data(), local_.size()));
        EXPECT_TRUE(b_->registerLocalMemory(remote_.data(), remote_.size()));
        const auto segment = a_->openSegment(b_->localSegmentName());
        EXPECT_TRUE(segment) << segment.status().toString();
        if (segment) segment_ = *segment;
    }

    std::vector<TransferRequest> pieces(Opcode opcode) const {
        std::vector<TransferRequest> requests;
        for (std::size_t i = 0; i < kTasks; ++i)
            requests.push_back(
                makeRequest(opcode, segment_, local_.data() + i * kPiece, remote_.address(i * kPiece), kPiece));
        return requests;
    }
    bool eventuallyGoesBy(const std::string& way) {
        for (const auto limit = Clock::now() + kPatience; Clock::now() < limit; std::this_thread::sleep_for(1ms)) {
            const auto route = a_->explainSegment(segment_);
            if (route && route->toString().rfind(way, 0) == 0) return true;
        }
        return false;
    }

    Buffer local_{kTasks * kPiece};
    Buffer remote_{kTasks * kPiece};
    std::unique_ptr<TransferEngine> a_;
    std::unique_ptr<TransferEngine> b_;
    SegmentID segment_ = kInvalidSegmentID;
};

TEST_F(Failover, WhatHostLosesGoesOnByTcpAndReturnsToHost) {
    ASSERT_TRUE(eventuallyGoesBy("host by host0, then tcp by tcp0"));
    std::size_t moved = 0;
    // The transport is to go while it carries something; a round may be over too soon.
    for (std::uint64_t round = 0; round < 200 && moved == 0; ++round) {
        const Opcode opcode = round % 2 == 0 ? Opcode::Write : Opcode::Read;
        (opcode == Opcode::Write ? local_ : remote_).fillPattern(2 * round);
        (opcode == Opcode::Write ? remote_ : local_).fillPattern(2 * round + 1);
        BatchHolder batch(*a_, kTasks);
        ASSERT_TRUE(batch.submit(pieces(opcode)));
        std::thread waits([&] { static_cast<void>(batch.wait()); });
        const Status left = b_->uninstallTransport("host");
        waits.join();
        ASSERT_TRUE(left) << left.toString();
        const TransferStatus status = batch.wait();
        ASSERT_EQ(status.s, TransferStatusEnum::COMPLETED) << status.error.toString();
        EXPECT_TRUE(local_.holdsPattern(2 * round));
        EXPECT_TRUE(remote_.holdsPattern(2 * round));
        for (std::size_t i = 0; i < kTasks; ++i) {
            const auto how = a_->explain(batch.id(), i);
            ASSERT_TRUE(how) << how.status().toString();
            if (how->attempts.empty()) continue;
            ++moved;
            EXPECT_EQ(how->attempts.front().nic, "host0") << how->toString();
            EXPECT_EQ(how->attempts.back().nic, "tcp0") << how->toString();
            EXPECT_TRUE(how->attempts.back().cause.isOk());
            std::uint64_t arrived = 0;
            for (const auto& attempt : how->attempts)
                if (attempt.cause.isOk()) arrived += attempt.bytes;
            EXPECT_EQ(arrived, kPiece) << how->toString();
        }
        ASSERT_TRUE(eventuallyGoesBy("tcp by tcp0"));
        ASSERT_TRUE(b_->installTransport("host"));
        ASSERT_TRUE(eventuallyGoesBy("host by host0, then tcp by tcp0"));
    }
    EXPECT_GT(moved, 0u);
    BatchHolder batch(*a_, kTasks);
    ASSERT_TRUE(batch.submit(pieces(Opcode::Write)));
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::COMPLETED);
    const auto how = a_->explain(batch.id(), 0);
    ASSERT_TRUE(how);
    EXPECT_EQ(how->toString(), "host by host0");
}

TEST_F(Failover, ATaskThatRunsIsExplainedToo) {
    BatchHolder batch(*a_, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, segment_, local_.data(), remote_.address(), local_.size())}));
    const auto how = a_->explain(batch.id(), 0);
    ASSERT_TRUE(how) << how.status().toString();
    EXPECT_EQ(how->transport, "host");
    EXPECT_TRUE(how->attempts.empty());
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::COMPLETED);
}

TEST_F(Failover, ATaskThatFailedSaysWhatCameBackAndWhy) {
    BatchHolder batch(*a_, 1);
    ASSERT_TRUE(batch.submit({makeRequest(Opcode::Write, segment_, local_.data(), 0x1000, 4096)}));
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::FAILED);
    const auto how = a_->explain(batch.id(), 0);
    ASSERT_TRUE(how) << how.status().toString();
    ASSERT_EQ(how->attempts.size(), 1u);
    EXPECT_EQ(how->attempts[0].transport, "host");
    EXPECT_EQ(how->attempts[0].bytes, 4096u);
    EXPECT_EQ(how->attempts[0].cause.code(), Code::AddressNotRegistered);
    EXPECT_THAT(how->toString(), testing::HasSubstr("\n  4096 bytes by host0 came back: AddressNotRegistered"));
}

}  // namespace
}  // namespace troupe::test
