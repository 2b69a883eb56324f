// The program `troupe` and memory of GPUs: what it says of who carries that, and of which GPU is which.

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tests/apps_process/troupe_process.h"
#include "tests/gpu/fixture.h"
#include "tests/topology/sysfs_tree.h"

namespace troupe::gpu {
namespace {

using apps::runTroupe;
using ::testing::HasSubstr;
using namespace gpu::testing;

/// An engine of this process that offers memory of a GPU, and of the host where a test says so.
class GpuCommands : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        EngineSetup with = setup();
        with.config.host_peers = true;
        owner = startEngine(with);
    }
    void TearDown() override {
        owner.reset();
        GpuTest::TearDown();
    }

    std::unique_ptr<TransferEngine> owner;
};

/// `host` reaches the process, and declines this: the program has memory of the host alone.
TEST_F(GpuCommands, NameTheTransportThatCarriedIt) {
    Memory memory = make("gpu0", 1u << 20);
    registerAll(*owner, memory);
    const std::string segment = owner->localSegmentName();
    const auto verified = runTroupe({"verify", segment, "--rounds", "20", "--json"});
    ASSERT_EQ(verified.code, 0) << verified.err;
    EXPECT_EQ(verified.json()["transport"], "tcp");
    const auto measured = runTroupe({"bench", segment, "--duration", "0.1", "--warmup", "0", "--block_size", "4KiB",
                                     "--batch_size", "4", "--threads", "1", "--json"});
    ASSERT_EQ(measured.code, 0) << measured.err;
    EXPECT_EQ(measured.json()["transport"], "tcp");
    const auto explained = runTroupe({"explain", segment, "--json"});
    ASSERT_EQ(explained.code, 0) << explained.err;
    EXPECT_EQ(explained.json()["transport"], "host") << "the segment's";
    EXPECT_TRUE(explained.json()["read"].is_null());
    EXPECT_EQ(explained.json()["gpu_read"]["transport"], "tcp");
    EXPECT_EQ(explained.json()["gpu_read"]["nics"].dump(), R"(["tcp0"])");
}

TEST_F(GpuCommands, ExplainReadsBothKindsOfMemory) {
    Memory gpu_memory = make("gpu0", 1u << 20);
    Memory host_memory = make("host", 4u << 20);
    for (Memory* memory : {&gpu_memory, &host_memory}) registerAll(*owner, *memory);
    const std::string segment = owner->localSegmentName();
    const auto explained = runTroupe({"explain", segment, "--json"});
    ASSERT_EQ(explained.code, 0) << explained.err;
    EXPECT_EQ(explained.json()["read"]["transport"], "host");
    EXPECT_EQ(explained.json()["gpu_read"]["transport"], "tcp");
    EXPECT_THAT(explained.json()["gpu_read"]["gpu"].get<std::string>(), HasSubstr("staged through pinned memory"));
    const auto text = runTroupe({"explain", segment});
    EXPECT_THAT(text.out, HasSubstr("a read of 4 KiB by host0"));
    EXPECT_THAT(text.out, HasSubstr("a read of 4 KiB of a GPU's memory by tcp0, staged"));
}

TEST(GpuTopo, SaysHowCudaCountsTheGpus) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "gpus_of_the_fake_driver.txt");
    const std::vector<std::string> words = {"topo",
                                            "--sysfs",
                                            tree.sys().string(),
                                            "--dev",
                                            tree.dev().string(),
                                            "--set",
                                            "gpu.driver=" + fake_cuda::Control::path()};
    const auto text = runTroupe(words, {"CUDA_VISIBLE_DEVICES=1"});
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("cuda:0 above is the GPU at 0000:a0:00.0: CUDA does not show it here\n"));
    EXPECT_THAT(text.out, HasSubstr("cuda:1 above is the GPU at 0000:a1:00.0: cuda:0 to CUDA here\n"));
    std::vector<std::string> as_json = words;
    as_json.emplace_back("--json");
    const auto json = runTroupe(as_json, {"CUDA_VISIBLE_DEVICES=1"}).json();
    EXPECT_EQ(json["gpus"][0]["cuda"], -1);
    EXPECT_EQ(json["gpus"][1]["cuda"], 0);
    EXPECT_EQ(json["priority_matrix"]["cuda:1"].dump(), R"([["mlx5_1"],["mlx5_0"]])");
    // Of another machine the driver here knows nothing.
    as_json.erase(as_json.end() - 3, as_json.end() - 1);
    EXPECT_TRUE(runTroupe(as_json).json()["gpus"][0]["cuda"].is_null());
}

}  // namespace
}  // namespace troupe::gpu
