#include "topology/topology.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

const std::filesystem::path kFixtures = TROUPE_FIXTURES;

using Names = std::vector<std::string>;

TEST(CpuList, ParsesWhatSysfsWrites) {
    EXPECT_EQ(*parseCpuList(""), (std::vector<int>{}));
    EXPECT_EQ(*parseCpuList("0"), (std::vector<int>{0}));
    EXPECT_EQ(*parseCpuList("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
    EXPECT_EQ(*parseCpuList("2,0-2"), (std::vector<int>{0, 1, 2}));
}

TEST(CpuList, RefusesWhatIsNone) {
    for (const auto* text : {"a", "-1", "3-1", "1-", "1,,2", "0-65536", "99999999999", "0x1", " 1", "1-2-3"})
        EXPECT_EQ(parseCpuList(text).status().code(), Code::InvalidArgument) << text;
    std::string repeated = "0-65535";
    for (int i = 0; i < 1000; ++i) repeated += ",0-65535";
    EXPECT_FALSE(parseCpuList(repeated).isOk());
}

TEST(Topology, ReadsNodesAndInterfaces) {
    const Topology topology = discoverTopology(kFixtures / "two_nodes");
    ASSERT_EQ(topology.nodes.size(), 2u);
    EXPECT_EQ(topology.nodes[0], (NumaNode{0, {0, 1, 2, 3}, {{0, 10}, {1, 21}}}));
    EXPECT_EQ(topology.nodes[1], (NumaNode{1, {4, 5, 6, 7}, {{0, 21}, {1, 10}}}));
    const std::vector<NetworkInterface> expected = {
        {"docker0", -1, 0, true, {}}, {"eth0", 0, 100000, true, {}}, {"eth1", 1, 25000, true, {}},
        {"eth2", 1, 0, false, {}},    {"lo", -1, 0, true, {}},       {"tun0", -1, 0, false, {}},
    };
    EXPECT_EQ(topology.interfaces, expected);
}

TEST(Topology, WithoutNodesThereIsOneWithAllCpus) {
    const Topology topology = discoverTopology(kFixtures / "no_numa");
    EXPECT_EQ(topology.nodes, (std::vector<NumaNode>{{0, {0, 1}, {}}}));
    ASSERT_EQ(topology.interfaces.size(), 1u);
    EXPECT_EQ(topology.interfaces[0].numa_node, -1);
}

TEST(Topology, WhatIsDamagedIsLeftOut) {
    const Topology topology = discoverTopology(kFixtures / "damaged");
    ASSERT_EQ(topology.nodes.size(), 2u);
    EXPECT_EQ(topology.nodes[1], (NumaNode{4, {}, {}}));
    EXPECT_EQ(topology.interfaces, (std::vector<NetworkInterface>{{"eth0", -1, 0, true, {}}}));
}

TEST(Topology, AnAbsentTreeIsOneNode) {
    const Topology topology = discoverTopology(kFixtures / "nowhere");
    EXPECT_EQ(topology.nodes, (std::vector<NumaNode>{{0, {}, {}}}));
    EXPECT_TRUE(topology.interfaces.empty());
}

TEST(Topology, OfThisMachineHasANodeAndAnInterface) {
    const Topology topology = discoverTopology();
    EXPECT_FALSE(topology.nodes.empty());
    EXPECT_FALSE(topology.nodes[0].cpus.empty());
}

TEST(PriorityMatrix, PrefersTheNicsOfTheNode) {
    const auto nodes = discoverTopology(kFixtures / "two_nodes").nodes;
    const auto matrix = makePriorityMatrix(nodes, {{"eth0", 0}, {"eth1", 1}, {"eth2", 1}});
    EXPECT_EQ(matrix,
              (PriorityMatrix{{"cpu:0", {{"eth0"}, {"eth1", "eth2"}}}, {"cpu:1", {{"eth1", "eth2"}, {"eth0"}}}}));
    EXPECT_EQ(encodePriorityMatrix(matrix),
              R"({"cpu:0":[["eth0"],["eth1","eth2"]],"cpu:1":[["eth1","eth2"],["eth0"]]})");
}

TEST(PriorityMatrix, ANodeWithoutNicsPrefersTheNearestOnes) {
    std::vector<NumaNode> nodes = {{0, {0}, {{0, 10}, {1, 12}, {2, 32}}}, {1, {1}, {}}, {2, {2}, {}}};
    const auto matrix = makePriorityMatrix(nodes, {{"far", 2}, {"near", 1}});
    EXPECT_EQ(matrix.at("cpu:0"), (std::pair<Names, Names>{{"near"}, {"far"}}));
}

TEST(PriorityMatrix, ANicOfUnknownPlaceStandsBetweenLocalAndRemote) {
    const auto nodes = discoverTopology(kFixtures / "two_nodes").nodes;
    const auto matrix = makePriorityMatrix(nodes, {{"here", 0}, {"somewhere", -1}});
    EXPECT_EQ(matrix.at("cpu:0"), (std::pair<Names, Names>{{"here"}, {"somewhere"}}));
    EXPECT_EQ(matrix.at("cpu:1"), (std::pair<Names, Names>{{"somewhere"}, {"here"}}));
}

TEST(PriorityMatrix, WithoutNumaEverythingIsPreferred) {
    const PriorityMatrix expected{{"cpu:0", {{"a", "b"}, {}}}};
    EXPECT_EQ(makePriorityMatrix(discoverTopology(kFixtures / "no_numa").nodes, {{"a", -1}, {"b", -1}}), expected);
    EXPECT_EQ(makePriorityMatrix({}, {{"a", -1}, {"b", -1}}), expected);
    EXPECT_EQ(encodePriorityMatrix(makePriorityMatrix({}, {})), R"({"cpu:0":[[],[]]})");
}

}  // namespace
}  // namespace troupe
