#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/unique_fd.h"

namespace troupe::test {

/// UBSan looks at objects through a pipe, and takes them for broken when there is no descriptor left for it.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kDescriptorsAreTheSanitizers = true;
#else
inline constexpr bool kDescriptorsAreTheSanitizers = false;
#endif
#define TROUPE_NEEDS_DESCRIPTOR_LIMIT() \
    if (test::kDescriptorsAreTheSanitizers) GTEST_SKIP() << "UBSan needs descriptors of its own"

/// While it lives this process can open only so many descriptors more. For tests whose other threads open none.
class DescriptorLimit {
  public:
    explicit DescriptorLimit(std::size_t room) {
        EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
        // Numbers are given from the lowest that is free; the first beyond these is the limit.
        std::vector<UniqueFd> held(room + 1);
        for (UniqueFd& each : held) each = UniqueFd(::dup(0));
        const rlimit lower{static_cast<rlim_t>(held.back().get()), before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
    }
    DescriptorLimit(const DescriptorLimit&) = delete;
    DescriptorLimit& operator=(const DescriptorLimit&) = delete;
    ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  private:
    rlimit before_{};
};

}  // namespace troupe::test
