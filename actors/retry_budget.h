#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace troupe {

/// How much may be sent to a peer again: a share of what arrives there, plus a floor per second, so that a sick peer,
/// or the way to it, does not get several times the traffic of a well one. A token bucket in bytes that begins full.
/// No clock of its own, one thread.
class RetryBudget {
  public:
    struct Limits {
        std::uint32_t percent = 20;                    ///< Of what arrives.
        std::uint64_t floor_per_second = 64ull << 20;  ///< Bytes, whatever arrives.
    };
    /// What a request costs beside its bytes is not nothing.
    static constexpr std::uint64_t kLeastCost = 4096;

    /// The most that it ever holds: some windows of each path, so that the loss of all of them at once, a few times in
    /// a row, fits. A larger one fills what is added.
    void setCapacity(std::uint64_t bytes) {
        if (bytes > capacity_) tokens_ += bytes - capacity_;
        tokens_ = std::min(tokens_, bytes);
        capacity_ = bytes;
    }
    void arrived(const Limits& limits, std::uint64_t bytes) { add(std::max(bytes, kLeastCost) / 100 * limits.percent); }
    /// Takes what sending `bytes` again costs. False: that is not left, and nothing is taken.
    bool take(const Limits& limits, std::uint64_t bytes, TimePoint now) {
        refill(limits, now);
        // A part larger than the bucket passes when it is full.
        const std::uint64_t price = std::min(std::max(bytes, kLeastCost), capacity_);
        if (tokens_ < price) return false;
        tokens_ -= price;
        return true;
    }
    std::uint64_t left() const { return tokens_; }

  private:
    void add(std::uint64_t bytes) { tokens_ += std::min(bytes, capacity_ - tokens_); }
    void refill(const Limits& limits, TimePoint now) {
        if (refilled_at_ != TimePoint{} && now > refilled_at_) {
            const double seconds = std::chrono::duration<double>(now - refilled_at_).count();
            const double bytes = seconds * static_cast<double>(limits.floor_per_second);
            // Of less than a byte the time is kept.
            if (bytes < 1) return;
            add(bytes < static_cast<double>(capacity_) ? static_cast<std::uint64_t>(bytes) : capacity_);
        }
        refilled_at_ = now;
    }

    std::uint64_t capacity_ = 0;
    std::uint64_t tokens_ = 0;
    TimePoint refilled_at_{};
};

}  // namespace troupe
