#include "apps/support/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe::apps {

namespace {

constexpr unsigned kSubBits = 7;
constexpr std::uint64_t kSubs = 1u << kSubBits;
constexpr std::size_t kBuckets = (64 - kSubBits + 1) * kSubs;

/// Below kSubs a bucket a value; above, kSubs buckets for each power of two.
std::size_t bucketOf(std::uint64_t value) {
    if (value < kSubs) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - kSubBits;
    return (shift + 1) * kSubs + ((value >> shift) & (kSubs - 1));
}

std::uint64_t lastOf(std::size_t bucket) {
    if (bucket < kSubs) return bucket;
    const auto shift = bucket / kSubs - 1;
    return ((kSubs + bucket % kSubs) << shift) + ((std::uint64_t{1} << shift) - 1);
}

}  // namespace

LatencyHistogram::LatencyHistogram() : buckets_(kBuckets) {}

void LatencyHistogram::record(std::chrono::nanoseconds latency) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(latency.count(), 0));
    ++buckets_[bucketOf(value)];
    ++count_;
    max_ = std::max(max_, value);
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
    for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
}

std::chrono::nanoseconds LatencyHistogram::percentile(double fraction) const {
    if (count_ == 0) return {};
    const auto rank = static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
    const std::uint64_t wanted = std::clamp<std::uint64_t>(rank, 1, count_);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
        seen += buckets_[i];
        if (seen >= wanted) return std::chrono::nanoseconds(std::min(lastOf(i), max_));
    }
    return max();
}

}  // namespace troupe::apps
