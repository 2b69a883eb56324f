// What a row of the benchmark comes to when something in it cannot be measured, or when it is to end.

#include "bench/row.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::bench {
namespace {

/// A row with one contender, ours.
Row rowOf(std::function<Result<Figures>()> measure) {
    Row row;
    row.name = "row";
    row.contenders.push_back({"troupe", [measure = std::move(measure)](const Settings&) { return measure(); }});
    Comparison comparison;
    comparison.ours = "troupe";
    comparison.quantity = "us";
    row.comparisons.push_back(comparison);
    return row;
}

std::vector<Outcome> measured(const Row& row, std::size_t repeats, const std::function<bool()>& go_on) {
    return measureRow(
        row, {}, repeats, [](const std::string&, std::size_t) {}, go_on);
}

const std::function<bool()> kToTheEnd = [] { return true; };
const Status kDenied(Code::AccessDenied, "no");

TEST(BenchRow, WhatThisUserMayNotMeasureIsLeftOutAndIsNoFailure) {
    const auto outcomes = measured(rowOf([]() -> Result<Figures> { return kDenied; }), 2, kToTheEnd);
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_FALSE(outcomes[0].value);
    // Root may measure everything.
    EXPECT_EQ(outcomes[0].left_out, ::geteuid() != 0);
}

TEST(BenchRow, WhatWasMeasuredOnceAndThenFailsIsAFailureWhateverItsCode) {
    int calls = 0;
    const auto outcomes = measured(rowOf([&]() -> Result<Figures> {
                                       return calls++ == 0 ? Result<Figures>(Figures{{"us", 1}}) : kDenied;
                                   }),
                                   3, kToTheEnd);
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(calls, 2);
    EXPECT_FALSE(outcomes[0].value);
    EXPECT_FALSE(outcomes[0].left_out);
    EXPECT_EQ(outcomes[0].error, "troupe: no");
}

TEST(BenchRow, ARowThatIsGivenUpHasNoOutcomeAlsoWhenItsLastMeasurementWasMade) {
    for (const int most : {0, 1, 2}) {
        int calls = 0;
        const Row row = rowOf([&]() -> Result<Figures> {
            ++calls;
            return Figures{{"us", 1}};
        });
        EXPECT_TRUE(measured(row, 2, [&] { return calls < most; }).empty());
        EXPECT_EQ(calls, most);
    }
}

}  // namespace
}  // namespace troupe::bench
