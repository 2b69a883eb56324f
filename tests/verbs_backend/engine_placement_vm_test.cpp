// Work goes by the devices that are near its memory. Runs in the VM; VerbsVmNuma* in the one with two NUMA nodes.

#include <fstream>

#include "tests/verbs_backend/vm_engines.h"
#include "topology/machine.h"

namespace troupe {
namespace {

using namespace test;

constexpr std::size_t kHalf = 4u << 20;

/// Packets that a Soft-RoCE device sent so far; those to itself count, too.
std::uint64_t packetsOf(const std::string& device) {
    std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
    std::uint64_t packets = 0;
    EXPECT_TRUE(file >> packets) << device;
    return packets;
}

/// Two engines; the first has half of its memory at each of two locations.
struct Placed {
    Placed(const EngineSetup& own, const std::string& peers, const std::string& first, const std::string& second)
        : a(startRdma(own)), b(startRdma(peers)) {
        EXPECT_TRUE(a->registerLocalMemory(local.data(), kHalf, first));
        EXPECT_TRUE(a->registerLocalMemory(local.data() + kHalf, kHalf, second));
        EXPECT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
        const auto opened = a->openSegment(b->localSegmentName());
        EXPECT_TRUE(opened) << opened.status().toString();
        if (opened) segment = *opened;
        local.fillPattern(3);
    }
    /// Writes one half in pieces.
    void write(std::size_t half) {
        std::vector<TransferRequest> requests;
        for (std::size_t at = half * kHalf; at < (half + 1) * kHalf; at += kHalf / 8)
            requests.push_back(makeRequest(Opcode::Write, segment, local.data() + at, remote.address(at), kHalf / 8));
        expectCompleted(runBatch(*a, requests), kHalf);
    }

    Buffer local{2 * kHalf};
    Buffer remote{2 * kHalf};
    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

TEST(VerbsVmPlacement, WorkGoesByTheDeviceThatTheMatrixPutsNear) {
    const std::string matrix = "/tmp/matrix.json";
    std::ofstream(matrix) << R"({"cpu:0": [["rxe_1a"], ["rxe_0a"]]})";
    EngineSetup setup = rdmaSetup("rxe_0a,rxe_1a");
    setup.config.topology_matrix = matrix;
    Placed placed(setup, "rxe_0b,rxe_1b", "cpu:0", "*");
    const std::uint64_t far = sentBy("r0.a");
    const std::uint64_t near = sentBy("r1.a");
    placed.write(0);
    EXPECT_GT(sentBy("r1.a"), near + kHalf);
    EXPECT_LT(sentBy("r0.a"), far + kHalf / 8) << "no more than what connecting takes";
    placed.write(1);
    EXPECT_TRUE(placed.remote.holdsPattern(3));
}

TEST(VerbsVmNuma, DevicesAreOnTheNodesOfTheirNetdevs) {
    const Machine machine = discoverMachine();
    for (const auto& [name, node] : {std::pair{"rxe_n0", 0}, {"rxe_n1", 1}}) {
        const auto found =
            std::find_if(machine.rdma.begin(), machine.rdma.end(),
                         [&, wanted = std::string(name)](const auto& each) { return each.name == wanted; });
        ASSERT_NE(found, machine.rdma.end()) << name;
        EXPECT_EQ(found->place.numa_node, node) << name;
    }
}

TEST(VerbsVmNuma, EachNodesMemoryGoesByItsOwnDevice) {
    Placed placed(rdmaSetup("rxe_n0,rxe_n1"), "rxe_n0,rxe_n1", "cpu:0", "cpu:1");
    const std::string devices[] = {"rxe_n0", "rxe_n1"};
    // Payloads of 1,024 bytes: the interfaces have an MTU of 1,500.
    constexpr std::uint64_t kPackets = kHalf / 1024;
    for (const std::size_t half : {0u, 1u}) {
        const std::uint64_t near = packetsOf(devices[half]);
        const std::uint64_t far = packetsOf(devices[1 - half]);
        placed.write(half);
        EXPECT_GE(packetsOf(devices[half]), near + kPackets) << half;
        EXPECT_LT(packetsOf(devices[1 - half]), far + kPackets / 8) << half;
    }
    EXPECT_TRUE(placed.remote.holdsPattern(3));
}

}  // namespace
}  // namespace troupe
