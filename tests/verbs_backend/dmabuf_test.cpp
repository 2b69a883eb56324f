// Memory of a device: exported once as a dma-buf, imported by every Nic. On the strict software device, with a memory
// file in a GPU's place; whole engines with a GPU's driver are in tests/gpu.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;

/// Plays a GPU's driver: a memory file that stands for the allocation, in which the range lies at `offset`.
struct FakeGpu final : MemoryExporter {
    bool holds(const std::string& location) const override { return location.rfind("cuda:", 0) == 0; }
    Result<ExportedMemory> exportRange(const ByteRange& range, const std::string& location) override {
        ++exports;
        asked = location + " " + range.toString();
        if (!refusal) return refusal;
        ExportedMemory memory;
        memory.fd = UniqueFd(::dup(file.get()));
        memory.offset = offset;
        last_fd = memory.fd.get();
        return memory;
    }
    UniqueFd file{::memfd_create("gpu", MFD_CLOEXEC)};
    std::uint64_t offset = 3 * 4096;
    Status refusal;
    int exports = 0;
    int last_fd = -1;
    std::string asked;
};

bool isOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

/// A node with two devices, and memory of its GPU that the processor can touch, too.
struct GpuNode {
    GpuNode() {
        Config config = softConfig("s0,s1");
        config.rdma_max_chunk_bytes = 4096;
        const auto end = static_cast<off_t>(gpu->offset + kBytes);
        EXPECT_EQ(::ftruncate(gpu->file.get(), end), 0);
        node = std::make_unique<Node>(config, soft, "n", makeSilentLogger(), nullptr, gpu);
        void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, gpu->file.get(),
                                    static_cast<off_t>(gpu->offset));
        EXPECT_NE(mapped, MAP_FAILED);
        memory = static_cast<char*>(mapped);
    }
    ~GpuNode() {
        node->end();
        ::munmap(memory, kBytes);
    }
    static constexpr std::size_t kBytes = 3 * 4096;
    std::shared_ptr<SoftVerbs> soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "peer"});
    CleanEnd clean_end{soft};
    std::shared_ptr<FakeGpu> gpu = std::make_shared<FakeGpu>();
    std::unique_ptr<Node> node;
    char* memory = nullptr;
};

TEST(Dmabuf, DeviceMemoryIsExportedOnceAndImportedByEveryNicAndTheFileIsClosed) {
    GpuNode gpu;
    ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, "cuda:1"));
    EXPECT_EQ(gpu.gpu->exports, 1);
    EXPECT_EQ(gpu.gpu->asked.substr(0, 7), "cuda:1 ");
    // Three chunks with each of two devices.
    EXPECT_EQ(gpu.soft->dmabufs(), std::vector<int>(6, gpu.gpu->last_fd));
    EXPECT_FALSE(isOpen(gpu.gpu->last_fd));
    EXPECT_EQ(gpu.soft->count("mr"), 6u);
    // Bytes pass by those keys.
    Node peer(softConfig("peer"), gpu.soft, "peer");
    auto bytes = noise(GpuNode::kBytes);
    ASSERT_TRUE(peer.registerMemory(bytes.data(), bytes.size()));
    const auto path = peer.nics.front()->openPath(gpu.node->asPeer());
    ASSERT_TRUE(path);
    run(peer, *peer.nics.front(), *path, {write(bytes.data(), gpu.memory, GpuNode::kBytes)});
    EXPECT_TRUE(peer.sweep.failed.empty()) << failuresOf(peer.sweep);
    EXPECT_EQ(std::memcmp(bytes.data(), gpu.memory, bytes.size()), 0);
}

TEST(Dmabuf, OtherMemoryIsNotExported) {
    GpuNode gpu;
    for (const char* location : {"*", "cpu:0"}) {
        ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, location));
        gpu.node->unregisterMemory(gpu.memory);
    }
    EXPECT_EQ(gpu.gpu->exports, 0);
    EXPECT_TRUE(gpu.soft->dmabufs().empty());
}

TEST(Dmabuf, WhereItFailsTheAddressIsRegisteredAndNothingOfTheAttemptIsLeft) {
    for (int skip = 0; skip < 6; ++skip) {
        GpuNode gpu;
        gpu.soft->fail("regDmabufMr", EOPNOTSUPP, 1, skip);
        ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, "cuda:0"));
        EXPECT_EQ(gpu.soft->count("mr"), 6u);
        EXPECT_FALSE(isOpen(gpu.gpu->last_fd));
    }
    GpuNode gpu;
    gpu.gpu->refusal = Status(Code::Unsupported, "the driver exports nothing");
    ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, "cuda:0"));
    EXPECT_EQ(gpu.soft->count("mr"), 6u);
}

/// What was declined: by whom it was asked for, and what is said of it.
void expectDeclined(const Sweep& sweep, std::initializer_list<const char*> parts) {
    ASSERT_EQ(sweep.failed.size(), 1u);
    const Failure& failure = sweep.failed.front();
    EXPECT_TRUE(failure.declined && failure.fenced && failure.quiesced && !failure.retryable);
    for (const char* part : parts)
        EXPECT_NE(failure.cause.message().find(part), std::string::npos) << failure.cause.toString();
}

TEST(Dmabuf, WhereNeitherWorksItIsLeftToOtherTransportsAndBothEndsSayWhy) {
    GpuNode gpu;
    gpu.soft->fail("regDmabufMr", EOPNOTSUPP);
    gpu.soft->fail("regMr", EFAULT);
    ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, "cuda:0"));
    EXPECT_EQ(gpu.soft->count("mr"), 0u);
    EXPECT_FALSE(isOpen(gpu.gpu->last_fd));

    Node peer(softConfig("peer"), gpu.soft, "peer");
    auto bytes = noise(GpuNode::kBytes);
    ASSERT_TRUE(peer.registerMemory(bytes.data(), bytes.size()));
    const auto there = peer.nics.front()->openPath(gpu.node->asPeer());
    ASSERT_TRUE(there);
    run(peer, *peer.nics.front(), *there, {write(bytes.data(), gpu.memory, 64)});
    expectDeclined(peer.sweep, {"cuda:0", "no RDMA device there"});

    const auto here = gpu.node->nics.front()->openPath(peer.asPeer());
    ASSERT_TRUE(here);
    run(*gpu.node, *gpu.node->nics.front(), *here, {write(gpu.memory + 64, bytes.data(), 64)});
    expectDeclined(gpu.node->sweep, {"cuda:0", "as a dma-buf", "older than 5.12", "by its address", "peer memory"});

    // When it is registered again it may work.
    gpu.node->unregisterMemory(gpu.memory);
    ASSERT_TRUE(gpu.node->registerMemory(gpu.memory, GpuNode::kBytes, true, "cuda:0"));
    gpu.node->sweep.clear();
    run(*gpu.node, *gpu.node->nics.front(), *here, {write(gpu.memory + 64, bytes.data(), 64)});
    EXPECT_TRUE(gpu.node->sweep.failed.empty()) << failuresOf(gpu.node->sweep);
}

/// The device itself, without anything of ours above it.
struct BareDevice {
    BareDevice() {
        std::vector<VerbsApi::Opened> opened;
        EXPECT_EQ(soft.openDevices([](const std::string&) { return true; }, opened), 0);
        context = opened.at(0).context;
        pd = soft.allocPd(context);
    }
    ~BareDevice() {
        EXPECT_EQ(soft.deallocPd(pd), 0);
        EXPECT_EQ(soft.closeDevice(context), 0);
        EXPECT_EQ(soft.leftovers(), "");
    }
    /// 0, or why it is refused.
    int import(int fd, std::uint64_t offset, std::size_t length, std::uint64_t iova = std::uint64_t{1} << 40) {
        errno = 0;
        ibv_mr* const mr = soft.regDmabufMr(pd, offset, length, iova, fd, IBV_ACCESS_LOCAL_WRITE);
        const int error = errno;
        if (mr == nullptr) return error;
        EXPECT_EQ(soft.deregMr(mr), 0);
        return 0;
    }

    SoftVerbs soft{{"s0"}};
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
};

TEST(SoftDevice, TakesADmabufAndNoOtherDescriptorAndNoMoreThanItHolds) {
    BareDevice device;
    const UniqueFd dmabuf(::memfd_create("gpu", MFD_CLOEXEC));
    const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
    for (const UniqueFd* file : {&dmabuf, &other}) ASSERT_EQ(::ftruncate(file->get(), 3 * 4096), 0);
    device.soft.setDmabufs([&](int fd) {
        return fd == dmabuf.get() ? DeviceBytes{UniqueFd(::dup(fd)), 0} : DeviceBytes{};
    });
    EXPECT_EQ(device.import(dmabuf.get(), 0, 3 * 4096), 0);
    EXPECT_EQ(device.import(dmabuf.get(), 4096 + 7, 4096, (std::uint64_t{1} << 40) + 7), 0);
    EXPECT_EQ(device.import(other.get(), 0, 4096), EINVAL);
    EXPECT_EQ(device.import(dmabuf.get(), 0, 3 * 4096 + 1), EINVAL);
    EXPECT_EQ(device.import(dmabuf.get(), 3 * 4096, 1), EINVAL);
    EXPECT_EQ(device.import(dmabuf.get(), ~std::uint64_t{0} - 4095, 8192), EINVAL);
    EXPECT_TRUE(device.soft.violations().empty());
    EXPECT_EQ(device.import(dmabuf.get(), 1, 4096), EINVAL);
    EXPECT_EQ(device.soft.violations().size(), 1u) << "an offset that does not fit the address";
}

TEST(SoftDevice, RegistersNoAddressThatTheProcessorCannotReadUnlessADriverLendsIt) {
    BareDevice device;
    constexpr std::size_t kBytes = 3 * 4096;
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    ibv_mr* mr = device.soft.regMr(device.pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(device.soft.deregMr(mr), 0);
    ASSERT_EQ(::mprotect(static_cast<char*>(memory) + 4096, 4096, PROT_NONE), 0);
    errno = 0;
    EXPECT_EQ(device.soft.regMr(device.pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(errno, EFAULT);
    const UniqueFd file(::memfd_create("gpu", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), kBytes), 0);
    device.soft.setPeerMemory([&](const ByteRange& range) {
        EXPECT_EQ(range.length, kBytes);
        return DeviceBytes{UniqueFd(::dup(file.get())), 0};
    });
    mr = device.soft.regMr(device.pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(device.soft.deregMr(mr), 0);
    ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace troupe::verbs
