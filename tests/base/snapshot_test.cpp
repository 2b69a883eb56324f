#include "base/snapshot.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace troupe {
namespace {

TEST(Snapshot, StartsWithItsInitialValue) {
    const Snapshot<int> snapshot(std::make_shared<const int>(7));
    EXPECT_EQ(*snapshot.load(), 7);
    EXPECT_EQ(SnapshotReader<int>(snapshot).get(), 7);
}

TEST(Snapshot, ShowsTheValuePublishedLast) {
    Snapshot<int> snapshot(std::make_shared<const int>(1));
    SnapshotReader<int> reader(snapshot);
    EXPECT_EQ(reader.get(), 1);
    snapshot.publish(std::make_shared<const int>(2));
    snapshot.publish(std::make_shared<const int>(3));
    EXPECT_EQ(reader.get(), 3);
    EXPECT_EQ(*snapshot.load(), 3);
}

TEST(Snapshot, CountsItsVersions) {
    Snapshot<int> snapshot(std::make_shared<const int>(1));
    const std::uint64_t first = snapshot.version();
    snapshot.publish(std::make_shared<const int>(1));
    EXPECT_EQ(snapshot.version(), first + 1);
}

TEST(Snapshot, KeepsAnOldValueAliveForThoseWhoHoldIt) {
    Snapshot<int> snapshot(std::make_shared<const int>(1));
    const auto held = snapshot.load();
    snapshot.publish(std::make_shared<const int>(2));
    EXPECT_EQ(*held, 1);
}

TEST(Snapshot, LetsGoOfAValueThatNobodyHolds) {
    auto value = std::make_shared<const int>(1);
    const std::weak_ptr<const int> watched = value;
    Snapshot<int> snapshot(std::move(value));
    snapshot.publish(std::make_shared<const int>(2));
    EXPECT_TRUE(watched.expired());
}

TEST(Snapshot, ReadersNeverSeeAHalfWrittenOrOlderValue) {
    // Each value is consistent in itself, and a reader's values never go back.
    struct Pair {
        int a;
        int b;
    };
    constexpr int kLast = 5000;
    Snapshot<Pair> snapshot(std::make_shared<const Pair>(Pair{0, 0}));
    std::vector<std::thread> readers;
    std::vector<int> faults(3, 0);
    readers.reserve(faults.size());
    for (int& fault : faults) {
        readers.emplace_back([&snapshot, &fault] {
            SnapshotReader<Pair> reader(snapshot);
            int last = 0;
            while (last < kLast) {
                const Pair& pair = reader.get();
                if (pair.a != -pair.b || pair.a < last) ++fault;
                last = pair.a;
            }
        });
    }
    for (int i = 1; i <= kLast; ++i) snapshot.publish(std::make_shared<const Pair>(Pair{i, -i}));
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(faults, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace troupe
