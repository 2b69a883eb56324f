#include "transports/memory_left.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace troupe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A machine as its files tell it.
class MemoryLeftOfAMachine : public testing::Test {
  protected:
    MemoryLeftOfAMachine() : root_(testing::TempDir() + "troupe_memory_left_" + std::to_string(::getpid())) {
        write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n");
        write("/proc/self/cgroup", "1:name=systemd:/x\n0::/pod/box\n");
    }
    ~MemoryLeftOfAMachine() override { std::filesystem::remove_all(root_); }
    void write(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    void group(const std::string& path, const std::string& limit, std::uint64_t used, std::uint64_t cache = 0) {
        write("/sys/fs/cgroup" + path + "/memory.max", limit + "\n");
        write("/sys/fs/cgroup" + path + "/memory.current", std::to_string(used) + "\n");
        write("/sys/fs/cgroup" + path + "/memory.stat", "anon 77\nactive_file " + std::to_string(cache / 2) +
                                                            "\ninactive_file " + std::to_string(cache / 2) + "\n");
    }
    MemoryLeft left() {
        const auto found = memoryLeft(root_);
        EXPECT_TRUE(found);
        return found.value_or(MemoryLeft{});
    }

    std::string root_;
};

TEST_F(MemoryLeftOfAMachine, IsWhatTheKernelCallsAvailable) {
    EXPECT_EQ(left().bytes, 8 * kGiB);
    EXPECT_EQ(left().bound, "MemAvailable");
}

TEST_F(MemoryLeftOfAMachine, IsBoundedByItsControlGroupLessWhatIsUsedThere) {
    group("/pod/box", std::to_string(4 * kGiB), kGiB);
    EXPECT_EQ(left().bytes, 3 * kGiB);
    EXPECT_EQ(left().bound, "/sys/fs/cgroup/pod/box/memory.max");
}

TEST_F(MemoryLeftOfAMachine, CountsTheCacheOfFilesAsFree) {
    group("/pod/box", std::to_string(4 * kGiB), 3 * kGiB, 2 * kGiB);
    EXPECT_EQ(left().bytes, 3 * kGiB);
}

TEST_F(MemoryLeftOfAMachine, IsBoundedByTheGroupsAboveToo) {
    group("/pod/box", "max", kGiB);
    group("/pod", std::to_string(4 * kGiB), 2 * kGiB);
    EXPECT_EQ(left().bytes, 2 * kGiB);
    group("", std::to_string(kGiB), 2 * kGiB);
    EXPECT_EQ(left().bytes, 0u) << "used more than the limit, which was lowered";
    EXPECT_EQ(left().bound, "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryLeftOfAMachine, IsUnknownWhereNothingSaysIt) {
    std::filesystem::remove_all(root_);
    EXPECT_FALSE(memoryLeft(root_));
    write("/proc/meminfo", "MemAvailable:    lots\n");
    EXPECT_FALSE(memoryLeft(root_));
}

TEST(MemoryLeft, OfThisMachineIsKnown) {
    const auto found = memoryLeft();
    ASSERT_TRUE(found);
    EXPECT_GT(found->bytes, 0u);
}

TEST(MemoryLeft, WhatFitsBesideTheReserveMayBeHad) {
    const MemoryLeft left{8 * kGiB, "MemAvailable"};
    EXPECT_TRUE(checkMemoryLeft(1, left));
    EXPECT_TRUE(checkMemoryLeft(8 * kGiB - kGiB / 2, left));
    EXPECT_TRUE(checkMemoryLeft(kGiB * 1024, std::nullopt)) << "nothing is known";
    EXPECT_TRUE(checkMemoryLeft(30 << 20, MemoryLeft{32 << 20, "small"})) << "a small group is of use too";
}

TEST(MemoryLeft, WhatDoesNotFitIsRefusedWithBothFiguresAndTheBound) {
    const MemoryLeft left{8 * kGiB, "MemAvailable"};
    for (const std::uint64_t bytes : {8 * kGiB - kGiB / 2 + 1, 1024 * kGiB, UINT64_MAX}) {
        const Status status = checkMemoryLeft(bytes, left);
        EXPECT_EQ(status.code(), Code::ResourceExhausted) << bytes;
        EXPECT_THAT(status.message(), AllOf(HasSubstr("7.5 GiB can be had"), HasSubstr("MemAvailable")));
    }
    EXPECT_THAT(checkMemoryLeft(1024 * kGiB, left).message(), HasSubstr("1 TiB"));
    EXPECT_EQ(checkMemoryLeft(1, MemoryLeft{0, "full"}).code(), Code::ResourceExhausted);
}

}  // namespace
}  // namespace troupe
