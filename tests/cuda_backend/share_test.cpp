// Memory of a GPU in another process, and as a file for other devices.

#include <sys/mman.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "tests/cuda_backend/cuda_fixture.h"
#include "tests/cuda_backend/cuda_peer_process.h"
#include "tests/cuda_backend/virtual_memory.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaPeerProcess;
using testing::CudaTest;
using testing::noise;
using testing::toText;
using testing::VirtualMemory;

class CudaShare : public CudaTest {
  protected:
    /// Through a stream of the importing GPU, as the engine does.
    void copy(int device, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
        const DeviceStream stream = must(gpu(device).makeStream());
        must(gpu(device).copy(stream, to, from, bytes));
        must(gpu(device).synchronize(stream));
    }
    std::string text(std::uint64_t value) { return std::to_string(value); }
    /// From here on this process is in an NVLink domain. Before anything is made.
    void withFabric() {
        gpus[0].reset();
        runtime.reset();
        ::setenv("FAKE_CUDA_FABRIC", "1", 1);
        control.reset();
        ::unsetenv("FAKE_CUDA_FABRIC");
        runtime = must(CudaRuntime::create({fake_cuda::Control::path(), false}));
    }
    /// The export of a range of this process, for the peer.
    std::vector<SharedMemory> exported(std::uint64_t addr, std::uint64_t bytes) {
        const MemoryPlace place = must(runtime->locate({addr, bytes}));
        return must(gpu(place.device).exportMemory(place, false));
    }
};

TEST_F(CudaShare, APeersTensorIsReadAndWrittenAtItsOffsetInTheAllocation) {
    CudaPeerProcess peer;
    constexpr std::uint64_t kBytes = 100000;
    for (const std::uint64_t allocation : {std::uint64_t{1} << 20, std::uint64_t{8} << 20}) {
        const std::uint64_t base = peer.number("alloc 0 " + text(allocation));
        const std::uint64_t tensor = base + 77777;
        peer.must("fill " + text(tensor) + " " + text(kBytes) + " 5");
        auto shared = peer.exported(tensor, kBytes);
        ASSERT_EQ(shared.size(), 1u);
        EXPECT_EQ(shared[0].kind, ShareKind::Ipc);
        EXPECT_EQ(shared[0].allocation, (ByteRange{base, allocation}));
        {
            const ImportedMemory mapped = must(gpu(0).importMemory(shared[0]));
            const std::uint64_t there = mapped.get() + (tensor - shared[0].allocation.addr);
            const DeviceMemory mine = must(gpu(0).allocate(kBytes));
            copy(0, mine.get(), there, kBytes);
            EXPECT_EQ(control.read(mine.get(), kBytes), noise(kBytes, 5));
            control.write(mine.get(), noise(kBytes, 6));
            copy(0, there, mine.get(), kBytes);
            peer.must("check " + text(tensor) + " " + text(kBytes) + " 6");
            EXPECT_EQ(must(runtime->locate({there, 10})).location, "cuda:0");
        }
        peer.must("free " + text(base));
    }
    EXPECT_EQ(peer.ask("violations"), "ok ");
}

TEST_F(CudaShare, GpusAreTheSameByTheirUuidWhateverTheirOrdinals) {
    CudaPeerProcess peer({"CUDA_VISIBLE_DEVICES=1"});
    const std::uint64_t base = peer.number("alloc 0 4096");
    const auto shared = peer.exported(base, 4096);
    ASSERT_EQ(shared.size(), 1u);
    const ImportedMemory mapped = must(gpu(0).importMemory(shared[0]));
    EXPECT_EQ(must(runtime->locate({mapped.get(), 10})).location, "cuda:1");
}

TEST_F(CudaShare, AnAllocationIsMappedTwiceAndStaysUntilBothAreGone) {
    CudaPeerProcess peer;
    const std::uint64_t base = peer.number("alloc 0 4096");
    const auto shared = peer.exported(base, 4096);
    ImportedMemory one = must(gpu(0).importMemory(shared[0]));
    ImportedMemory two = must(gpu(0).importMemory(shared[0]));
    one.reset();
    const DeviceMemory mine = must(gpu(0).allocate(10));
    copy(0, mine.get(), two.get(), 10);
}

TEST_F(CudaShare, VirtualMemoryIsSharedPieceByPieceThroughDescriptors) {
    CudaPeerProcess peer;
    const std::uint64_t base = peer.number("virtual 0 3 1");
    const std::uint64_t begin = base + 12345;
    const std::uint64_t bytes = 2 * VirtualMemory::kPiece;
    peer.must("fill " + text(begin) + " " + text(bytes) + " 9");
    auto shared = peer.exported(begin, bytes);
    ASSERT_EQ(shared.size(), 3u);
    std::vector<ImportedMemory> mapped;
    std::vector<std::uint8_t> all;
    for (const SharedMemory& each : shared) {
        EXPECT_EQ(each.kind, ShareKind::File);
        mapped.push_back(must(gpu(0).importMemory(each)));
        const auto part = control.read(mapped.back().get(), each.allocation.length);
        all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(std::vector<std::uint8_t>(all.begin() + 12345, all.begin() + 12345 + static_cast<long>(bytes)),
              noise(bytes, 9));
    // A GPU's own copies reach it, too, and its exporter may leave.
    const DeviceMemory mine = must(gpu(0).allocate(1000));
    copy(0, mine.get(), mapped[1].get() + 7, 1000);
    peer.must("free " + text(base));
    peer.end();
    copy(0, mapped[1].get() + 7, mine.get(), 1000);
}

TEST_F(CudaShare, MemoryThatWasMadeWithoutHandlesIsRefusedAndSaysSo) {
    const VirtualMemory memory(runtime->driver(), 0, 1, 0);
    const MemoryPlace place = must(runtime->locate({memory.base(), 100}));
    const auto shared = gpu(0).exportMemory(place, false);
    EXPECT_EQ(shared.status().code(), Code::Unsupported);
    EXPECT_NE(shared.status().message().find("without handles of the type CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"),
              std::string::npos)
        << shared.status().message();
    // No fabric here, and cuMemAlloc's memory never has it.
    EXPECT_EQ(gpu(0).exportMemory(place, true).status().code(), Code::Unsupported);
    const DeviceMemory allocated = must(gpu(0).allocate(100));
    EXPECT_EQ(gpu(0).exportMemory(must(runtime->locate({allocated.get(), 100})), true).status().code(),
              Code::Unsupported);
}

TEST_F(CudaShare, OnlyTheGpuThatHasItSharesMemory) {
    const DeviceMemory memory = must(gpu(0).allocate(100));
    const HostMemory pinned = must(gpu(0).allocateHost(100));
    for (const std::uint64_t addr : {memory.get(), pinned.get()})
        EXPECT_EQ(gpu(1).exportMemory(must(runtime->locate({addr, 100})), false).status().code(),
                  Code::InvalidArgument);
}

TEST_F(CudaShare, AHandleOfADeadProcessIsRefused) {
    CudaPeerProcess peer;
    const std::uint64_t base = peer.number("alloc 0 4096");
    const auto shared = peer.exported(base, 4096);
    peer.kill();
    const auto mapped = gpu(0).importMemory(shared[0]);
    EXPECT_EQ(mapped.status().code(), Code::InvalidArgument);
    EXPECT_NE(mapped.status().message().find("cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE"), std::string::npos);
    EXPECT_TRUE(gpu(0).state());
}

TEST_F(CudaShare, AMappingOutlivesItsExportersDeathAndIsClosed) {
    CudaPeerProcess peer;
    const std::uint64_t base = peer.number("alloc 0 4096");
    peer.must("fill " + text(base) + " 4096 3");
    const auto shared = peer.exported(base, 4096);
    const ImportedMemory mapped = must(gpu(0).importMemory(shared[0]));
    peer.kill();
    const DeviceMemory mine = must(gpu(0).allocate(4096));
    copy(0, mine.get(), mapped.get(), 4096);
    EXPECT_EQ(control.read(mine.get(), 4096), noise(4096, 3));
}

TEST_F(CudaShare, MemoryThatIsFreedUnderAPeersMappingIsSeenOnBothSides) {
    const DeviceMemory keep = must(gpu(0).allocate(64));
    DeviceMemory memory = must(gpu(0).allocate(4096));
    CudaPeerProcess peer;
    const auto shared = exported(memory.get(), 4096);
    const std::uint64_t there = peer.number("import 0 " + toText(shared[0]));
    const std::uint64_t its = peer.number("alloc 0 100");
    peer.must("copy 0 " + text(its) + " " + text(there) + " 100");
    memory.reset();
    EXPECT_NE(control.violations().find("cuMemFree of memory that process"), std::string::npos);
    control.forgetViolations();
    EXPECT_EQ(peer.ask("copy 0 " + text(its) + " " + text(there) + " 100").rfind("error InvalidArgument", 0), 0u);
    EXPECT_NE(peer.ask("violations").find("its exporter freed"), std::string::npos);
    // A peer that ends has let go; so has one that was told.
    DeviceMemory other = must(gpu(0).allocate(4096));
    peer.number("import 0 " + toText(exported(other.get(), 4096)[0]));
    peer.must("release");
    other.reset();
    DeviceMemory third = must(gpu(0).allocate(4096));
    peer.number("import 0 " + toText(exported(third.get(), 4096)[0]));
    peer.kill();
    third.reset();
}

TEST_F(CudaShare, WhatAHostilePeerSaysIsRefused) {
    CudaPeerProcess peer;
    const std::uint64_t base = peer.number("alloc 0 4096");
    auto shared = peer.exported(base, 4096);
    // Longer than it is.
    shared[0].allocation.length = 4097;
    EXPECT_EQ(gpu(0).importMemory(shared[0]).status().code(), Code::ProtocolError);
    for (const ByteRange claim : {ByteRange{base, 0}, ByteRange{base, UINT64_MAX}}) {
        shared[0].allocation = claim;
        EXPECT_EQ(gpu(0).importMemory(shared[0]).status().code(), Code::ProtocolError);
    }
    // No handle at all.
    SharedMemory invented;
    invented.allocation = {4096, 4096};
    EXPECT_FALSE(gpu(0).importMemory(invented));
    invented.handle.fill(0xff);
    EXPECT_FALSE(gpu(0).importMemory(invented));
    for (const ShareKind kind : {ShareKind::File, ShareKind::Fabric}) {
        invented.kind = kind;
        EXPECT_FALSE(gpu(0).importMemory(invented));
    }
    // A file, but not of a GPU; one of a GPU, but shorter than claimed.
    invented.kind = ShareKind::File;
    invented.fd = UniqueFd(::memfd_create("other", MFD_CLOEXEC));
    EXPECT_FALSE(gpu(0).importMemory(invented));
    const std::uint64_t pages = peer.number("virtual 0 1 1");
    auto piece = peer.exported(pages, 100);
    piece[0].allocation.length = 2 * VirtualMemory::kPiece;
    const auto longer = gpu(0).importMemory(piece[0]);
    EXPECT_NE(longer.status().message().find("cuMemMap"), std::string::npos) << longer.status().message();
    EXPECT_TRUE(gpu(0).state());
}

TEST_F(CudaShare, AFailureHalfWayLeavesNothing) {
    CudaPeerProcess peer;
    auto piece = peer.exported(peer.number("virtual 0 1 1"), 100);
    for (const char* call : {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
        control.fail(call, api::Result::OutOfMemory);
        const auto mapped = gpu(0).importMemory(piece[0]);
        EXPECT_EQ(mapped.status().code(), Code::ResourceExhausted);
        EXPECT_NE(mapped.status().message().find(call), std::string::npos);
        EXPECT_EQ(control.leftovers(), "1 contexts") << call;
    }
    const VirtualMemory mine(runtime->driver(), 0, 1, 1);
    const MemoryPlace place = must(runtime->locate({mine.base(), 100}));
    for (const char* call : {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"}) {
        control.fail(call, api::Result::Unknown);
        EXPECT_FALSE(gpu(0).exportMemory(place, false));
        EXPECT_EQ(control.leftovers(), "1 contexts, 1 memory, 1 handles") << call;
    }
}

TEST_F(CudaShare, FabricHandlesAreUsedWhereThePlatformHasThem) {
    withFabric();
    EXPECT_TRUE(must(runtime->info(0)).fabric_handles);
    CudaPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    const std::uint64_t base = peer.number("virtual 0 1 8");
    peer.must("fill " + text(base) + " 1000 4");
    const auto shared = peer.exported(base, 1000, true);
    EXPECT_EQ(shared.at(0).kind, ShareKind::Fabric);
    const ImportedMemory mapped = must(gpu(0).importMemory(shared[0]));
    EXPECT_EQ(control.read(mapped.get(), 1000), noise(1000, 4));
}

TEST_F(CudaShare, AFabricHandleThatIsNotWhatItClaimsIsRefused) {
    withFabric();
    CudaPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    const std::uint64_t base = peer.number("virtual 0 1 8");
    auto shared = peer.exported(base, 1000, true);
    const ByteRange allocation = shared.at(0).allocation;
    shared[0].allocation.length = 2 * VirtualMemory::kPiece;
    const auto longer = gpu(0).importMemory(shared[0]);
    EXPECT_NE(longer.status().message().find("cuMemMap"), std::string::npos) << longer.status().message();
    for (const ByteRange claim : {ByteRange{base, 0}, ByteRange{base, UINT64_MAX}}) {
        shared[0].allocation = claim;
        EXPECT_EQ(gpu(0).importMemory(shared[0]).status().code(), Code::ProtocolError);
    }
    shared[0].allocation = allocation;
    shared[0].handle[0] ^= 1;
    EXPECT_FALSE(gpu(0).importMemory(shared[0]));
    EXPECT_TRUE(gpu(0).state());
    EXPECT_EQ(control.leftovers(), "1 contexts");
    // Made for descriptors alone.
    const std::uint64_t other = peer.number("virtual 0 1 1");
    const std::string refused = peer.ask("export " + text(other) + " 100 1");
    EXPECT_NE(refused.find("CU_MEM_HANDLE_TYPE_FABRIC"), std::string::npos) << refused;
}

TEST_F(CudaShare, WhatAFabricHandleMappedOutlivesItsExporterAndTheHandleDoesNot) {
    withFabric();
    CudaPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    const std::uint64_t base = peer.number("virtual 0 1 8");
    peer.must("fill " + text(base) + " 1000 4");
    const auto shared = peer.exported(base, 1000, true);
    const ImportedMemory mapped = must(gpu(0).importMemory(shared.at(0)));
    peer.kill();
    const DeviceMemory mine = must(gpu(0).allocate(1000));
    copy(0, mine.get(), mapped.get(), 1000);
    EXPECT_EQ(control.read(mine.get(), 1000), noise(1000, 4));
    EXPECT_FALSE(gpu(0).importMemory(shared[0]));
    EXPECT_TRUE(gpu(0).state());
}

TEST_F(CudaShare, AFabricHandleThatTheDriverDoesNotPermitIsRefusedByName) {
    EXPECT_FALSE(must(runtime->info(0)).fabric_handles);
    CudaPeerProcess peer({"FAKE_CUDA_FABRIC=1"});
    const auto shared = peer.exported(peer.number("virtual 0 1 8"), 1000, true);
    const auto mapped = gpu(0).importMemory(shared.at(0));
    EXPECT_NE(mapped.status().message().find("CUDA_ERROR_NOT_PERMITTED"), std::string::npos)
        << mapped.status().message();
    EXPECT_TRUE(gpu(0).state());
    EXPECT_EQ(control.leftovers(), "1 contexts");
}

TEST_F(CudaShare, ADmabufHoldsTheRangeAtItsOffset) {
    for (const std::uint64_t allocation : {std::uint64_t{5000}, std::uint64_t{8} << 20}) {
        const DeviceMemory memory = must(gpu(0).allocate(allocation));
        const ByteRange range{memory.get() + 1234, 3000};
        control.write(range.addr, noise(3000, 8));
        const DmabufRange dmabuf = must(gpu(0).exportDmabuf(range));
        EXPECT_EQ(::lseek(dmabuf.fd.get(), 0, SEEK_END),
                  static_cast<off_t>((dmabuf.offset + 3000 + 4095) / 4096 * 4096));
        const auto memory_file = control.openDmabuf(dmabuf.fd.get());
        const UniqueFd file(memory_file.fd);
        std::vector<std::uint8_t> bytes(3000);
        ASSERT_EQ(::pread(file.get(), bytes.data(), 3000, static_cast<off_t>(memory_file.offset + dmabuf.offset)),
                  3000);
        EXPECT_EQ(bytes, noise(3000, 8));
        must(gpu(0).orderForNics(range));
    }
}

TEST_F(CudaShare, WhereThereIsNoDmabufTheAnswerSaysWhy) {
    const DeviceMemory memory = must(gpu(0).allocate(5000));
    control.fail("cuMemGetHandleForAddressRange", api::Result::NotSupported);
    const auto refused = gpu(0).exportDmabuf({memory.get(), 5000});
    EXPECT_EQ(refused.status().code(), Code::Unsupported);
    EXPECT_NE(refused.status().message().find("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)"),
              std::string::npos);
}

TEST_F(CudaShare, AGpuWithoutDmabufsIsNotAskedForOne) {
    runtime.reset();
    ::setenv("FAKE_CUDA_DMABUF", "0", 1);
    control.reset();
    ::unsetenv("FAKE_CUDA_DMABUF");
    runtime = must(CudaRuntime::create({fake_cuda::Control::path(), false}));
    const DeviceMemory memory = must(gpu(0).allocate(5000));
    const auto refused = gpu(0).exportDmabuf({memory.get(), 5000});
    EXPECT_EQ(refused.status().code(), Code::Unsupported);
    EXPECT_NE(refused.status().message().find("exports no dma-buf"), std::string::npos);
    EXPECT_EQ(control.count("cuMemGetHandleForAddressRange"), 0u);
}

}  // namespace
}  // namespace troupe::cuda
