// The packing kernel's source, compiled for the CPU, against a plain loop.

#include "cuda_backend/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
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
template <class Memory, class Plan>
void runPack(Memory& memory, const Plan& plan, std::uint64_t warps) {
    for (std::uint64_t warp = warps; warp-- > 0;)
        for (unsigned lane = kPackLanes; lane-- > 0;) packLane(memory, plan, warp, warps, lane);
}

/// Pages at random places of a space, and a buffer in which they lie one behind the other.
struct Layout {
    static constexpr std::uint64_t kSpace = 0x10000000;
    static constexpr std::uint64_t kPacked = 0x7000000000;

    Layout(std::mt19937& random, const std::vector<std::uint64_t>& sizes, std::uint64_t alignment, std::uint64_t skew)
        : packed(kPacked + skew) {
        const std::uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
        const std::uint64_t slot = (longest + alignment - 1) / alignment * alignment + alignment;
        std::vector<std::uint64_t> slots(sizes.size());
        std::iota(slots.begin(), slots.end(), 0);
        std::shuffle(slots.begin(), slots.end(), random);
        std::uint64_t at = packed;
        for (std::size_t index = 0; index < sizes.size(); ++index) {
            // Aligned to `alignment`, and no more than that.
            pages.push_back({kSpace + slots[index] * slot + (random() % 2) * alignment, sizes[index]});
            at += sizes[index];
        }
        memory.add(kSpace, sizes.size() * slot + 64);
        memory.add(packed, at - packed);
    }

    PackList plan(bool gathers) const {
        PackList list;
        std::uint64_t at = packed;
        for (const ByteRange& page : pages) {
            list.moves[list.count++] = {gathers ? at : page.addr, gathers ? page.addr : at, page.length};
            list.bytes = std::max(list.bytes, page.length);
            at += page.length;
        }
        return list;
    }

    CheckedMemory memory;
    std::uint64_t packed;
    std::vector<ByteRange> pages;
};

void checkGather(Layout& layout, std::uint64_t warps) {
    auto& space = layout.memory.at(Layout::kSpace);
    space = testing::noise(space.size(), static_cast<unsigned>(layout.pages[0].addr));
    std::vector<std::uint8_t> expected;
    for (const ByteRange& page : layout.pages) {
        const auto begin = space.begin() + static_cast<long>(page.addr - Layout::kSpace);
        expected.insert(expected.end(), begin, begin + static_cast<long>(page.length));
    }
    runPack(layout.memory, layout.plan(true), warps);
    EXPECT_EQ(layout.memory.at(layout.packed), expected);
    const auto& stores = layout.memory.stores(layout.packed);
    EXPECT_EQ(std::count(stores.begin(), stores.end(), 1u), static_cast<long>(stores.size()));
}

void checkScatter(Layout& layout, std::uint64_t warps) {
    auto& packed = layout.memory.at(layout.packed);
    packed = testing::noise(packed.size(), 77);
    std::vector<std::uint8_t> expected(layout.memory.at(Layout::kSpace).size(), 0x5a);
    layout.memory.at(Layout::kSpace) = expected;
    long at = 0;
    for (const ByteRange& page : layout.pages) {
        std::copy_n(packed.begin() + at, page.length, expected.begin() + static_cast<long>(page.addr - Layout::kSpace));
        at += static_cast<long>(page.length);
    }
    runPack(layout.memory, layout.plan(false), warps);
    EXPECT_EQ(layout.memory.at(Layout::kSpace), expected);
}

TEST(Pack, EverySizeAndAlignmentComesOutAsAPlainLoopHasIt) {
    std::mt19937 random(1);
    for (const std::uint64_t bytes : {1, 2, 3, 7, 15, 16, 17, 31, 33, 100, 511, 512, 4095, 4096, 4097, 9001}) {
        for (const std::uint64_t alignment : {1, 2, 4, 8, 16}) {
            for (const std::uint64_t skew : {0, 1, 6, 8, 12}) {
                SCOPED_TRACE(::testing::Message() << bytes << " bytes on " << alignment << ", packed at " << skew);
                Layout layout(random, std::vector<std::uint64_t>(1 + random() % 3, bytes), alignment, skew);
                checkGather(layout, 1 + random() % 7);
                Layout back(random, std::vector<std::uint64_t>(1 + random() % 3, bytes), alignment, skew);
                checkScatter(back, 1 + random() % 7);
            }
        }
    }
}

TEST(Pack, RandomLayoutsOfMixedSizes) {
    std::mt19937 random(20);
    for (int round = 0; round < 100; ++round) {
        const unsigned most = round % 5 == 0 ? 20000 : 2000;
        std::vector<std::uint64_t> sizes(1 + random() % 20);
        for (std::uint64_t& bytes : sizes) bytes = 1 + random() % most;
        Layout layout(random, sizes, std::uint64_t{1} << random() % 9, random() % 64);
        SCOPED_TRACE(::testing::Message() << "round " << round << ", " << sizes.size() << " pages");
        if (round % 2 == 0)
            checkGather(layout, 1 + random() % 40);
        else
            checkScatter(layout, 1 + random() % 40);
    }
}

TEST(Pack, AsManyAsOneLaunchTakes) {
    std::mt19937 random(21);
    std::vector<std::uint64_t> sizes(kPackMoves);
    for (std::uint64_t& bytes : sizes) bytes = 1 + random() % 5000;
    Layout layout(random, sizes, 1, 0);
    checkGather(layout, 17);
    checkScatter(layout, 17);
}

TEST(Pack, AlignedPagesGoBy16BytesOnly) {
    std::mt19937 random(3);
    Layout layout(random, std::vector<std::uint64_t>(8, 65536), 4096, 0);
    checkGather(layout, 5);
    EXPECT_EQ(layout.memory.loads(16), 8u * 65536 / 16);
    for (const std::size_t width : {1, 2, 4, 8}) EXPECT_EQ(layout.memory.loads(width), 0u);
}

TEST(Pack, PagesAlikeModulo16GoBy16BytesButForTheirEnds) {
    std::mt19937 random(4);
    Layout layout(random, {10000}, 1, 5);
    layout.pages[0].addr = Layout::kSpace + 5;
    checkGather(layout, 3);
    EXPECT_EQ(layout.memory.loads(1), 11u + (10000 - 11) % 16);
    EXPECT_EQ(layout.memory.loads(16), (10000u - 11) / 16);
}

TEST(Pack, PagesAtEqualDistancesNeedNoList) {
    CheckedMemory memory;
    memory.add(0x100000, 100 * 1000);
    memory.add(0x900000, 300 * 300);
    memory.at(0x100000) = testing::noise(100 * 1000);
    // Backwards in the target: a distance below zero.
    const PackStrides plan{99, 300, 0x900000 + 98 * 400, std::uint64_t{0} - 400, 0x100000 + 50, 1000};
    runPack(memory, plan, 3);
    for (std::size_t page = 0; page < 99; ++page)
        for (std::size_t byte = 0; byte < 300; ++byte)
            ASSERT_EQ(memory.at(0x900000)[(98 - page) * 400 + byte], memory.at(0x100000)[50 + page * 1000 + byte]);
}

TEST(Pack, ALoopOverPlainMemoryIsWhatAProcessorRuns) {
    std::vector<std::uint8_t> space = testing::noise(100000);
    std::vector<std::uint8_t> packed(10 * 2000);
    PackList list;
    list.bytes = 2000;
    for (std::uint64_t page = 0; page < 10; ++page)
        list.moves[list.count++] = {reinterpret_cast<std::uint64_t>(packed.data()) + 2000 * page,
                                    reinterpret_cast<std::uint64_t>(space.data()) + 9777 * page + 3, 2000};
    PackMemory memory;
    runPack(memory, list, 4);
    for (std::size_t page = 0; page < 10; ++page)
        EXPECT_EQ(std::memcmp(packed.data() + 2000 * page, space.data() + 9777 * page + 3, 2000), 0);
}

}  // namespace
}  // namespace troupe::cuda
