#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "security/cluster_auth.h"

namespace troupe::test {

/// What an engine with these keys has: each letter is one key of 32 such letters.
inline std::shared_ptr<const ClusterAuth> authOf(const std::string& letters) {
    std::vector<std::string> keys;
    for (const char letter : letters) keys.emplace_back(32, letter);
    const auto auth = ClusterAuth::fromKeys(keys);
    EXPECT_TRUE(auth) << auth.status().toString();
    return auth ? *auth : nullptr;
}

}  // namespace troupe::test
