#include "apps/support/latency_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "apps/support/random.h"

namespace troupe::apps {
namespace {

using std::chrono::nanoseconds;

TEST(LatencyHistogram, PercentilesAreWithinOnePercentOfTheSortedValues) {
    LatencyHistogram histogram;
    Random random(5);
    std::vector<std::int64_t> values;
    for (int i = 0; i < 100000; ++i) {
        values.push_back(static_cast<std::int64_t>(random.logUniform(1, 60'000'000'000)));
        histogram.record(nanoseconds(values.back()));
    }
    std::sort(values.begin(), values.end());
    for (const double fraction : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
        const auto exact = values[static_cast<std::size_t>(fraction * 100000) - 1];
        const auto got = histogram.percentile(fraction).count();
        EXPECT_GE(got, exact);
        EXPECT_LE(static_cast<double>(got), static_cast<double>(exact) * 1.01);
    }
    EXPECT_EQ(histogram.max().count(), values.back());
    EXPECT_EQ(histogram.percentile(1.0), histogram.max());
}

TEST(LatencyHistogram, AnEmptyOneSaysZero) {
    const LatencyHistogram histogram;
    EXPECT_EQ(histogram.count(), 0u);
    EXPECT_EQ(histogram.percentile(0.5), nanoseconds(0));
    EXPECT_EQ(histogram.max(), nanoseconds(0));
}

TEST(LatencyHistogram, TakesEveryValueThereIs) {
    LatencyHistogram histogram;
    histogram.record(nanoseconds::max());
    histogram.record(nanoseconds(-5));
    histogram.record(nanoseconds(0));
    EXPECT_EQ(histogram.percentile(0.5), nanoseconds(0));
    EXPECT_EQ(histogram.percentile(1.0), nanoseconds::max());
}

TEST(LatencyHistogram, MergingAddsTheCounts) {
    LatencyHistogram a;
    LatencyHistogram b;
    for (int i = 0; i < 90; ++i) a.record(nanoseconds(10));
    for (int i = 0; i < 10; ++i) b.record(nanoseconds(1000));
    a.merge(b);
    EXPECT_EQ(a.count(), 100u);
    EXPECT_EQ(a.percentile(0.9), nanoseconds(10));
    EXPECT_EQ(a.percentile(0.91), nanoseconds(1000));
}

}  // namespace
}  // namespace troupe::apps
