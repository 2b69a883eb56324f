#pragma once

#include <bit>
#include <cstdint>

namespace troupe::apps {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits.
constexpr std::uint64_t mixBits(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

/// SplitMix64. The same seed gives the same numbers with every compiler and library, unlike <random>'s distributions.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() { return mixBits(state_ += kGoldenGamma); }
    /// In [0, bound), bound > 0. The bias (below bound / 2^64) does not matter for choosing tests.
    std::uint64_t below(std::uint64_t bound) { return next() % bound; }
    /// In [low, high], with every power of two about as likely as the next: small and large sizes alike.
    std::uint64_t logUniform(std::uint64_t low, std::uint64_t high) {
        const auto low_bits = static_cast<unsigned>(std::bit_width(low));
        const auto high_bits = static_cast<unsigned>(std::bit_width(high));
        const auto bits = low_bits + static_cast<unsigned>(below(high_bits - low_bits + 1));
        const std::uint64_t first = bits == 0 ? 0 : std::uint64_t{1} << (bits - 1);
        const std::uint64_t last = bits == 0 ? 0 : first + (first - 1);
        const std::uint64_t from = first < low ? low : first;
        const std::uint64_t to = last > high ? high : last;
        return from + below(to - from + 1);
    }
    bool chance(std::uint64_t percent) { return below(100) < percent; }

  private:
    std::uint64_t state_;
};

}  // namespace troupe::apps
