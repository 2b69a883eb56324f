// The ring of pinned chunks, and what goes through it.

#include "transports/staging.h"

#include <poll.h>

#include <cstring>
#include <future>
#include <list>
#include <random>
#include <set>
#include <thread>

#include "tests/cuda_backend/cuda_fixture.h"
#include "transports/staged_copy.h"
#include "transports/staging_user.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

constexpr std::uint64_t kChunk = 8192;

class Staging : public CudaTest {
  protected:
    std::unique_ptr<StagingRing> makeRing(unsigned chunks, int ordinal = 0) {
        gpu(ordinal);
        return must(StagingRing::create(gpus[static_cast<std::size_t>(ordinal)], {kChunk, chunks, -1}));
    }
    /// As a registered one, with nothing but its place.
    Region regionOn(int ordinal, std::uint64_t id = 1) {
        gpu(ordinal);
        PlacedMemory place;
        place.memory.device = ordinal;
        place.device = gpus[static_cast<std::size_t>(ordinal)];
        Region region;
        region.id = id;
        region.place = std::make_shared<const PlacedMemory>(std::move(place));
        return region;
    }
    /// Waits as a loop that sleeps would. False: nothing came for a long time.
    bool sleep(StagingRing& ring) {
        if (!ring.hasWork()) return true;
        EXPECT_TRUE(ring.arm());
        pollfd waiting{ring.waitFd(), POLLIN, 0};
        const bool rang = ::poll(&waiting, 1, 20000) == 1;
        EXPECT_TRUE(rang);
        ring.poll();
        return rang;
    }
    /// Everything a source has to send.
    std::vector<std::uint8_t> drain(StagingRing& ring, StagedSource& source, std::size_t at_most = SIZE_MAX) {
        std::vector<std::uint8_t> out;
        while (source.advance() && !source.isDone()) {
            const auto ready = source.ready();
            const std::size_t now = std::min(ready.size(), at_most);
            const auto* bytes = reinterpret_cast<const std::uint8_t*>(ready.data());
            out.insert(out.end(), bytes, bytes + now);
            source.consume(now);
            if (now == 0 && !sleep(ring)) break;
        }
        return out;
    }
    /// Receives in pieces of at most so much.
    bool fill(StagingRing& ring, StagedSink& sink, const std::vector<std::uint8_t>& bytes, std::size_t at_most) {
        std::size_t done = 0;
        while (!sink.isDone()) {
            const auto room = sink.room();
            const std::size_t now = std::min({room.size(), at_most, bytes.size() - done});
            if (now == 0) {
                if (!sleep(ring)) return false;
                continue;
            }
            std::memcpy(room.data(), bytes.data() + done, now);
            if (!sink.commit(now)) return false;
            done += now;
        }
        return done == bytes.size();
    }
};

TEST_F(Staging, BytesComeOutInOrderWhateverTheirNumberAndPieces) {
    const auto ring = makeRing(3);
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, std::uint64_t{100}, kChunk - 1, kChunk, kChunk + 1, 10 * kChunk, std::uint64_t{100001}}) {
        const DeviceMemory memory = must(gpu(0).allocate(bytes + 7));
        control.write(memory.get() + 7, noise(bytes));
        for (const std::size_t pieces : {std::size_t{1000}, std::size_t{SIZE_MAX}}) {
            StagedSource source(*ring, {memory.get() + 7, bytes}, 2);
            EXPECT_EQ(drain(*ring, source, pieces), noise(bytes));
            EXPECT_TRUE(source.isDone());
        }
        EXPECT_EQ(ring->freeChunks(), 3u);
    }
    EXPECT_EQ(control.count("pageable copies"), 0u);
}

TEST_F(Staging, WhatIsReceivedIsInTheGpusMemoryWhenItIsDone) {
    const auto ring = makeRing(3);
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, std::uint64_t{100}, kChunk - 1, kChunk, kChunk + 1, 10 * kChunk, std::uint64_t{100001}}) {
        const DeviceMemory memory = must(gpu(0).allocate(bytes + 7));
        for (const std::size_t pieces : {std::size_t{1000}, std::size_t{SIZE_MAX}}) {
            const auto sent = noise(bytes, static_cast<unsigned>(pieces));
            StagedSink sink(*ring, {memory.get() + 7, bytes});
            EXPECT_TRUE(fill(*ring, sink, sent, pieces));
            EXPECT_EQ(control.read(memory.get() + 7, bytes), sent);
        }
        ring->poll();
        EXPECT_EQ(ring->freeChunks(), 3u);
    }
}

TEST_F(Staging, TheNextChunkIsCopiedWhileOneIsOnTheWire) {
    const auto ring = makeRing(4);
    const DeviceMemory memory = must(gpu(0).allocate(10 * kChunk));
    control.hold(true);
    StagedSource source(*ring, {memory.get(), 10 * kChunk}, 3);
    must(source.advance());
    EXPECT_EQ(ring->freeChunks(), 1u);
    EXPECT_TRUE(source.ready().empty());
    control.hold(false);
    while (source.ready().empty()) ASSERT_TRUE(sleep(*ring));
    // Nothing of it consumed yet: the others are copied all the same, and no more than that are begun.
    while (ring->hasWork()) ASSERT_TRUE(sleep(*ring));
    EXPECT_EQ(control.count("cuMemcpyAsync"), 3u);
    EXPECT_EQ(source.ready().size(), kChunk);
    source.consume(kChunk);
    EXPECT_EQ(source.ready().size(), kChunk);
    must(source.advance());
    EXPECT_EQ(control.count("cuMemcpyAsync"), 4u);
}

/// A wire that takes nothing holds its chunks; what comes the other way has a ring of its own, and is never held.
TEST_F(Staging, ASlowWireHoldsABoundedNumberOfChunksAndNobodyInTheOtherDirection) {
    const auto out = makeRing(4);
    const auto in = makeRing(4);
    const DeviceMemory memory = must(gpu(0).allocate(100 * kChunk));
    std::list<StagedSource> slow;
    for (int index = 0; index < 10; ++index) {
        slow.emplace_back(*out, ByteRange{memory.get() + index * kChunk * 10, 10 * kChunk}, 2);
        must(slow.back().advance());
    }
    EXPECT_EQ(out->freeChunks(), 0u);
    EXPECT_TRUE(slow.back().isStarved());
    while (out->hasWork()) ASSERT_TRUE(sleep(*out));
    const DeviceMemory target = must(gpu(0).allocate(20 * kChunk));
    StagedSink sink(*in, {target.get(), 20 * kChunk});
    EXPECT_TRUE(fill(*in, sink, noise(20 * kChunk), 5000));
    // As soon as the wire moves, everybody gets on.
    for (StagedSource& each : slow) EXPECT_EQ(drain(*out, each).size(), 10 * kChunk);
    EXPECT_EQ(out->freeChunks(), 4u);
}

TEST_F(Staging, ASenderThatStopsGivesItsChunkUpAndGoesOnLater) {
    const auto ring = makeRing(2);
    const DeviceMemory memory = must(gpu(0).allocate(4 * kChunk));
    StagedSink stalled(*ring, {memory.get(), kChunk});
    StagedSink other(*ring, {memory.get() + kChunk, kChunk});
    StagedSink third(*ring, {memory.get() + 2 * kChunk, 2 * kChunk});
    const auto bytes = noise(kChunk);
    std::memcpy(stalled.room().data(), bytes.data(), 100);
    must(stalled.commit(100));
    EXPECT_FALSE(other.room().empty());
    EXPECT_TRUE(third.room().empty());
    // One with something in it, one with nothing.
    must(stalled.yield());
    must(other.yield());
    while (ring->hasWork()) ASSERT_TRUE(sleep(*ring));
    EXPECT_TRUE(fill(*ring, third, noise(2 * kChunk, 2), SIZE_MAX));
    EXPECT_FALSE(stalled.isDone());
    EXPECT_TRUE(fill(*ring, stalled, {bytes.begin() + 100, bytes.end()}, SIZE_MAX));
    EXPECT_EQ(control.read(memory.get(), kChunk), bytes);
    EXPECT_TRUE(fill(*ring, other, bytes, 77));
}

TEST_F(Staging, WhatEndsEarlyTouchesItsMemoryUntilTheGpuIsThrough) {
    const auto ring = makeRing(2);
    const DeviceMemory memory = must(gpu(0).allocate(2 * kChunk));
    control.hold(true);
    {
        StagedSource source(*ring, {memory.get(), 2 * kChunk});
        must(source.advance());
    }
    EXPECT_TRUE(ring->touches({memory.get() + 10, 1}));
    EXPECT_FALSE(ring->touches({memory.get() + 2 * kChunk, 1}));
    EXPECT_EQ(ring->freeChunks(), 0u);
    control.hold(false);
    while (ring->hasWork()) ASSERT_TRUE(sleep(*ring));
    EXPECT_FALSE(ring->touches({memory.get(), 2 * kChunk}));
    EXPECT_EQ(ring->freeChunks(), 2u);
}

TEST_F(Staging, AnEventOfTheApplicationIsDoneWhenAllThatBeganBeforeIs) {
    const auto ring = makeRing(4);
    const DeviceMemory memory = must(gpu(0).allocate(4 * kChunk));
    const DeviceEvent event = must(gpu(0).makeEvent());
    StagedSink sink(*ring, {memory.get(), 2 * kChunk});
    control.hold(true);
    for (int chunk = 0; chunk < 2; ++chunk) {
        const auto room = sink.room();
        ASSERT_EQ(room.size(), kChunk);
        std::memset(room.data(), 42, room.size());
        must(sink.commit(room.size()));
    }
    must(ring->signal(event));
    EXPECT_FALSE(must(gpu(0).isDone(event)));
    control.hold(false);
    while (!must(gpu(0).isDone(event))) std::this_thread::yield();
    EXPECT_EQ(control.read(memory.get(), 2 * kChunk), std::vector<std::uint8_t>(2 * kChunk, 42));
}

TEST_F(Staging, ALossOfTheGpuEndsEveryCopyAndIsSaid) {
    const auto ring = makeRing(4);
    const DeviceMemory memory = must(gpu(0).allocate(100 * kChunk));
    control.lose(0, api::Result::IllegalAddress, 1);
    StagedSource source(*ring, {memory.get(), 100 * kChunk}, 2);
    StagedSink sink(*ring, {memory.get(), 2 * kChunk});
    // Not before all have begun.
    control.hold(true);
    must(source.advance());
    const auto room = sink.room();
    must(sink.commit(room.size()));
    control.hold(false);
    while (ring->hasWork()) ring->poll();
    EXPECT_EQ(source.advance().code(), Code::DeviceLost);
    EXPECT_TRUE(source.ready().empty());
    EXPECT_FALSE(sink.isDone());
    EXPECT_EQ(ring->state().code(), Code::DeviceLost);
    EXPECT_FALSE(ring->touches({memory.get(), 100 * kChunk}));
}

/// A copy whose event could not be recorded may run on: its chunk is not given to anybody, and what it touches is
/// known.
TEST_F(Staging, ACopyWhoseEndCannotBeSeenKeepsItsChunkUntilItCan) {
    const auto ring = makeRing(2);
    const DeviceMemory memory = must(gpu(0).allocate(kChunk));
    control.fail("cuEventRecord", api::Result::OutOfMemory, 2);
    {
        StagedSource source(*ring, {memory.get(), kChunk});
        EXPECT_EQ(source.advance().code(), Code::ResourceExhausted);
    }
    ring->poll();
    EXPECT_EQ(ring->freeChunks(), 1u);
    EXPECT_TRUE(ring->touches({memory.get(), 1}));
    EXPECT_FALSE(ring->arm());
    // An event behind it tells as well.
    ring->poll();
    while (ring->hasWork()) ASSERT_TRUE(sleep(*ring));
    EXPECT_FALSE(ring->touches({memory.get(), 1}));
    EXPECT_EQ(ring->freeChunks(), 2u);
    // One that could not begin leaves nothing.
    control.fail("cuMemcpyAsync", api::Result::InvalidValue);
    StagedSource source(*ring, {memory.get(), kChunk});
    EXPECT_EQ(source.advance().code(), Code::InvalidArgument);
    EXPECT_EQ(ring->freeChunks(), 2u);
}

TEST_F(Staging, ARingThatCannotBeLeavesNothing) {
    gpu(0);
    for (const StagingOptions& wrong :
         {StagingOptions{0, 4, -1}, {kChunk, 1, -1}, {kChunk, 1025, -1}, {65u << 20, 2, -1}})
        EXPECT_EQ(StagingRing::create(gpus[0], wrong).status().code(), Code::InvalidArgument);
    for (const char* call : {"cuMemHostRegister", "cuStreamCreate", "cuEventCreate"}) {
        control.fail(call, api::Result::OutOfMemory, 1, call == std::string("cuMemHostRegister") ? 0 : 1);
        const auto ring = StagingRing::create(gpus[0], {kChunk, 4, -1});
        EXPECT_EQ(ring.status().code(), Code::ResourceExhausted);
        EXPECT_NE(ring.status().message().find(call), std::string::npos);
        EXPECT_EQ(control.leftovers(), "1 contexts") << call;
    }
}

/// Of two Nics of a loop each polls; the one that found no chunk must not fall asleep because the other has polled
/// since.
TEST_F(Staging, WhoStarvesIsKnownUntilBothNicsOfALoopHavePolled) {
    const auto ring = makeRing(2);
    const unsigned first = *ring->take();
    const unsigned second = *ring->take();
    EXPECT_FALSE(ring->isStarved());
    EXPECT_FALSE(ring->take());
    ring->poll();
    EXPECT_TRUE(ring->isStarved());
    ring->poll();
    EXPECT_FALSE(ring->isStarved());
    ring->give(first);
    ring->give(second);
}

/// What was refused is asked to be released, too, and what could not be released is asked again.
TEST_F(Staging, RingsEndWithTheLastRegionOfTheLastTransportHoweverOftenTheyAreReleased) {
    const Region regions[] = {regionOn(0, 1), regionOn(0, 2)};
    const std::string before = control.leftovers();
    StagingPool pool(1, {kChunk, 2, -1});
    must(pool.acquire("host", regions[0]));
    must(pool.acquire("tcp", regions[0]));
    must(pool.acquire("host", regions[1]));
    pool.release("tcp", regions[1]);
    pool.release("host", regions[1]);
    pool.release("host", regions[1]);
    pool.release("host", regions[0]);
    pool.release("host", regions[0]);
    EXPECT_NE(pool.find(0, 0), nullptr);
    EXPECT_EQ(pool.find(1, 0), nullptr) << "there is one loop";
    pool.release("tcp", regions[0]);
    EXPECT_EQ(pool.find(0, 0), nullptr);
    EXPECT_EQ(control.leftovers(), before);
}

/// Pinning, streams and events take a driver milliseconds. Loops ask for rings of other GPUs meanwhile.
TEST_F(Staging, NoLoopWaitsForTheRingsOfAnotherGpu) {
    const Region known = regionOn(0);
    const Region fresh = regionOn(1);
    StagingPool pool(1, {kChunk, 2, -1});
    must(pool.acquire("tcp", known));
    const unsigned before = control.count("cuMemHostRegister");
    control.holdCall("cuMemHostRegister", true);
    auto registered = std::async(std::launch::async, [&] { return pool.acquire("tcp", fresh); });
    const TimePoint limit = Clock::now() + std::chrono::seconds(30);
    // No event tells that the driver was entered.
    while (control.count("cuMemHostRegister") == before && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto found = std::async(std::launch::async, [&] { return pool.find(0, 0) != nullptr && !pool.find(0, 1); });
    EXPECT_EQ(found.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    control.holdCall("cuMemHostRegister", false);
    EXPECT_TRUE(found.get());
    must(registered.get());
    EXPECT_NE(pool.find(0, 1), nullptr);
    pool.release("tcp", known);
    pool.release("tcp", fresh);
}

/// What a StagingUser has in its Nic's epoll set.
struct Bells {
    std::set<int> watched;
    int refused_after = -1;  ///< So many are taken, and then one is refused; -1: none is.

    StagingUser::Bells calls() {
        return {[this](int bell) -> Status {
                    if (refused_after == 0) {
                        refused_after = -1;
                        return {Code::ResourceExhausted, "no more"};
                    }
                    if (refused_after > 0) --refused_after;
                    return watched.insert(bell).second ? Status() : Status(Code::Internal, "it is there already");
                },
                [this](int bell) { EXPECT_EQ(watched.erase(bell), 1u); }};
    }
};

/// Whoever lets go of the last region of a GPU gives its rings back himself, so that no loop has to: then no Nic may
/// keep them because another GPU is busy.
TEST_F(Staging, ANicLetsGoOfAGpuThatItDoesNotUseWhileAnotherIsBusy) {
    const Region idle = regionOn(0);
    const Region busy = regionOn(1);
    const auto pool = std::make_shared<StagingPool>(1, StagingOptions{kChunk, 2, -1});
    must(pool->acquire("tcp", idle));
    must(pool->acquire("tcp", busy));
    const std::weak_ptr<device::Staging> rings = pool->find(0, 0);
    const DeviceMemory memory = must(gpu(1).allocate(64));
    {
        Bells bells;
        StagingUser user(pool, 0, bells.calls());
        must(user.at(0));
        device::Staging* const other = must(user.at(1));
        control.hold(true);
        must(other->copier().begin(memory.get(), memory.get() + 32, 32));
        const TimePoint now{std::chrono::seconds(5)};
        for (int pass = 0; pass < 3; ++pass) user.poll(now + pass * std::chrono::milliseconds(20));
        EXPECT_TRUE(user.touches({memory.get(), 1}));
        EXPECT_EQ(bells.watched.size(), 3u);
        pool->release("tcp", idle);
        EXPECT_TRUE(rings.expired()) << "the loop would give them back";
        control.hold(false);
        while (other->hasWork()) other->poll();
    }
    pool->release("tcp", busy);
}

TEST_F(Staging, ABellThatCannotBeWatchedLeavesNoneOfTheOthersWatched) {
    const Region region = regionOn(0);
    const auto pool = std::make_shared<StagingPool>(1, StagingOptions{kChunk, 2, -1});
    must(pool->acquire("tcp", region));
    {
        Bells bells;
        StagingUser user(pool, 0, bells.calls());
        for (int index = 0; index < 3; ++index) {
            bells.refused_after = index;
            EXPECT_EQ(user.at(0).status().code(), Code::ResourceExhausted);
            EXPECT_TRUE(bells.watched.empty());
        }
        must(user.at(0));
        EXPECT_EQ(bells.watched.size(), 3u);
    }
    pool->release("tcp", region);
}

/// Pages that lie apart: one chunk, one event, and each by itself on the wire.
TEST_F(Staging, SmallPagesShareAChunkAndAreCopiedAgainWhenTheyHadToLetGoOfIt) {
    const auto ring = makeRing(2);
    const DeviceMemory memory = must(gpu(0).allocate(8 * kChunk));
    control.write(memory.get(), noise(8 * kChunk));
    const std::vector<std::uint8_t> all = noise(8 * kChunk);
    std::vector<ByteRange> pages;
    for (const std::uint64_t at : {std::uint64_t{5 * kChunk + 3}, std::uint64_t{1}, 7 * kChunk})
        pages.push_back({memory.get() + at, 1000 + at % 7});
    const auto wanted = [&](std::size_t page) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(pages[page].addr - memory.get());
        return std::vector<std::uint8_t>(begin, begin + static_cast<std::ptrdiff_t>(pages[page].length));
    };
    const auto got = [](std::span<const std::byte> bytes) {
        const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
        return std::vector<std::uint8_t>(begin, begin + bytes.size());
    };
    {
        StagedPages staged(*ring, pages);
        EXPECT_TRUE(staged.isStarved());
        control.hold(true);
        must(staged.advance());
        EXPECT_EQ(ring->freeChunks(), 1u);
        for (const ByteRange& page : pages) EXPECT_TRUE(ring->touches({page.addr, 1}));
        EXPECT_FALSE(ring->touches({memory.get() + 2 * kChunk, kChunk})) << "what lies between them";
        EXPECT_TRUE(staged.ready(0).empty());
        EXPECT_FALSE(staged.yieldChunks()) << "a copy is under way";
        control.hold(false);
        ASSERT_TRUE(sleep(*ring));
        for (std::size_t page = 0; page < pages.size(); ++page) EXPECT_EQ(got(staged.ready(page)), wanted(page));
        staged.consume(0, pages[0].length);
        staged.consume(1, 10);
        // Others need the chunk: what was not sent comes once more.
        EXPECT_TRUE(staged.yieldChunks());
        EXPECT_EQ(ring->freeChunks(), 2u);
        EXPECT_TRUE(staged.ready(2).empty());
        must(staged.advance());
        ASSERT_TRUE(sleep(*ring));
        const auto rest = wanted(1);
        EXPECT_EQ(got(staged.ready(1)), std::vector<std::uint8_t>(rest.begin() + 10, rest.end()));
        EXPECT_EQ(got(staged.ready(2)), wanted(2));
        staged.consume(2, pages[2].length);
        EXPECT_EQ(ring->freeChunks(), 1u);
        staged.consume(1, pages[1].length - 10);
        EXPECT_EQ(ring->freeChunks(), 2u);
        EXPECT_FALSE(staged.isStarved());
    }
    // One that ends early leaves its chunk as soon as the copy has ended; one copy of several that cannot begin is an
    // error, and what had begun before it is known.
    control.fail("cuMemcpyAsync", api::Result::InvalidValue, 1, 2);
    control.hold(true);
    {
        StagedPages staged(*ring, pages);
        EXPECT_EQ(staged.advance().code(), Code::InvalidArgument);
        EXPECT_TRUE(ring->touches({pages[1].addr, 1}));
        EXPECT_FALSE(ring->touches({pages[2].addr, 1}));
    }
    EXPECT_EQ(ring->freeChunks(), 1u);
    control.hold(false);
    ASSERT_TRUE(sleep(*ring));
    EXPECT_EQ(ring->freeChunks(), 2u);
    // They have to fit.
    pages.assign(3, {memory.get(), kChunk / 2});
    StagedPages much(*ring, pages);
    EXPECT_EQ(much.advance().code(), Code::Internal);
}

/// From one GPU to another, neither of which the wire reaches: staged on both sides, with delays that are different
/// each time.
TEST_F(Staging, RandomTrafficFromGpuToGpuIsRight) {
    std::mt19937 random(5);
    const auto out = makeRing(3, 0);
    const auto in = makeRing(2, 1);
    control.latency(0, 0, 50);
    for (int round = 0; round < 20; ++round) {
        const std::uint64_t bytes = 1 + random() % (6 * kChunk);
        const DeviceMemory from = must(gpu(0).allocate(bytes));
        const DeviceMemory to = must(gpu(1).allocate(bytes));
        control.write(from.get(), noise(bytes, static_cast<unsigned>(round)));
        StagedSource source(*out, {from.get(), bytes}, 1 + random() % 3);
        StagedSink sink(*in, {to.get(), bytes});
        while (!sink.isDone()) {
            must(source.advance());
            const auto ready = source.ready();
            const auto room = sink.room();
            const std::size_t now = std::min({ready.size(), room.size(), std::size_t{1 + random() % 9000}});
            if (now != 0) std::memcpy(room.data(), ready.data(), now);
            source.consume(now);
            if (now != 0) must(sink.commit(now));
            out->poll();
            in->poll();
            std::this_thread::yield();
        }
        EXPECT_EQ(control.read(to.get(), bytes), noise(bytes, static_cast<unsigned>(round)));
    }
}

}  // namespace
}  // namespace troupe::cuda
