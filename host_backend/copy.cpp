#include "host_backend/copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe {

#if defined(__x86_64__)

bool canStream() {
    static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
    return has_avx2;
}

__attribute__((target("avx2"))) void streamingCopy(std::byte* to, const std::byte* from, std::size_t length) {
    // A streaming store wants an aligned address, and whole lines, or the write-combining buffers are flushed half
    // full.
    constexpr std::size_t kLine = 64;
    const std::size_t head = std::min(length, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
    std::memcpy(to, from, head);
    to += head;
    from += head;
    length -= head;
    for (; length >= 2 * kLine; length -= 2 * kLine, to += 2 * kLine, from += 2 * kLine) {
        const auto* source = reinterpret_cast<const __m256i*>(from);
        auto* target = reinterpret_cast<__m256i*>(to);
        const __m256i a = _mm256_loadu_si256(source);
        const __m256i b = _mm256_loadu_si256(source + 1);
        const __m256i c = _mm256_loadu_si256(source + 2);
        const __m256i d = _mm256_loadu_si256(source + 3);
        _mm256_stream_si256(target, a);
        _mm256_stream_si256(target + 1, b);
        _mm256_stream_si256(target + 2, c);
        _mm256_stream_si256(target + 3, d);
    }
    // Streaming stores are weakly ordered: without this a flag stored next could be seen before the bytes.
    _mm_sfence();
    std::memcpy(to, from, length);
}

#else

bool canStream() { return false; }

void streamingCopy(std::byte* to, const std::byte* from, std::size_t length) { std::memcpy(to, from, length); }

#endif

bool Copier::isWarm(const std::byte* to, std::size_t length) const {
    if (length == 0 || length > kWarmBytes) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(to);
    const std::uintptr_t last = (begin + length - 1) / kLineBytes;
    std::size_t warm = 0;
    std::size_t all = 0;
    for (std::uintptr_t number = begin / kLineBytes; number <= last; ++number, ++all) {
        const Line& line = lines_[number % kLines];
        if (line.number == number && written_ + length - line.at <= kWarmBytes) ++warm;
    }
    return 2 * warm > all;
}

void Copier::touch(const std::byte* to, std::size_t length) {
    const auto begin = reinterpret_cast<std::uintptr_t>(to);
    const std::uintptr_t last = (begin + length - 1) / kLineBytes;
    written_ += length;
    // Of a very long copy only the end is of interest.
    std::uintptr_t number = begin / kLineBytes;
    if (last - number > kLines) number = last - kLines;
    for (; number <= last; ++number) lines_[number % kLines] = {number, written_};
}

void Copier::copy(std::byte* to, const std::byte* from, std::size_t length) {
    if (length >= kStreamingBytes && canStream()) {
        const bool warm = isWarm(to, length);
        touch(to, length);
        if (!warm) return streamingCopy(to, from, length);
    }
    std::memcpy(to, from, length);
}

}  // namespace troupe
