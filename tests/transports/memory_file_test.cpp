#include "transports/memory_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace troupe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Lowers the soft limit on the size of files while it lives.
class FileLimit {
  public:
    explicit FileLimit(rlim_t bytes) {
        EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
        const rlimit lower{bytes, before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
    }
    FileLimit(const FileLimit&) = delete;
    FileLimit& operator=(const FileLimit&) = delete;
    ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

  private:
    rlimit before_{};
};

TEST(MemoryFile, BeyondTheLimitOnFilesIsRefusedWithTheLimitAndTheRemedy) {
    const FileLimit limit(1u << 20);
    const auto refused = MemoryFile::create(8u << 20, false);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.status().code(), Code::ResourceExhausted);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("8388608"), HasSubstr("1048576 bytes (RLIMIT_FSIZE)"), HasSubstr("ulimit -f")));
    EXPECT_TRUE(MemoryFile::create(1u << 20, false)) << "all that it allows";
}

}  // namespace
}  // namespace troupe
