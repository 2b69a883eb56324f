#include "apps/support/table.h"

#include <gtest/gtest.h>

#include "apps/support/units.h"

namespace troupe::apps {
namespace {

TEST(Table, AlignsFiguresToTheRightAndLeavesNoTrailingSpaces) {
    Table table({"name", "value"});
    table.add({"a", "1"});
    table.add({"longer", "12345678"});
    table.add({"alone", ""});
    EXPECT_EQ(table.toString(),
              "name       value\n"
              "a              1\n"
              "longer  12345678\n"
              "alone\n");
}

TEST(Units, AreReadable) {
    EXPECT_EQ(formatBytes(0), "0 B");
    EXPECT_EQ(formatBytes(1023), "1023 B");
    EXPECT_EQ(formatBytes(65536), "64 KiB");
    EXPECT_EQ(formatBytes(3u << 19), "1.5 MiB");
    EXPECT_EQ(formatBytes(UINT64_MAX), "1.638e+04 PiB");
    EXPECT_EQ(formatTime(std::chrono::nanoseconds(850)), "850 ns");
    EXPECT_EQ(formatTime(std::chrono::microseconds(12)), "12 us");
    EXPECT_EQ(formatTime(std::chrono::milliseconds(1500)), "1.50 s");
    EXPECT_EQ(formatRate(2.5e9), "2.50 GB/s");
    EXPECT_EQ(formatRate(1.25e7), "12.5 MB/s");
    EXPECT_EQ(formatAddress(0x7f00), "0x7f00");
    EXPECT_EQ(counted(1, "region"), "1 region");
    EXPECT_EQ(counted(0, "region"), "0 regions");
    EXPECT_EQ(counted(2, "batch", "batches"), "2 batches");
}

}  // namespace
}  // namespace troupe::apps
