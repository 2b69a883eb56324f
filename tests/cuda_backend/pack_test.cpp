// The packing kernel's source, compiled for the CPU, against a plain loop.

#include "cuda_backend/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/cuda_backend/cuda_fixture.h"

namespace troupe::cuda {
namespace {

/// Memory at addresses of a test's choice. Refuses what a GPU would: an access outside, or not on its size.
class CheckedMemory {
  public:
    std::uint64_t add(std::uint64_t addr, std::size_t bytes) {
        blocks_[addr].resize(bytes);
        written_[addr].resize(bytes);
        return addr;
    }
    std::vector<std::uint8_t>& at(std::uint64_t addr) { return blocks_.at(addr); }
    /// How often each byte was stored.
    const std::vector<unsigned>& stores(std::uint64_t addr) const { return written_.at(addr); }

    template <class Word>
    Word load(std::uint64_t addr) {
        Word word;
        std::memcpy(&word, find(addr, sizeof word).first, sizeof word);
        ++loads_[sizeof word];
        return word;
    }
    template <class Word>
    void store(std::uint64_t addr, const Word& word) {
        const auto [bytes, counts] = find(addr, sizeof word);
        std::memcpy(bytes, &word, sizeof word);
        for (std::size_t index = 0; index < sizeof word; ++index) ++counts[index];
    }
    /// Of loads, by width.
    std::size_t loads(std::size_t width) { return loads_[width]; }

  private:
    std::pair<std::uint8_t*, unsigned*> find(std::uint64_t addr, std::size_t bytes) {
        if (addr % bytes != 0) throw std::runtime_error("misaligned");
        auto after = blocks_.upper_bound(addr);
        if (after == blocks_.begin()) throw std::runtime_error("outside");
        --after;
        const std::uint64_t offset = addr - after->first;
        if (offset + bytes > after->second.size()) throw std::runtime_error("outside");
        return {after->second.data() + offset, written_[after->first].data() + offset};
    }

    std::map<std::uint64_t, std::vector<std::uint8_t>> blocks_;
    std::map<std::uint64_t, std::vector<unsigned>> written_;
    std::map<std::size_t, std::size_t> loads_;
};

/// As a launch of so many warps would run it, in an order that no GPU promises.
template <class Memory>
void runPack(Memory& memory, const PackPlan& plan, PackDirection direction, std::uint64_t warps) {
    for (std::uint64_t warp = warps; warp-- > 0;)
        for (unsigned lane = kPackLanes; lane-- > 0;) packLane(memory, plan, direction, warp, warps, lane);
}

/// Pages of `page_bytes` at random places of a space, with a list of them.
struct Layout {
    static constexpr std::uint64_t kList = 0x1000;
    static constexpr std::uint64_t kSpace = 0x10000000;
    static constexpr std::uint64_t kPacked = 0x7000000000;

    Layout(std::mt19937& random, std::uint64_t count, std::uint64_t page_bytes, std::uint64_t alignment,
           std::uint64_t packed_skew) {
        const std::uint64_t slot = (page_bytes + alignment - 1) / alignment * alignment + alignment;
        std::vector<std::uint64_t> slots(count);
        for (std::uint64_t index = 0; index < count; ++index) slots[index] = index;
        std::shuffle(slots.begin(), slots.end(), random);
        memory.add(kSpace, count * slot + 64);
        memory.add(kPacked + packed_skew, count * page_bytes);
        memory.add(kList, count * 8);
        for (std::uint64_t index = 0; index < count; ++index) {
            // Aligned to `alignment`, and no more than that.
            pages.push_back(kSpace + slots[index] * slot + (random() % 2) * alignment);
            std::memcpy(memory.at(kList).data() + 8 * index, &pages.back(), 8);
        }
        plan = {kList, 0, 0, count, page_bytes, kPacked + packed_skew};
    }

    CheckedMemory memory;
    std::vector<std::uint64_t> pages;
    PackPlan plan;
};

void checkGather(Layout& layout, std::uint64_t warps) {
    auto& space = layout.memory.at(Layout::kSpace);
    space = testing::noise(space.size(), static_cast<unsigned>(layout.pages[0]));
    std::vector<std::uint8_t> expected;
    for (const std::uint64_t page : layout.pages)
        expected.insert(expected.end(), space.begin() + static_cast<long>(page - Layout::kSpace),
                        space.begin() + static_cast<long>(page - Layout::kSpace + layout.plan.page_bytes));
    runPack(layout.memory, layout.plan, PackDirection::Gather, warps);
    EXPECT_EQ(layout.memory.at(layout.plan.packed), expected);
    const auto& stores = layout.memory.stores(layout.plan.packed);
    EXPECT_EQ(std::count(stores.begin(), stores.end(), 1u), static_cast<long>(stores.size()));
}

void checkScatter(Layout& layout, std::uint64_t warps) {
    auto& packed = layout.memory.at(layout.plan.packed);
    packed = testing::noise(packed.size(), 77);
    std::vector<std::uint8_t> expected(layout.memory.at(Layout::kSpace).size(), 0x5a);
    layout.memory.at(Layout::kSpace) = expected;
    for (std::size_t index = 0; index < layout.pages.size(); ++index)
        std::copy_n(packed.begin() + static_cast<long>(index * layout.plan.page_bytes), layout.plan.page_bytes,
                    expected.begin() + static_cast<long>(layout.pages[index] - Layout::kSpace));
    runPack(layout.memory, layout.plan, PackDirection::Scatter, warps);
    EXPECT_EQ(layout.memory.at(Layout::kSpace), expected);
}

TEST(Pack, EverySizeAndAlignmentComesOutAsAPlainLoopHasIt) {
    std::mt19937 random(1);
    for (const std::uint64_t page_bytes : {1, 2, 3, 7, 15, 16, 17, 31, 33, 100, 511, 512, 4095, 4096, 4097, 9001}) {
        for (const std::uint64_t alignment : {1, 2, 4, 8, 16}) {
            for (const std::uint64_t skew : {0, 1, 6, 8, 12}) {
                SCOPED_TRACE(::testing::Message() << page_bytes << " bytes on " << alignment << ", packed at " << skew);
                Layout layout(random, 1 + random() % 3, page_bytes, alignment, skew);
                checkGather(layout, 1 + random() % 7);
                Layout back(random, 1 + random() % 3, page_bytes, alignment, skew);
                checkScatter(back, 1 + random() % 7);
            }
        }
    }
}

TEST(Pack, RandomLayouts) {
    std::mt19937 random(20);
    for (int round = 0; round < 100; ++round) {
        const std::uint64_t page_bytes = 1 + random() % (round % 5 == 0 ? 20000 : 2000);
        Layout layout(random, 1 + random() % 20, page_bytes, std::uint64_t{1} << random() % 9, random() % 64);
        SCOPED_TRACE(::testing::Message() << "round " << round << ", " << page_bytes << " bytes");
        if (round % 2 == 0)
            checkGather(layout, 1 + random() % 40);
        else
            checkScatter(layout, 1 + random() % 40);
    }
}

TEST(Pack, AlignedPagesGoBy16BytesOnly) {
    std::mt19937 random(3);
    Layout layout(random, 8, 65536, 4096, 0);
    checkGather(layout, 5);
    EXPECT_EQ(layout.memory.loads(16), 8u * 65536 / 16);
    EXPECT_EQ(layout.memory.loads(1) + layout.memory.loads(2) + layout.memory.loads(4), 0u);
    // Those of 8 are the list's: one for each lane and chunk.
    EXPECT_EQ(layout.memory.loads(8), 8u * 65536 / kPackChunk * kPackLanes);
}

TEST(Pack, PagesAlikeModulo16GoBy16BytesButForTheirEnds) {
    std::mt19937 random(4);
    Layout layout(random, 1, 10000, 1, 0);
    layout.pages[0] = Layout::kSpace + 5;
    std::memcpy(layout.memory.at(Layout::kList).data(), &layout.pages[0], 8);
    layout.memory.add(Layout::kPacked + 5, 10000);
    layout.plan.packed = Layout::kPacked + 5;
    checkGather(layout, 3);
    EXPECT_EQ(layout.memory.loads(1), 11u + (10000 - 11) % 16);
    EXPECT_EQ(layout.memory.loads(16), (10000u - 11) / 16);
}

TEST(Pack, StridedPagesNeedNoList) {
    CheckedMemory memory;
    memory.add(0x100000, 100 * 1000);
    memory.add(0x900000, 100 * 300);
    memory.at(0x100000) = testing::noise(100 * 1000);
    const PackPlan plan{0, 0x100000 + 50, 1000, 99, 300, 0x900000};
    runPack(memory, plan, PackDirection::Gather, 3);
    for (std::size_t page = 0; page < 99; ++page)
        for (std::size_t byte = 0; byte < 300; ++byte)
            ASSERT_EQ(memory.at(0x900000)[page * 300 + byte], memory.at(0x100000)[50 + page * 1000 + byte]);
}

TEST(Pack, ALoopOverPlainMemoryIsWhatAProcessorRuns) {
    std::vector<std::uint8_t> space = testing::noise(100000);
    std::vector<std::uint8_t> packed(10 * 2000);
    std::vector<std::uint64_t> list;
    for (int page = 0; page < 10; ++page)
        list.push_back(reinterpret_cast<std::uint64_t>(space.data()) + 9777 * page + 3);
    const PackPlan plan{reinterpret_cast<std::uint64_t>(list.data()),  0, 0, 10, 2000,
                        reinterpret_cast<std::uint64_t>(packed.data())};
    PackMemory memory;
    runPack(memory, plan, PackDirection::Gather, 4);
    for (std::size_t page = 0; page < 10; ++page)
        EXPECT_EQ(std::memcmp(packed.data() + 2000 * page, space.data() + 9777 * page + 3, 2000), 0);
}

}  // namespace
}  // namespace troupe::cuda
