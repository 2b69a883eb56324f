#include "null_backend/null_nic.h"

#include <gtest/gtest.h>

#include <chrono>

#include "null_backend/null_transport.h"

namespace troupe {
namespace {

std::unique_ptr<Nic> makeNic() {
    const Config config;
    const RegistrationTable regions;
    NullTransport transport;
    EXPECT_TRUE(transport.install({config, regions, Incarnation::random(), "127.0.0.1", 1, makeSilentLogger()}).isOk());
    EXPECT_TRUE(transport.reaches(SegmentDesc{}).isOk());
    auto nics = transport.takeNics();
    EXPECT_EQ(nics.size(), 1u);
    return std::move(nics.front().nic);
}

std::vector<WorkRequest> requests(std::size_t count, std::uint64_t cookie, std::uint64_t length = 64) {
    return std::vector<WorkRequest>(count, WorkRequest{nullptr, 0, length, cookie, Opcode::Write});
}

TEST(NullNic, CompletesEverythingAtTheNextPollInRuns) {
    const auto nic = makeNic();
    const PathId path = *nic->openPath(nullptr);
    Sweep sweep;
    EXPECT_FALSE(nic->poll(Clock::now(), sweep));
    EXPECT_TRUE(nic->arm());
    EXPECT_EQ(nic->post(path, requests(10, 1)), 10u);
    EXPECT_EQ(nic->post(path, requests(5, 1)), 5u);
    auto mixed = requests(3, 2);
    mixed.push_back(requests(1, 3, 100).front());
    EXPECT_EQ(nic->post(path, mixed), 4u);
    EXPECT_FALSE(nic->arm());
    EXPECT_TRUE(nic->poll(Clock::now(), sweep));
    ASSERT_EQ(sweep.completed.size(), 3u);
    EXPECT_EQ(sweep.completed[0].cookie, 1u);
    EXPECT_EQ(sweep.completed[0].requests, 15u);
    EXPECT_EQ(sweep.completed[0].bytes, 15u * 64);
    EXPECT_EQ(sweep.completed[1].requests, 3u);
    EXPECT_EQ(sweep.completed[2].bytes, 100u);
    EXPECT_FALSE(nic->poll(Clock::now(), sweep));
    EXPECT_TRUE(nic->arm());
}

TEST(NullNic, TheWindowBoundsRequestsAndBytesUntilTheNextPoll) {
    const auto nic = makeNic();
    const PathId path = *nic->openPath(nullptr);
    Sweep sweep;
    const auto many = requests((1u << 20) + 5, 1);
    EXPECT_EQ(nic->post(path, many), 1u << 20);
    EXPECT_EQ(nic->post(path, many), 0u);
    nic->poll(Clock::now(), sweep);
    EXPECT_EQ(nic->post(path, requests(10, 1, 512u << 20)), 2u);
    EXPECT_EQ(nic->post(*nic->openPath(nullptr), requests(1, 1)), 1u) << "another path has its own window";
    nic->poll(Clock::now(), sweep);
    EXPECT_EQ(nic->post(path, requests(1, 1)), 1u);
}

TEST(NullNic, ADeadPathTakesWorkOnlyToFailIt) {
    const auto nic = makeNic();
    const PathId path = *nic->openPath(nullptr);
    EXPECT_EQ(nic->post(path, requests(2, 1)), 2u);
    nic->closePath(path, Status(Code::Canceled, "closed"));
    EXPECT_EQ(nic->post(path, requests(1, 2)), 1u);
    Sweep sweep;
    EXPECT_TRUE(nic->poll(Clock::now(), sweep));
    ASSERT_EQ(sweep.completed.size(), 1u) << "what was posted before was done then";
    EXPECT_EQ(sweep.completed[0].requests, 2u);
    ASSERT_EQ(sweep.failed.size(), 1u);
    EXPECT_EQ(sweep.failed[0].cause.code(), Code::StaleHandle);
}

TEST(NullNic, CostsAboutANanosecondPerRequest) {
    const auto nic = makeNic();
    const PathId path = *nic->openPath(nullptr);
    const auto train = requests(64, 1);
    Sweep sweep;
    constexpr int kTrains = 200000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTrains; ++i) {
        ASSERT_EQ(nic->post(path, train), train.size());
        nic->poll(TimePoint{}, sweep);
        sweep.clear();
    }
    const auto spent = std::chrono::steady_clock::now() - start;
    // Recorded, not asserted: time depends on the machine.
    RecordProperty("picoseconds_per_request",
                   static_cast<int>(std::chrono::nanoseconds(spent).count() * 1000 / kTrains / 64));
}

}  // namespace
}  // namespace troupe
