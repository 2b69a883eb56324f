// What ends many tasks one by one must cost in proportion to their number: a data loop serves nothing else meanwhile.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::uint32_t kPeer = 2;
constexpr std::uint32_t kFew = 1000;
constexpr std::uint32_t kTimes = 16;
// In proportion this is kTimes, a square of it would be 256; the rest is for caches and noise.
constexpr std::uint64_t kMostTimes = 80;
constexpr std::uint64_t kTaskBytes = 16;
const std::uint64_t kMemory = 0x10000000;  // Never touched: no worker here copies.

const Status kCanceled(Code::Canceled, "by the caller");

std::uint64_t threadNanoseconds() {
    timespec spent{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<std::uint64_t>(spent.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(spent.tv_nsec);
}

/// A tracker with two peers whose windows are full at once and stay so, like those of peers that are stopped.
struct Plane {
    explicit Plane(std::uint32_t batches) : table(batches) {
        WorkerJoined joined;
        joined.nic = nicInfo(1 << 20, 0, 1 << 20, 4);
        tracker.onWorkerJoined(joined);
        for (std::uint32_t peer = kPeer; peer < kPeer + 2; ++peer)
            tracker.onUsePeer(UsePeer{makePeer(peer), segmentOf(peer), {0}});
    }
    BatchID submit(std::uint32_t first, std::uint32_t count, std::uint32_t peers) {
        std::vector<TaskSpec> specs(count);
        for (std::uint32_t i = 0; i < count; ++i) {
            specs[i].local = reinterpret_cast<std::byte*>(kMemory + (first + i) * 2 * kTaskBytes);
            specs[i].remote = kMemory;
            specs[i].length = kTaskBytes;
            specs[i].segment = segmentOf(kPeer + i % peers);
        }
        const BatchID id = *table.allocate(count, 0);
        tracker.onSubmit(addTasks(table, id, specs, 0), now);
        tracker.flush();
        return id;
    }
    void cancel(BatchID id, std::uint32_t task) {
        tracker.onEndTasks(EndTasks{id, task, kCanceled}, *table.find(id));
        tracker.flush();
        output.resets.clear();
    }

    RegistrationTable regions;
    BatchTable table;
    RecordedTracker output;
    TrackerLogic tracker{0, 0, regions, output};
    TimePoint now = Clock::now();
};

/// `work(count)` gives the time it took: the least of some, for what others do on the machine only adds to it.
template <class Work>
void expectInProportion(Work&& work) {
    const auto least = [&](std::uint32_t count) {
        std::uint64_t time = UINT64_MAX;
        for (int i = 0; i < 3; ++i) time = std::min(time, work(count));
        return time;
    };
    const std::uint64_t few = least(kFew);
    const std::uint64_t many = least(kFew * kTimes);
    EXPECT_LT(many, few * kMostTimes) << kTimes << " times the tasks";
}

std::uint64_t cancelOneByOne(std::uint32_t count, std::uint32_t peers, bool backwards) {
    Plane plane(1);
    const BatchID id = plane.submit(0, count, peers);
    const std::uint64_t start = threadNanoseconds();
    for (std::uint32_t i = 0; i < count; ++i) plane.cancel(id, backwards ? count - 1 - i : i);
    const std::uint64_t time = threadNanoseconds() - start;
    for (std::uint32_t i = 4 * peers; i < count; ++i)
        if (plane.table.find(id)->taskStatus(i).s != TransferStatusEnum::CANCELED) ADD_FAILURE() << i;
    return time;
}

TEST(TrackerCost, OfCancelsOneByOneInOneBatch) {
    expectInProportion([](std::uint32_t count) { return cancelOneByOne(count, 1, false); });
    expectInProportion([](std::uint32_t count) { return cancelOneByOne(count, 1, true); });
}

TEST(TrackerCost, OfCancelsOneByOneOfTasksForAlternatingPeers) {
    expectInProportion([](std::uint32_t count) { return cancelOneByOne(count, 2, false); });
    expectInProportion([](std::uint32_t count) { return cancelOneByOne(count, 2, true); });
}

TEST(TrackerCost, OfCancelsOfBatchesOfOneTask) {
    expectInProportion([](std::uint32_t count) {
        Plane plane(count);
        std::vector<BatchID> ids;
        for (std::uint32_t i = 0; i < count; ++i) ids.push_back(plane.submit(i, 1, 1));
        const std::uint64_t start = threadNanoseconds();
        for (std::uint32_t i = 0; i < count; ++i) plane.cancel(ids[i], 0);
        const std::uint64_t time = threadNanoseconds() - start;
        for (std::uint32_t i = 4; i < count; ++i) EXPECT_TRUE(plane.table.free(ids[i]));
        return time;
    });
}

TEST(TrackerCost, OfTasksThatEndWhileAnUnregisterWaits) {
    expectInProportion([](std::uint32_t count) {
        Plane plane(1);
        const BatchID id = plane.submit(0, count, 1);
        bool idle = false;
        const ByteRange last{kMemory + (count - 1) * 2 * kTaskBytes, kTaskBytes};
        plane.tracker.onAwaitSourceIdle({last, 0, kForever, [&](const auto& users) { idle = users.empty(); }},
                                        plane.now);
        const std::uint64_t start = threadNanoseconds();
        for (std::uint32_t ended = 0; ended < count;) {
            for (const Flight& flight : plane.output.takeFlights()) {
                EXPECT_FALSE(idle);
                plane.tracker.onReport(SliceReport{0,
                                                   {},
                                                   {{flight.batch, flight.first_task, flight.task_count, kPeer,
                                                     flight.length, flight.length}},
                                                   {}},
                                       plane.now);
                plane.tracker.flush();
                ended += flight.task_count;
            }
        }
        const std::uint64_t time = threadNanoseconds() - start;
        EXPECT_TRUE(idle);
        EXPECT_TRUE(plane.table.free(id));
        return time;
    });
}

}  // namespace
}  // namespace troupe::test
