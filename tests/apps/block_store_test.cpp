#include "apps/support/block_store.h"

#include <gtest/gtest.h>

#include <set>

namespace troupe::apps {
namespace {

TEST(BlockStore, FillsEverySlotOnceBeforeAnythingIsEvicted) {
    BlockStore store(4);
    std::set<std::size_t> slots;
    for (std::uint64_t block = 100; block < 104; ++block) {
        const auto placement = store.insert(block);
        EXPECT_FALSE(placement.evicted);
        slots.insert(placement.slot);
    }
    EXPECT_EQ(slots, (std::set<std::size_t>{0, 1, 2, 3}));
    EXPECT_EQ(store.size(), 4u);
}

TEST(BlockStore, TheLeastRecentlyUsedBlockLeavesAndItsSlotIsReused) {
    BlockStore store(3);
    const auto first = store.insert(1).slot;
    const auto second = store.insert(2).slot;
    store.insert(3);
    EXPECT_EQ(store.touch(1), first);
    const auto placement = store.insert(4);
    EXPECT_EQ(placement.evicted, 2u);
    EXPECT_EQ(placement.slot, second);
    EXPECT_FALSE(store.touch(2));
    EXPECT_TRUE(store.touch(1));
    EXPECT_TRUE(store.touch(3));
    EXPECT_TRUE(store.touch(4));
}

TEST(BlockStore, WorksWithOneSlot) {
    BlockStore store(1);
    EXPECT_EQ(store.insert(7).slot, 0u);
    EXPECT_EQ(store.insert(8).evicted, 7u);
    EXPECT_EQ(store.touch(8), 0u);
    EXPECT_FALSE(store.touch(7));
    EXPECT_EQ(store.size(), 1u);
}

TEST(BlockStore, TouchedBlocksSurviveAsManyInsertionsAsThereAreOtherSlots) {
    BlockStore store(10);
    for (std::uint64_t block = 0; block < 10; ++block) store.insert(block);
    std::set<std::size_t> fetched;
    for (std::uint64_t block = 0; block < 4; ++block) fetched.insert(*store.touch(block));
    for (std::uint64_t block = 100; block < 106; ++block) EXPECT_EQ(fetched.count(store.insert(block).slot), 0u);
}

}  // namespace
}  // namespace troupe::apps
