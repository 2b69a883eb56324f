#include <sys/mman.h>

#include "tests/cuda_backend/cuda_fixture.h"
#include "tests/cuda_backend/virtual_memory.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::VirtualMemory;

class CudaLocate : public CudaTest {
  protected:
    std::string placeOf(std::uint64_t addr, std::uint64_t bytes) {
        const auto place = runtime->locate({addr, bytes});
        return place ? place->location : place.status().toString();
    }
};

TEST_F(CudaLocate, EachKindOfMemoryIsTold) {
    const std::vector<char> host(1000);
    const auto on_heap = reinterpret_cast<std::uint64_t>(host.data());
    EXPECT_EQ(placeOf(on_heap, 1000), "host");
    int on_stack = 0;
    EXPECT_EQ(placeOf(reinterpret_cast<std::uint64_t>(&on_stack), sizeof on_stack), "host");
    // Whoever only has host memory makes no context anywhere.
    EXPECT_EQ(control.count("contexts"), 0u);
    const HostMemory pinned = must(gpu(1).allocateHost(1000));
    EXPECT_EQ(placeOf(pinned.get() + 10, 100), "pinned");
    const DeviceMemory memory = must(gpu(1).allocate(1000));
    EXPECT_EQ(placeOf(memory.get(), 1000), "cuda:1");
    EXPECT_EQ(control.count("contexts"), 1u);
    api::ContextHandle context = nullptr;
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRetain, &context, 0));
    ASSERT_TRUE(invoke(call().ctxSetCurrent, context));
    api::DevicePtr managed = 0;
    ASSERT_TRUE(invoke(call().memAllocManaged, &managed, std::size_t{1000}, api::kMemAttachGlobal));
    EXPECT_EQ(placeOf(managed, 1000), "managed");
    ASSERT_TRUE(invoke(call().memFree, managed));
    ASSERT_TRUE(invoke(call().ctxSetCurrent, api::ContextHandle{nullptr}));
    ASSERT_TRUE(invoke(call().devicePrimaryCtxRelease, 0));
}

TEST_F(CudaLocate, RegisteredHostMemoryIsPinnedWhileItIs) {
    void* pages = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto addr = reinterpret_cast<std::uint64_t>(pages);
    {
        const Pinning pinning = must(gpu(0).pin({addr, 4096}));
        EXPECT_EQ(placeOf(addr, 4096), "pinned");
        // In part is not.
        EXPECT_EQ(placeOf(addr, 8192), "host");
        EXPECT_EQ(gpu(0).pin({addr, 8192}).status().code(), Code::AlreadyExists);
    }
    EXPECT_EQ(placeOf(addr, 4096), "host");
    ::munmap(pages, 8192);
}

TEST_F(CudaLocate, ATensorInsideAnAllocationKnowsAllOfIt) {
    const DeviceMemory memory = must(gpu(0).allocate(1 << 20));
    const MemoryPlace place = must(runtime->locate({memory.get() + 4660, 1000}));
    EXPECT_EQ(place.kind, MemoryKind::Device);
    EXPECT_EQ(place.device, 0);
    ASSERT_EQ(place.pieces.size(), 1u);
    EXPECT_EQ(place.pieces[0].range, (ByteRange{memory.get() + 4660, 1000}));
    EXPECT_EQ(place.pieces[0].allocation, (ByteRange{memory.get(), 1 << 20}));
    EXPECT_NE(place.pieces[0].allocation_id, 0u);
}

TEST_F(CudaLocate, ARangePastItsAllocationIsRefused) {
    const DeviceMemory memory = must(gpu(0).allocate(1000));
    EXPECT_NE(placeOf(memory.get(), 1001).find("InvalidArgument"), std::string::npos);
    EXPECT_NE(placeOf(memory.get() + 1000, 1).find("host"), std::string::npos);
    EXPECT_EQ(runtime->locate({memory.get(), 0}).status().code(), Code::InvalidArgument);
    EXPECT_EQ(runtime->locate({memory.get(), UINT64_MAX}).status().code(), Code::InvalidArgument);
}

TEST_F(CudaLocate, FreedMemoryIsNoMemoryOfAGpu) {
    DeviceMemory memory = must(gpu(0).allocate(1000));
    const std::uint64_t addr = memory.get();
    memory.reset();
    EXPECT_EQ(placeOf(addr, 1000), "host");
}

TEST_F(CudaLocate, VirtualMemoryIsFoundPieceByPieceInTheRangeThatIsAskedFor) {
    VirtualMemory memory(runtime->driver(), 1, 4, 0);
    const MemoryPlace place = must(runtime->locate({memory.base() + 5000, 2 * VirtualMemory::kPiece}));
    EXPECT_EQ(place.location, "cuda:1");
    ASSERT_EQ(place.pieces.size(), 3u);
    std::uint64_t at = memory.base() + 5000;
    for (std::size_t index = 0; index < 3; ++index) {
        const MemoryPiece& piece = place.pieces[index];
        EXPECT_EQ(piece.range.addr, at);
        EXPECT_EQ(piece.allocation, (ByteRange{memory.base() + index * VirtualMemory::kPiece, VirtualMemory::kPiece}));
        EXPECT_TRUE(piece.allocation.contains(piece.range));
        at = piece.range.end();
    }
    EXPECT_EQ(at, memory.base() + 5000 + 2 * VirtualMemory::kPiece);
    EXPECT_NE(place.pieces[0].allocation_id, place.pieces[1].allocation_id);
    // A hole in it.
    memory.unmap(1);
    EXPECT_EQ(placeOf(memory.base(), VirtualMemory::kPiece), "cuda:1");
    const std::string refused = placeOf(memory.base(), 2 * VirtualMemory::kPiece);
    EXPECT_NE(refused.find("InvalidArgument"), std::string::npos) << refused;
    EXPECT_NE(refused.find("host, or no memory at all"), std::string::npos) << refused;
    // And one of another GPU.
    memory.map(1, 0, 0);
    const std::string mixed = placeOf(memory.base(), 2 * VirtualMemory::kPiece);
    EXPECT_NE(mixed.find("begins as memory of the kind cuda:1"), std::string::npos) << mixed;
    EXPECT_NE(mixed.find("is cuda:0"), std::string::npos) << mixed;
}

TEST_F(CudaLocate, AFailureOfTheDriverIsNotTakenForHostMemory) {
    const DeviceMemory memory = must(gpu(0).allocate(1000));
    control.fail("cuPointerGetAttributes", api::Result::Unknown);
    EXPECT_NE(placeOf(memory.get(), 1000).find("cuPointerGetAttributes: CUDA_ERROR_UNKNOWN (999)"), std::string::npos);
    // What drivers say of memory that is not theirs.
    const std::vector<char> host(10);
    for (const api::Result unknown : {api::Result::InvalidValue, api::Result::InvalidContext}) {
        control.fail("cuPointerGetAttributes", unknown, 2);
        EXPECT_EQ(placeOf(reinterpret_cast<std::uint64_t>(host.data()), 10), "host");
    }
}

TEST_F(CudaLocate, LocationsAreRead) {
    EXPECT_EQ(ordinalOf("cuda:0", "cuda"), 0);
    EXPECT_EQ(ordinalOf("cuda:12", "cuda"), 12);
    for (const char* other :
         {"cuda", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999", "cpu:0", "*", "", "cudax:1", "hip:0"})
        EXPECT_EQ(ordinalOf(other, "cuda"), -1) << other;
}

}  // namespace
}  // namespace troupe::cuda
