#include "tcp_backend/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace troupe::tcp {

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Reflected.

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

/// table[k][b]: the CRC of byte b followed by k zero bytes ("slicing by 8").
constexpr Table makeTable() {
    Table table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
        table[0][byte] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k)
        for (std::size_t byte = 0; byte < 256; ++byte)
            table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
    return table;
}

constexpr Table kTable = makeTable();

#if defined(__x86_64__)

/// `crc` advanced over `zeros` zero bytes.
constexpr std::uint32_t shifted(std::uint32_t crc, std::size_t zeros) {
    for (std::size_t i = 0; i < zeros; ++i) crc = (crc >> 8) ^ kTable[0][crc & 0xff];
    return crc;
}

/// The instruction takes 3 cycles but one can start each cycle: three streams of this length run side by side.
constexpr std::size_t kStream = 1024;

/// tables to advance a CRC over kStream zero bytes: linear, so four look-ups do it.
constexpr std::array<std::array<std::uint32_t, 256>, 4> makeShift() {
    std::array<std::array<std::uint32_t, 256>, 4> table{};
    for (std::size_t position = 0; position < 4; ++position) {
        for (std::uint32_t bit = 0; bit < 8; ++bit)
            table[position][1u << bit] = shifted(1u << (8 * position + bit), kStream);
        for (std::uint32_t byte = 1; byte < 256; ++byte) {
            const std::uint32_t low = byte & (~byte + 1);
            if (low != byte) table[position][byte] = table[position][low] ^ table[position][byte ^ low];
        }
    }
    return table;
}

// Not constexpr: 32 x 1024 steps are more than a compiler likes to evaluate.
const auto kShift = makeShift();

std::uint32_t advanced(std::uint32_t crc) {
    return kShift[0][crc & 0xff] ^ kShift[1][(crc >> 8) & 0xff] ^ kShift[2][(crc >> 16) & 0xff] ^ kShift[3][crc >> 24];
}

std::uint64_t word(const unsigned char* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32cSse42(std::uint32_t crc, const void* data, std::size_t length) {
    const auto* at = static_cast<const unsigned char*>(data);
    std::uint64_t state = ~crc;
    while (length >= 3 * kStream) {
        std::uint64_t second = 0;
        std::uint64_t third = 0;
        for (std::size_t i = 0; i < kStream; i += 8) {
            state = _mm_crc32_u64(state, word(at + i));
            second = _mm_crc32_u64(second, word(at + kStream + i));
            third = _mm_crc32_u64(third, word(at + 2 * kStream + i));
        }
        state = advanced(static_cast<std::uint32_t>(state)) ^ second;
        state = advanced(static_cast<std::uint32_t>(state)) ^ third;
        at += 3 * kStream;
        length -= 3 * kStream;
    }
    for (; length >= 8; at += 8, length -= 8) state = _mm_crc32_u64(state, word(at));
    auto tail = static_cast<std::uint32_t>(state);
    for (; length != 0; ++at, --length) tail = _mm_crc32_u8(tail, *at);
    return ~tail;
}

#endif

}  // namespace

std::uint32_t crc32cPortable(std::uint32_t crc, const void* data, std::size_t length) {
    const auto* at = static_cast<const unsigned char*>(data);
    crc = ~crc;
    for (; length >= 8; at += 8, length -= 8) {
        const std::uint32_t low =
            crc ^ (at[0] | std::uint32_t{at[1]} << 8 | std::uint32_t{at[2]} << 16 | std::uint32_t{at[3]} << 24);
        crc = kTable[7][low & 0xff] ^ kTable[6][(low >> 8) & 0xff] ^ kTable[5][(low >> 16) & 0xff] ^
              kTable[4][low >> 24] ^ kTable[3][at[4]] ^ kTable[2][at[5]] ^ kTable[1][at[6]] ^ kTable[0][at[7]];
    }
    for (; length != 0; ++at, --length) crc = (crc >> 8) ^ kTable[0][(crc ^ *at) & 0xff];
    return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t length) {
#if defined(__x86_64__)
    static const bool hardware = __builtin_cpu_supports("sse4.2");
    if (hardware) return crc32cSse42(crc, data, length);
#endif
    return crc32cPortable(crc, data, length);
}

}  // namespace troupe::tcp
