#include "host_backend/device_mapper.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

namespace troupe::host {
namespace {

bool isReadable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
}

TEST(DeviceMapper, DoesWhatItIsGivenInThatOrderAndAllOfItBeforeItEnds) {
    std::vector<int> done;
    std::thread::id thread;
    {
        DeviceMapper mapper;
        ASSERT_TRUE(mapper.start());
        ASSERT_TRUE(mapper.start()) << "once more is nothing";
        for (int i = 0; i < 1000; ++i)
            mapper.give([&done, &thread, i] {
                thread = std::this_thread::get_id();
                done.push_back(i);
            });
    }
    ASSERT_EQ(done.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
    EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(DeviceMapper, WhatWorkHoldsGoesOnItsThread) {
    std::thread::id gone_on;
    {
        DeviceMapper mapper;
        ASSERT_TRUE(mapper.start());
        std::shared_ptr<void> kept(nullptr, [&](void*) { gone_on = std::this_thread::get_id(); });
        mapper.give([kept = std::move(kept)] {});
    }
    EXPECT_NE(gone_on, std::thread::id());
    EXPECT_NE(gone_on, std::this_thread::get_id());
}

TEST(DeviceMapper, WithoutWorkThereIsNoThreadToWaitFor) { const DeviceMapper mapper; }

TEST(MapperBell, IsHeardOnceForAnyNumberOfRings) {
    MapperBell bell;
    ASSERT_TRUE(bell.open());
    EXPECT_FALSE(bell.hear());
    EXPECT_FALSE(isReadable(bell.fd()));
    bell.ring();
    bell.ring();
    EXPECT_TRUE(isReadable(bell.fd()));
    EXPECT_TRUE(bell.hear());
    EXPECT_FALSE(bell.hear());
    EXPECT_FALSE(isReadable(bell.fd())) << "a loop would not sleep any more";
    bell.ring();
    EXPECT_TRUE(isReadable(bell.fd()));
    EXPECT_TRUE(bell.hear());
}

}  // namespace
}  // namespace troupe::host
