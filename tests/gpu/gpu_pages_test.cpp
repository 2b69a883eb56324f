// Many small pages, scattered on both sides: by the kernel of the GPU and by a copy each.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/fault_injector.h"
#include "tests/gpu/fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace troupe::gpu {
namespace {

using namespace gpu::testing;
using std::chrono::milliseconds;

/// Where a page is on each side.
struct Page {
    std::uint64_t local;
    std::uint64_t remote;
    std::uint64_t bytes;
};

constexpr std::size_t kPages = 200;
constexpr std::uint64_t kRoom = 4u << 20;

/// From 1 byte to 64 KiB, most of them small, at any alignment, in another order on each side, with a gap behind each.
std::vector<Page> scatteredPages(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Page> pages(kPages);
    for (Page& page : pages) page.bytes = 1 + random() % (std::uint64_t{1} << random() % 17);
    pages.front().bytes = 64u << 10;
    pages.back().bytes = 1;
    for (std::uint64_t Page::*side : {&Page::local, &Page::remote}) {
        std::shuffle(pages.begin(), pages.end(), random);
        std::uint64_t at = random() % 64;
        for (Page& page : pages) {
            page.*side = at;
            at += page.bytes + 1 + random() % 500;
        }
        EXPECT_LT(at, kRoom);
    }
    return pages;
}

/// What a cache has: every other one of a row.
std::vector<Page> everyOtherPage() {
    std::vector<Page> pages;
    for (std::uint64_t i = 0; i < kPages; ++i) pages.push_back({2 * i * 4096, (2 * i + 1) * 4096, 4096});
    return pages;
}

class GpuPages : public GpuTest {
  protected:
    static EngineSetup packing(const char* mode) {
        EngineSetup setup = GpuTest::setup();
        setup.config.gpu_pack = mode;
        // So that pages of 64 KiB are small ones.
        setup.config.gpu_staging_chunk_bytes = 256u << 10;
        return setup;
    }
    bool hasKernels() { return gpu(0).makeMover().isOk(); }

    static std::vector<TransferRequest> requestsOf(const std::vector<Page>& pages, Opcode opcode, SegmentID segment,
                                                   const Memory& local, const Memory& remote) {
        std::vector<TransferRequest> requests;
        for (const Page& page : pages)
            requests.push_back(
                makeRequest(opcode, segment, local.pointer(page.local), remote.addr(page.remote), page.bytes));
        return requests;
    }
    static std::uint64_t bytesOf(const std::vector<Page>& pages) {
        std::uint64_t bytes = 0;
        for (const Page& page : pages) bytes += page.bytes;
        return bytes;
    }
    /// What the side that was written to has then, if it was `before`.
    static Bytes applied(Bytes before, const Bytes& sent, const std::vector<Page>& pages, Opcode opcode) {
        for (const Page& page : pages) {
            const std::uint64_t from = opcode == Opcode::Write ? page.local : page.remote;
            const std::uint64_t to = opcode == Opcode::Write ? page.remote : page.local;
            std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(from), page.bytes,
                        before.begin() + static_cast<std::ptrdiff_t>(to));
        }
        return before;
    }
    /// Both directions; what lies beside the pages stays. Returns how many launches and copies it took.
    std::pair<unsigned, unsigned> exchange(TransferEngine& engine, SegmentID segment, Memory& local, Memory& remote,
                                           const std::vector<Page>& pages) {
        const unsigned launches = control.count("cuLaunchKernel");
        const unsigned copies = control.count("cuMemcpyAsync");
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            SCOPED_TRACE(local.kind() + (opcode == Opcode::Write ? " -> " : " <- ") + remote.kind());
            Memory& from = opcode == Opcode::Write ? local : remote;
            Memory& to = opcode == Opcode::Write ? remote : local;
            const Bytes sent = noise(kRoom, opcode == Opcode::Write ? 1 : 2);
            const Bytes before = noise(kRoom, 3);
            from.write(0, sent);
            to.write(0, before);
            expectCompleted(runBatch(engine, requestsOf(pages, opcode, segment, local, remote)), bytesOf(pages));
            EXPECT_TRUE(to.read(0, kRoom) == applied(before, sent, pages, opcode));
        }
        return {control.count("cuLaunchKernel") - launches, control.count("cuMemcpyAsync") - copies};
    }
    void expectTakenBy(const char* mode, std::pair<unsigned, unsigned> counts) {
        const auto [launches, copies] = counts;
        if (mode == std::string("on") && hasKernels()) {
            EXPECT_GT(launches, 0u);
            // Each way both directions.
            EXPECT_LT(launches + copies, kPages);
        } else {
            EXPECT_EQ(launches, 0u);
            EXPECT_GE(copies, 2 * kPages);
        }
    }
    void exchangeByTcp(EngineSetup with, const std::vector<std::pair<const char*, const char*>>& pairs) {
        for (const char* mode : {"on", "off"}) {
            SCOPED_TRACE(mode);
            with.config.gpu_pack = mode;
            auto a = startEngine(with);
            auto b = startEngine(with);
            const SegmentID segment = open(*a, b->localSegmentName());
            for (const auto& [here, there] : pairs) {
                Memory local = make(here, kRoom);
                Memory remote = make(there, kRoom);
                registerAll(*a, local);
                registerAll(*b, remote);
                for (unsigned seed = 0; seed < 3; ++seed)
                    expectTakenBy(mode, exchange(*a, segment, local, remote, scatteredPages(seed)));
                expectTakenBy(mode, exchange(*a, segment, local, remote, everyOtherPage()));
                EXPECT_TRUE(a->unregisterLocalMemory(local.pointer()));
                EXPECT_TRUE(b->unregisterLocalMemory(remote.pointer()));
            }
        }
    }
};

TEST_F(GpuPages, GoByTcpWithTheKernelAtOneEndOrWithoutIt) {
    exchangeByTcp(packing("on"), {{"gpu0", "host"}, {"host", "gpu1"}});
}

TEST_F(GpuPages, GoByTcpWithChecksums) {
    EngineSetup checked = packing("on");
    checked.config.tcp_crc = true;
    exchangeByTcp(checked, {{"virtual0", "host"}, {"host", "gpu1"}});
}

/// More than the ends of one GPU: what is counted is of both.
TEST_F(GpuPages, GoByTcpFromGpuToGpu) {
    for (const char* mode : {"on", "off", "auto"}) {
        SCOPED_TRACE(mode);
        EngineSetup with = packing(mode);
        // Small and few, so that they run out.
        with.config.gpu_staging_chunk_bytes = 64u << 10;
        auto a = startEngine(with);
        auto b = startEngine(with);
        const SegmentID segment = open(*a, b->localSegmentName());
        Memory local = make("gpu0", kRoom);
        Memory remote = make("gpu1", kRoom);
        registerAll(*a, local);
        registerAll(*b, remote);
        for (unsigned seed = 0; seed < 3; ++seed) {
            const auto [launches, copies] = exchange(*a, segment, local, remote, scatteredPages(seed));
            if (mode == std::string("on")) {
                EXPECT_EQ(launches > 0, hasKernels());
            }
            if (mode == std::string("off")) {
                EXPECT_EQ(launches, 0u);
            }
        }
        control.latency(200, 0, 300);
        exchange(*a, segment, local, remote, scatteredPages(10));
        control.latency(0);
    }
}

TEST_F(GpuPages, WithinAProcessTheyAreBegunTogether) {
    for (const char* mode : {"on", "off"}) {
        SCOPED_TRACE(mode);
        auto engine = startEngine(packing(mode));
        for (const auto& [here, there] :
             std::vector<std::pair<const char*, const char*>>{{"gpu0", "gpu0"}, {"virtual0", "gpu0"}}) {
            Memory local = make(here, kRoom);
            Memory remote = make(there, kRoom);
            registerAll(*engine, local);
            registerAll(*engine, remote);
            for (unsigned seed = 0; seed < 2; ++seed)
                expectTakenBy(mode, exchange(*engine, kLocalSegmentID, local, remote, scatteredPages(seed)));
            EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
            EXPECT_TRUE(engine->unregisterLocalMemory(remote.pointer()));
        }
    }
}

/// A bad access costs a kernel's whole context, and a copy itself alone: another GPU may not be reached, and host
/// memory be unpinned while it is registered.
TEST_F(GpuPages, WithinAProcessNoKernelTouchesMemoryOfTheHostOrAnotherGpu) {
    auto engine = startEngine(packing("on"));
    for (const auto& [here, there] : std::vector<std::pair<const char*, const char*>>{
             {"gpu0", "gpu1"}, {"gpu0", "pinned"}, {"pinned", "gpu1"}, {"gpu0", "host"}}) {
        Memory local = make(here, kRoom);
        Memory remote = make(there, kRoom);
        registerAll(*engine, local);
        registerAll(*engine, remote);
        const auto [launches, copies] = exchange(*engine, kLocalSegmentID, local, remote, scatteredPages(5));
        EXPECT_EQ(launches, 0u);
        EXPECT_GE(copies, 2 * kPages);
        EXPECT_TRUE(engine->unregisterLocalMemory(local.pointer()));
        EXPECT_TRUE(engine->unregisterLocalMemory(remote.pointer()));
    }
}

/// Its memory may be another GPU's, and be freed by its owner.
TEST_F(GpuPages, OfAnotherProcessTheyAreMovedByCopies) {
    EngineSetup with_host = packing("on");
    with_host.config.host_peers = true;
    auto engine = startEngine(with_host);
    GpuPeerProcess peer;
    const SegmentID segment = open(*engine, peer.start(true, true));
    Memory local = make("gpu0", kRoom);
    registerAll(*engine, local);
    const std::uint64_t remote = peer.number("make gpu1 " + std::to_string(kRoom));
    peer.must("fill " + std::to_string(remote) + " " + std::to_string(kRoom) + " 4");
    const Bytes there = noise(kRoom, 4);
    const Bytes before = noise(kRoom, 5);
    local.write(0, before);
    const auto pages = scatteredPages(6);
    std::vector<TransferRequest> reads;
    std::vector<TransferRequest> writes;
    for (const Page& page : pages) {
        reads.push_back(
            makeRequest(Opcode::Read, segment, local.pointer(page.local), remote + page.remote, page.bytes));
        writes.push_back(
            makeRequest(Opcode::Write, segment, local.pointer(page.local), remote + page.remote, page.bytes));
    }
    expectCompleted(runBatch(*engine, reads), bytesOf(pages));
    EXPECT_TRUE(local.read(0, kRoom) == applied(before, there, pages, Opcode::Read));
    // And back, where they came from: nothing may have changed there.
    expectCompleted(runBatch(*engine, writes), bytesOf(pages));
    EXPECT_EQ(peer.ask("check " + std::to_string(remote) + " " + std::to_string(kRoom) + " 4"), "ok");
    EXPECT_EQ(control.count("cuLaunchKernel"), 0u);
    EXPECT_EQ(peer.word("violations"), "");
}

TEST_F(GpuPages, AKernelThatTheDriverRefusesCostsNobodyAnything) {
    auto a = startEngine(packing("on"));
    auto b = startEngine(packing("on"));
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("gpu0", kRoom);
    Memory remote = make("gpu1", kRoom);
    registerAll(*a, local);
    registerAll(*b, remote);
    control.fail("cuLaunchKernel", cuda::api::Result::OutOfMemory, 1000);
    exchange(*a, segment, local, remote, scatteredPages(1));
    Memory other = make("gpu0", kRoom);
    registerAll(*a, other);
    exchange(*a, kLocalSegmentID, local, other, scatteredPages(2));
}

/// A launch is refused, and then a copy of those that are made in its place.
TEST_F(GpuPages, APageThatIsRefusedFailsNoneOfThoseThatBeganWithIt) {
    auto engine = startEngine(packing("on"));
    Memory local = make("gpu0", kRoom);
    Memory remote = make("gpu0", kRoom);
    registerAll(*engine, local);
    registerAll(*engine, remote);
    const auto pages = everyOtherPage();
    const Bytes sent = noise(kRoom, 1);
    const Bytes before = noise(kRoom, 3);
    local.write(0, sent);
    remote.write(0, before);
    control.fail("cuLaunchKernel", cuda::api::Result::OutOfMemory);
    control.fail("cuMemcpyAsync", cuda::api::Result::InvalidValue, 1, 5);
    BatchHolder batch(*engine, pages.size());
    ASSERT_TRUE(batch.submit(requestsOf(pages, Opcode::Write, kLocalSegmentID, local, remote)));
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::FAILED);
    std::vector<Page> arrived;
    std::size_t failed = 0;
    for (std::size_t index = 0; index < pages.size(); ++index) {
        if (batch.task(index).s == TransferStatusEnum::COMPLETED)
            arrived.push_back(pages[index]);
        else
            ++failed;
    }
    EXPECT_EQ(failed, 1u);
    EXPECT_TRUE(remote.read(0, kRoom) == applied(before, sent, arrived, Opcode::Write));
}

/// Pages that come damaged are refused when none of their bytes are under way, and come again.
TEST_F(GpuPages, ADamagedPageIsSentAgainAndTheOthersOfItsChunkAreNot) {
    EngineSetup checked = packing("on");
    checked.config.tcp_crc = true;
    checked.config.faults_enabled = true;
    auto a = startEngine(checked);
    auto b = startEngine(checked);
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("gpu0", kRoom);
    Memory remote = make("gpu1", kRoom);
    registerAll(*a, local);
    registerAll(*b, remote);
    // Once what is written, then what is read.
    for (TransferEngine* const damaged : {b.get(), a.get()}) {
        FaultInjector* const faults = *damaged->faults();
        const auto rule = faults->add({FaultPoint::Payload, FaultAction::Corrupt, 20, 0, 1, ""});
        ASSERT_TRUE(rule) << rule.status().toString();
        control.latency(300, 0, 300);
        exchange(*a, segment, local, remote, scatteredPages(2));
        control.latency(0);
        EXPECT_EQ(faults->count(*rule)->fired, 1u);
    }
}

TEST_F(GpuPages, ALostGpuFailsItsPagesAndNoOthers) {
    auto a = startEngine(packing("on"));
    auto b = startEngine(packing("on"));
    const SegmentID segment = open(*a, b->localSegmentName());
    Memory local = make("host", kRoom);
    Memory lost = make("gpu0", kRoom);
    Memory good = make("gpu1", kRoom);
    registerAll(*a, local);
    registerAll(*b, lost);
    registerAll(*b, good);
    const auto pages = scatteredPages(3);
    control.lose(0, cuda::api::Result::IllegalAddress, 5);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        const auto status = runBatch(*a, requestsOf(pages, opcode, segment, local, lost));
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
        EXPECT_TRUE(status.quiesced);
    }
    exchange(*a, segment, local, good, pages);
}

TEST_F(GpuPages, CanceledOnesEndWhenNoCopyTouchesTheirMemory) {
    auto a = startEngine(packing("on"));
    auto b = startEngine(packing("on"));
    const SegmentID segment = open(*a, b->localSegmentName());
    const auto pages = scatteredPages(4);
    for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
        for (const bool local_segment : {false, true}) {
            SCOPED_TRACE(std::string(opcode == Opcode::Write ? "write" : "read") + (local_segment ? " here" : ""));
            auto local = std::make_unique<Memory>(make("gpu0", kRoom));
            auto remote = std::make_unique<Memory>(make("gpu0", kRoom));
            TransferEngine& owner = local_segment ? *a : *b;
            registerAll(*a, *local);
            registerAll(owner, *remote);
            control.latency(10000);
            {
                BatchHolder batch(*a, pages.size());
                ASSERT_TRUE(batch.submit(
                    requestsOf(pages, opcode, local_segment ? kLocalSegmentID : segment, *local, *remote)));
                std::this_thread::sleep_for(milliseconds(15));
                ASSERT_TRUE(a->cancelTransfer(batch.id()));
                const auto status = batch.wait();
                EXPECT_TRUE(isTerminal(status.s));
                EXPECT_TRUE(status.quiesced);
            }
            // The fake tells of what still touches it.
            EXPECT_TRUE(a->unregisterLocalMemory(local->pointer()));
            local.reset();
            EXPECT_TRUE(owner.unregisterLocalMemory(remote->pointer()));
            remote.reset();
            control.latency(0);
        }
    }
}

}  // namespace
}  // namespace troupe::gpu
