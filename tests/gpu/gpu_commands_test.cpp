// The program `troupe` and memory of GPUs: what it says of which GPU is which.

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
