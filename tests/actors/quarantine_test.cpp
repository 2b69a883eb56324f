#include "actors/quarantine.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

class QuarantineList : public testing::Test {
  protected:
    QuarantineList() {
        Region region;
        region.range = {0x1000, 0x1000};
        const auto reserved = regions_.reserve(region);
        EXPECT_TRUE(reserved.status().isOk());
        regions_.commit(reserved->id);
    }

    QuarantineEntry entry(std::uint64_t addr, std::uint64_t length, std::uint32_t task = 0) const {
        QuarantineEntry made;
        made.range = {addr, length};
        made.segment = "store-7";
        made.nic = "mlx5_0:1";
        made.batch = 9;
        made.first_task = task;
        made.cause = Status(Code::Timeout, "the deadline passed");
        made.since = now_;
        return made;
    }

    RegistrationTable regions_;
    TimePoint now_ = Clock::now();
    Quarantine quarantine_{regions_, silentLog()};
};

TEST_F(QuarantineList, IsEmptyAtFirstAndHoldsNothing) {
    EXPECT_TRUE(quarantine_.empty());
    EXPECT_TRUE(quarantine_.heldIn({0, UINT64_MAX}, now_).isOk());
    EXPECT_EQ(quarantine_.list().ever, 0u);
}

TEST_F(QuarantineList, RefusesTheRangeAndNamesWhoWhyAndHowLong) {
    quarantine_.add(2, 77, entry(0x1100, 0x80));
    EXPECT_FALSE(quarantine_.empty());
    EXPECT_TRUE(quarantine_.heldIn({0x1000, 0x100}, now_).isOk());
    EXPECT_TRUE(quarantine_.heldIn({0x1180, 0x100}, now_).isOk());
    const Status held = quarantine_.heldIn({0x117f, 1}, now_ + std::chrono::milliseconds(1500));
    EXPECT_EQ(held.code(), Code::BatchBusy);
    for (const char* word : {"[0x1100, 0x1180)", "region [0x1000, 0x2000)", "mlx5_0:1", "store-7", "1500 ms",
                             "the deadline passed", "Try again"})
        EXPECT_NE(held.message().find(word), std::string::npos) << word << " is not in: " << held.message();
}

TEST_F(QuarantineList, AdjacentPartsOfOneTaskAreOneEntry) {
    quarantine_.add(2, 77, entry(0x1100, 0x80));
    quarantine_.add(2, 77, entry(0x1180, 0x80));
    quarantine_.add(2, 77, entry(0x1200, 0x80, 1));  // Another task,
    quarantine_.add(2, 78, entry(0x1280, 0x80, 1));  // or of another doubt.
    const auto held = quarantine_.list();
    ASSERT_EQ(held.entries.size(), 3u);
    EXPECT_EQ(held.entries[0].range, (ByteRange{0x1100, 0x100}));
    EXPECT_EQ(held.bytes, 0x200u);
    EXPECT_EQ(held.ever, 4u);
}

TEST_F(QuarantineList, OnlyWhatIsProvenLeaves) {
    quarantine_.add(2, 77, entry(0x1100, 0x80));
    quarantine_.add(3, 77, entry(0x1200, 0x80));
    quarantine_.add(2, 78, entry(0x1300, 0x80));
    quarantine_.prove(2, 77);
    EXPECT_TRUE(quarantine_.heldIn({0x1100, 0x80}, now_).isOk());
    EXPECT_FALSE(quarantine_.heldIn({0x1200, 0x80}, now_).isOk());
    EXPECT_FALSE(quarantine_.heldIn({0x1300, 0x80}, now_).isOk());
    quarantine_.proveAll(2);
    EXPECT_EQ(quarantine_.list().entries.size(), 1u);
    EXPECT_EQ(quarantine_.list().proven, 2u);
    quarantine_.proveAll(3);
    EXPECT_TRUE(quarantine_.empty());
}

TEST_F(QuarantineList, ARegionInTheHandsOfAProcessIsListedOnceAndHindersNoWork) {
    QuarantineEntry held;
    held.holder = "process 7";
    held.range = {0x1000, 0x1000};
    held.nic = "host0";
    held.cause = Status(Code::Timeout, "it does not answer");
    held.since = now_;
    quarantine_.hold(2, held);
    quarantine_.hold(2, held);
    EXPECT_TRUE(quarantine_.empty());
    EXPECT_TRUE(quarantine_.heldIn({0, UINT64_MAX}, now_).isOk());
    auto list = quarantine_.list();
    ASSERT_EQ(list.entries.size(), 1u);
    EXPECT_EQ(list.bytes, 0x1000u);
    EXPECT_EQ(list.ever, 1u);
    const std::string text = list.entries[0].toString(now_ + std::chrono::milliseconds(20));
    for (const char* word : {"process 7", "[0x1000, 0x2000)", "host0", "20 ms", "it does not answer"})
        EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
    // Work of the same Nic is another matter.
    quarantine_.add(2, 77, entry(0x1100, 0x80));
    EXPECT_FALSE(quarantine_.heldIn({0x1100, 1}, now_).isOk());
    EXPECT_TRUE(quarantine_.heldIn({0x1800, 1}, now_).isOk());
    quarantine_.proveAll(2);
    EXPECT_TRUE(quarantine_.empty());
    EXPECT_EQ(quarantine_.list().entries.size(), 1u) << "the Nic's end takes nothing out of a process's hands";
    quarantine_.keepHeld(1, [](const auto&) { return false; });
    quarantine_.keepHeld(2, [](const auto&) { return true; });
    EXPECT_EQ(quarantine_.list().entries.size(), 1u);
    quarantine_.keepHeld(2, [](const auto&) { return false; });
    list = quarantine_.list();
    EXPECT_TRUE(list.entries.empty());
    EXPECT_EQ(list.proven, 2u);
}

}  // namespace
}  // namespace troupe::test
