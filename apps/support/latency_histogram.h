#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe::apps {

/// Latencies in nanoseconds, kept in buckets no wider than 1/128 of their value, whatever the range. One thread at a
/// time; threads keep one each and merge.
class LatencyHistogram {
  public:
    LatencyHistogram();

    void record(std::chrono::nanoseconds latency);
    void merge(const LatencyHistogram& other);

    std::uint64_t count() const { return count_; }
    /// The smallest recorded value v such that `fraction` (0..1] of all are <= v, at most 0.8 % too high; 0 when empty.
    std::chrono::nanoseconds percentile(double fraction) const;
    std::chrono::nanoseconds max() const { return std::chrono::nanoseconds(max_); }

  private:
    std::vector<std::uint64_t> buckets_;
    std::uint64_t count_ = 0;
    std::uint64_t max_ = 0;
};

}  // namespace troupe::apps
