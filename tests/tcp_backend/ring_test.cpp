#include "tcp_backend/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace troupe::tcp {
namespace {

TEST(Ring, KeepsOrderAndNumbersWhileItGrows) {
    Ring<std::uint64_t> ring;
    std::deque<std::uint64_t> plain;
    std::mt19937 random(2);
    std::uint64_t next = 0;
    for (int i = 0; i < 100000; ++i) {
        if (random() % 100 < (i < 50000 ? 52u : 48u)) {
            ring.push() = next;
            plain.push_back(next++);
        } else if (!plain.empty()) {
            ASSERT_EQ(ring.front(), plain.front());
            ring.pop();
            plain.pop_front();
        }
        ASSERT_EQ(ring.size(), plain.size());
        if (!plain.empty()) {
            ASSERT_EQ(ring.back(), plain.back());
            ASSERT_EQ(ring[ring.first()], ring.first());
            ASSERT_EQ(ring[ring.end() - 1], ring.end() - 1);
        }
    }
    ring.clear();
    EXPECT_TRUE(ring.empty());
    EXPECT_EQ(ring.first(), next);
}

}  // namespace
}  // namespace troupe::tcp
