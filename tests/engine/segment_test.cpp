// Opening, closing, describing and probing segments.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

TEST(OpenSegment, OfNobodyIsAnError) {
    EngineSetup setup;
    setup.config.open_timeout = std::chrono::seconds(5);
    const auto engine = startEngine(setup);
    // A port that was free a moment ago.
    std::string gone;
    {
        const auto other = startEngine();
        gone = other->localSegmentName();
    }
    expectCode(engine->openSegment(gone), Code::ConnectionRefused);
}

TEST(OpenSegment, OfAPeerThatTakesNoMoreConnectionsOfThisEngineNamesTheSetting) {
    EngineSetup setup;
    setup.config.peer_control_connections = 1;
    const auto server = startEngine(setup);
    const auto engine = startEngine(setup);
    ASSERT_TRUE(engine->openSegment(server->localSegmentName()));
    // Another name for the same engine is another connection.
    const auto port = Endpoint::parse(server->localSegmentName())->port;
    const auto refused = engine->openSegment("localhost:" + std::to_string(port));
    expectCode(refused, Code::CapacityExceeded);
    EXPECT_THAT(refused.status().message(), HasSubstr("peer.control_connections"));
    // Others are no concern of it.
    EXPECT_TRUE(startEngine()->openSegment(server->localSegmentName()));
}

TEST(OpenSegment, OfAPeerThatTakesNoMoreConnectionsOfThisAddressNamesTheSetting) {
    EngineSetup setup;
    setup.config.peer_greetings = 1;
    setup.config.faults_enabled = true;
    const auto server = startEngine(setup);
    const auto engine = startEngine(setup);
    // It has connected and not greeted when the next one comes.
    FaultRule late;
    late.point = FaultPoint::ControlFrame;
    late.action = FaultAction::Delay;
    late.where = "Hello ";
    late.fraction = 1;
    late.delay = kLongestFault;
    FaultInjector& faults = **engine->faults();
    const auto rule = faults.add(late);
    ASSERT_TRUE(rule) << rule.status().toString();
    auto opening =
        std::async(std::launch::async, [&] { return engine->openSegment(server->localSegmentName()).status(); });
    const auto limit = Clock::now() + kPatience;
    while (faults.count(*rule)->fired == 0 && Clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const UniqueFd next(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto there = SocketAddress::fromNumeric("127.0.0.1", Endpoint::parse(server->localSegmentName())->port);
    ASSERT_TRUE(there);
    ASSERT_EQ(::connect(next.get(), there->get(), there->length), 0);
    const Status refused = opening.get();
    expectCode(refused, Code::CapacityExceeded);
    EXPECT_THAT(refused.message(), HasSubstr("peer.greetings"));
}

TEST(OpenSegment, OfSomebodyWhoHangsUpIsALostConnectionAndAsksWhoListensThere) {
    const auto engine = startEngine();
    const auto address = SocketAddress::fromNumeric("127.0.0.1", 0);
    ASSERT_TRUE(address);
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener.get(), address->get(), address->length), 0);
    ASSERT_EQ(::listen(listener.get(), 16), 0);
    const std::string name = "127.0.0.1:" + std::to_string(SocketAddress::local(listener.get())->port());
    // Before the greeting was read, which is a reset, or after it.
    for (const bool reads : {false, true}) {
        SCOPED_TRACE(reads);
        auto opening = std::async(std::launch::async, [&] { return engine->openSegment(name).status(); });
        // However often it tries.
        while (opening.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
            pollfd entry{listener.get(), POLLIN, 0};
            if (::poll(&entry, 1, 10) != 1) continue;
            const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
            char bytes[4096];
            if (reads) static_cast<void>(!::recv(accepted.get(), bytes, sizeof bytes, 0));
        }
        const Status lost = opening.get();
        expectCode(lost, Code::ConnectionLost);
        EXPECT_THAT(lost.message(), HasSubstr("is it a Troupe engine that listens there?"));
    }
}

TEST(OpenSegment, WithoutANameOrWithABadOneIsInvalid) {
    const auto engine = startEngine();
    expectCode(engine->openSegment(""), Code::InvalidArgument);
    expectCode(engine->openSegment("127.0.0.1"), Code::InvalidArgument);
    expectCode(engine->openSegment("127.0.0.1:0"), Code::InvalidArgument);
    expectCode(engine->openSegment("127.0.0.1:http"), Code::InvalidArgument);
    expectCode(engine->openSegment("127.0.0.1:70000"), Code::InvalidArgument);
    expectCode(engine->openSegment("[::1:80"), Code::InvalidArgument);
    expectCode(engine->openSegment(std::string(5000, 'x')), Code::InvalidArgument);
}

TEST(OpenSegment, OfAHostThatDoesNotResolveIsNotFound) {
    const auto engine = startEngine();
    const auto opened = engine->openSegment("no-such-host.invalid:1234");
    ASSERT_FALSE(opened);
    EXPECT_TRUE(opened.status().code() == Code::NotFound || opened.status().code() == Code::Timeout)
        << opened.status().toString();
}

TEST(OpenSegment, OfTheOwnNameIsTheLocalSegment) {
    const auto engine = startEngine();
    EXPECT_EQ(*engine->openSegment(engine->localSegmentName()), kLocalSegmentID);
    // Under another spelling of its address too: identity is the incarnation.
    const auto own = Endpoint::parse(engine->localSegmentName());
    ASSERT_TRUE(own);
    EXPECT_EQ(*engine->openSegment("localhost:" + std::to_string(own->port)), kLocalSegmentID);
    EXPECT_TRUE(engine->closeSegment(kLocalSegmentID));
    EXPECT_TRUE(engine->getSegmentDescByID(kLocalSegmentID));
}

TEST(OpenSegment, ByAHostNameWorks) {
    const auto server = startEngine();
    const auto engine = startEngine();
    const auto own = Endpoint::parse(server->localSegmentName());
    const auto opened = engine->openSegment("localhost:" + std::to_string(own->port));
    ASSERT_TRUE(opened) << opened.status().toString();
    EXPECT_TRUE(engine->probePeerAliveByID(*opened));
}

TEST(OpenSegment, OfAnIPv6EndpointWorks) {
    EngineSetup setup;
    setup.host = "::1";
    EnginePair pair(setup);
    EXPECT_THAT(pair.b->localSegmentName(), testing::StartsWith("[::1]:"));
    EXPECT_TRUE(pair.a->probePeerAliveByID(pair.segment));
    expectCompleted(pair.write(0, 0, 4096), 4096);
}

TEST(OpenSegment, TwiceGivesTheSameIdAndCounts) {
    EnginePair pair;
    EXPECT_EQ(*pair.a->openSegment(pair.b->localSegmentName()), pair.segment);
    ASSERT_TRUE(pair.a->closeSegment(pair.segment));
    expectCompleted(pair.write(0, 0, 4096), 4096);
    ASSERT_TRUE(pair.a->closeSegment(pair.segment));
    expectCode(pair.a->closeSegment(pair.segment), Code::StaleHandle);
    BatchHolder batch(*pair.a, 1);
    expectCode(batch.submit({pair.request(Opcode::Write, 0, 0, 16)}), Code::StaleHandle);
    expectCode(pair.a->getSegmentDescByID(pair.segment), Code::StaleHandle);
    expectCode(pair.a->probePeerAliveByID(pair.segment), Code::StaleHandle);
}

TEST(OpenSegment, AfterCloseGivesANewIdAndTheOldOneStaysDead) {
    EnginePair pair;
    const SegmentID old = pair.segment;
    ASSERT_TRUE(pair.a->closeSegment(old));
    pair.segment = *pair.a->openSegment(pair.b->localSegmentName());
    EXPECT_NE(pair.segment, old);
    expectCode(pair.a->closeSegment(old), Code::StaleHandle);
    expectCompleted(pair.write(0, 0, 4096), 4096);
}

TEST(OpenSegment, ByManyThreadsAtOnceGivesOneId) {
    const auto server = startEngine();
    const auto engine = startEngine();
    std::vector<std::future<Result<SegmentID>>> opening;
    for (int i = 0; i < 16; ++i)
        opening.push_back(
            std::async(std::launch::async, [&] { return engine->openSegment(server->localSegmentName()); }));
    std::vector<SegmentID> ids;
    for (auto& one : opening) {
        const auto id = one.get();
        ASSERT_TRUE(id) << id.status().toString();
        ids.push_back(*id);
    }
    EXPECT_THAT(ids, testing::Each(ids.front()));
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(engine->closeSegment(ids.front()));
    expectCode(engine->closeSegment(ids.front()), Code::StaleHandle);
}

TEST(OpenSegment, APeerThatInstallsItsTransportLaterIsReachedWithoutAnotherOpen) {
    EngineSetup setup;
    const auto a = startEngine(setup);
    setup.tcp = false;
    const auto b = startEngine(setup);
    Buffer memory(4096);
    ASSERT_TRUE(a->registerLocalMemory(memory.data(), memory.size()));
    const auto segment = a->openSegment(b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    const auto submit = [&] {
        BatchHolder batch(*a, 1);
        return batch.submit({makeRequest(Opcode::Write, *segment, memory.data(), 4096, 1)});
    };
    expectCode(submit(), Code::TransportMissing);
    ASSERT_TRUE(b->installTransport("tcp"));
    const auto limit = Clock::now() + kPatience;
    while (!submit() && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(submit());
}

TEST(CloseSegment, EndsWhatIsRunningOnItAndTheSourceIsFree) {
    EnginePair pair({}, 64u << 20);
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    ASSERT_TRUE(pair.a->closeSegment(pair.segment));
    const auto status = batch.wait();
    pair.local.protect(PROT_NONE);
    pair.local.protect(PROT_READ | PROT_WRITE);
    EXPECT_TRUE(status.quiesced);
    if (status.s != TransferStatusEnum::COMPLETED) {
        EXPECT_EQ(status.s, TransferStatusEnum::CANCELED) << status.error.toString();
        EXPECT_EQ(status.error.code(), Code::Canceled);
    }
}

TEST(SegmentDesc, ShowsTheRegionsOfThePeerAfterASync) {
    EnginePair pair;
    const auto before = pair.a->getSegmentDescByID(pair.segment);
    ASSERT_TRUE(before);
    ASSERT_EQ((*before)->buffers.size(), 1u);
    EXPECT_EQ((*before)->buffers[0].addr, pair.remote.address());
    EXPECT_EQ((*before)->buffers[0].length, pair.remote.size());
    EXPECT_EQ((*before)->incarnation, pair.b->incarnation());
    EXPECT_EQ((*before)->name, pair.b->localSegmentName());
    EXPECT_THAT((*before)->transports, testing::Contains("tcp"));

    Buffer more(4096);
    ASSERT_TRUE(pair.b->registerLocalMemory(more.data(), more.size(), "cpu:0"));
    // The owner decides, so the new region is usable before anybody hears of it.
    const auto to_more = makeRequest(Opcode::Write, pair.segment, pair.local.data(), more.address(), 4096);
    expectCompleted(runBatch(*pair.a, {to_more}), 4096);
    EXPECT_EQ((*before)->buffers.size(), 1u) << "a snapshot must not change";
    ASSERT_TRUE(pair.a->syncSegmentCache(pair.b->localSegmentName()));
    EXPECT_EQ((*pair.a->getSegmentDescByID(pair.segment))->buffers.size(), 2u);
    ASSERT_TRUE(pair.b->unregisterLocalMemory(more.data()));
    ASSERT_TRUE(pair.a->syncSegmentCache());
    EXPECT_EQ((*pair.a->getSegmentDescByID(pair.segment))->buffers.size(), 1u);
}

TEST(SegmentDesc, SyncOfASegmentThatIsNotOpenIsNotFound) {
    EnginePair pair;
    expectCode(pair.a->syncSegmentCache("127.0.0.1:1"), Code::NotFound);
    EXPECT_TRUE(pair.a->syncSegmentCache(pair.a->localSegmentName()));
    EXPECT_TRUE(pair.a->updateLocalSegmentDesc());
}

TEST(SegmentDesc, OfTenThousandRegionsRegisteredOneByOneReachesThePeer) {
    constexpr std::size_t kRegions = 10'000;
    EnginePair pair;
    Buffer memory(kRegions * 4096);
    for (std::size_t i = 0; i < kRegions; ++i) ASSERT_TRUE(pair.b->registerLocalMemory(memory.data() + i * 4096, 2048));
    ASSERT_TRUE(pair.a->syncSegmentCache());
    const auto desc = pair.a->getSegmentDescByID(pair.segment);
    ASSERT_TRUE(desc);
    EXPECT_EQ((*desc)->buffers.size(), kRegions + 1);

    // A newcomer gets all of it with its first open, and reaches the last region.
    const auto newcomer = startEngine();
    ASSERT_TRUE(newcomer->registerLocalMemory(pair.local.data(), pair.local.size()));
    const auto segment = newcomer->openSegment(pair.b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    EXPECT_EQ((*newcomer->getSegmentDescByID(*segment))->buffers.size(), kRegions + 1);
    const auto last = memory.address((kRegions - 1) * 4096);
    expectCompleted(runBatch(*newcomer, {makeRequest(Opcode::Write, *segment, pair.local.data(), last, 2048)}), 2048);
    expectFailed(runBatch(*newcomer, {makeRequest(Opcode::Write, *segment, pair.local.data(), last, 2049)}),
                 Code::AddressNotRegistered);
    for (std::size_t i = 0; i < kRegions; ++i) ASSERT_TRUE(pair.b->unregisterLocalMemory(memory.data() + i * 4096));
}

TEST(Probe, OfALivingPeerIsOkAndOfADeadOneIsNot) {
    EnginePair pair;
    EXPECT_TRUE(pair.a->probePeerAliveByID(pair.segment));
    EXPECT_TRUE(pair.a->probePeerAliveByID(kLocalSegmentID));
    expectCode(pair.a->probePeerAliveByID(12345), Code::StaleHandle);
    ASSERT_TRUE(pair.b->freeEngine());
    const Status probed = pair.a->probePeerAliveByID(pair.segment);
    EXPECT_TRUE(probed.code() == Code::PeerDown || probed.code() == Code::Timeout) << probed.toString();
}

TEST(CloseSegment, TheIdIsStaleAsSoonAsItReturns) {
    EnginePair pair;
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(pair.a->closeSegment(pair.segment));
    for (int round = 0; round < 200; ++round) {
        const auto segment = pair.a->openSegment(pair.b->localSegmentName());
        ASSERT_TRUE(segment) << segment.status().toString();
        ASSERT_TRUE(pair.a->closeSegment(*segment));
        expectCode(batch.submit({makeRequest(Opcode::Write, *segment, pair.local.data(), pair.remote.address(), 16)}),
                   Code::StaleHandle);
        expectCode(pair.a->getSegmentDescByID(*segment), Code::StaleHandle);
    }
}

TEST(Probe, OfARestartedPeerFindsTheNewOne) {
    EnginePair pair;
    const auto port = Endpoint::parse(pair.b->localSegmentName())->port;
    const Incarnation old = pair.b->incarnation();
    pair.b.reset();
    pair.b = startEngine({}, port);
    ASSERT_TRUE(pair.b->registerLocalMemory(pair.remote.data(), pair.remote.size()));
    expectCompleted(runUntilCompleted(*pair.a, pair.request(Opcode::Write, 0, 0, 4096)), 4096);
    EXPECT_NE((*pair.a->getSegmentDescByID(pair.segment))->incarnation, old);
    EXPECT_TRUE(pair.a->probePeerAliveByID(pair.segment));
}

// --- with a store ------------------------------------------------------------------------------------------------

class Store : public testing::Test {
  protected:
    std::unique_ptr<TransferEngine> start(const std::string& name, Code expected = Code::Ok) {
        EngineOptions options;
        options.config = EngineSetup().config;
        options.log = makeSilentLogger();
        options.inproc_store = [directory = directory_] { return std::make_unique<InprocStore>(directory); };
        auto engine = std::make_unique<TransferEngine>(std::move(options));
        const Status started = engine->init("inproc://", name, "127.0.0.1");
        expectCode(started, expected);
        if (started) {
            EXPECT_TRUE(engine->installTransport("tcp"));
        }
        return engine;
    }
    std::shared_ptr<InprocDirectory> directory_ = std::make_shared<InprocDirectory>();
};

TEST_F(Store, FindsSegmentsByName) {
    for (const std::string name : {"prefill", "rack/7/decode-0", "name with spaces", "127.0.0.1:99"}) {
        SCOPED_TRACE(name);
        const auto server = start(name);
        const auto client = start("client-of-" + name);
        EXPECT_EQ(server->localSegmentName(), name);
        Buffer here(8192);
        Buffer there(8192);
        ASSERT_TRUE(client->registerLocalMemory(here.data(), here.size()));
        ASSERT_TRUE(server->registerLocalMemory(there.data(), there.size()));
        const auto segment = client->openSegment(name);
        ASSERT_TRUE(segment) << segment.status().toString();
        here.fillPattern(name.size());
        expectCompleted(runBatch(*client, {makeRequest(Opcode::Write, *segment, here.data(), there.address(), 8192)}),
                        8192);
        EXPECT_TRUE(there.holdsPattern(name.size()));
        EXPECT_EQ(*server->openSegment(name), kLocalSegmentID);
        EXPECT_EQ((*client->getSegmentDescByID(*segment))->name, name);
    }
}

TEST_F(Store, AnUnknownNameIsNotFound) {
    const auto engine = start("only");
    expectCode(engine->openSegment("other"), Code::NotFound);
    expectCode(engine->openSegment(""), Code::InvalidArgument);
}

TEST_F(Store, ANameOfALivingEngineIsTaken) {
    const auto first = start("taken");
    const auto second = start("taken", Code::AlreadyExists);
    const auto later = second->allocateBatchID(1);
    expectCode(later, Code::NotInitialised);
    EXPECT_NE(later.status().message().find("init failed: AlreadyExists"), std::string::npos)
        << later.status().toString();
    const Status again = second->init("p2p", "", "127.0.0.1");
    expectCode(again, Code::AlreadyExists);
    EXPECT_NE(again.message().find("make another engine"), std::string::npos) << again.toString();
    // The first is not harmed.
    const auto client = start("client");
    EXPECT_TRUE(client->openSegment("taken"));
}

TEST_F(Store, NeedsAName) { start("", Code::InvalidArgument); }

TEST_F(Store, RegionsRegisteredLaterArePublished) {
    const auto server = start("server");
    const auto client = start("client");
    const auto segment = client->openSegment("server");
    ASSERT_TRUE(segment);
    Buffer memory(16 * 4096);
    for (std::size_t i = 0; i < 16; ++i)
        ASSERT_TRUE(server->registerLocalMemory(memory.data() + i * 4096, 1024, "*", true, i == 15));
    ASSERT_TRUE(server->updateLocalSegmentDesc());
    ASSERT_TRUE(client->syncSegmentCache("server"));
    EXPECT_EQ((*client->getSegmentDescByID(*segment))->buffers.size(), 16u);
}

TEST(Metadata, AnUnknownSchemeIsInvalidAndListsTheKnownOnes) {
    for (const std::string conn : {"zookeeper://x:1", "", "P2P", "redis", "inproc"}) {
        TransferEngine engine;
        const Status started = engine.init(conn, "name", "127.0.0.1");
        expectCode(started, Code::InvalidArgument);
        EXPECT_THAT(started.message(), testing::AllOf(HasSubstr("p2p"), HasSubstr("inproc://")));
    }
}

TEST(Metadata, InprocWithoutAStoreIsInvalid) {
    TransferEngine engine;
    expectCode(engine.init("inproc://", "name", "127.0.0.1"), Code::InvalidArgument);
}

}  // namespace
}  // namespace troupe::test
