// The packing kernel as it is launched: on the fake, whose kernels are its source compiled for the CPU.

#include "cuda_backend/packer.h"

#include <cstring>

#include "tests/cuda_backend/cuda_fixture.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

/// What this build has; where it was built without a toolkit, something that only the fake takes.
std::span<const std::byte> image() {
    static constexpr char kNone[] = "FAKE";
    return packImage().empty() ? std::as_bytes(std::span(kNone)) : packImage();
}

class PackerTest : public CudaTest {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        stream = must(gpu(0).makeStream());
        pages = must(gpu(0).allocate(kPages * 2 * kPageBytes));
        packed = must(gpu(0).allocate(kPages * kPageBytes));
        list = must(gpu(0).allocateHost(kPages * sizeof(std::uint64_t)));
        auto* addresses = reinterpret_cast<std::uint64_t*>(list.get());
        for (std::uint64_t page = 0; page < kPages; ++page)
            addresses[page] = pages.get() + (page * 7 % kPages) * 2 * kPageBytes + page % 3;
        plan = {list.get(), 0, 0, kPages, kPageBytes, packed.get()};
    }
    void TearDown() override {
        stream.reset();
        pages.reset();
        packed.reset();
        list.reset();
        CudaTest::TearDown();
    }

    static constexpr std::uint64_t kPages = 50;
    static constexpr std::uint64_t kPageBytes = 5000;
    DeviceStream stream;
    DeviceMemory pages;
    DeviceMemory packed;
    HostMemory list;
    PackPlan plan;
};

TEST_F(PackerTest, PagesAreGatheredAndScatteredBackOnAStream) {
    auto packer = Packer::create(gpus[0], image());
    ASSERT_TRUE(packer) << packer.status().toString();
    const auto before = noise(kPages * 2 * kPageBytes, 3);
    control.write(pages.get(), before);
    must(packer->run(stream, plan, PackDirection::Gather));
    must(gpu(0).synchronize(stream));
    const auto gathered = control.read(packed.get(), kPages * kPageBytes);
    for (std::uint64_t page = 0; page < kPages; ++page) {
        const auto expected = control.read(reinterpret_cast<std::uint64_t*>(list.get())[page], kPageBytes);
        ASSERT_EQ(std::memcmp(gathered.data() + page * kPageBytes, expected.data(), kPageBytes), 0) << page;
    }
    control.write(pages.get(), std::vector<std::uint8_t>(before.size()));
    must(packer->run(stream, plan, PackDirection::Scatter));
    must(packer->run(stream, plan, PackDirection::Gather));
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.read(packed.get(), kPages * kPageBytes), gathered);
}

TEST_F(PackerTest, APlanThatCannotBeIsRefusedBeforeTheGpuSeesIt) {
    auto packer = Packer::create(gpus[0], image());
    ASSERT_TRUE(packer);
    std::vector<PackPlan> wrong(8, plan);
    wrong[0].count = 0;
    wrong[1].page_bytes = 0;
    wrong[2].count = UINT64_MAX;
    wrong[3].packed = UINT64_MAX - 10;
    wrong[4].list += 1;
    wrong[5] = {0, pages.get(), kPageBytes - 1, kPages, kPageBytes, packed.get()};
    wrong[6] = {0, UINT64_MAX - 10, kPageBytes, kPages, kPageBytes, packed.get()};
    wrong[7] = {0, pages.get(), UINT64_MAX / 2, kPages, kPageBytes, packed.get()};
    for (const PackPlan& each : wrong)
        EXPECT_EQ(packer->run(stream, each, PackDirection::Gather).code(), Code::InvalidArgument);
    EXPECT_EQ(control.count("cuLaunchKernel"), 0u);
}

TEST_F(PackerTest, APageThatIsNotThereLosesTheContext) {
    auto packer = Packer::create(gpus[0], image());
    ASSERT_TRUE(packer);
    reinterpret_cast<std::uint64_t*>(list.get())[kPages - 1] = 4096;
    must(packer->run(stream, plan, PackDirection::Gather));
    EXPECT_EQ(gpu(0).synchronize(stream).code(), Code::DeviceLost);
    EXPECT_TRUE(gpu(1).state());
}

TEST_F(PackerTest, WithoutKernelsItSaysWhy) {
    const auto none = Packer::create(gpus[0], {});
    EXPECT_EQ(none.status().code(), Code::Unsupported);
    EXPECT_NE(none.status().message().find("made without the CUDA toolkit"), std::string::npos);
    // A driver that is older than the toolkit that the kernels are from.
    control.fail("cuModuleLoadData", api::Result::UnsupportedPtxVersion);
    EXPECT_EQ(Packer::create(gpus[0], image()).status().code(), Code::Unsupported);
    const std::vector<std::byte> other(100);
    EXPECT_EQ(Packer::create(gpus[0], other).status().code(), Code::Unsupported);
    EXPECT_EQ(control.leftovers(), "1 contexts, 1 streams, 3 memory");
}

TEST_F(PackerTest, BlocksGrowWithTheWorkUpToWhatTheGpuCanUse) {
    PackPlan small = plan;
    small.count = 1;
    small.page_bytes = 1;
    EXPECT_EQ(Packer::blocksFor(small, 132), 1u);
    small.count = 9;
    EXPECT_EQ(Packer::blocksFor(small, 132), 2u);
    small.page_bytes = std::uint64_t{1} << 30;
    EXPECT_EQ(Packer::blocksFor(small, 132), 4u * 132);
    EXPECT_EQ(Packer::blocksFor(small, 0), 4u);
}

}  // namespace
}  // namespace troupe::cuda
