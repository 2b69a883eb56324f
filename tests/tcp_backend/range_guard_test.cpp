#include "tcp_backend/range_guard.h"

#include <gtest/gtest.h>

#include <memory>

#include "tcp_backend/gpu.h"
#include "transports/device.h"

namespace troupe::tcp {
namespace {

/// A request was let pass, and its memory is unregistered before it is asked where that lies: no processor may take it
/// for the host's.
TEST(RangeGuard, WhereARangeLiesIsAnsweredAsItStoodWhenItWasChecked) {
    RegistrationTable table;
    Region region;
    region.range = {0x10000, 0x1000};
    device::PlacedMemory place;
    place.memory.device = 1;
    place.memory.pieces.push_back({region.range, region.range, 1});
    region.place = std::make_shared<const device::PlacedMemory>(std::move(place));
    const auto reserved = table.reserve(region);
    ASSERT_TRUE(reserved);
    table.commit(reserved->id);
    RangeGuard guard(table);
    const ByteRange asked{0x10010, 16};
    ASSERT_FALSE(guard.check(asked, true));
    ASSERT_TRUE(guard.mayBeDevice());
    ASSERT_TRUE(table.beginRemoval(region.range.addr));
    table.remove(reserved->id);
    const auto device = Gpu::ordinalOf(guard.deviceOf(asked));
    ASSERT_TRUE(device);
    EXPECT_EQ(*device, 1);
    EXPECT_EQ(guard.check(asked, true).code, Code::AddressNotRegistered);
}

}  // namespace
}  // namespace troupe::tcp
