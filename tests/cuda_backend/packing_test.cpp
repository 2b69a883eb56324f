// Small pages of a GPU that share a chunk: by its kernel or by a copy each, both ways, and what decides which.

#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <random>
#include <sstream>
#include <string>

#include "cuda_backend/packer.h"
#include "tests/cuda_backend/cuda_fixture.h"
#include "transports/pack_trial.h"
#include "transports/staged_copy.h"
#include "transports/staging.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

constexpr std::uint64_t kChunk = 8192;
using Bytes = std::vector<std::uint8_t>;

class Packing : public CudaTest {
  protected:
    std::shared_ptr<const PageMover> mover() {
        gpu(0);
        return must(Packer::create(gpus[0]));
    }
    /// Whose kernel takes everything from two pages on.
    std::shared_ptr<PagePacking> packing() {
        auto made = std::make_shared<PagePacking>("cuda:0", log());
        PackBorders borders;
        borders.fill(PackBorder::always());
        made->use(mover(), borders);
        return made;
    }
    Logger log() {
        auto made = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
        made->set_level(spdlog::level::info);
        return made;
    }
    std::size_t saidTimes(const std::string& what) const {
        const std::string text = said.str();
        std::size_t times = 0;
        for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++times;
        return times;
    }
    std::unique_ptr<StagingRing> makeRing(unsigned chunks, std::shared_ptr<PagePacking> with) {
        gpu(0);
        return must(StagingRing::create(gpus[0], {kChunk, chunks, -1}, std::move(with)));
    }
    void finish(StagingRing& ring) {
        while (ring.hasWork()) {
            ASSERT_TRUE(ring.arm());
            pollfd waiting{ring.waitFd(), POLLIN, 0};
            ASSERT_EQ(::poll(&waiting, 1, 20000), 1);
            ring.poll();
        }
    }
    /// Receives all of `bytes`, which there is room for.
    static void receive(StagedSink& sink, std::span<const std::uint8_t> bytes) {
        while (!bytes.empty()) {
            const auto room = sink.room();
            ASSERT_FALSE(room.empty());
            const std::size_t now = std::min(room.size(), bytes.size());
            std::memcpy(room.data(), bytes.data(), now);
            static_cast<void>(sink.commit(now));
            bytes = bytes.subspan(now);
        }
    }
    unsigned launches() { return control.count("cuLaunchKernel"); }
    unsigned copies() { return control.count("cuMemcpyAsync"); }

    std::ostringstream said;
};

/// Pages of any size at any alignment, apart from each other in memory that tells its place.
struct Pages {
    Pages(std::mt19937& random, std::uint64_t base, std::uint64_t room, std::uint64_t longest, std::uint64_t together) {
        std::uint64_t used = 0;
        for (std::uint64_t at = base + random() % 40; at + longest < base + room; at += random() % 100) {
            const std::uint64_t bytes = 1 + random() % longest;
            const std::uint64_t begin = pieceAt(used, at);
            if (begin + bytes > together) break;
            used = begin + bytes;
            all.push_back({at, bytes});
            at += bytes;
        }
        std::shuffle(all.begin(), all.end(), random);
        // In another order they might need some bytes more.
        used = 0;
        std::erase_if(all, [&](const ByteRange& page) {
            const std::uint64_t begin = pieceAt(used, page.addr);
            if (begin + page.length > together) return true;
            used = begin + page.length;
            return false;
        });
    }
    std::vector<ByteRange> all;
};

TEST(StagedPieces, BeginAlikeModulo16AsCloseAsTheyCan) {
    for (std::uint64_t used = 0; used < 40; ++used)
        for (std::uint64_t addr = 1000; addr < 1040; ++addr) {
            const std::uint64_t at = pieceAt(used, addr);
            EXPECT_EQ(at % 16, addr % 16);
            EXPECT_LT(at - used, 16u);
        }
}

TEST_F(Packing, PagesOfAnySizeAndAlignmentAreGatheredByOneLaunch) {
    const auto ring = makeRing(2, packing());
    std::mt19937 random(7);
    const DeviceMemory memory = must(gpu(0).allocate(8 * kChunk));
    for (int round = 0; round < 20; ++round) {
        control.write(memory.get(), noise(8 * kChunk, static_cast<unsigned>(round)));
        const Pages pages(random, memory.get(), 8 * kChunk, round % 2 == 0 ? 200 : 3000, kChunk);
        ASSERT_GT(pages.all.size(), 1u);
        const unsigned before = launches();
        StagedPages staged(*ring, pages.all);
        must(staged.advance());
        for (const ByteRange& page : pages.all) ASSERT_TRUE(ring->touches(page));
        finish(*ring);
        // Lists of more than a launch takes are several.
        EXPECT_EQ(launches() - before, (pages.all.size() + kPackMoves - 1) / kPackMoves);
        for (std::size_t page = 0; page < pages.all.size(); ++page) {
            const auto ready = staged.ready(page);
            const Bytes wanted = control.read(pages.all[page].addr, pages.all[page].length);
            ASSERT_EQ(ready.size(), wanted.size());
            ASSERT_EQ(std::memcmp(ready.data(), wanted.data(), wanted.size()), 0) << page;
            staged.consume(page, ready.size());
        }
        ASSERT_EQ(ring->freeChunks(), 2u);
    }
    EXPECT_EQ(copies(), 0u);
}

/// What is left of pages when they let go of their chunk always fits into another.
TEST_F(Packing, WhatIsLeftOfAFullChunkOfOddPagesFitsAgain) {
    const auto ring = makeRing(2, packing());
    std::mt19937 random(8);
    const DeviceMemory memory = must(gpu(0).allocate(8 * kChunk));
    control.write(memory.get(), noise(8 * kChunk));
    for (int round = 0; round < 30; ++round) {
        const Pages pages(random, memory.get(), 8 * kChunk, 700, kChunk);
        StagedPages staged(*ring, pages.all);
        must(staged.advance());
        finish(*ring);
        std::vector<std::uint64_t> sent(pages.all.size());
        for (std::size_t page = 0; page < pages.all.size(); ++page) {
            sent[page] = random() % (pages.all[page].length + 1);
            staged.consume(page, sent[page]);
        }
        if (!staged.yieldChunks()) continue;
        must(staged.advance());
        finish(*ring);
        for (std::size_t page = 0; page < pages.all.size(); ++page) {
            if (sent[page] == pages.all[page].length) continue;
            const auto ready = staged.ready(page);
            const Bytes wanted = control.read(pages.all[page].addr + sent[page], pages.all[page].length - sent[page]);
            ASSERT_EQ(ready.size(), wanted.size());
            ASSERT_EQ(std::memcmp(ready.data(), wanted.data(), wanted.size()), 0);
        }
    }
}

/// Each target gets its own bytes, and what lies between them stays, whatever the pieces that the bytes come in.
TEST_F(Packing, ReceivedPagesShareAChunkAndGoToTheirPlacesByOneLaunch) {
    for (const bool kernel : {true, false}) {
        const auto ring = makeRing(3, kernel ? packing() : nullptr);
        std::mt19937 random(9);
        const DeviceMemory memory = must(gpu(0).allocate(8 * kChunk));
        for (int round = 0; round < 15; ++round) {
            const unsigned seed = static_cast<unsigned>(round);
            Bytes wanted = noise(8 * kChunk, 100 + seed);
            control.write(memory.get(), wanted);
            const Bytes sent = noise(8 * kChunk, seed);
            const Pages pages(random, memory.get(), 8 * kChunk, 600, 4 * kChunk);
            const unsigned before = launches();
            std::list<StagedSink> sinks;
            StagedInbox inbox(*ring, true);
            std::size_t pieces = 0;
            for (const ByteRange& page : pages.all) {
                sinks.emplace_back(inbox, page);
                const std::uint64_t at = page.addr - memory.get();
                for (std::uint64_t done = 0; done < page.length;) {
                    const auto room = sinks.back().room();
                    if (room.empty()) {
                        // All chunks are full, and on their way.
                        finish(*ring);
                        continue;
                    }
                    const std::uint64_t now =
                        std::min<std::uint64_t>({room.size(), 1 + random() % 300, page.length - done});
                    std::memcpy(room.data(), sent.data() + at + done, now);
                    must(sinks.back().commit(now));
                    done += now;
                }
                EXPECT_FALSE(sinks.back().isDone()) << "before it was shipped";
                std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(at), page.length,
                            wanted.begin() + static_cast<std::ptrdiff_t>(at));
                ++pieces;
            }
            inbox.pause();
            EXPECT_TRUE(inbox.isEmpty());
            finish(*ring);
            for (StagedSink& sink : sinks) ASSERT_TRUE(sink.isDone());
            ASSERT_TRUE(control.read(memory.get(), wanted.size()) == wanted);
            EXPECT_EQ(ring->freeChunks(), 3u);
            if (kernel) {
                EXPECT_GE(launches() - before, 1u);
                EXPECT_LE((launches() - before) * 2, pieces);
            }
        }
        if (!kernel) {
            EXPECT_GT(copies(), 0u);
        }
    }
}

TEST_F(Packing, ASinglePageIsACopy) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    StagedInbox inbox(*ring, true);
    StagedSink sink(inbox, {memory.get() + 3, 100});
    receive(sink, noise(100));
    inbox.pause();
    finish(*ring);
    EXPECT_TRUE(sink.isDone());
    EXPECT_EQ(control.read(memory.get() + 3, 100), noise(100));
    EXPECT_EQ(launches(), 0u);
    EXPECT_EQ(copies(), 1u);
}

/// Neighbours in memory are neighbours in the chunk: one piece.
TEST_F(Packing, PagesThatFollowEachOtherAreOnePiece) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    StagedInbox inbox(*ring, true);
    std::list<StagedSink> sinks;
    const Bytes sent = noise(500);
    for (std::uint64_t page = 0; page < 5; ++page) {
        sinks.emplace_back(inbox, ByteRange{memory.get() + 7 + page * 100, 100});
        receive(sinks.back(), std::span(sent).subspan(page * 100, 100));
    }
    inbox.pause();
    finish(*ring);
    for (StagedSink& sink : sinks) EXPECT_TRUE(sink.isDone());
    EXPECT_EQ(control.read(memory.get() + 7, 500), sent);
    EXPECT_EQ(launches() + copies(), 1u);
}

TEST_F(Packing, AnIncompletePageWaitsForTheWireUntilOthersArriveOrNeedTheChunk) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(4 * kChunk));
    const Bytes sent = noise(1000);
    StagedInbox inbox(*ring, true);
    StagedSink slow(inbox, {memory.get(), 1000});
    receive(slow, std::span(sent).first(300));
    inbox.pause();
    EXPECT_FALSE(ring->hasWork());
    EXPECT_FALSE(inbox.isEmpty());
    receive(slow, std::span(sent).subspan(300));
    StagedSink next(inbox, {memory.get() + 2000, 1000});
    receive(next, std::span(sent).first(10));
    // The first is whole, and takes along what there is of the next.
    inbox.pause();
    EXPECT_TRUE(ring->touches({memory.get() + 2000, 10}));
    EXPECT_FALSE(ring->touches({memory.get() + 2010, 990}));
    finish(*ring);
    EXPECT_TRUE(slow.isDone());
    EXPECT_FALSE(next.isDone());
    receive(next, std::span(sent).subspan(10, 90));
    // Now somebody else needs both chunks.
    StagedSink other(*ring, {memory.get() + kChunk, 2 * kChunk});
    receive(other, noise(kChunk));
    EXPECT_TRUE(other.room().empty());
    EXPECT_TRUE(inbox.yieldChunks());
    EXPECT_FALSE(inbox.yieldChunks());
    finish(*ring);
    receive(other, noise(kChunk));
    receive(next, std::span(sent).subspan(100));
    inbox.pause();
    finish(*ring);
    EXPECT_TRUE(next.isDone());
    EXPECT_TRUE(other.isDone());
    EXPECT_EQ(control.read(memory.get(), 1000), sent);
    EXPECT_EQ(control.read(memory.get() + 2000, 1000), sent);
}

TEST_F(Packing, WhatEndsEarlyIsDroppedAndWhoWaitsForItIsTold) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    control.write(memory.get(), Bytes(kChunk, 9));
    std::list<StagedSink> sinks;
    {
        StagedInbox inbox(*ring, true);
        sinks.emplace_back(inbox, ByteRange{memory.get(), 100});
        receive(sinks.back(), noise(100));
        sinks.emplace_back(inbox, ByteRange{memory.get() + 200, 100});
        receive(sinks.back(), noise(100));
        EXPECT_TRUE(ring->hasHolders());
    }
    for (StagedSink& sink : sinks) {
        EXPECT_EQ(sink.state().code(), Code::PathReset);
        EXPECT_FALSE(sink.isDone());
    }
    EXPECT_EQ(ring->freeChunks(), 2u);
    EXPECT_FALSE(ring->hasWork());
    EXPECT_EQ(control.read(memory.get(), kChunk), Bytes(kChunk, 9));
    EXPECT_TRUE(ring->hasHolders()) << "they still look at it";
    sinks.clear();
    EXPECT_FALSE(ring->hasHolders());
}

/// One whose page ends while others wait in the same chunk has no say in it.
TEST_F(Packing, APageThatIsGivenUpLeavesTheOthersInItsChunkAlone) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    StagedInbox inbox(*ring, true);
    StagedSink kept(inbox, {memory.get(), 100});
    receive(kept, noise(100, 1));
    auto given_up = std::make_unique<StagedSink>(inbox, ByteRange{memory.get() + 200, 100});
    receive(*given_up, noise(100, 2));
    given_up.reset();
    inbox.pause();
    EXPECT_TRUE(ring->touches({memory.get() + 200, 1})) << "its bytes are under way, and that is known";
    finish(*ring);
    EXPECT_TRUE(kept.isDone());
    EXPECT_EQ(control.read(memory.get(), 100), noise(100, 1));
}

TEST_F(Packing, ALossInTheMiddleFailsEveryPageOfTheChunk) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(8 * kChunk));
    StagedInbox inbox(*ring, true);
    std::list<StagedSink> sinks;
    control.hold(true);
    for (std::uint64_t page = 0; page < 10; ++page) {
        sinks.emplace_back(inbox, ByteRange{memory.get() + page * 1000, 100});
        receive(sinks.back(), noise(100));
    }
    inbox.pause();
    EXPECT_EQ(launches(), 1u);
    control.lose(0, api::Result::IllegalAddress);
    control.hold(false);
    while (ring->hasWork()) ring->poll();
    for (StagedSink& sink : sinks) {
        EXPECT_EQ(sink.state().code(), Code::DeviceLost);
        EXPECT_FALSE(sink.isDone());
    }
    EXPECT_FALSE(ring->touches({memory.get(), 8 * kChunk}));
}

/// The bytes get there by copies, at once and from then on, and that is said once.
TEST_F(Packing, AKernelThatTheDriverRefusesIsNotAskedAgain) {
    const auto with = packing();
    const auto ring = makeRing(2, with);
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    control.fail("cuLaunchKernel", api::Result::OutOfMemory);
    for (unsigned round = 0; round < 3; ++round) {
        StagedInbox inbox(*ring, true);
        StagedSink first(inbox, {memory.get() + 1, 100});
        StagedSink second(inbox, {memory.get() + 500, 100});
        receive(first, noise(100, round));
        receive(second, noise(100, round + 10));
        inbox.pause();
        finish(*ring);
        EXPECT_TRUE(first.isDone());
        EXPECT_TRUE(second.isDone());
        EXPECT_EQ(control.read(memory.get() + 1, 100), noise(100, round));
        EXPECT_EQ(control.read(memory.get() + 500, 100), noise(100, round + 10));
    }
    EXPECT_EQ(launches(), 1u);
    EXPECT_EQ(copies(), 6u);
    EXPECT_EQ(saidTimes("cuLaunchKernel"), 1u) << said.str();
}

/// A copy that cannot begin is an error of its page and of those that would come after it in the chunk.
TEST_F(Packing, APageThatCannotGoFailsNoneThatWentBeforeIt) {
    const auto ring = makeRing(2, nullptr);
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    StagedInbox inbox(*ring, true);
    std::list<StagedSink> sinks;
    control.fail("cuMemcpyAsync", api::Result::OutOfMemory, 1, 2);
    control.hold(true);
    for (std::uint64_t page = 0; page < 6; ++page) {
        sinks.emplace_back(inbox, ByteRange{memory.get() + page * 1000, 100});
        receive(sinks.back(), noise(100));
        if (page == 3 || page == 5) inbox.pause();
    }
    EXPECT_TRUE(ring->touches({memory.get() + 1000, 1})) << "the first of it had begun";
    EXPECT_FALSE(ring->touches({memory.get() + 2000, 1}));
    EXPECT_FALSE(sinks.front().isDone()) << "it is under way";
    EXPECT_TRUE(sinks.front().state());
    control.hold(false);
    finish(*ring);
    std::vector<bool> done;
    for (StagedSink& sink : sinks) done.push_back(sink.isDone());
    EXPECT_EQ(done, (std::vector<bool>{true, true, false, false, true, true}));
    StagedSink& refused = *std::next(sinks.begin(), 2);
    EXPECT_EQ(refused.state().code(), Code::ResourceExhausted);
    EXPECT_TRUE(refused.room().empty());
    EXPECT_EQ(control.read(memory.get() + 1000, 100), noise(100));
}

/// One of whose bytes some went before what failed, and some after.
TEST_F(Packing, APageInSeveralPiecesFailsWithAnyOfThem) {
    const auto ring = makeRing(3, nullptr);
    const DeviceMemory memory = must(gpu(0).allocate(4 * kChunk));
    StagedInbox inbox(*ring, true);
    StagedSink first(inbox, {memory.get(), 100});
    receive(first, noise(100));
    StagedSink both(inbox, {memory.get() + 1000, 200});
    receive(both, noise(100));
    inbox.yieldChunks();
    control.fail("cuMemcpyAsync", api::Result::OutOfMemory);
    receive(both, noise(100));
    inbox.pause();
    finish(*ring);
    EXPECT_TRUE(first.isDone());
    EXPECT_EQ(both.state().code(), Code::ResourceExhausted);
    EXPECT_FALSE(both.isDone());
}

/// What the kernel may have begun is under way, and what the copies after it began gets there.
TEST_F(Packing, WhereKernelAndThenACopyAreRefusedThePagesBeforeItGetThere) {
    const auto ring = makeRing(2, packing());
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    StagedInbox inbox(*ring, true);
    std::list<StagedSink> sinks;
    control.fail("cuLaunchKernel", api::Result::OutOfMemory);
    control.fail("cuMemcpyAsync", api::Result::OutOfMemory, 1, 1);
    control.hold(true);
    for (std::uint64_t page = 0; page < 3; ++page) {
        sinks.emplace_back(inbox, ByteRange{memory.get() + page * 1000, 100});
        receive(sinks.back(), noise(100));
    }
    inbox.pause();
    EXPECT_TRUE(ring->touches({memory.get() + 2000, 1})) << "a launch may have been taken before one was refused";
    control.hold(false);
    finish(*ring);
    std::vector<bool> done;
    for (StagedSink& sink : sinks) done.push_back(sink.isDone());
    EXPECT_EQ(done, (std::vector<bool>{true, false, false}));
}

TEST_F(Packing, CopiesWithinAGpuThatBeginTogetherAreOneLaunch) {
    gpu(0);
    const auto copier = must(DeviceCopier::create(gpus[0], packing()));
    const DeviceMemory memory = must(gpu(0).allocate(16 * kChunk));
    const HostMemory pinned = must(gpu(0).allocateHost(kChunk));
    control.write(memory.get(), noise(16 * kChunk));
    std::vector<PageMove> moves;
    for (std::uint64_t page = 0; page < 50; ++page)
        moves.push_back(
            {memory.get() + 8 * kChunk + (49 - page) * 1000 + page % 3, memory.get() + page * 900, 200 + page});
    moves.push_back({pinned.get() + 5, memory.get() + 77, 300});
    EXPECT_TRUE(copier->packs(PageWay::Within, 2, 2));
    EXPECT_FALSE(copier->packs(PageWay::Within, 1, 1));
    control.hold(true);
    const std::uint64_t copy = must(copier->begin(moves, PageWay::Within));
    EXPECT_TRUE(copier->isUnderWay(copy));
    for (const PageMove& move : moves) {
        EXPECT_TRUE(copier->touched({move.to, move.bytes}));
        EXPECT_TRUE(copier->touched({move.from, move.bytes}));
    }
    EXPECT_FALSE(copier->touched({memory.get() + 400, 500})) << "what lies between them";
    control.hold(false);
    ASSERT_TRUE(copier->arm());
    pollfd waiting{copier->waitFd(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 20000), 1);
    copier->poll();
    EXPECT_FALSE(copier->isUnderWay(copy));
    EXPECT_EQ(launches(), 1u);
    EXPECT_EQ(copies(), 0u);
    moves.pop_back();
    for (const PageMove& move : moves)
        ASSERT_EQ(control.read(move.to, move.bytes), control.read(move.from, move.bytes));
    const Bytes wanted = control.read(memory.get() + 77, 300);
    EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(pinned.get() + 5), wanted.data(), 300), 0);
}

TEST_F(Packing, OfCopiesThatBeginTogetherTheOnesBeforeTheRefusedOneAreWhole) {
    gpu(0);
    const auto copier = must(DeviceCopier::create(gpus[0], packing()));
    const DeviceMemory memory = must(gpu(0).allocate(16 * kChunk));
    control.write(memory.get(), noise(16 * kChunk));
    std::vector<PageMove> moves;
    for (std::uint64_t page = 0; page < 10; ++page)
        moves.push_back({memory.get() + 8 * kChunk + page * 1000, memory.get() + page * 1000, 100});
    control.fail("cuLaunchKernel", api::Result::OutOfMemory);
    control.fail("cuMemcpyAsync", api::Result::OutOfMemory, 1, 4);
    DeviceCopier::Begun begun;
    const Status refused = copier->begin(moves, PageWay::Within, begun);
    EXPECT_EQ(refused.code(), Code::ResourceExhausted);
    EXPECT_EQ(begun.whole, 4u);
    ASSERT_NE(begun.copy, 0u);
    while (copier->isUnderWay(begun.copy)) copier->poll();
    for (std::size_t page = 0; page < 4; ++page)
        EXPECT_EQ(control.read(moves[page].to, 100), control.read(moves[page].from, 100));
}

TEST_F(Packing, ATrialMeasuresEachWayAndLeavesNothing) {
    const auto kernel = mover();
    const std::string before = control.leftovers();
    {
        // However loaded this machine is.
        auto trial = PackTrial::create(gpus[0], kernel, {std::chrono::microseconds(2000), std::chrono::seconds(60)});
        ASSERT_TRUE(trial) << trial.status().toString();
        const auto outcome = (*trial)->run();
        EXPECT_TRUE(outcome) << outcome.status().toString();
        EXPECT_GE(launches(), kPageWays);
        EXPECT_GE(copies(), kPageWays);
    }
    EXPECT_EQ(control.leftovers(), before);
    control.fail("cuStreamCreate", api::Result::OutOfMemory);
    EXPECT_EQ(PackTrial::create(gpus[0], kernel, {}).status().code(), Code::ResourceExhausted);
    EXPECT_EQ(control.leftovers(), before);
}

TEST_F(Packing, ATrialOfAGpuThatIsBusyIsGivenUp) {
    const auto kernel = mover();
    auto trial = must(PackTrial::create(gpus[0], kernel, {}));
    control.hold(true);
    EXPECT_EQ(trial->run().status().code(), Code::Timeout);
    control.hold(false);
}

TEST_F(Packing, ATrialSaysWhetherItCameToItsEnd) {
    const auto kernel = mover();
    for (const bool complete : {false, true}) {
        const std::chrono::seconds budget(complete ? 60 : 0);
        const auto trial = must(PackTrial::create(gpus[0], kernel, {budget, std::chrono::seconds(60)}));
        const auto outcome = must(trial->run());
        EXPECT_EQ(outcome.is_complete, complete);
        if (!complete) {
            EXPECT_FALSE(outcome.borders[0].takes(2, 2)) << "what was not measured is the copies'";
        }
    }
}

TEST_F(Packing, KernelsReachWhatARingHasPinnedAtTheHostsAddresses) {
    EXPECT_TRUE(makeRing(2, nullptr)->isForKernels());
    const auto kernel = mover();
    control.ownAddresses(true);
    EXPECT_EQ(makeRing(2, nullptr)->isForKernels().code(), Code::Unsupported);
    EXPECT_EQ(PackTrial::create(gpus[0], kernel, {}).status().code(), Code::Unsupported);
}

class PackingPool : public Packing {
  protected:
    Region region() {
        gpu(0);
        PlacedMemory place;
        place.memory.device = 0;
        place.device = gpus[0];
        Region made;
        made.id = 1;
        made.place = std::make_shared<const PlacedMemory>(std::move(place));
        return made;
    }
    /// Two pages from the GPU through the rings of a pool.
    void exchange(StagingPool& pool) {
        const auto staging = pool.find(0, 0);
        ASSERT_NE(staging, nullptr);
        const DeviceMemory memory = must(gpu(0).allocate(kChunk));
        control.write(memory.get(), noise(kChunk));
        StagedPages pages(staging->out(), {{memory.get(), 100}, {memory.get() + 1001, 100}});
        must(pages.advance());
        finish(staging->out());
        const auto ready = pages.ready(1);
        ASSERT_EQ(ready.size(), 100u);
        EXPECT_EQ(std::memcmp(ready.data(), noise(kChunk).data() + 1001, 100), 0);
    }
};

TEST_F(PackingPool, TheKernelIsUsedAsThePoolIsToldTo) {
    const Region region = this->region();
    const std::string before = control.leftovers();
    for (const PackMode mode : {PackMode::Off, PackMode::On}) {
        {
            StagingPool pool(1, {kChunk, 2, -1}, mode, log());
            must(pool.acquire("tcp", region));
            exchange(pool);
            pool.release("tcp", region);
        }
        EXPECT_EQ(control.leftovers(), before);
        EXPECT_EQ(launches(), mode == PackMode::On ? 1u : 0u);
        EXPECT_EQ(saidTimes("cuda:0: "), mode == PackMode::On ? 1u : 0u) << said.str();
    }
    EXPECT_EQ(saidTimes("from the GPU: 2 or more; to it: 2 or more"), 1u);
}

TEST_F(PackingPool, WithoutAKernelItIsCopiesAndThatIsSaid) {
    const Region region = this->region();
    control.fail("cuModuleLoadData", api::Result::UnsupportedPtxVersion);
    StagingPool pool(1, {kChunk, 2, -1}, PackMode::Auto, log());
    must(pool.acquire("tcp", region));
    exchange(pool);
    EXPECT_EQ(launches(), 0u);
    EXPECT_EQ(saidTimes("small pages are moved by a copy each"), 1u) << said.str();
    pool.release("tcp", region);
}

/// A kernel's access to the host's address would cost the context.
TEST_F(PackingPool, WhereTheRingsHaveOtherAddressesOnTheGpuItIsCopies) {
    const Region region = this->region();
    control.ownAddresses(true);
    for (const PackMode mode : {PackMode::Auto, PackMode::On}) {
        StagingPool pool(2, {kChunk, 2, -1}, mode, log());
        must(pool.acquire("tcp", region));
        exchange(pool);
        pool.release("tcp", region);
    }
    EXPECT_EQ(launches(), 0u);
    EXPECT_EQ(saidTimes("small pages are moved by a copy each"), 2u) << said.str();
    EXPECT_EQ(saidTimes("by a copy each: Unsupported: cuda:0 has addresses of its own"), 2u) << said.str();
    // Nor can a stream wait for a word there.
    EXPECT_EQ(saidTimes("before that does not wait: Unsupported: cuda:0 has addresses of its own"), 2u) << said.str();
}

/// As a pool of a real GPU, on a machine that is loaded: nothing takes too long.
constexpr PackTrial::Options kPatient{std::chrono::seconds(60), std::chrono::seconds(60)};

TEST_F(PackingPool, AGpuIsMeasuredOnceAndItsKernelLoadedOnce) {
    const Region region = this->region();
    const std::string before = control.leftovers();
    const unsigned loaded = control.count("cuModuleLoadData");
    {
        StagingPool pool(2, {kChunk, 2, -1}, PackMode::Auto, log(), kPatient);
        must(pool.acquire("tcp", region));
        must(pool.acquire("host", region));
        const unsigned measured = launches();
        EXPECT_GT(measured, 0u);
        pool.release("tcp", region);
        pool.release("host", region);
        must(pool.acquire("tcp", region));
        EXPECT_EQ(launches(), measured) << "what is known stays when rings go";
        exchange(pool);
        pool.release("tcp", region);
        EXPECT_EQ(control.count("cuModuleLoadData"), loaded + 1);
        EXPECT_EQ(saidTimes("its kernel moves pages"), 2u) << said.str();
        EXPECT_EQ(saidTimes("measured to the end"), 0u) << said.str();
    }
    EXPECT_EQ(control.leftovers(), before);
}

/// It serves the rings that it was made for.
TEST_F(PackingPool, AMeasurementThatWasCutShortIsMadeAgain) {
    const Region region = this->region();
    StagingPool pool(1, {kChunk, 2, -1}, PackMode::Auto, log(), {std::chrono::seconds(0), std::chrono::seconds(60)});
    unsigned before = launches();
    for (std::size_t times = 1; times <= 2; ++times) {
        must(pool.acquire("tcp", region));
        EXPECT_GT(launches(), before);
        before = launches();
        EXPECT_EQ(saidTimes("not measured to the end"), times) << said.str();
        exchange(pool);
        EXPECT_EQ(launches(), before) << "what was not measured is the copies'";
        pool.release("tcp", region);
    }
}

TEST_F(PackingPool, AMeasurementThatFailsIsNotSaidToBeABusyGpu) {
    const Region region = this->region();
    control.fail("cuLaunchKernel", api::Result::LaunchOutOfResources);
    StagingPool pool(1, {kChunk, 2, -1}, PackMode::Auto, log(), kPatient);
    must(pool.acquire("tcp", region));
    EXPECT_EQ(saidTimes("it failed"), 1u) << said.str();
    EXPECT_EQ(saidTimes("cuLaunchKernel"), 1u) << said.str();
    EXPECT_EQ(saidTimes("is busy"), 0u) << said.str();
    exchange(pool);
    pool.release("tcp", region);
}

/// Nothing is known of it, nothing hangs, and it is tried again.
TEST_F(PackingPool, AGpuThatIsBusyIsUsedWithCopies) {
    const Region region = this->region();
    const std::string before = control.leftovers();
    {
        StagingPool pool(1, {kChunk, 2, -1}, PackMode::Auto, log());
        control.hold(true);
        must(pool.acquire("tcp", region));
        EXPECT_EQ(saidTimes("is busy"), 1u) << said.str();
        EXPECT_EQ(saidTimes("from the GPU: never"), 1u) << said.str();
        const unsigned tried = launches();
        control.hold(false);
        exchange(pool);
        EXPECT_EQ(launches(), tried);
        pool.release("tcp", region);
        must(pool.acquire("tcp", region));
        EXPECT_GT(launches(), tried);
        pool.release("tcp", region);
    }
    EXPECT_EQ(control.leftovers(), before);
}

/// To give back memory or a kernel of a GPU makes the driver wait for all that the application gave it.
TEST_F(PackingPool, WhoLetsGoOfTheLastRegionWaitsForNoWorkOfTheApplication) {
    const Region region = this->region();
    const DeviceStream application = must(gpu(0).makeStream());
    StagingPool pool(1, {kChunk, 2, -1}, PackMode::Auto, log(), kPatient);
    must(pool.acquire("tcp", region));
    exchange(pool);
    const DeviceEvent ended = must(gpu(0).makeEvent());
    control.hold(true);
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    must(gpu(0).copy(application, memory.get(), memory.get() + 100, 100));
    must(gpu(0).record(ended, application));
    pool.release("tcp", region);
    EXPECT_FALSE(must(gpu(0).isDone(ended)));
    control.hold(false);
    must(gpu(0).synchronize(application));
}

}  // namespace
}  // namespace troupe::cuda
