#include "topology/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/sysfs_tree.h"
#include "topology/local_matrix.h"
#include "topology/location.h"
#include "topology/matrix.h"
#include "topology/selection.h"

namespace troupe {
namespace {

using test::SysfsTree;
using Names = std::vector<std::string>;
using Row = std::pair<Names, Names>;

Machine machineOf(const std::string& name) {
    const SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / (name + ".txt"));
    return discoverMachine(tree.sys(), tree.dev());
}
PriorityMatrix matrixOf(const std::string& name, const DeviceRules& rules = {}) {
    return toMatrix(rankDevices(machineOf(name), rules));
}

TEST(Machine, GpusWithANicOfTheirOwnBelowTheirSwitch) {
    const auto machine = machineOf("two_sockets_8_gpus_8_nics");
    EXPECT_EQ(machine.rdma.size(), 10u);
    ASSERT_EQ(machine.gpus.size(), 8u) << "and the console's screen is none";
    EXPECT_EQ(machine.gpus[0].place.pci.back(), "0000:1b:00.0");
    EXPECT_EQ(machine.rdma[4].place.numa_node, 1);
    EXPECT_EQ(machine.rdma[4].speed_gbps, 400u);

    const auto matrix = toMatrix(rankDevices(machine));
    ASSERT_EQ(matrix.size(), 10u);
    // Each GPU reaches its own NIC without leaving the switch.
    for (int i = 0; i < 8; ++i) {
        const auto& row = matrix.at("cuda:" + std::to_string(i));
        EXPECT_EQ(row.first, Names{"mlx5_" + std::to_string(i)});
        EXPECT_EQ(row.second.size(), 9u);
        // Next come those of its own socket, whatever their speed; the other socket is last.
        const Names near(row.second.begin(), row.second.begin() + 4);
        EXPECT_THAT(near, testing::Contains(i < 4 ? "mlx5_8" : "mlx5_9"));
    }
    // A node's own, all 400 Gb/s; the storage port is half as fast and carries its part; the management port does not.
    EXPECT_EQ(matrix.at("cpu:0").first, (Names{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_8"}));
    EXPECT_EQ(matrix.at("cpu:1").first, (Names{"mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}));
    EXPECT_EQ(matrix.at("cpu:1").second.front(), "mlx5_9");
}

TEST(Machine, GpusThatShareANic) {
    const auto matrix = matrixOf("two_nics_for_8_gpus");
    // 0, 1, 4, 5 share a switch with it, the others its host bridge; the far one is behind the other socket for all.
    for (int i = 0; i < 8; ++i)
        EXPECT_EQ(matrix.at("cuda:" + std::to_string(i)),
                  i < 4 ? (Row{{"mlx5_0"}, {"mlx5_1"}}) : (Row{{"mlx5_1"}, {"mlx5_0"}}))
            << i;
    const auto ranking = rankDevices(machineOf("two_nics_for_8_gpus"));
    const auto reason = [&](std::size_t gpu) { return ranking.locations[2 + gpu].devices[0].reason; };
    EXPECT_EQ(reason(1), "below the same PCI switch, 4 links; 200 Gb/s");
    EXPECT_EQ(reason(2), "below the same host bridge, 8 links; 200 Gb/s");
    EXPECT_EQ(ranking.locations[2].devices[1].reason, "on another node, distance 32; 200 Gb/s");
}

TEST(Machine, WithoutNumaEverythingIsAsNear) {
    const auto machine = machineOf("vm_without_numa");
    EXPECT_EQ(machine.rdma[0].place.numa_node, -1);
    EXPECT_TRUE(machine.rdma[0].is_virtual_function);
    const PriorityMatrix expected{{"cpu:0", {{"mlx5_0", "mlx5_1"}, {}}}, {"cuda:0", {{"mlx5_0", "mlx5_1"}, {}}}};
    EXPECT_EQ(toMatrix(rankDevices(machine)), expected);
}

TEST(Machine, OneNicServesEverything) {
    const auto machine = machineOf("arm_one_nic");
    EXPECT_EQ(machine.rdma[0].place.pci, (Names{"pci000c:00", "000c:00:01.0", "000c:01:00.0"}));
    EXPECT_EQ(toMatrix(rankDevices(machine)), (PriorityMatrix{{"cpu:0", {{"mlx5_0"}, {}}}}));
}

TEST(Machine, ASocketWithoutNicsUsesTheOthersAndWhatCannotWorkIsLeftOut) {
    const auto ranking = rankDevices(machineOf("nics_on_one_socket"));
    const auto matrix = toMatrix(ranking);
    const Row both{{"mlx5_0", "mlx5_1"}, {}};
    EXPECT_EQ(matrix.at("cpu:0"), both);
    EXPECT_EQ(matrix.at("cpu:1"), both);
    EXPECT_EQ(matrix.at("cuda:0"), both) << "the NIC beside it on its bridge is not ours";
    EXPECT_EQ(matrix.at("cuda:1"), both);
    ASSERT_EQ(ranking.left_out.size(), 2u);
    EXPECT_EQ(ranking.left_out[0].name + ": " + ranking.left_out[0].reason, "mlx5_2: no port is active");
    EXPECT_EQ(ranking.left_out[1].name, "mlx5_3");
    EXPECT_THAT(ranking.left_out[1].reason, testing::HasSubstr("/dev/infiniband"));
}

TEST(Machine, SrIovBondsAndSoftRoce) {
    const auto machine = machineOf("sr_iov_and_bond");
    const auto device = [&](const std::string& name) {
        for (const RdmaDevice& each : machine.rdma)
            if (each.name == name) return each;
        return RdmaDevice();
    };
    EXPECT_FALSE(device("mlx5_0").is_virtual_function);
    EXPECT_TRUE(device("mlx5_2").is_virtual_function);
    EXPECT_EQ(device("mlx5_bond_0").place.numa_node, 1);
    // Its interface is made of cards of two nodes: no place; and of two functions of one card: their card's.
    EXPECT_EQ(device("rxe_1").place, Place());
    EXPECT_EQ(device("rxe_2").place, (Place{1, {"pci0000:80", "0000:80:05.0"}}));
    const auto matrix = toMatrix(rankDevices(machine));
    // An unknown place stands between the own node and another.
    EXPECT_EQ(matrix.at("cpu:0"), (Row{{"mlx5_0", "mlx5_2"}, {"rxe_1", "mlx5_bond_0", "rxe_2"}}));
    EXPECT_EQ(matrix.at("cpu:1"), (Row{{"mlx5_bond_0", "rxe_2"}, {"rxe_1", "mlx5_0", "mlx5_2"}}));
}

TEST(Machine, RulesLeaveDevicesOut) {
    const Row allowed{{"mlx5_1"}, {}};
    EXPECT_EQ(matrixOf("nics_on_one_socket", {{"mlx5_[12]"}, {}}).at("cpu:0"), allowed);
    EXPECT_EQ(matrixOf("nics_on_one_socket", {{}, {"mlx5_0"}}).at("cpu:0"), allowed);
    EXPECT_EQ(matrixOf("nics_on_one_socket", {{"mlx5_0"}, {"mlx5_*"}}).at("cpu:0"), (Row{}));
}

TEST(Machine, OfThisMachineAndOfAnAbsentTree) {
    EXPECT_FALSE(discoverMachine().nodes.empty());
    const auto nothing = discoverMachine("/nowhere", "/nowhere");
    EXPECT_EQ(nothing.nodes.size(), 1u);
    EXPECT_TRUE(nothing.rdma.empty());
    EXPECT_EQ(toMatrix(rankDevices(nothing)), (PriorityMatrix{{"cpu:0", {}}}));
}

TEST(Machine, AGpuIsFoundByItsPciAddressHoweverThatIsWritten) {
    const std::vector<Gpu> gpus = {
        {0, {0, {"pci0000:15", "0000:15:01.0", "0000:16:00.0"}}}, {1, {0, {"pci10000:80", "10000:81:00.0"}}}, {2, {}}};
    EXPECT_EQ(matrixLocationOf(gpus, "0000:16:00.0"), "cuda:0");
    EXPECT_EQ(matrixLocationOf(gpus, "00000000:16:00.0"), "cuda:0");
    EXPECT_EQ(matrixLocationOf(gpus, "10000:81:00.0"), "cuda:1");
    EXPECT_EQ(matrixLocationOf(gpus, "0000:81:00.0"), "*");
    EXPECT_EQ(matrixLocationOf(gpus, ""), "*");
    EXPECT_EQ(matrixLocationOf({}, "0000:16:00.0"), "");
}

TEST(Machine, HostileNamesAreNoPlace) {
    const SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "arm_one_nic.txt");
    const auto device = tree.sys() / "class/infiniband";
    std::filesystem::create_symlink("..", device / "loop");
    std::filesystem::create_symlink("/nowhere", device / "dangling");
    const auto machine = discoverMachine(tree.sys(), tree.dev());
    EXPECT_EQ(toMatrix(rankDevices(machine)).at("cpu:0").first, Names{"mlx5_0"});
}

TEST(MatrixFile, ComesThroughAsItWasWritten) {
    for (const char* name : {"two_sockets_8_gpus_8_nics", "sr_iov_and_bond", "arm_one_nic"}) {
        const auto matrix = matrixOf(name);
        const auto parsed = parsePriorityMatrix(encodePriorityMatrix(matrix));
        ASSERT_TRUE(parsed) << parsed.status().toString();
        EXPECT_EQ(*parsed, matrix);
    }
    EXPECT_EQ(parsePriorityMatrix(R"({"*":[[],[]]})")->size(), 1u);
}

TEST(MatrixFile, WhatIsNoneIsRefusedWithAReason) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "not a JSON object"},
        {"[]", "not a JSON object"},
        {R"({"cpu:0":[]})", "two lists"},
        {R"({"cpu:0":[["a"],"b"]})", "two lists"},
        {R"({"cpu:0":[["a"],[1]]})", "no text"},
        {R"({"cpu:0":[[""],[]]})", "no text"},
        {R"({"cpu:0":[["a"],["a"]]})", "twice"},
        {R"({"here":[["a"],[]]})", "is none of"},
        {R"({"segments:4096:0,1":[["a"],[]]})", "not one place"},
    };
    for (const auto& [text, part] : cases) {
        const auto refused = parsePriorityMatrix(text);
        EXPECT_EQ(refused.status().code(), Code::InvalidArgument) << text;
        EXPECT_THAT(refused.status().message(), testing::HasSubstr(part)) << text;
    }
}

TEST(Locations, ParseWhatIsOne) {
    EXPECT_EQ(parseLocation("*")->at(7, 10), "*");
    EXPECT_EQ(parseLocation("cpu:1")->at(7, 10), "cpu:1");
    EXPECT_EQ(parseLocation("cuda:12")->at(7, 10), "cuda:12");
    const auto parts = parseLocation("segments:4096:0,1,3");
    ASSERT_TRUE(parts) << parts.status().toString();
    // Four pages in three parts: two pages, two pages, nothing.
    EXPECT_EQ(parts->at(0, 16384), "cpu:0");
    EXPECT_EQ(parts->at(8191, 16384), "cpu:0");
    EXPECT_EQ(parts->at(8192, 16384), "cpu:1");
    EXPECT_EQ(parts->at(16383, 16384), "cpu:1");
    EXPECT_EQ(parts->at(12 * 4096 - 1, 12 * 4096), "cpu:3");
    EXPECT_EQ(parts->at(0, 1), "cpu:0");
    EXPECT_EQ(parts->endOfPart(0, 16384), 8192u);
    EXPECT_EQ(parts->endOfPart(8192, 16384), 16384u);
    EXPECT_EQ(parts->endOfPart(0, 1), 1u);
    EXPECT_EQ(parts->endOfPart(12 * 4096 - 1, 12 * 4096), 12u * 4096);
}

TEST(Locations, RefuseWhatIsNone) {
    for (const char* text : {"", "cpu", "cpu:", "cpu:x", "cpu:-1", "cpu:65536", "gpu:0", "cpu:0,1", "segments:0:1",
                             "segments:4096:", "segments:4096:0,,1", "segments:-1:0", "segments:4096", "**"})
        EXPECT_EQ(parseLocation(text).status().code(), Code::InvalidArgument) << text;
    std::string many = "segments:4096:0";
    while (many.size() + 2 <= Location::kMaxText) many += ",0";
    EXPECT_TRUE(parseLocation(many));
    EXPECT_EQ(parseLocation(many + ",0").status().code(), Code::InvalidArgument);
}

const PriorityMatrix kMatrix = {{"cpu:0", {{"b", "a"}, {"d", "c"}}}, {"cpu:1", {{"c"}, {"a", "b"}}}};

TEST(SelectDevice, TakesTheNearestThenTheHintThenTheFastestThenTheFirst) {
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0")->device, "a");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "b")->device, "b");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "c")->device, "a") << "a hint does not make a far one near";
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "", {}, {{"a", 1e9}, {"b", 2e9}, {"c", 9e9}})->device, "b");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "", {}, {{"a", 1e9}})->device, "b") << "one not measured is tried";
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "a", {}, {{"a", 1e9}, {"b", 2e9}})->device, "a");
}

TEST(SelectDevice, FallsBackToTheFartherOnesAndThenToNothing) {
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "", {"a"})->device, "b");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "", {"a", "b"})->device, "c");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "d", {"a", "b"})->device, "d");
    EXPECT_FALSE(selectDevice(kMatrix, "cpu:0", "a", {"a", "b", "c", "d"}));
    EXPECT_FALSE(selectDevice({}, "cpu:0"));
}

TEST(SelectDevice, AnUnknownLocationHasEveryDevice) {
    EXPECT_EQ(selectDevice(kMatrix, "*")->device, "a");
    EXPECT_EQ(selectDevice(kMatrix, "cuda:9", "d")->device, "d");
}

TEST(SelectDevice, ExplainsItself) {
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "b")->reason, "preferred for cpu:0; asked for by name");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:1")->reason, "preferred for cpu:1; the only one");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:0", "", {}, {{"a", 1e9}, {"b", 2e9}})->reason,
              "preferred for cpu:0; the fastest lately, 2.00 GB/s");
    EXPECT_EQ(selectDevice(kMatrix, "cpu:1", "", {"c"})->reason,
              "available to cpu:1, whose preferred devices are excluded; the first by name");
    EXPECT_EQ(selectDevice(kMatrix, "*")->reason, "no device is nearer to '*' than another; the first by name");
}

TEST(LocalMatrix, TheFileWinsThenRdmaThenTheInterfaces) {
    const SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "two_nics_for_8_gpus.txt");
    const auto machine = discoverMachine(tree.sys(), tree.dev());
    Config config;
    auto found = localMatrix(config, machine);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->origin, "RDMA devices");
    EXPECT_EQ(found->matrix, matrixOf("two_nics_for_8_gpus"));
    config.rdma_exclude = "mlx5_*";
    found = localMatrix(config, machine);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->origin, "network interfaces");
    const auto file = (tree.sys().parent_path() / "matrix.json").string();
    std::ofstream(file) << R"({"cuda:1": [["mlx5_1"], ["mlx5_0"]]})";
    config.topology_matrix = file;
    found = localMatrix(config, machine);
    ASSERT_TRUE(found) << found.status().toString();
    EXPECT_EQ(found->origin, file);
    EXPECT_EQ(found->matrix, (PriorityMatrix{{"cuda:1", {{"mlx5_1"}, {"mlx5_0"}}}}));
    std::ofstream(file) << std::string(2u << 20, ' ');
    EXPECT_THAT(localMatrix(config, machine).status().message(), testing::HasSubstr("more than 1MiB"));
}

TEST(Far, ADeviceIsFarFromWhatPrefersOthersAndNothingIsKnownOfOneThatIsNotNamed) {
    const PriorityMatrix matrix = {
        {"cpu:0", {{"a", "b"}, {"c"}}}, {"cpu:1", {{"c"}, {"a"}}}, {"cuda:0", {{}, {"a", "b", "c"}}}};
    EXPECT_EQ(locationsFarFrom(matrix, "a"), Names{"cpu:1"});
    EXPECT_EQ(locationsFarFrom(matrix, "b"), Names{"cpu:1"}) << "and cpu:1 does not list it at all";
    EXPECT_EQ(locationsFarFrom(matrix, "c"), Names{"cpu:0"});
    EXPECT_EQ(locationsFarFrom(matrix, "tcp0"), Names{});
}

}  // namespace
}  // namespace troupe
