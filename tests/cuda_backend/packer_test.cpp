// The packing kernel as it is launched: on the fake, whose kernels are its source compiled for the CPU.

#include "cuda_backend/packer.h"

#include <cstring>

#include "tests/cuda_backend/cuda_fixture.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

class PackerTest : public CudaTest {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        stream = must(gpu(0).makeStream());
        pages = must(gpu(0).allocate(kPages * 2 * kPageBytes));
        packed = must(gpu(0).allocate(kPages * kPageBytes));
        for (std::uint64_t page = 0; page < kPages; ++page)
            scattered.push_back({packed.get() + page * kPageBytes,
                                 pages.get() + (page * 7 % kPages) * 2 * kPageBytes + page % 3, 5000});
    }
    void TearDown() override {
        stream.reset();
        pages.reset();
        packed.reset();
        CudaTest::TearDown();
    }
    static std::vector<PageMove> backwards(std::vector<PageMove> moves) {
        for (PageMove& move : moves) std::swap(move.to, move.from);
        return moves;
    }

    static constexpr std::uint64_t kPages = 300;
    static constexpr std::uint64_t kPageBytes = 5000;
    DeviceStream stream;
    DeviceMemory pages;
    DeviceMemory packed;
    std::vector<PageMove> scattered;
};

TEST_F(PackerTest, PagesAreGatheredAndScatteredBackOnAStream) {
    auto packer = Packer::create(gpus[0]);
    ASSERT_TRUE(packer) << packer.status().toString();
    const auto before = noise(kPages * 2 * kPageBytes, 3);
    control.write(pages.get(), before);
    must((*packer)->move(stream, scattered));
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.count("cuLaunchKernel"), (kPages + kPackMoves - 1) / kPackMoves);
    const auto gathered = control.read(packed.get(), kPages * kPageBytes);
    for (std::uint64_t page = 0; page < kPages; ++page) {
        const auto expected = control.read(scattered[page].from, kPageBytes);
        ASSERT_EQ(std::memcmp(gathered.data() + page * kPageBytes, expected.data(), kPageBytes), 0) << page;
    }
    control.write(pages.get(), std::vector<std::uint8_t>(before.size()));
    must((*packer)->move(stream, backwards(scattered)));
    must((*packer)->move(stream, scattered));
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.read(packed.get(), kPages * kPageBytes), gathered);
}

TEST_F(PackerTest, PagesAtEqualDistancesAreOneLaunchHoweverMany) {
    auto packer = Packer::create(gpus[0]);
    ASSERT_TRUE(packer);
    control.write(pages.get(), noise(kPages * 2 * kPageBytes, 4));
    std::vector<PageMove> strided;
    for (std::uint64_t page = 0; page < kPages; ++page)
        strided.push_back(
            {packed.get() + page * kPageBytes, pages.get() + (kPages - 1 - page) * 2 * kPageBytes + 1, kPageBytes});
    must((*packer)->move(stream, strided));
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.count("cuLaunchKernel"), 1u);
    for (const PageMove& move : strided)
        ASSERT_EQ(control.read(move.to, move.bytes), control.read(move.from, move.bytes));
    // One that is a byte off is no such row.
    strided[1].from += 1;
    must((*packer)->move(stream, std::span(strided).first(10)));
    must(gpu(0).synchronize(stream));
    EXPECT_EQ(control.count("cuLaunchKernel"), 2u);
    EXPECT_EQ(control.read(strided[1].to, kPageBytes), control.read(strided[1].from, kPageBytes));
}

TEST_F(PackerTest, WhatCannotBeIsRefusedBeforeTheGpuSeesIt) {
    auto packer = Packer::create(gpus[0]);
    ASSERT_TRUE(packer);
    EXPECT_EQ((*packer)->move(stream, {}).code(), Code::InvalidArgument);
    for (const PageMove& wrong : {PageMove{packed.get(), pages.get(), 0},
                                  {UINT64_MAX - 10, pages.get(), 100},
                                  {packed.get(), UINT64_MAX - 10, 100},
                                  {0, 0, UINT64_MAX}}) {
        scattered[7] = wrong;
        EXPECT_EQ((*packer)->move(stream, scattered).code(), Code::InvalidArgument);
    }
    EXPECT_EQ(control.count("cuLaunchKernel"), 0u);
}

TEST_F(PackerTest, APageThatIsNotThereLosesTheContext) {
    auto packer = Packer::create(gpus[0]);
    ASSERT_TRUE(packer);
    scattered.back().from = 4096;
    must((*packer)->move(stream, scattered));
    EXPECT_EQ(gpu(0).synchronize(stream).code(), Code::DeviceLost);
    EXPECT_TRUE(gpu(1).state());
}

TEST_F(PackerTest, WithoutKernelsItSaysWhy) {
    const auto none = Packer::create(gpus[0], {});
    EXPECT_EQ(none.status().code(), Code::Unsupported);
    EXPECT_NE(none.status().message().find("made without the CUDA toolkit"), std::string::npos);
    // A driver that is older than the toolkit that the kernels are from.
    control.fail("cuModuleLoadData", api::Result::UnsupportedPtxVersion);
    EXPECT_EQ(Packer::create(gpus[0]).status().code(), Code::Unsupported);
    const std::vector<std::byte> other(100);
    EXPECT_EQ(Packer::create(gpus[0], other).status().code(), Code::Unsupported);
    EXPECT_EQ(control.leftovers(), "1 contexts, 1 streams, 2 memory");
}

TEST_F(PackerTest, BlocksGrowWithTheWorkUpToWhatTheGpuCanUse) {
    EXPECT_EQ(Packer::blocksFor(1, 1, 132), 1u);
    EXPECT_EQ(Packer::blocksFor(9, 1, 132), 2u);
    EXPECT_EQ(Packer::blocksFor(9, std::uint64_t{1} << 30, 132), 4u * 132);
    EXPECT_EQ(Packer::blocksFor(9, std::uint64_t{1} << 30, 0), 4u);
}

}  // namespace
}  // namespace troupe::cuda
