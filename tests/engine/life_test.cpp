// An engine's life: init, transports, freeEngine, and what it leaves behind.

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"
#include "transports/transport.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

std::size_t entriesOf(const char* directory) {
    std::size_t count = 0;
    DIR* open = ::opendir(directory);
    while (::readdir(open) != nullptr) ++count;
    ::closedir(open);
    return count;
}

TEST(Life, EveryCallBeforeInitSaysSo) {
    TransferEngine engine;
    Buffer memory(4096);
    expectCode(engine.registerLocalMemory(memory.data(), 16), Code::NotInitialised);
    expectCode(engine.registerLocalMemoryBatch({{memory.data(), 16}}), Code::NotInitialised);
    expectCode(engine.unregisterLocalMemory(memory.data()), Code::NotInitialised);
    expectCode(engine.installTransport("tcp"), Code::NotInitialised);
    expectCode(engine.uninstallTransport("tcp"), Code::NotInitialised);
    EXPECT_EQ(engine.getTransport("tcp"), nullptr);
    expectCode(engine.openSegment("127.0.0.1:1"), Code::NotInitialised);
    expectCode(engine.closeSegment(2), Code::NotInitialised);
    expectCode(engine.getSegmentDescByID(2), Code::NotInitialised);
    expectCode(engine.syncSegmentCache(), Code::NotInitialised);
    expectCode(engine.updateLocalSegmentDesc(), Code::NotInitialised);
    expectCode(engine.probePeerAliveByID(2), Code::NotInitialised);
    expectCode(engine.allocateBatchID(1), Code::NotInitialised);
    expectCode(engine.submitTransfer(1, {}), Code::NotInitialised);
    expectCode(engine.getTransferStatus(1, 0), Code::NotInitialised);
    expectCode(engine.getBatchTransferStatus(1), Code::NotInitialised);
    expectCode(engine.waitTransfer(1, std::chrono::seconds(1)), Code::NotInitialised);
    expectCode(engine.freeBatchID(1), Code::NotInitialised);
    EXPECT_EQ(engine.actorApi(), nullptr);
    EXPECT_TRUE(engine.freeEngine());
}

/// Waits for what runs in another thread; a test that hangs says so.
void expectEnds(std::thread& thread, std::future<void> ended) {
    ASSERT_EQ(ended.wait_for(kPatience), std::future_status::ready);
    thread.join();
}

TEST(Life, AnEngineEndsInAnotherThreadThanTheOneThatBeganIt) {
    // Here begun, there ended; and the other way round, while the thread that began it lives.
    for (const bool begins_here : {true, false}) {
        auto engine = std::make_unique<TransferEngine>();
        const auto begin = [&] { EXPECT_TRUE(engine->init("p2p", "", "127.0.0.1")); };
        std::promise<void> begun;
        std::promise<void> ended;
        std::promise<void> let_go;
        if (begins_here) begin();
        std::thread other([&] {
            if (begins_here)
                engine.reset();
            else
                begin();
            begun.set_value();
            if (!begins_here) let_go.get_future().wait();
        });
        if (begins_here) {
            expectEnds(other, begun.get_future());
            continue;
        }
        begun.get_future().wait();
        std::thread ender([&] {
            engine.reset();
            ended.set_value();
        });
        expectEnds(ender, ended.get_future());
        let_go.set_value();
        other.join();
    }
}

TEST(Life, FreeEngineEndsWhileManyThreadsGoOnSubmitting) {
    EnginePair pair;
    const auto batch = *pair.a->allocateBatchID(1);
    std::atomic<bool> stop{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 32; ++i)
        callers.emplace_back([&] {
            while (!stop) static_cast<void>(pair.a->submitTransfer(batch, {pair.request(Opcode::Write, 0, 0, 16)}));
        });
    std::promise<void> ended;
    std::thread ender([&] {
        EXPECT_TRUE(pair.a->freeEngine());
        ended.set_value();
    });
    expectEnds(ender, ended.get_future());
    stop = true;
    for (std::thread& caller : callers) caller.join();
}

/// As a user who may have `threads` threads, this one included, and nothing else runs as.
void limitThreads(rlim_t threads) {
    const rlimit limit{threads, threads};
    const uid_t nobody_else = 300'000 + static_cast<uid_t>(::getpid()) % 100'000;
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setuid(nobody_else) != 0) std::_Exit(77);
}

TEST(LifeDeathTest, TooFewThreadsAreAnErrorOfInit) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become a user with a limit of its own";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const rlim_t threads : {1, 2, 3, 4, 5}) {
        EXPECT_EXIT(
            {
                limitThreads(threads);
                TransferEngine engine;
                const Status begun = engine.init("p2p", "", "127.0.0.1");
                std::fprintf(stderr, "%s\n", begun.toString().c_str());
                std::_Exit(begun.code() == Code::ResourceExhausted ? 0 : 1);
            },
            testing::ExitedWithCode(0), "thread")
            << threads;
    }
}

TEST(Life, EveryCallAfterTheEndSaysSo) {
    EnginePair pair;
    const auto batch = *pair.a->allocateBatchID(1);
    ASSERT_TRUE(pair.a->freeEngine());
    EXPECT_TRUE(pair.a->freeEngine());
    expectCode(pair.a->submitTransfer(batch, {pair.request(Opcode::Write, 0, 0, 16)}), Code::NotInitialised);
    expectCode(pair.a->openSegment(pair.b->localSegmentName()), Code::NotInitialised);
    expectCode(pair.a->registerLocalMemory(pair.remote.data(), 16), Code::NotInitialised);
    expectCode(pair.a->getBatchTransferStatus(batch), Code::NotInitialised);
    EXPECT_EQ(pair.a->getTransport("tcp"), nullptr);
    EXPECT_NE(pair.a->actorApi(), nullptr) << "who asked before may still hold it";
    expectCode(pair.a->init("p2p", "", "127.0.0.1"), Code::AlreadyExists);
}

/// Looks at a transport, and tries what would wait, whenever the engine says something.
class LookingSink : public spdlog::sinks::base_sink<std::mutex> {
  public:
    std::atomic<TransferEngine*> engine{nullptr};
    std::atomic<unsigned> looks{0};
    std::atomic<unsigned> refused{0};

  protected:
    void sink_it_(const spdlog::details::log_msg&) override {
        TransferEngine* const asked = engine.load();
        // What it calls may log.
        if (asked == nullptr || std::exchange(inside_, true)) return;
        static_cast<void>(asked->getTransport("tcp"));
        static_cast<void>(asked->getSegmentDescByID(kLocalSegmentID));
        if (asked->registerLocalMemory(memory_.data(), memory_.size()).code() == Code::InvalidArgument) ++refused;
        ++looks;
        inside_ = false;
    }
    void flush_() override {}

  private:
    bool inside_ = false;
    Buffer memory_{4096};
};

TEST(Life, CallsFromALoopsOwnLogNeverWaitForWhoeverInstallsATransport) {
    auto sink = std::make_shared<LookingSink>();
    EngineSetup setup;
    setup.options.log = std::make_shared<spdlog::logger>("looking", sink);
    setup.options.log->set_level(spdlog::level::debug);
    const auto engine = startEngine(setup);
    const auto peer = startEngine();
    sink->engine = engine.get();
    std::atomic<bool> ends{false};
    std::thread installer([&] {
        while (!ends) {
            static_cast<void>(engine->installTransport("null"));
            static_cast<void>(engine->uninstallTransport("null"));
        }
    });
    const TimePoint limit = Clock::now() + kPatience;
    while (sink->refused < 20 && Clock::now() < limit) {
        const auto segment = engine->openSegment(peer->localSegmentName());
        if (segment) static_cast<void>(engine->closeSegment(*segment));
    }
    ends = true;
    installer.join();
    EXPECT_GE(sink->refused, 20u) << sink->looks << " looks";
    sink->engine = nullptr;
    EXPECT_TRUE(engine->freeEngine());
}

/// Tells the reactor of its engine: what is posted there runs on the engine's control loop.
class TellingStore final : public InprocStore {
  public:
    TellingStore(std::shared_ptr<InprocDirectory> directory, Reactor*& reactor)
        : InprocStore(std::move(directory)), reactor_(reactor) {}
    Status start(Reactor& reactor) override {
        reactor_ = &reactor;
        return InprocStore::start(reactor);
    }

  private:
    Reactor*& reactor_;
};

TEST(Life, CallsThatWaitAreRefusedOnALoopOfAnotherEngine) {
    Reactor* loop = nullptr;
    EngineOptions options;
    options.config = EngineSetup().config;
    options.log = makeSilentLogger();
    options.inproc_store = [&loop, directory = std::make_shared<InprocDirectory>()] {
        return std::make_unique<TellingStore>(directory, loop);
    };
    TransferEngine host(std::move(options));
    ASSERT_TRUE(host.init("inproc://", "host", "127.0.0.1"));
    ASSERT_NE(loop, nullptr);

    const auto other = startEngine();
    EngineOptions silent;
    silent.log = makeSilentLogger();
    TransferEngine fresh(std::move(silent));
    Buffer memory(4096);
    std::vector<Status> answers;
    std::promise<void> done;
    loop->post([&] {
        answers.push_back(fresh.init("p2p", ""));
        answers.push_back(other->openSegment("127.0.0.1:1").status());
        answers.push_back(other->registerLocalMemory(memory.data(), memory.size()));
        answers.push_back(other->unregisterLocalMemoryBatch({memory.data()}));
        answers.push_back(other->installTransport("null").status());
        answers.push_back(other->explainSegment(kLocalSegmentID).status());
        done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_EQ(answers.size(), 6u);
    for (const Status& answer : answers) {
        expectCode(answer, Code::InvalidArgument);
        EXPECT_THAT(answer.message(), HasSubstr("thread of your own"));
    }
    // It changed nothing.
    EXPECT_TRUE(fresh.init("p2p", ""));
    EXPECT_TRUE(other->registerLocalMemory(memory.data(), memory.size()));
    EXPECT_TRUE(other->unregisterLocalMemory(memory.data()));
}

/// Publishes nothing, and says what its engine is when it is taken down with it.
class RefusingStore final : public InprocStore {
  public:
    RefusingStore(std::shared_ptr<InprocDirectory> directory, std::function<void()> at_end)
        : InprocStore(std::move(directory)), at_end_(std::move(at_end)) {}
    ~RefusingStore() override { at_end_(); }
    void publish(const SegmentDesc&, Duration, DoneCallback done) override {
        done(Status(Code::AccessDenied, "told to refuse"));
    }

  private:
    std::function<void()> at_end_;
};

TEST(Life, AFailedInitIsOverForEveryThreadBeforeItIsTakenDown) {
    TransferEngine* engine = nullptr;
    Status during;
    EngineOptions options;
    options.config = EngineSetup().config;
    options.log = makeSilentLogger();
    options.inproc_store = [&] {
        return std::make_unique<RefusingStore>(std::make_shared<InprocDirectory>(),
                                               [&] { during = engine->allocateBatchID(1).status(); });
    };
    TransferEngine failing(std::move(options));
    engine = &failing;
    const Status refused = failing.init("inproc://", "failing", "127.0.0.1");
    expectCode(refused, Code::AccessDenied);
    expectCode(during, Code::NotInitialised);
    EXPECT_THAT(during.message(), HasSubstr("told to refuse"));
}

TEST(Life, AThreadThatWaitsForAFailingInitToBeUsableIsNotLeftBehind) {
    for (int round = 0; round < 20; ++round) {
        EngineOptions options;
        options.config = EngineSetup().config;
        options.log = makeSilentLogger();
        options.inproc_store = [] {
            return std::make_unique<RefusingStore>(std::make_shared<InprocDirectory>(), [] {});
        };
        TransferEngine failing(std::move(options));
        std::atomic<bool> over{false};
        std::promise<void> ended;
        std::thread user([&] {
            while (!over) {
                const auto batch = failing.allocateBatchID(1);
                if (!batch) continue;
                TransferRequest nothing;
                nothing.target_id = kLocalSegmentID;
                if (failing.submitTransfer(*batch, {nothing})) static_cast<void>(failing.waitTransfer(*batch));
            }
            ended.set_value();
        });
        EXPECT_FALSE(failing.init("inproc://", "failing", "127.0.0.1"));
        over = true;
        expectEnds(user, ended.get_future());
    }
}

TEST(Life, WhatMayBeAskedAtAnyTimeMayBeAskedBesideInit) {
    for (int round = 0; round < 20; ++round) {
        EngineOptions options;
        options.log = makeSilentLogger();
        options.config.data_loops = 4;
        TransferEngine engine(std::move(options));
        std::atomic<bool> over{false};
        std::thread asker([&] {
            while (!over) {
                const std::string name = engine.localSegmentName();
                EXPECT_TRUE(name.empty() || name.rfind("127.0.0.1:", 0) == 0) << name;
                // Its name is known before, and so is whatever comes with it.
                const bool begun = !name.empty();
                EXPECT_TRUE(!begun || engine.actorApi() != nullptr);
                EXPECT_TRUE(!begun || !engine.incarnation().isNull());
                static_cast<void>(engine.authCounts());
                static_cast<void>(engine.quarantine());
                static_cast<void>(engine.getTransport("tcp"));
            }
        });
        std::thread ender;
        if (round % 2 == 1) ender = std::thread([&] { EXPECT_TRUE(engine.freeEngine()); });
        const Status begun = engine.init("p2p", "", "127.0.0.1");
        EXPECT_TRUE(begun || (round % 2 == 1 && begun.code() == Code::AlreadyExists)) << begun.toString();
        over = true;
        asker.join();
        if (ender.joinable()) ender.join();
    }
}

TEST(Life, InitTwiceIsAnError) {
    const auto engine = startEngine();
    const std::string name = engine->localSegmentName();
    expectCode(engine->init("p2p", "", "127.0.0.1"), Code::AlreadyExists);
    EXPECT_EQ(engine->localSegmentName(), name);
}

TEST(Life, ATakenPortIsAnErrorAndNothingStaysBehind) {
    const auto first = startEngine();
    const auto port = Endpoint::parse(first->localSegmentName())->port;
    const auto second = startEngine();
    // What begins with the first use of anything has begun.
    EXPECT_TRUE(second->openSegment(first->localSegmentName()));
    EngineOptions options;
    options.log = makeSilentLogger();
    TransferEngine refused(std::move(options));
    // Those that there are stay: none of them has anything to do.
    const std::size_t threads = entriesOf("/proc/self/task");
    const std::size_t descriptors = entriesOf("/proc/self/fd");
    for (int i = 0; i < 3; ++i) {
        expectCode(refused.init("p2p", "", "127.0.0.1", port), Code::AlreadyExists);
        // A thread that was joined is listed until the kernel has reaped it.
        const auto limit = Clock::now() + kPatience;
        while (entriesOf("/proc/self/task") > threads && Clock::now() < limit) std::this_thread::yield();
        EXPECT_EQ(entriesOf("/proc/self/task"), threads);
        EXPECT_EQ(entriesOf("/proc/self/fd"), descriptors);
    }
    // The object is as it was: on a port that is free it begins.
    ASSERT_TRUE(refused.init("p2p", "", "127.0.0.1"));
    EXPECT_TRUE(refused.openSegment(first->localSegmentName()));
}

TEST(Life, BadAddressesAndNamesAreRefused) {
    for (const std::string host : {"nonsense", "256.1.1.1", "no-such-interface0"}) {
        TransferEngine engine;
        EXPECT_FALSE(engine.init("p2p", "", host)) << host;
    }
    TransferEngine engine;
    expectCode(engine.init("p2p", std::string(2000, 'x')), Code::InvalidArgument);
    // Says nothing about this machine, so it must not listen on the network.
    expectCode(engine.init("p2p", "no-such-machine"), Code::InvalidArgument);
    // A refused init changes nothing.
    EXPECT_TRUE(engine.init("P2PHANDSHAKE", "localhost"));
    EXPECT_THAT(engine.localSegmentName(), testing::StartsWith("127.0.0.1:"));
}

TEST(Life, AConfigFilledByHandIsCheckedAsOneThatIsLoaded) {
    for (const auto& spoil : std::initializer_list<void (*)(Config&)>{
             [](Config& config) { config.slice_bytes = 0; }, [](Config& config) { config.data_loops = 2000; },
             [](Config& config) { config.spin = std::chrono::microseconds(-1); },
             [](Config& config) { config.tcp_window_bytes = 0; }}) {
        EngineOptions options;
        spoil(options.config);
        TransferEngine engine(options);
        const Status refused = engine.init("p2p", "");
        expectCode(refused, Code::InvalidArgument);
        EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr("EngineOptions::config"), HasSubstr("is not")));
    }
}

TEST(Life, SettingsThatHinderEachOtherAreRefused) {
    EngineOptions options;
    options.config.peer_tcp_bytes = 1u << 20;
    TransferEngine engine(options);
    const Status refused = engine.init("p2p", "");
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr("EngineOptions::config"), HasSubstr("peer.tcp_bytes 1MiB"),
                                                  HasSubstr("tcp.window_bytes 8MiB")));
}

TEST(Life, NegativeTimeoutsAreOver) {
    EnginePair pair;
    const Status probed = pair.a->probePeerAliveByID(pair.segment, std::chrono::milliseconds::min());
    EXPECT_TRUE(probed || probed.code() == Code::Timeout) << probed.toString();
    BatchHolder batch(*pair.a, 1);
    EXPECT_TRUE(pair.a->waitTransfer(batch.id(), std::chrono::microseconds::min()));
}

TEST(Life, TheControlPortMayBeChosenWithTheNameOrTheArgument) {
    std::uint16_t port = 0;
    {
        const auto engine = startEngine();
        port = Endpoint::parse(engine->localSegmentName())->port;
    }
    {
        TransferEngine engine;
        ASSERT_TRUE(engine.init("p2p", "127.0.0.1:" + std::to_string(port)));
        EXPECT_EQ(engine.localSegmentName(), "127.0.0.1:" + std::to_string(port));
    }
    TransferEngine engine;
    ASSERT_TRUE(engine.init("p2p", "localhost", "localhost", port));
    EXPECT_EQ(engine.localSegmentName(), "127.0.0.1:" + std::to_string(port));
}

TEST(Life, TwoPortsThatContradictEachOtherAreRefused) {
    std::uint16_t port = 0;
    {
        const auto engine = startEngine();
        port = Endpoint::parse(engine->localSegmentName())->port;
    }
    const std::string name = "127.0.0.1:" + std::to_string(port);
    TransferEngine engine;
    const Status refused = engine.init("p2p", name, "", port == 65535 ? 1024 : port + 1);
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr(name), HasSubstr("leave one out")));
    // Twice the same is no contradiction, and the refusal changed nothing.
    ASSERT_TRUE(engine.init("p2p", name, "", port));
    EXPECT_EQ(engine.localSegmentName(), name);
}

TEST(Life, AnAddressThatCannotBeListenedOnIsNotSaidToBeNone) {
    const struct {
        const char* name;
        const char* says;
    } cases[] = {{"0.0.0.0", "that peers can be told"}, {"203.0.113.9", "no address of this machine"}};
    for (const auto& [name, says] : cases) {
        TransferEngine engine;
        const Status refused = engine.init("p2p", name);
        expectCode(refused, Code::InvalidArgument);
        EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr(name), HasSubstr(says)));
        EXPECT_THAT(refused.message(), testing::Not(HasSubstr("is no address and")));
    }
}

TEST(Transports, UnknownNamesAreListedAndDuplicatesRefused) {
    const auto engine = startEngine();
    const auto unknown = engine->installTransport("carrier-pigeon");
    expectCode(unknown, Code::NotFound);
    EXPECT_THAT(unknown.status().message(), testing::AllOf(HasSubstr("tcp"), HasSubstr("null")));
    expectCode(engine->installTransport("tcp"), Code::AlreadyExists);
    expectCode(engine->installTransport("TCP"), Code::AlreadyExists);
    EXPECT_EQ(engine->getTransport("TCP"), engine->getTransport("tcp"));
    void* args[] = {nullptr};
    expectCode(engine->installTransport("null", args), Code::InvalidArgument);
    EXPECT_EQ(engine->getTransport("tcp")->name(), "tcp");
    EXPECT_EQ(engine->getTransport("null"), nullptr);
    expectCode(engine->uninstallTransport("null"), Code::NotFound);
}

TEST(Transports, UninstallReallyRemovesAndInstallBringsBack) {
    EnginePair pair;
    expectCompleted(pair.write(0, 0, 4096), 4096);
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(pair.a->uninstallTransport("tcp"));
        EXPECT_EQ(pair.a->getTransport("tcp"), nullptr);
        BatchHolder batch(*pair.a, 1);
        expectCode(batch.submit({pair.request(Opcode::Write, 0, 0, 16)}), Code::TransportMissing);
        EXPECT_THAT((*pair.a->getSegmentDescByID(kLocalSegmentID))->transports, testing::Not(testing::Contains("tcp")));
        ASSERT_TRUE(pair.a->installTransport("tcp"));
        expectCompleted(pair.write(0, 0, 4096), 4096);
    }
}

TEST(Transports, UninstallByTheOwnerEndsItsServiceAndPeersSeeFailures) {
    EnginePair pair;
    expectCompleted(pair.write(0, 0, 4096), 4096);
    ASSERT_TRUE(pair.b->uninstallTransport("tcp"));
    const auto refused = pair.write(0, 0, 4096);
    EXPECT_EQ(refused.s, TransferStatusEnum::FAILED) << refused.error.toString();
    // Its data port is another one when it is back; a sync learns it.
    ASSERT_TRUE(pair.b->installTransport("tcp"));
    ASSERT_TRUE(pair.a->syncSegmentCache());
    expectCompleted(runUntilCompleted(*pair.a, pair.request(Opcode::Write, 0, 0, 4096)), 4096);
}

TEST(Transports, UninstallWhileInUseIsBusy) {
    // More than the sockets between them hold.
    EnginePair pair(breakableSetup(), 64u << 20);
    BatchHolder batch(*pair.a, 1);
    HeldUp held(*pair.b);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    expectCode(pair.a->uninstallTransport("tcp"), Code::BatchBusy);
    held.goOn();
    expectCompleted(batch.wait(), pair.local.size());
    EXPECT_TRUE(pair.a->uninstallTransport("tcp"));
}

TEST(Transports, WhatASubmitBringsWhileOneIsUninstalledIsFinishedOrRefused) {
    EnginePair pair({}, 8u << 20);
    std::atomic<bool> stop{false};
    std::atomic<int> completed{0};
    std::thread submitter([&] {
        while (!stop) {
            BatchHolder batch(*pair.a, 4);
            const std::vector<TransferRequest> requests(4, pair.request(Opcode::Write, 0, 0, 1u << 20));
            if (!batch.submit(requests)) continue;
            const auto status = batch.wait();
            // The check for running batches and the uninstalling are two steps; what comes in between has a Nic yet.
            if (status.s == TransferStatusEnum::COMPLETED)
                ++completed;
            else
                EXPECT_EQ(status.error.code(), Code::TransportMissing) << status.error.toString();
        }
    });
    for (int round = 0; round < 10; ++round) {
        const auto limit = Clock::now() + kPatience;
        Status done = pair.a->uninstallTransport("tcp");
        while (!done && Clock::now() < limit) {
            EXPECT_EQ(done.code(), Code::BatchBusy) << done.toString();
            done = pair.a->uninstallTransport("tcp");
        }
        ASSERT_TRUE(done);
        ASSERT_TRUE(pair.a->installTransport("tcp"));
        const int before = completed;
        while (completed == before && Clock::now() < limit) std::this_thread::yield();
        EXPECT_GT(completed, before);
    }
    stop = true;
    submitter.join();
}

TEST(Transports, NullCompletesWithoutMovingAnything) {
    EnginePair pair;
    ASSERT_TRUE(pair.a->installTransport("null"));
    pair.remote.fill(std::byte{3});
    pair.local.fill(std::byte{4});
    expectCompleted(pair.write(0, 0, 4096), 4096);
    EXPECT_TRUE(pair.remote.holdsOnly(std::byte{3}, 0, 4096));
}

TEST(Topology, TheLocalOneNamesDevices) {
    const auto engine = startEngine();
    EXPECT_FALSE(engine->getLocalTopology().empty());
    EXPECT_EQ((*engine->getSegmentDescByID(kLocalSegmentID))->priority_matrix, engine->getLocalTopology());
}

TEST(FreeEngine, CancelsWhatRunsAndTheSourceIsFree) {
    for (int round = 0; round < 5; ++round) {
        EnginePair pair({}, 64u << 20);
        const auto batch = *pair.a->allocateBatchID(4);
        ASSERT_TRUE(pair.a->submitTransfer(
            batch, std::vector<TransferRequest>(4, pair.request(Opcode::Write, 0, 0, pair.local.size()))));
        ASSERT_TRUE(pair.a->freeEngine());
        pair.local.protect(PROT_NONE);
        pair.local.protect(PROT_READ | PROT_WRITE);
    }
}

TEST(FreeEngine, WakesThreadsThatWait) {
    for (const bool waiter_drives : {true, false}) {
        EngineSetup setup;
        setup.config.waiter_drives = waiter_drives;
        EnginePair pair(setup, 64u << 20);
        std::atomic<int> waiting{0};
        std::vector<std::future<Result<TransferStatus>>> waiters;
        for (int i = 0; i < 4; ++i)
            waiters.push_back(std::async(std::launch::async, [&] {
                const auto batch = *pair.a->allocateBatchID(64);
                EXPECT_TRUE(pair.a->submitTransfer(
                    batch, std::vector<TransferRequest>(64, pair.request(Opcode::Write, 0, 0, pair.local.size()))));
                ++waiting;
                return pair.a->waitTransfer(batch, kPatience);
            }));
        while (waiting < 4) std::this_thread::yield();
        ASSERT_TRUE(pair.a->freeEngine());
        for (auto& waiter : waiters) {
            const auto status = waiter.get();
            if (!status) {
                expectCode(status, Code::NotInitialised);
                continue;
            }
            EXPECT_TRUE(status->s == TransferStatusEnum::CANCELED || status->s == TransferStatusEnum::COMPLETED)
                << toString(status->s) << " " << status->error.toString();
        }
    }
}

TEST(FreeEngine, WhileOtherThreadsCallEverything) {
    for (int round = 0; round < 5; ++round) {
        EnginePair pair;
        std::atomic<bool> stop{false};
        std::vector<std::thread> callers;
        for (int i = 0; i < 4; ++i)
            callers.emplace_back([&] {
                Buffer own(4096);
                while (!stop) {
                    const auto batch = pair.a->allocateBatchID(1);
                    if (!batch) continue;
                    static_cast<void>(pair.a->submitTransfer(*batch, {pair.request(Opcode::Write, 0, 0, 4096)}));
                    static_cast<void>(pair.a->waitTransfer(*batch, kPatience));
                    static_cast<void>(pair.a->registerLocalMemory(own.data(), 4096));
                    static_cast<void>(pair.a->unregisterLocalMemory(own.data()));
                    static_cast<void>(pair.a->openSegment(pair.b->localSegmentName()));
                    static_cast<void>(pair.a->probePeerAliveByID(pair.segment));
                    static_cast<void>(pair.a->syncSegmentCache());
                    static_cast<void>(pair.a->freeBatchID(*batch));
                }
            });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_TRUE(pair.a->freeEngine());
        stop = true;
        for (auto& caller : callers) caller.join();
    }
}

/// Calls that one thread makes over and over; `mine` is memory of its own.
std::vector<std::function<void()>> rareCalls(EnginePair& pair, Buffer& mine) {
    TransferEngine& engine = *pair.a;
    const auto ignore = [](const auto&) {};
    return {
        [&, ignore] {
            ignore(engine.installTransport("null"));
            ignore(engine.uninstallTransport("null"));
        },
        [&, ignore] {
            const auto batch = engine.allocateBatchID(2);
            if (!batch) return;
            ignore(engine.submitTransfer(*batch, {pair.request(Opcode::Read, 0, 0, 65536)}));
            ignore(engine.explain(*batch, 0));
            ignore(engine.cancelTransfer(*batch));
            ignore(engine.cancelTransfer(*batch, 0));
            ignore(engine.getBatchTransferStatus(*batch));
            ignore(engine.waitTransfer(*batch, kPatience));
            ignore(engine.freeBatchID(*batch));
        },
        [&, ignore] {
            const auto segment = engine.openSegment(pair.b->localSegmentName());
            if (!segment) return;
            ignore(engine.explainSegment(*segment));
            ignore(engine.getSegmentDescByID(*segment));
            ignore(engine.closeSegment(*segment));
        },
        [&, ignore] {
            ignore(engine.registerLocalMemoryBatch({{mine.data(), 4096}, {mine.data() + 8192, 4096}}));
            ignore(engine.unregisterLocalMemoryBatch({mine.data(), mine.data() + 8192}));
        },
        [&, ignore] {
            const auto memory = engine.allocateLocalMemory(8192);
            if (memory) ignore(engine.freeLocalMemory(*memory));
        },
        [&, ignore] {
            ignore(engine.init("p2p", ""));
            ignore(engine.updateLocalSegmentDesc());
            ignore(engine.quarantine());
            ignore(engine.authCounts());
            ignore(engine.getLocalTopology());
            ignore(engine.getTransport("tcp"));
            ignore(engine.localSegmentName());
            ignore(engine.actorApi());
        },
    };
}

TEST(FreeEngine, WhileOtherThreadsCallWhatIsCalledRarely) {
    for (int round = 0; round < 5; ++round) {
        EnginePair pair;
        Buffer mine(16384);
        std::atomic<bool> stop{false};
        std::vector<std::thread> callers;
        for (auto& call : rareCalls(pair, mine))
            callers.emplace_back([&stop, call] {
                while (!stop) call();
            });
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_TRUE(pair.a->freeEngine());
        stop = true;
        for (auto& caller : callers) caller.join();
    }
}

TEST(FreeEngine, OfTheOwnerFailsThePeersTransfersWithACause) {
    EnginePair pair({}, 64u << 20);
    BatchHolder batch(*pair.a, 8);
    ASSERT_TRUE(batch.submit(std::vector<TransferRequest>(8, pair.request(Opcode::Write, 0, 0, pair.local.size()))));
    ASSERT_TRUE(pair.b->freeEngine());
    const auto status = batch.wait();
    if (status.s != TransferStatusEnum::COMPLETED) {
        EXPECT_EQ(status.s, TransferStatusEnum::FAILED) << toString(status.s);
        EXPECT_FALSE(status.error.message().empty());
        EXPECT_TRUE(status.quiesced);
    }
}

/// How each loop's thread stands, as /proc says it: 'S' sleeps, 'R' runs or would.
std::string statesOfLoops() {
    std::string states;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        // "1234 (troupe.data0) S ..."
        std::string line;
        std::getline(std::ifstream(task.path() / "stat"), line);
        const auto name_ends = line.rfind(')');
        if (line.find("(troupe.") != std::string::npos && name_ends + 2 < line.size()) states += line[name_ends + 2];
    }
    return states;
}

TEST(Idle, EveryLoopOfAnEngineSleepsHoweverLongItMaySpin) {
    for (const int spin_us : {0, 50, 100'000}) {
        SCOPED_TRACE(spin_us);
        EngineSetup setup;
        setup.config.spin = std::chrono::microseconds(spin_us);
        setup.config.data_loops = 2;
        EnginePair pair(setup);
        expectCompleted(pair.write(0, 0, 65536), 65536);
        const auto limit = Clock::now() + kPatience;
        std::string states;
        do {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            states = statesOfLoops();
        } while (states.find_first_not_of('S') != std::string::npos && Clock::now() < limit);
        // A control loop and two data loops for each of the two.
        EXPECT_EQ(states, "SSSSSS");
    }
}

TEST(Guest, UsesTheHostsActorSystem) {
    caf::actor_system_config config;
    config.set("scheduler.max-threads", 1);
    caf::actor_system system(config);
    for (int round = 0; round < 3; ++round) {
        EngineSetup setup;
        setup.options.system = &system;
        EnginePair pair(setup);
        pair.local.fillPattern(1);
        expectCompleted(pair.write(0, 0, pair.local.size()), pair.local.size());
        EXPECT_TRUE(pair.remote.holdsPattern(1));
    }
    // Engines do not keep the host from ending its system.
    system.await_all_actors_done();
}

std::size_t residentBytes() {
    std::ifstream file("/proc/self/statm");
    std::size_t total = 0;
    std::size_t resident = 0;
    file >> total >> resident;
    return resident * static_cast<std::size_t>(::getpagesize());
}

/// What a program that this process starts finds open: its descriptors' numbers.
std::string descriptorsOfAProgram() {
    // No shell's descriptors in between, and the listed directory's own has always the same number.
    std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen("exec ls /proc/self/fd", "r"), &::pclose);
    EXPECT_NE(pipe, nullptr);
    std::string text;
    char line[64];
    while (pipe && std::fgets(line, sizeof line, pipe.get()) != nullptr) text += line;
    return text;
}

/// Actions of all signals, as this process has them.
std::vector<std::string> actionsOfSignals() {
    std::vector<std::string> all;
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        // The C library keeps some for itself.
        if (::sigaction(number, nullptr, &action) != 0) continue;
        const void* handler = nullptr;
        std::memcpy(&handler, &action.sa_handler, sizeof handler);
        std::ostringstream text;
        text << number << ": " << handler << " flags " << action.sa_flags;
        for (int masked = 1; masked < NSIG; ++masked)
            if (::sigismember(&action.sa_mask, masked) == 1) text << " -" << masked;
        all.push_back(text.str());
    }
    return all;
}

/// Gathers what is written to a descriptor of this process while it lives.
class Gathered {
  public:
    explicit Gathered(int fd)
        : fd_(fd), before_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), file_(::memfd_create("gathered", MFD_CLOEXEC)) {
        EXPECT_TRUE(before_ && file_);
        std::fflush(nullptr);
        ::dup2(file_.get(), fd);
    }
    ~Gathered() { end(); }
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;
    /// All of it; from now on the descriptor is what it was.
    std::string end() {
        if (!before_) return "";
        std::fflush(nullptr);
        ::dup2(before_.get(), fd_);
        before_.reset();
        std::string text(static_cast<std::size_t>(::lseek(file_.get(), 0, SEEK_END)), '\0');
        EXPECT_EQ(::pread(file_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
        return text;
    }

  private:
    int fd_;
    UniqueFd before_;
    UniqueFd file_;
};

TEST(Guest, SetsNoSignalHandlerAndWritesNothingButToItsLog) {
    const std::vector<std::string> before = actionsOfSignals();
    ASSERT_GT(before.size(), 50u);
    std::vector<std::string> during;
    Gathered out(STDOUT_FILENO);
    Gathered error(STDERR_FILENO);
    for (const bool host : {false, true}) {
        EngineSetup setup;
        setup.config.host_peers = host;
        EnginePair pair(setup);
        expectCompleted(pair.write(0, 0, 65536), 65536);
        // And where something goes wrong.
        expectFailed(runBatch(*pair.a, {makeRequest(Opcode::Write, pair.segment, pair.local.data(), 4096, 16)}),
                     Code::AddressNotRegistered);
        EXPECT_FALSE(pair.a->openSegment("127.0.0.1:1"));
        ASSERT_TRUE(pair.b->freeEngine());
        static_cast<void>(pair.write(0, 0, 65536));
        during = actionsOfSignals();
        EXPECT_EQ(during, before);
    }
    const std::string said = out.end() + error.end();
    EXPECT_EQ(said, "");
    EXPECT_EQ(actionsOfSignals(), before);
}

TEST(Guest, AProgramStartedBesideAnEngineGetsNoneOfItsDescriptors) {
    const std::string before = descriptorsOfAProgram();
    ASSERT_NE(before, "");
    const std::size_t own = entriesOf("/proc/self/fd");
    EngineSetup setup;
    for (const bool host : {false, true}) {
        setup.config.host_peers = host;
        EnginePair pair(setup);
        // Over each kind of connection there is, and with a file of the engine's own that the peer has mapped.
        const auto memory = pair.b->allocateLocalMemory(1u << 16);
        ASSERT_TRUE(memory);
        auto request = pair.request(Opcode::Write, 0, 0, 1u << 16);
        expectCompleted(runBatch(*pair.a, {request}), 1u << 16);
        request.target_offset = reinterpret_cast<std::uint64_t>(*memory);
        expectCompleted(runBatch(*pair.a, {request}), 1u << 16);
        EXPECT_EQ(pair.a->explainSegment(pair.segment)->transport, host ? "host" : "tcp");
        EXPECT_GT(entriesOf("/proc/self/fd"), own + 10) << "or there is nothing to inherit";
        EXPECT_EQ(descriptorsOfAProgram(), before);
    }
}

TEST(Guest, HasNoThreadForAConnection) {
    constexpr int kPeers = 50;
    EngineSetup setup;
    const auto engine = startEngine(setup);
    Buffer memory(4096);
    ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    std::vector<std::unique_ptr<TransferEngine>> peers;
    Buffer remote(4096);
    const auto use = [&](const TransferEngine& peer) {
        const auto segment = engine->openSegment(peer.localSegmentName());
        ASSERT_TRUE(segment) << segment.status().toString();
        expectCompleted(
            runBatch(*engine, {makeRequest(Opcode::Write, *segment, memory.data(), remote.address(), 4096)}), 4096);
    };
    for (int i = 0; i < kPeers; ++i) {
        peers.push_back(startEngine(setup));
        ASSERT_TRUE(peers.back()->registerLocalMemory(remote.data(), remote.size()));
    }
    // What begins with the first use of anything.
    use(*peers[0]);
    const std::size_t threads = entriesOf("/proc/self/task");
    const std::size_t descriptors = entriesOf("/proc/self/fd");
    for (const auto& peer : peers) use(*peer);
    EXPECT_EQ(entriesOf("/proc/self/task"), threads);
    EXPECT_GT(entriesOf("/proc/self/fd"), descriptors + kPeers) << "or there are no connections";
}

TEST(Guest, AThousandEnginesLeakNeitherDescriptorNorThreadNorMemory) {
    Buffer memory(1u << 20);
    const auto server = startEngine();
    Buffer remote(1u << 20);
    ASSERT_TRUE(server->registerLocalMemory(remote.data(), remote.size()));
    const auto liveOnce = [&] {
        const auto engine = startEngine();
        ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
        const auto segment = engine->openSegment(server->localSegmentName());
        ASSERT_TRUE(segment) << segment.status().toString();
        expectCompleted(
            runBatch(*engine, {makeRequest(Opcode::Write, *segment, memory.data(), remote.address(), memory.size())}),
            memory.size());
    };
    for (int i = 0; i < 20; ++i) liveOnce();
    const std::size_t threads = entriesOf("/proc/self/task");
    const std::size_t descriptors = entriesOf("/proc/self/fd");
    const std::size_t resident = residentBytes();
    const int count = kSanitized ? 100 : 1000;
    for (int i = 0; i < count; ++i) liveOnce();
    // The server may still be closing what the last engines left, and a thread that was joined is listed until the
    // kernel has reaped it.
    const auto limit = Clock::now() + kPatience;
    while ((entriesOf("/proc/self/fd") > descriptors || entriesOf("/proc/self/task") > threads) && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LE(entriesOf("/proc/self/task"), threads);
    EXPECT_LE(entriesOf("/proc/self/fd"), descriptors);
    // A leak of a few kilobytes per engine would show; sanitizers keep freed memory for themselves.
    if (!kSanitized) {
        EXPECT_LT(residentBytes(), resident + (8u << 20));
    }
}

}  // namespace
}  // namespace troupe::test
