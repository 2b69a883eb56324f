// Memory of a device: exported once as a dma-buf, imported by every Nic. On the strict software device, where the
// memory that a GPU would have is the process's own.

#include <fcntl.h>
#include <sys/mman.h>

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
        memory.fd = UniqueFd(::memfd_create("gpu", MFD_CLOEXEC));
        memory.offset = offset;
        last_fd = memory.fd.get();
        return memory;
    }
    std::uint64_t offset = 0;
    Status refusal;
    int exports = 0;
    int last_fd = -1;
    std::string asked;
};

bool isOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

/// A node with two devices and memory that begins on a page.
struct GpuNode {
    GpuNode() {
        Config config = softConfig("s0,s1");
        config.rdma_max_chunk_bytes = 4096;
        gpu->offset = 3 * 4096;
        node = std::make_unique<Node>(config, soft, "n", makeSilentLogger(), nullptr, gpu);
        memory =
            static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    ~GpuNode() {
        node->end();
        EXPECT_EQ(soft->leftovers(), "");
        for (const std::string& violation : soft->violations()) ADD_FAILURE() << violation;
        ::munmap(memory, kBytes);
    }
    static constexpr std::size_t kBytes = 3 * 4096;
    std::shared_ptr<SoftVerbs> soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"s0", "s1", "peer"});
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

}  // namespace
}  // namespace troupe::verbs
