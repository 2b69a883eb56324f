// Several connections to each peer: bytes go both ways over all of them, and the loss of one loses none.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "base/endpoint.h"
#include "base/fault_injector.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

constexpr unsigned kLanes = 3;
constexpr std::size_t kSlice = 64u << 10;
constexpr std::size_t kEach = 8u << 20;  ///< Bytes of each direction.

/// The initiator's end of a data connection.
struct Connection {
    int fd;
    tcp_info info;
};

/// The connections of this process to a port, established ones only. Descriptors come and go meanwhile.
std::vector<Connection> connectionsTo(std::uint16_t port) {
    std::vector<Connection> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        Connection connection{std::stoi(entry.path().filename()), {}};
        const auto remote = SocketAddress::remote(connection.fd);
        if (!remote || remote->port() != port) continue;
        socklen_t length = sizeof connection.info;
        if (::getsockopt(connection.fd, IPPROTO_TCP, TCP_INFO, &connection.info, &length) != 0) continue;
        constexpr std::uint8_t kEstablished = 1;  // TCP_ESTABLISHED of netinet/tcp.h, which linux/tcp.h excludes.
        if (connection.info.tcpi_state == kEstablished) found.push_back(connection);
    }
    return found;
}

class Lanes : public testing::Test {
  protected:
    explicit Lanes(unsigned data_loops = 1) : pair_(setup(data_loops), 2 * kEach) {}

    static EngineSetup setup(unsigned data_loops) {
        EngineSetup result;
        result.config.data_loops = data_loops;
        result.config.tcp_lanes = kLanes;
        result.config.slice_bytes = kSlice;
        result.config.faults_enabled = true;
        return result;
    }
    FaultInjector& of(TransferEngine& engine) {
        const auto faults = engine.faults();
        EXPECT_TRUE(faults) << faults.status().toString();
        return **faults;
    }
    std::uint16_t lanePort(std::size_t loop = 0) const {
        return (*pair_.b->getSegmentDescByID(kLocalSegmentID))->lane_ports.at(loop);
    }

    /// The first half of both memories is to be written, the second to be read: in pieces of all sizes from a byte to
    /// several windows, in no order.
    std::vector<TransferRequest> pieces(std::uint64_t seed) {
        std::vector<TransferRequest> requests;
        std::mt19937_64 random(seed);
        const std::size_t sizes[] = {1, 100, 4096, kSlice - 1, kSlice, 3 * kSlice + 7, 1u << 20, kEach};
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            const std::size_t begin = opcode == Opcode::Write ? 0 : kEach;
            for (std::size_t at = 0; at < kEach;) {
                const std::size_t length = std::min(sizes[random() % std::size(sizes)], kEach - at);
                requests.push_back(pair_.request(opcode, begin + at, begin + at, length));
                at += length;
            }
        }
        std::shuffle(requests.begin(), requests.end(), random);
        return requests;
    }
    void fill(std::uint64_t seed) {
        pair_.local.fillPattern(seed);
        pair_.remote.fillPattern(seed + 1);
        expected_local_.assign(pair_.local.data(), pair_.local.data() + kEach);
        expected_local_.insert(expected_local_.end(), pair_.remote.data() + kEach, pair_.remote.data() + 2 * kEach);
    }
    /// Written is what was here, read what was there, and so both sides hold the same.
    void expectRightBytes() const {
        EXPECT_EQ(std::memcmp(pair_.local.data(), expected_local_.data(), 2 * kEach), 0);
        EXPECT_EQ(std::memcmp(pair_.remote.data(), expected_local_.data(), 2 * kEach), 0);
    }
    /// Parts of the batch's tasks that came back and were sent again.
    std::size_t cameBack(const BatchHolder& batch, std::size_t tasks) {
        std::size_t parts = 0;
        for (std::size_t i = 0; i < tasks; ++i) {
            const auto how = pair_.a->explain(batch.id(), i);
            EXPECT_TRUE(how) << how.status().toString();
            if (how)
                parts += static_cast<std::size_t>(std::count_if(how->attempts.begin(), how->attempts.end(),
                                                                [](const auto& each) { return !each.cause.isOk(); }));
        }
        return parts;
    }

    EnginePair pair_;
    std::vector<std::byte> expected_local_;
};

TEST_F(Lanes, LargeRequestsOfBothDirectionsAreStripedOverAllOfThem) {
    fill(1);
    const std::vector<TransferRequest> requests = {pair_.request(Opcode::Write, 0, 0, kEach),
                                                   pair_.request(Opcode::Read, kEach, kEach, kEach)};
    expectCompleted(runBatch(*pair_.a, requests), 2 * kEach);
    expectRightBytes();
    const auto lanes = connectionsTo(lanePort());
    EXPECT_EQ(lanes.size(), kLanes);
    for (const Connection& lane : lanes) {
        // The kernel's count: how much each carries is the Nic's choice, that each does is the point.
        EXPECT_GE(lane.info.tcpi_bytes_acked, kSlice);
        EXPECT_GE(lane.info.tcpi_bytes_received, kSlice);
    }
}

TEST_F(Lanes, PiecesOfAllSizesArriveWhole) {
    for (std::uint64_t round = 1; round <= 8; ++round) {
        fill(2 * round);
        expectCompleted(runBatch(*pair_.a, pieces(round)), 2 * kEach);
        expectRightBytes();
    }
    EXPECT_EQ(connectionsTo(lanePort()).size(), kLanes);
}

TEST_F(Lanes, WhatOneConnectionLosesInMidTransferArrivesAllTheSame) {
    // All of them stand.
    expectCompleted(runBatch(*pair_.a, pieces(0)), 2 * kEach);
    const TimePoint limit = Clock::now() + kPatience;
    std::size_t hits = 0;
    for (std::uint64_t round = 1; hits < 3 && Clock::now() < limit; ++round) {
        SCOPED_TRACE(round);
        fill(2 * round);
        const auto requests = pieces(round);
        BatchHolder batch(*pair_.a, requests.size());
        // While the target stands still, what is under way stays so.
        ASSERT_TRUE(of(*pair_.b).freezeLoop(0, std::chrono::seconds(50)));
        ASSERT_TRUE(batch.submit(requests));
        const auto lanes = connectionsTo(lanePort());
        ASSERT_EQ(lanes.size(), kLanes);
        ASSERT_EQ(::shutdown(lanes[round % kLanes].fd, SHUT_RDWR), 0);
        of(*pair_.b).clear();
        expectCompleted(batch.wait(), 2 * kEach);
        expectRightBytes();
        if (cameBack(batch, requests.size()) != 0) ++hits;
        // The lost one comes again.
        while (connectionsTo(lanePort()).size() != kLanes && Clock::now() < limit)
            expectCompleted(pair_.write(0, 0, kEach), kEach);
    }
    EXPECT_EQ(hits, 3u) << "no connection was cut in the middle of anything";
}

class LanesOfTwoPaths : public Lanes {
  protected:
    LanesOfTwoPaths() : Lanes(2) {}
};

TEST_F(LanesOfTwoPaths, WhatAllConnectionsOfAPathLoseInMidTransferGoesOnOverTheOther) {
    expectCompleted(runBatch(*pair_.a, pieces(0)), 2 * kEach);
    const TimePoint limit = Clock::now() + kPatience;
    std::size_t hits = 0;
    for (std::uint64_t round = 1; hits < 3 && Clock::now() < limit; ++round) {
        SCOPED_TRACE(round);
        fill(2 * round);
        const auto requests = pieces(round);
        BatchHolder batch(*pair_.a, requests.size());
        for (const unsigned loop : {0u, 1u}) ASSERT_TRUE(of(*pair_.b).freezeLoop(loop, std::chrono::seconds(50)));
        ASSERT_TRUE(batch.submit(requests));
        ASSERT_TRUE(of(*pair_.a).dropPath(round % 2 == 0 ? "tcp0" : "tcp1", std::chrono::seconds(50)));
        of(*pair_.b).clear();
        expectCompleted(batch.wait(), 2 * kEach);
        expectRightBytes();
        if (cameBack(batch, requests.size()) != 0) ++hits;
        of(*pair_.a).clear();
    }
    EXPECT_EQ(hits, 3u) << "no path was lost in the middle of anything";
}

}  // namespace
}  // namespace troupe::test
