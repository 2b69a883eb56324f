#include "base/per_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using testing::HasSubstr;

TEST(PerDevice, NamesDevicesAndPortsWithTheirValues) {
    const auto devices =
        parsePerDevice(" mlx5_0 gid_index=3  mtu=1024;mlx5_0:2 service_level=15 ; mlx5_1 pkey_index=7;");
    ASSERT_TRUE(devices) << devices.status().toString();
    const PerDevice expected = {{"mlx5_0", {{"gid_index", 3}, {"mtu", 1024}}},
                                {"mlx5_0:2", {{"service_level", 15}}},
                                {"mlx5_1", {{"pkey_index", 7}}}};
    EXPECT_EQ(*devices, expected);
    for (const char* nothing : {"", " ", ";", " ; ;"}) EXPECT_TRUE(parsePerDevice(nothing)->empty());
}

TEST(PerDevice, NamesThePieceThatIsWrong) {
    const struct {
        const char* text;
        const char* said;
    } cases[] = {
        {"mlx5_0", "nothing is set for 'mlx5_0'"},
        {"mlx5_0 mtu=1024; mlx5_1", "' mlx5_1': nothing is set for 'mlx5_1'"},
        {"gid_index=3", "it begins with 'gid_index=3'"},
        {":2 gid_index=3", "it begins with ':2'"},
        {"mlx5_0: gid_index=3", "'mlx5_0:' names no port"},
        {"mlx5_0:0 gid_index=3", "'mlx5_0:0' names no port"},
        {"mlx5_0:two gid_index=3", "'mlx5_0:two' names no port"},
        {"mlx5_0:256 gid_index=3", "'mlx5_0:256' names no port: after the colon a number of 1..255"},
        {"mlx5_0 gid=3", "'gid=3' is none of gid_index, pkey_index"},
        {"mlx5_0 gid_index", "'gid_index' is none of"},
        {"mlx5_0 gid_index=", "'gid_index=' is not in 0..256"},
        {"mlx5_0 gid_index=-1", "'gid_index=-1' is not in"},
        {"mlx5_0 mtu=128", "'mtu=128' is not in 256..4096"},
        {"mlx5_0 mtu=1024x", "'mtu=1024x' is not in"},
        {"mlx5_0, mtu=1024, gid_index=3", "'mtu=1024,' is not in"},
        {"a mtu=512; a mtu=512", "'mtu' of 'a' is given twice"},
    };
    for (const auto& one : cases) {
        const auto devices = parsePerDevice(one.text);
        ASSERT_FALSE(devices) << one.text;
        EXPECT_EQ(devices.status().code(), Code::InvalidArgument);
        EXPECT_THAT(devices.status().message(), HasSubstr(one.said));
    }
}

}  // namespace
}  // namespace troupe
