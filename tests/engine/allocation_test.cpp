// Memory of the engine's own, and what it says about the ways that bytes took.

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

std::size_t entriesOf(const char* directory) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
    return count;
}

TEST(Allocation, IsZeroedRegisteredAndUsable) {
    const auto engine = startEngine();
    constexpr std::size_t kBytes = 100'000;
    const auto memory = engine->allocateLocalMemory(kBytes, "cpu:0");
    ASSERT_TRUE(memory) << memory.status().toString();
    auto* const data = static_cast<std::byte*>(*memory);
    EXPECT_TRUE(std::all_of(data, data + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    const auto desc = engine->getSegmentDescByID(kLocalSegmentID);
    ASSERT_EQ((*desc)->buffers.size(), 1u);
    EXPECT_EQ((*desc)->buffers[0].length, kBytes);
    EXPECT_EQ((*desc)->buffers[0].location, "cpu:0");
    std::memset(data, 1, 1000);
    expectCompleted(runBatch(*engine, {makeRequest(Opcode::Write, kLocalSegmentID, data,
                                                   reinterpret_cast<std::uint64_t>(data) + 50'000, 1000)}),
                    1000);
    EXPECT_EQ(data[50'999], std::byte{1});
    EXPECT_TRUE(engine->freeLocalMemory(data));
    expectCode(engine->freeLocalMemory(data), Code::AddressNotRegistered);
    EXPECT_TRUE(engine->getSegmentDescByID(kLocalSegmentID).value()->buffers.empty());
}

TEST(Allocation, MayLieInPartsOnSeveralNodes) {
    const auto engine = startEngine();
    const auto memory = engine->allocateLocalMemory(100'000, "segments:4096:0,0,0");
    ASSERT_TRUE(memory) << memory.status().toString();
    EXPECT_EQ((*engine->getSegmentDescByID(kLocalSegmentID))->buffers[0].location, "segments:4096:0,0,0");
    EXPECT_TRUE(engine->freeLocalMemory(*memory));
}

TEST(Allocation, WhatIsFreedIsAtOnceAnybodysToRegister) {
    const auto engine = startEngine();
    constexpr std::size_t kBytes = 1u << 20;
    constexpr int kRounds = 300;
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < kRounds; ++round) {
                const auto memory = engine->allocateLocalMemory(kBytes);
                if (!memory || !engine->freeLocalMemory(*memory)) ++refused;
            }
        });
    // The system gives out the addresses that were just freed.
    for (int round = 0; round < kRounds; ++round) {
        void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(memory, MAP_FAILED);
        if (!engine->registerLocalMemory(memory, kBytes) || !engine->unregisterLocalMemory(memory)) ++refused;
        ::munmap(memory, kBytes);
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(refused, 0);
}

TEST(Allocation, RefusesWhatCannotBe) {
    const auto engine = startEngine();
    expectCode(engine->allocateLocalMemory(0), Code::InvalidArgument);
    expectCode(engine->allocateLocalMemory(SIZE_MAX), Code::InvalidArgument);
    expectCode(engine->freeLocalMemory(nullptr), Code::AddressNotRegistered);
    const auto huge = engine->allocateLocalMemory(1u << 20, "*", true, true);
    if (huge) {
        // This machine has huge pages.
        EXPECT_TRUE(engine->freeLocalMemory(*huge));
        return;
    }
    expectCode(huge, Code::ResourceExhausted);
    EXPECT_THAT(huge.status().message(), testing::HasSubstr("vm.nr_hugepages"));
}

TEST(Allocation, MayBeUnregisteredFirst) {
    const auto engine = startEngine();
    const auto memory = engine->allocateLocalMemory(4096);
    ASSERT_TRUE(memory);
    EXPECT_TRUE(engine->unregisterLocalMemory(*memory));
    static_cast<std::byte*>(*memory)[0] = std::byte{1};
    EXPECT_TRUE(engine->freeLocalMemory(*memory));
}

TEST(Allocation, LeavesNeitherDescriptorNorFileBehind) {
    const auto engine = startEngine();
    const std::size_t descriptors = entriesOf("/proc/self/fd");
    const std::size_t files = entriesOf("/dev/shm");
    for (int i = 0; i < 200; ++i) {
        const auto memory = engine->allocateLocalMemory(1u << 16);
        ASSERT_TRUE(memory);
        EXPECT_TRUE(engine->freeLocalMemory(*memory));
    }
    EXPECT_EQ(entriesOf("/proc/self/fd"), descriptors);
    EXPECT_EQ(entriesOf("/dev/shm"), files);
}

TEST(Allocation, IsNotInAChildMadeByFork) {
    const auto engine = startEngine();
    const auto memory = engine->allocateLocalMemory(4096);
    ASSERT_TRUE(memory);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        // msync(2) of what is not mapped is ENOMEM, without a signal.
        std::_Exit(::msync(*memory, 4096, MS_ASYNC) != 0 && errno == ENOMEM ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Explain, TheLogSaysOnceWhichWayASegmentGoesAndWhyNotABetterOne) {
    std::ostringstream text;
    EngineSetup setup;
    setup.options.log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    setup.options.log->set_level(spdlog::level::info);
    const auto a = startEngine(setup);
    const auto b = startEngine();
    const auto waysIn = [](const std::string& log) {
        std::size_t count = 0;
        for (auto at = log.find("goes by"); at != std::string::npos; at = log.find("goes by", at + 1)) ++count;
        return count;
    };
    for (int i = 0; i < 3; ++i) {
        const auto segment = a->openSegment(b->localSegmentName());
        ASSERT_TRUE(segment);
        ASSERT_TRUE(a->syncSegmentCache());
    }
    EXPECT_TRUE(a->freeEngine());
    EXPECT_THAT(text.str(),
                testing::HasSubstr("[info] segment " + b->localSegmentName() + " goes by tcp by tcp0; not host: "));
    EXPECT_EQ(waysIn(text.str()), 1u) << text.str();
}

TEST(Explain, NamesTheTransportOfASegmentAndTheNicsOfATask) {
    EnginePair pair;
    const auto route = pair.a->explainSegment(pair.segment);
    ASSERT_TRUE(route);
    EXPECT_EQ(route->transport, "tcp");
    EXPECT_EQ(route->nics, std::vector<std::string>{"tcp0"});
    ASSERT_EQ(route->refused.size(), 1u);
    EXPECT_EQ(route->refused[0].transport, "host");
    EXPECT_THAT(route->toString(), testing::StartsWith("tcp by tcp0; not host: "));
    EXPECT_TRUE(route->refused_next.empty());
    ASSERT_TRUE(route->owner);
    EXPECT_EQ(route->owner->state, PeerState::Up);
    EXPECT_FALSE(route->ending);
    EXPECT_FALSE(pair.a->explainSegment(kLocalSegmentID)->owner);
    BatchHolder batch(*pair.a, 2);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, 4096), pair.request(Opcode::Write, 0, 0, 0)}));
    batch.wait();
    EXPECT_EQ(pair.a->explain(batch.id(), 0)->nics, std::vector<std::string>{"tcp0"});
    EXPECT_TRUE(pair.a->explain(batch.id(), 1)->nics.empty()) << "no byte, no Nic";
    expectCode(pair.a->explain(batch.id(), 2), Code::InvalidArgument);
    expectCode(pair.a->explain(12345, 0), Code::StaleHandle);
    ASSERT_TRUE(pair.a->closeSegment(pair.segment));
    expectCode(pair.a->explainSegment(pair.segment), Code::StaleHandle);
}

}  // namespace
}  // namespace troupe::test
