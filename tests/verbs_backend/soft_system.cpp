#include "tests/verbs_backend/soft_system.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe::verbs {

namespace testing {
namespace {

struct Installed {
    std::mutex mutex;
    std::shared_ptr<SoftVerbs> soft;
};

/// Of the process, as libibverbs is.
Installed& installed() {
    static Installed one;
    return one;
}

}  // namespace

SoftSystem::SoftSystem(std::shared_ptr<SoftVerbs> soft) {
    const std::lock_guard lock(installed().mutex);
    EXPECT_EQ(installed().soft, nullptr) << "two at a time";
    installed().soft = std::move(soft);
}

SoftSystem::~SoftSystem() {
    const std::lock_guard lock(installed().mutex);
    installed().soft = nullptr;
}

}  // namespace testing

std::shared_ptr<VerbsApi> systemVerbs() {
    const std::lock_guard lock(testing::installed().mutex);
    // A machine without devices, where nobody put any in.
    if (!testing::installed().soft) return std::make_shared<testing::SoftVerbs>(std::vector<std::string>());
    return testing::installed().soft;
}

}  // namespace troupe::verbs
