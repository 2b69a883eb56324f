#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

/// The kernel that makes many small copies at once: pages that lie scattered are gathered into a contiguous buffer,
/// scattered back, or brought from one place to another. One source for the GPU (pack.cu) and for the CPU, where it is
/// tested. C++17, since nvcc compiles it, and no header of the project.
#if defined(__CUDACC__)
#define TROUPE_PACK_FUNCTION __host__ __device__ inline
#define TROUPE_PACK_UNROLL _Pragma("unroll")
#else
#define TROUPE_PACK_FUNCTION inline
#define TROUPE_PACK_UNROLL
#endif

namespace troupe::cuda {

/// One copy, of `bytes` > 0. The addresses are the GPU's, and on no border.
struct PackMove {
    std::uint64_t to = 0;
    std::uint64_t from = 0;
    std::uint64_t bytes = 0;
};

/// Of one launch. What a kernel can be given by value are 4096 bytes.
inline constexpr unsigned kPackMoves = 128;

/// Copies of any sizes between any places; what is written must not overlap. A launch is given it by value, so no list
/// has to lie where the GPU can read it, nor to stay there until it has.
struct PackList {
    std::uint64_t count = 0;  ///< At most kPackMoves.
    std::uint64_t bytes = 0;  ///< Of the longest.
    PackMove moves[kPackMoves] = {};

    TROUPE_PACK_FUNCTION PackMove move(std::uint64_t index) const { return moves[index]; }
};
static_assert(sizeof(PackList) <= 4096);

/// Any number of copies of one size, at equal distances on both sides; a distance below zero wraps.
struct PackStrides {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;  ///< Of each.
    std::uint64_t to = 0;     ///< Of the first.
    std::uint64_t to_stride = 0;
    std::uint64_t from = 0;
    std::uint64_t from_stride = 0;

    TROUPE_PACK_FUNCTION PackMove move(std::uint64_t index) const {
        return PackMove{to + index * to_stride, from + index * from_stride, bytes};
    }
};

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
    for (; word + std::uint64_t{kPackUnroll - 1} * kPackLanes < words;
         word += std::uint64_t{kPackUnroll} * kPackLanes) {
        Word loaded[kPackUnroll];
        TROUPE_PACK_UNROLL
        for (unsigned step = 0; step < kPackUnroll; ++step)
            loaded[step] = memory.template load<Word>(from + (word + std::uint64_t{step} * kPackLanes) * sizeof(Word));
        TROUPE_PACK_UNROLL
        for (unsigned step = 0; step < kPackUnroll; ++step)
            memory.store(to + (word + std::uint64_t{step} * kPackLanes) * sizeof(Word), loaded[step]);
    }
    for (; word < words; word += kPackLanes)
        memory.store(to + word * sizeof(Word), memory.template load<Word>(from + word * sizeof(Word)));
}

/// A lane's share of [begin, end) of a copy, in the widest words that the two addresses have in common: 16 bytes where
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

TROUPE_PACK_FUNCTION std::uint64_t packChunksOf(std::uint64_t bytes) { return (bytes + kPackChunk - 1) / kPackChunk; }

/// All that one lane of one of `warps` warps has to do. Each copy counts as many chunks as the longest: the warps of
/// those that a shorter one does not have find nothing to do.
template <class Plan, class Memory>
TROUPE_PACK_FUNCTION void packLane(Memory& memory, const Plan& plan, std::uint64_t warp, std::uint64_t warps,
                                   unsigned lane) {
    const std::uint64_t chunks = packChunksOf(plan.bytes);
    for (std::uint64_t unit = warp; unit < plan.count * chunks; unit += warps) {
        const std::uint64_t index = chunks == 1 ? unit : unit / chunks;
        const std::uint64_t chunk = chunks == 1 ? 0 : unit - index * chunks;
        const PackMove move = plan.move(index);
        // The first chunk takes what is before the destination's first 16-byte border, so that all others begin on one.
        const std::uint64_t head = (16 - (move.to & 15)) & 15;
        const std::uint64_t begin = chunk == 0 ? 0 : head + chunk * kPackChunk;
        const std::uint64_t limit = head + (chunk + 1) * kPackChunk;
        const std::uint64_t end = limit < move.bytes ? limit : move.bytes;
        if (begin < end) packBytes(memory, move.to, move.from, begin, end, lane);
    }
}

}  // namespace troupe::cuda
