// The engine as an actor of a host that runs CAF itself.

#include "engine/actor_api.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <string_view>
#include <thread>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include "base/endpoint.h"
#include "base/fault_injector.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

/// A pair whose initiator lives in the host's actor system.
class ActorApiTest : public testing::Test {
  protected:
    static caf::actor_system_config& two(caf::actor_system_config& config) {
        config.set("scheduler.max-threads", 2);
        return config;
    }
    EngineSetup setup() {
        EngineSetup result;
        result.options.system = &system_;
        return result;
    }
    const EngineActor& engine() { return pair_.a->actorApi()->actor(); }

    /// Asks the engine's actor from this thread and waits.
    template <class Answer, class Request>
    Result<Answer> ask(Request request) {
        caf::scoped_actor self{system_};
        Result<Answer> answer(Code::Internal, "no answer");
        self->request(engine(), kPatience, std::move(request))
            .receive([&](const Answer& value) { answer = value; },
                     [&](const caf::error& error) { answer = fromCafError(error); });
        return answer;
    }
    template <class Request>
    Status askVoid(Request request) {
        caf::scoped_actor self{system_};
        Status answer(Code::Internal, "no answer");
        self->request(engine(), kPatience, std::move(request))
            .receive([&] { answer = Status::ok(); }, [&](const caf::error& error) { answer = fromCafError(error); });
        return answer;
    }

    caf::actor_system_config config_;
    caf::actor_system system_{two(config_)};
    EnginePair pair_{setup()};
};

TEST_F(ActorApiTest, OpensASegmentAndGivesItsDescriptor) {
    const auto opened = ask<SegmentOpened>(OpenSegmentByName{pair_.b->localSegmentName()});
    ASSERT_TRUE(opened) << opened.status().toString();
    EXPECT_EQ(opened->segment, pair_.segment);
    ASSERT_NE(opened->desc, nullptr);
    EXPECT_EQ(opened->desc->buffers.at(0).addr, pair_.remote.address());
    const auto own = ask<SegmentOpened>(OpenSegmentByName{pair_.a->localSegmentName()});
    EXPECT_EQ(own->segment, kLocalSegmentID);
    EXPECT_EQ(own->desc->name, pair_.a->localSegmentName());
}

TEST_F(ActorApiTest, RegistersSubmitsReportsAndUnregisters) {
    Buffer more(1u << 20);
    more.fillPattern(3);
    ASSERT_TRUE(askVoid(RegisterMemory{more.data(), more.size(), "cpu:0", false}));
    const auto request = [&](std::size_t offset, std::size_t length) {
        return makeRequest(Opcode::Write, pair_.segment, more.data() + offset, pair_.remote.address(offset), length);
    };
    const auto report = ask<TransferReport>(SubmitTransfers{{request(0, 1000), request(1000, more.size() - 1000)}});
    ASSERT_TRUE(report) << report.status().toString();
    expectCompleted(report->batch, more.size());
    ASSERT_EQ(report->tasks.size(), 2u);
    expectCompleted(report->tasks[0], 1000);
    expectCompleted(report->tasks[1], more.size() - 1000);
    const auto quarantined = ask<Quarantined>(ListQuarantine{});
    ASSERT_TRUE(quarantined) << quarantined.status().toString();
    EXPECT_EQ(quarantined->ever, 0u);
    EXPECT_TRUE(quarantined->entries.empty());
    EXPECT_TRUE(pair_.remote.holdsPattern(3));
    ASSERT_TRUE(askVoid(UnregisterMemory{more.data()}));
    expectCode(ask<TransferReport>(SubmitTransfers{{request(0, 1)}}), Code::AddressNotRegistered);
}

TEST_F(ActorApiTest, AnEmptySubmitIsReportedAtOnce) {
    const auto report = ask<TransferReport>(SubmitTransfers{});
    ASSERT_TRUE(report);
    expectCompleted(report->batch, 0);
    EXPECT_TRUE(report->tasks.empty());
}

TEST_F(ActorApiTest, AFailedTaskIsAReportNotAnError) {
    auto bad = pair_.request(Opcode::Write, 0, 0, 16);
    bad.target_offset = 4096;
    const auto report = ask<TransferReport>(SubmitTransfers{{pair_.request(Opcode::Write, 0, 0, 16), bad}});
    ASSERT_TRUE(report) << report.status().toString();
    expectFailed(report->batch, Code::AddressNotRegistered);
    expectCompleted(report->tasks.at(0), 16);
    expectFailed(report->tasks.at(1), Code::AddressNotRegistered);
}

TEST_F(ActorApiTest, TheStreamOfTheSubmittingThreadIsRefusedForThatIsTheEnginesThread) {
    auto per_thread = pair_.request(Opcode::Write, 0, 0, 16);
    per_thread.wait_stream = reinterpret_cast<void*>(2);
    const auto refused = ask<TransferReport>(SubmitTransfers{{per_thread}});
    expectCode(refused, Code::InvalidArgument);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("cudaStreamPerThread"));
}

TEST_F(ActorApiTest, RefusalsAreErrorsOfTheTroupeCategory) {
    expectCode(ask<SegmentOpened>(OpenSegmentByName{""}), Code::InvalidArgument);
    expectCode(askVoid(RegisterMemory{nullptr, 16}), Code::InvalidArgument);
    expectCode(askVoid(RegisterMemory{pair_.local.data(), 16}), Code::AddressOverlapped);
    expectCode(askVoid(UnregisterMemory{pair_.local.data() + 1}), Code::AddressNotRegistered);
    auto bad = pair_.request(Opcode::Write, 0, 0, 16);
    bad.target_id = 4711;
    const auto refused = ask<TransferReport>(SubmitTransfers{{bad}});
    expectCode(refused, Code::StaleHandle);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("4711"));
}

TEST(ActorApiErrors, SurviveTheWayThroughCaf) {
    const Status status(Code::PeerDown, "segment a:1 is gone");
    const auto back = fromCafError(toCafError(status));
    EXPECT_EQ(back.code(), Code::PeerDown);
    EXPECT_EQ(back.message(), "segment a:1 is gone");
    EXPECT_EQ(fromCafError(caf::sec::request_timeout).code(), Code::Internal);
    EXPECT_EQ(fromCafError(caf::sec::request_receiver_down).code(), Code::Canceled);
    EXPECT_EQ(fromCafError(caf::exit_reason::user_shutdown).code(), Code::Canceled);
    EXPECT_EQ(fromCafError(caf::exit_reason::unhandled_exception).code(), Code::Internal);
}

TEST_F(ActorApiTest, ManyActorsSubmitAtOnceAndEachGetsItsOwnReport) {
    constexpr int kActors = 16;
    constexpr int kRounds = 50;
    std::atomic<int> good{0};
    std::atomic<int> bad{0};
    std::atomic<int> ended{0};
    for (int a = 0; a < kActors; ++a) {
        system_.spawn([&, a](caf::event_based_actor* self) {
            const auto length = static_cast<std::size_t>(100 + a);
            for (int i = 0; i < kRounds; ++i)
                self->request(
                        engine(), kPatience,
                        SubmitTransfers{{pair_.request(Opcode::Read, static_cast<std::size_t>(a) * 4096, 0, length)}})
                    .then(
                        [&, length](const TransferReport& report) {
                            const bool ok = report.batch.s == TransferStatusEnum::COMPLETED &&
                                            report.batch.transferred_bytes == length;
                            ++(ok ? good : bad);
                            ++ended;
                        },
                        [&](const caf::error&) {
                            ++bad;
                            ++ended;
                        });
        });
    }
    const auto limit = Clock::now() + kPatience;
    while (ended < kActors * kRounds && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(good, kActors * kRounds);
    EXPECT_EQ(bad, 0);
}

TEST_F(ActorApiTest, SubscribersHearOfPeersThatGoAndComeBack) {
    std::mutex mutex;
    std::vector<PeerEvent> events;
    const auto listener = system_.spawn([&](caf::event_based_actor*) -> caf::behavior {
        return {[&](const PeerEvent& event) {
            const std::lock_guard lock(mutex);
            events.push_back(event);
        }};
    });
    caf::anon_send(engine(), SubscribeEvents{listener});
    // Ordered after the subscription: both go through the engine's actor.
    ASSERT_TRUE(ask<SegmentOpened>(OpenSegmentByName{pair_.b->localSegmentName()}));
    const auto saw = [&](PeerState state) {
        const auto limit = Clock::now() + kPatience;
        while (Clock::now() < limit) {
            {
                const std::lock_guard lock(mutex);
                for (const PeerEvent& event : events)
                    if (event.state == state && event.segment == pair_.segment &&
                        event.name == pair_.a->getSegmentDescByID(pair_.segment).value()->name)
                        return true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    };
    const auto port = Endpoint::parse(pair_.b->localSegmentName())->port;
    pair_.b.reset();
    EXPECT_TRUE(saw(PeerState::Down));
    pair_.b = startEngine({}, port);
    EXPECT_TRUE(saw(PeerState::Up));
    // Of those that it makes nobody hears that it connects, but of the one that is answered.
    const std::lock_guard lock(mutex);
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.at(events.size() - 3).state, PeerState::Down);
    EXPECT_EQ(events.at(events.size() - 2).state, PeerState::Connecting);
    EXPECT_EQ(events.back().state, PeerState::Up);
    caf::anon_send_exit(listener, caf::exit_reason::user_shutdown);
}

TEST_F(ActorApiTest, SubscribersHearThatAConnectionIsLostAndMadeAnew) {
    EngineSetup breakable = setup();
    breakable.config.faults_enabled = true;
    EnginePair pair{breakable};
    std::mutex mutex;
    std::vector<PeerState> states;
    const auto listener = system_.spawn([&](caf::event_based_actor*) -> caf::behavior {
        return {[&](const PeerEvent& event) {
            const std::lock_guard lock(mutex);
            states.push_back(event.state);
        }};
    });
    caf::anon_send(pair.a->actorApi()->actor(), SubscribeEvents{listener});
    // Ordered after the subscription.
    caf::scoped_actor self{system_};
    self->request(pair.a->actorApi()->actor(), kPatience, OpenSegmentByName{pair.b->localSegmentName()})
        .receive([](const SegmentOpened&) {}, [](const caf::error& error) { ADD_FAILURE() << to_string(error); });
    FaultRule rule;
    rule.point = FaultPoint::ControlFrame;
    rule.action = FaultAction::Fail;
    rule.nth = 1;
    rule.where = "Ping";
    ASSERT_TRUE((*pair.a->faults())->add(rule));
    static_cast<void>(pair.a->probePeerAliveByID(pair.segment, kPatience));
    const auto seen = [&] {
        const std::lock_guard lock(mutex);
        return states;
    };
    const auto limit = Clock::now() + kPatience;
    while (seen().size() < 2 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(seen(), (std::vector{PeerState::Suspect, PeerState::Up}));
    caf::anon_send_exit(listener, caf::exit_reason::user_shutdown);
}

TEST_F(ActorApiTest, SubscribersHearThatASegmentIsOpenedAndHowThatEnds) {
    std::mutex mutex;
    std::vector<std::pair<std::string, PeerState>> heard;
    const auto listener = system_.spawn([&](caf::event_based_actor*) -> caf::behavior {
        return {[&](const PeerEvent& event) {
            const std::lock_guard lock(mutex);
            heard.emplace_back(event.name, event.state);
        }};
    });
    caf::anon_send(engine(), SubscribeEvents{listener});
    const auto other = startEngine();
    const std::string there = other->localSegmentName();
    const std::string nowhere = "255.255.255.255:5";
    ASSERT_TRUE(ask<SegmentOpened>(OpenSegmentByName{there}));
    ASSERT_FALSE(ask<SegmentOpened>(OpenSegmentByName{nowhere}));
    const auto seen = [&] {
        const std::lock_guard lock(mutex);
        return heard;
    };
    const auto limit = Clock::now() + kPatience;
    while (seen().size() < 4 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    using State = std::pair<std::string, PeerState>;
    EXPECT_EQ(seen(), (std::vector{State(there, PeerState::Connecting), State(there, PeerState::Up),
                                   State(nowhere, PeerState::Connecting), State(nowhere, PeerState::Down)}));
    caf::anon_send_exit(listener, caf::exit_reason::user_shutdown);
}

TEST_F(ActorApiTest, ASubscriberThatEndedHarmsNobody) {
    const auto listener =
        system_.spawn([](caf::event_based_actor*) -> caf::behavior { return {[](const PeerEvent&) {}}; });
    caf::anon_send(engine(), SubscribeEvents{listener});
    caf::anon_send_exit(listener, caf::exit_reason::kill);
    pair_.b.reset();
    EXPECT_FALSE(pair_.a->probePeerAliveByID(pair_.segment));
}

TEST_F(ActorApiTest, ASubscriberThatIsNobodyHarmsNobody) {
    caf::anon_send(engine(), SubscribeEvents{});
    EXPECT_TRUE(pair_.a->probePeerAliveByID(pair_.segment));
}

TEST_F(ActorApiTest, RequestsThatAreOpenWhenTheEngineEndsAreAnswered) {
    Buffer large(64u << 20);
    Buffer target(64u << 20);
    ASSERT_TRUE(pair_.a->registerLocalMemory(large.data(), large.size()));
    ASSERT_TRUE(pair_.b->registerLocalMemory(target.data(), target.size()));
    const EngineActor actor = engine();
    std::atomic<int> answered{0};
    std::atomic<int> sent{0};
    system_.spawn([&](caf::event_based_actor* self) {
        const auto request = makeRequest(Opcode::Write, pair_.segment, large.data(), target.address(), large.size());
        for (int i = 0; i < 8; ++i) {
            self->request(actor, kPatience, SubmitTransfers{{request}})
                .then([&](const TransferReport&) { ++answered; },
                      [&](const caf::error& error) {
                          EXPECT_EQ(fromCafError(error).code(), Code::Canceled) << fromCafError(error).toString();
                          ++answered;
                      });
            ++sent;
        }
    });
    while (sent < 8) std::this_thread::yield();
    ASSERT_TRUE(pair_.a->freeEngine());
    const auto limit = Clock::now() + kPatience;
    while (answered < 8 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(answered, 8);
    large.protect(PROT_NONE);
    // A request to the engine that ended is an error from CAF, not a hang.
    caf::scoped_actor self{system_};
    Status refused;
    self->request(actor, kPatience, SubmitTransfers{})
        .receive([&](const TransferReport&) {}, [&](const caf::error& error) { refused = fromCafError(error); });
    EXPECT_EQ(refused.code(), Code::Canceled) << refused.toString();
}

/// Once told to, it holds the thread that says that a connection ended, as a system does that does not let it run.
class HoldingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  public:
    std::atomic<bool> hold{false};
    std::atomic<bool> held{false};

  protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        const std::string_view text(message.payload.data(), message.payload.size());
        if (text.find("connection ended") == std::string_view::npos) return;
        while (hold) {
            held = true;
            std::this_thread::yield();
        }
    }
    void flush_() override {}
};

TEST(ActorApiEnd, ARequestIsNotAnsweredWhileANicMayStillWriteToItsBuffer) {
    const auto sink = std::make_shared<HoldingSink>();
    EngineSetup setup;
    setup.config.waiter_drives = false;
    setup.options.log = std::make_shared<spdlog::logger>("holding", sink);
    setup.options.log->set_level(spdlog::level::debug);
    EnginePair pair(setup, 64u << 20);
    pair.remote.fill(std::byte{1});
    constexpr int kRequests = 64;
    caf::actor_system_config config;
    config.set("scheduler.max-threads", 1);
    caf::actor_system system(config);
    std::atomic<int> answered{0};
    const EngineActor actor = pair.a->actorApi()->actor();
    system.spawn([&](caf::event_based_actor* self) {
        for (int i = 0; i < kRequests; ++i)
            self->request(actor, kPatience, SubmitTransfers{{pair.request(Opcode::Read, 0, 0, pair.local.size())}})
                .then([&](const TransferReport&) { ++answered; },
                      [&](const caf::error& error) {
                          EXPECT_EQ(fromCafError(error).code(), Code::Canceled) << fromCafError(error).toString();
                          ++answered;
                      });
    });
    const auto limit = Clock::now() + kPatience;
    const auto waitFor = [&](const auto& reached) {
        while (!reached() && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::microseconds(100));
        return reached();
    };
    ASSERT_TRUE(waitFor([&] { return *const_cast<volatile std::byte*>(pair.local.data()) == std::byte{1}; }));
    // Somebody who comes and goes, so that the data loop has something to say.
    sink->hold = true;
    const auto port = (*pair.a->getSegmentDescByID(kLocalSegmentID))->lane_ports.at(0);
    const auto there = SocketAddress::fromNumeric("127.0.0.1", port);
    const UniqueFd visitor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(visitor.get(), there->get(), there->length), 0);
    ASSERT_EQ(::shutdown(visitor.get(), SHUT_WR), 0);
    ASSERT_TRUE(waitFor([&] { return sink->held.load(); }));
    const int before = answered;
    EXPECT_LT(before, kRequests) << "nothing is under way any more";
    std::thread ender([&] { EXPECT_TRUE(pair.a->freeEngine()); });
    // Time for answers that come too early. Those whose tasks had ended before may be on their way.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(answered, kRequests);
    sink->hold = false;
    ender.join();
    EXPECT_TRUE(waitFor([&] { return answered == kRequests; }));
}

TEST(ActorApiOwnSystem, TheEnginesOwnSystemServesToo) {
    EnginePair pair;
    ASSERT_NE(pair.a->actorApi(), nullptr);
    caf::actor_system_config config;
    config.set("scheduler.max-threads", 1);
    caf::actor_system system(config);
    caf::scoped_actor self{system};
    bool done = false;
    self->request(pair.a->actorApi()->actor(), kPatience, SubmitTransfers{{pair.request(Opcode::Write, 0, 0, 4096)}})
        .receive([&](const TransferReport& report) { done = report.batch.s == TransferStatusEnum::COMPLETED; },
                 [](const caf::error&) {});
    EXPECT_TRUE(done);
}

}  // namespace
}  // namespace troupe::test
