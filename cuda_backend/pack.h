#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

/// The kernel that gathers pages which lie scattered in memory into one contiguous buffer, and scatters them back: one
/// source for the GPU (pack.cu) and for the CPU, where it is tested. C++17, since nvcc compiles it, and no header of
/// the project.
#if defined(__CUDACC__)
#define TROUPE_PACK_FUNCTION __host__ __device__ inline
#define TROUPE_PACK_UNROLL _Pragma("unroll")
#else
#define TROUPE_PACK_FUNCTION inline
#define TROUPE_PACK_UNROLL
#endif

namespace troupe::cuda {

/// What a launch is given, by value. All pages are of one size and begin anywhere; their addresses are read from a
/// list, or follow each other at a distance. Addresses are the GPU's. Pages that are written must not overlap.
struct PackPlan {
    std::uint64_t list = 0;        ///< Address of `count` addresses, on 8 bytes, that the GPU can read; 0: strided.
    std::uint64_t base = 0;        ///< Strided: the first page.
    std::uint64_t stride = 0;      ///< Strided: from one page to the next, bytes.
    std::uint64_t count = 0;       ///< Pages.
    std::uint64_t page_bytes = 0;  ///< > 0.
    std::uint64_t packed = 0;      ///< The contiguous buffer, count * page_bytes long.
};

enum class PackDirection : std::uint32_t { Gather = 0, Scatter = 1 };

/// 16 bytes that are loaded and stored by one instruction.
struct alignas(16) PackWord {
    std::uint32_t parts[4];
};

inline constexpr unsigned kPackLanes = 32;  ///< A warp copies a chunk together, and its lanes' accesses are neighbours.
/// Loads that a lane has under way before it stores the first: with 16 bytes each a warp has a whole chunk in flight.
inline constexpr unsigned kPackUnroll = 8;
inline constexpr std::uint64_t kPackChunk = sizeof(PackWord) * kPackLanes * kPackUnroll;  ///< Bytes: 4 KiB.

/// How memory is touched; others than this one look addresses up (tests/fake_cuda).
struct PackMemory {
    template <class Word>
    TROUPE_PACK_FUNCTION Word load(std::uint64_t addr) const {
#if defined(__CUDA_ARCH__)
        if constexpr (sizeof(Word) == sizeof(PackWord)) {
            const uint4 loaded = *reinterpret_cast<const uint4*>(addr);
            return Word{{loaded.x, loaded.y, loaded.z, loaded.w}};
        } else {
            return *reinterpret_cast<const Word*>(addr);
        }
#else
        Word word;
        std::memcpy(&word, reinterpret_cast<const void*>(addr), sizeof word);
        return word;
#endif
    }
    template <class Word>
    TROUPE_PACK_FUNCTION void store(std::uint64_t addr, const Word& word) const {
#if defined(__CUDA_ARCH__)
        if constexpr (sizeof(Word) == sizeof(PackWord))
            *reinterpret_cast<uint4*>(addr) = make_uint4(word.parts[0], word.parts[1], word.parts[2], word.parts[3]);
        else
            *reinterpret_cast<Word*>(addr) = word;
#else
        std::memcpy(reinterpret_cast<void*>(addr), &word, sizeof word);
#endif
    }
};

/// A lane's share of `words` words; both addresses are on the word's size.
template <class Word, class Memory>
TROUPE_PACK_FUNCTION void packWords(Memory& memory, std::uint64_t to, std::uint64_t from, std::uint64_t words,
                                    unsigned lane) {
    std::uint64_t word = lane;
    for (; word + (kPackUnroll - 1) * kPackLanes < words; word += kPackUnroll * kPackLanes) {
        Word loaded[kPackUnroll];
        TROUPE_PACK_UNROLL
        for (unsigned step = 0; step < kPackUnroll; ++step)
            loaded[step] = memory.template load<Word>(from + (word + step * kPackLanes) * sizeof(Word));
        TROUPE_PACK_UNROLL
        for (unsigned step = 0; step < kPackUnroll; ++step)
            memory.store(to + (word + step * kPackLanes) * sizeof(Word), loaded[step]);
    }
    for (; word < words; word += kPackLanes)
        memory.store(to + word * sizeof(Word), memory.template load<Word>(from + word * sizeof(Word)));
}

/// A lane's share of [begin, end) of a page, in the widest words that the two addresses have in common: 16 bytes where
/// they are alike modulo 16. Only the ends, of less than a word, go by bytes.
template <class Memory>
TROUPE_PACK_FUNCTION void packBytes(Memory& memory, std::uint64_t to, std::uint64_t from, std::uint64_t begin,
                                    std::uint64_t end, unsigned lane) {
    const std::uint64_t differ = (to ^ from) & 15;
    const std::uint64_t width = differ == 0 ? 16 : differ & (~differ + 1);
    std::uint64_t head = (width - ((to + begin) & (width - 1))) & (width - 1);
    if (head > end - begin) head = end - begin;
    const std::uint64_t words = (end - begin - head) / width;
    const std::uint64_t body = begin + head;
    const std::uint64_t tail = body + words * width;
    // Less than a word on each side: at most 30 bytes, one for each lane.
    if (lane < head)
        memory.store(to + begin + lane, memory.template load<std::uint8_t>(from + begin + lane));
    else if (lane - head < end - tail)
        memory.store(to + tail + lane - head, memory.template load<std::uint8_t>(from + tail + lane - head));
    switch (width) {
        case 16: packWords<PackWord>(memory, to + body, from + body, words, lane); break;
        case 8: packWords<std::uint64_t>(memory, to + body, from + body, words, lane); break;
        case 4: packWords<std::uint32_t>(memory, to + body, from + body, words, lane); break;
        case 2: packWords<std::uint16_t>(memory, to + body, from + body, words, lane); break;
        default: packWords<std::uint8_t>(memory, to + body, from + body, words, lane); break;
    }
}

TROUPE_PACK_FUNCTION std::uint64_t packChunksPerPage(std::uint64_t page_bytes) {
    return (page_bytes + kPackChunk - 1) / kPackChunk;
}

/// All that one lane of one of `warps` warps has to do.
template <class Memory>
TROUPE_PACK_FUNCTION void packLane(Memory& memory, const PackPlan& plan, PackDirection direction, std::uint64_t warp,
                                   std::uint64_t warps, unsigned lane) {
    const std::uint64_t chunks = packChunksPerPage(plan.page_bytes);
    for (std::uint64_t unit = warp; unit < plan.count * chunks; unit += warps) {
        const std::uint64_t page = chunks == 1 ? unit : unit / chunks;
        const std::uint64_t chunk = chunks == 1 ? 0 : unit - page * chunks;
        const std::uint64_t scattered =
            plan.list != 0 ? memory.template load<std::uint64_t>(plan.list + page * sizeof(std::uint64_t))
                           : plan.base + page * plan.stride;
        const std::uint64_t packed = plan.packed + page * plan.page_bytes;
        const std::uint64_t to = direction == PackDirection::Gather ? packed : scattered;
        const std::uint64_t from = direction == PackDirection::Gather ? scattered : packed;
        // The first chunk takes what is before the destination's first 16-byte border, so that all others begin on one.
        const std::uint64_t head = (16 - (to & 15)) & 15;
        const std::uint64_t begin = chunk == 0 ? 0 : head + chunk * kPackChunk;
        const std::uint64_t limit = head + (chunk + 1) * kPackChunk;
        const std::uint64_t end = limit < plan.page_bytes ? limit : plan.page_bytes;
        if (begin < end) packBytes(memory, to, from, begin, end, lane);
    }
}

}  // namespace troupe::cuda
