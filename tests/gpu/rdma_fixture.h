#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/exchange.h"
#include "tests/gpu/fixture.h"
#include "tests/verbs_backend/soft_system.h"

namespace troupe::gpu::testing {

using verbs::testing::DeviceBytes;
using verbs::testing::SoftVerbs;

/// Two engines with two RDMA devices each, in software, beside the GPUs of the fake driver. What the devices reach of a
/// GPU they reach through a descriptor that the driver gave, or as a peer memory driver; at a GPU's addresses they
/// would fault. At the end the devices have nothing left, and nobody did to them what the specification forbids.
class GpuRdmaTest : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        soft->setDmabufs([this](int fd) { return asBytes(control.openDmabuf(fd)); });
    }
    void TearDown() override {
        a.reset();
        b.reset();
        EXPECT_EQ(soft->leftovers(), "");
        for (const std::string& violation : soft->violations()) ADD_FAILURE() << violation;
        EXPECT_EQ(openDmabufs(), 0u);
        GpuTest::TearDown();
    }

    static EngineSetup rdma(bool tcp = false) {
        EngineSetup made = setup();
        made.tcp = tcp;
        made.config.rdma_drain_timeout = std::chrono::milliseconds(50);
        return made;
    }
    /// `a` on the devices a0 and a1 has the segment of `b`, on b0 and b1, open.
    void start(EngineSetup with = rdma()) {
        with.config.rdma_devices = "a0,a1";
        a = install(with);
        with.config.rdma_devices = "b0,b1";
        b = install(with);
        segment = open(*a, b->localSegmentName());
    }
    /// At the owner, and the other engine knows its keys.
    void registerRemote(Memory& memory) {
        registerAll(*b, memory);
        const Status fetched = a->syncSegmentCache();
        EXPECT_TRUE(fetched) << fetched.toString();
    }
    /// From now on GPUs do not order what NICs write, which is on its way until somebody does something for it. Before
    /// the engines look at any GPU.
    void disorder(bool can_flush) {
        control.nicWrites(cuda::api::WritesOrdering::None, can_flush);
        control.onFlush([](void* devices, int gpu) { static_cast<SoftVerbs*>(devices)->flushDeviceWrites(gpu); },
                        soft.get());
        soft->delayDeviceWrites();
    }
    /// The kernel has nvidia-peermem, or what else lends a GPU's memory by its addresses.
    void loadPeerMemory() {
        soft->setPeerMemory(
            [this](const ByteRange& range) { return asBytes(control.openPeerMemory(range.addr, range.length)); });
    }

    /// Moves bytes that differ from what was there, and compares them; what explain says of it.
    RouteExplanation move(Opcode opcode, Memory& local, std::uint64_t local_at, Memory& remote, std::uint64_t remote_at,
                          std::uint64_t bytes) {
        const bool writes = opcode == Opcode::Write;
        const Bytes sent = noise(bytes, ++seed_);
        (writes ? local : remote).write(writes ? local_at : remote_at, sent);
        (writes ? remote : local).write(writes ? remote_at : local_at, noise(bytes, ++seed_));
        BatchHolder batch(*a, 1);
        EXPECT_TRUE(
            batch.submit({makeRequest(opcode, segment, local.pointer(local_at), remote.addr(remote_at), bytes)}));
        expectCompleted(batch.wait(), bytes);
        EXPECT_TRUE((writes ? remote : local).read(writes ? remote_at : local_at, bytes) == sent);
        const auto way = a->explain(batch.id(), 0);
        EXPECT_TRUE(way) << way.status().toString();
        return way ? *way : RouteExplanation{};
    }
    /// Both directions, by rdma and by nobody else.
    void expectByRdma(Memory& local, std::uint64_t local_at, Memory& remote, std::uint64_t remote_at,
                      std::uint64_t bytes) {
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            const RouteExplanation way = move(opcode, local, local_at, remote, remote_at, bytes);
            EXPECT_EQ(way.transport, "rdma") << way.toString();
            EXPECT_EQ(way.gpu.rfind("straight", 0) == 0, local.isOnGpu() || remote.isOnGpu()) << way.toString();
            EXPECT_TRUE(way.then.empty() && way.attempts.empty()) << way.toString();
        }
    }

    /// Every shape, in both directions, between memories of these kinds.
    void exchangeBetween(const std::string& here, const std::string& there) {
        Memory local = registered(*a, here, kRoom);
        Memory remote = make(there, kRoom);
        registerRemote(remote);
        exchange(*a, segment, local, remote);
        expectByRdma(local, 3, remote, 5, 300001);
        EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
    }

    /// Descriptors of the driver's dma-bufs that this process has open.
    static std::size_t openDmabufs() {
        std::size_t count = 0;
        DIR* const all = ::opendir("/proc/self/fd");
        while (const dirent* const entry = ::readdir(all)) {
            char target[256] = "";
            const ssize_t length = ::readlinkat(::dirfd(all), entry->d_name, target, sizeof target - 1);
            if (length > 0 &&
                std::string(target, static_cast<std::size_t>(length)).find("fake-cuda-dmabuf") != std::string::npos)
                ++count;
        }
        ::closedir(all);
        return count;
    }

    std::shared_ptr<SoftVerbs> soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"a0", "a1", "b0", "b1"});
    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;

  private:
    static DeviceBytes asBytes(const fake_cuda::Control::DeviceFile& file) {
        return {UniqueFd(file.fd), file.offset, file.device};
    }
    static std::unique_ptr<TransferEngine> install(const EngineSetup& with) {
        auto engine = startEngine(with);
        const auto installed = engine->installTransport("rdma");
        EXPECT_TRUE(installed) << installed.status().toString();
        return engine;
    }

    verbs::testing::SoftSystem system_{soft};
    unsigned seed_ = 0;
};

}  // namespace troupe::gpu::testing
