// The engine's promises where parts of it are broken on purpose, by the fault API as a program uses it.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/fault_injector.h"
#include "metadata/inproc_store.h"
#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

EngineSetup breakable() {
    EngineSetup setup;
    setup.config.faults_enabled = true;
    return setup;
}

FaultRule first(FaultPoint point, FaultAction action) {
    FaultRule rule;
    rule.point = point;
    rule.action = action;
    rule.nth = 1;
    return rule;
}

FaultRule every(FaultPoint point, FaultAction action) {
    FaultRule rule;
    rule.point = point;
    rule.action = action;
    rule.fraction = 1;
    return rule;
}

/// Two engines that may be broken, and patterns to tell right bytes by.
class Faults : public ::testing::Test {
  protected:
    explicit Faults(const EngineSetup& setup = breakable()) : pair(setup) {
        pair.local.fillPattern(1);
        pair.remote.fillPattern(2);
    }

    FaultInjector& of(TransferEngine& engine) {
        const auto faults = engine.faults();
        EXPECT_TRUE(faults) << faults.status().toString();
        return **faults;
    }
    FaultInjector& here() { return of(*pair.a); }
    FaultInjector& there() { return of(*pair.b); }
    FaultInjector::RuleId add(FaultInjector& faults, const FaultRule& rule) {
        const auto id = faults.add(rule);
        EXPECT_TRUE(id) << id.status().toString();
        return id ? *id : 0;
    }
    std::uint64_t fired(FaultInjector& faults, FaultInjector::RuleId id) {
        const auto count = faults.count(id);
        EXPECT_TRUE(count) << count.status().toString();
        return count ? count->fired : 0;
    }
    TransferStatus run(Opcode opcode, milliseconds deadline = kPatience) {
        TransferRequest request = pair.request(opcode, 0, 0, pair.local.size());
        request.deadline = Clock::now() + deadline;
        return runBatch(*pair.a, {request});
    }

    EnginePair pair;
};

class FaultsWithChecksums : public Faults {
  protected:
    static EngineSetup checked() {
        EngineSetup setup = breakable();
        setup.config.tcp_crc = true;
        return setup;
    }
    FaultsWithChecksums() : Faults(checked()) {}
};

TEST(FaultsOff, AreRefusedUntilTheConfigAllowsThem) {
    const auto engine = startEngine();
    const auto faults = engine->faults();
    expectCode(faults, Code::AccessDenied);
    EXPECT_NE(faults.status().message().find("faults.enabled"), std::string::npos) << faults.status().message();
}

// --- posts -------------------------------------------------------------------------------------------------------

TEST_F(Faults, AFailedPostIsSentAgain) {
    const auto rule = add(here(), first(FaultPoint::Post, FaultAction::Fail));
    expectCompleted(run(Opcode::Write), pair.local.size());
    EXPECT_TRUE(pair.remote.holdsPattern(1));
    EXPECT_EQ(fired(here(), rule), 1u);
}

TEST_F(Faults, ARefusedPostEndsTheTaskWithItsCode) {
    FaultRule rule = first(FaultPoint::Post, FaultAction::Fail);
    rule.code = Code::AccessDenied;
    rule.retryable = false;
    add(here(), rule);
    const TransferStatus status = run(Opcode::Write);
    expectFailed(status, Code::AccessDenied);
    EXPECT_NE(status.error.message().find("fault rule"), std::string::npos) << status.error.message();
}

TEST_F(Faults, PostsThatAllFailEndTheTaskWhenItsRetriesAreUsedUp) {
    add(here(), every(FaultPoint::Post, FaultAction::Fail));
    expectFailed(run(Opcode::Read), Code::ConnectionLost);
    here().clear();
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_TRUE(pair.local.holdsPattern(2));
}

TEST_F(Faults, ADelayedPostArrivesLater) {
    FaultRule rule = every(FaultPoint::Post, FaultAction::Delay);
    rule.delay = milliseconds(50);
    add(here(), rule);
    const TimePoint before = Clock::now();
    expectCompleted(run(Opcode::Write), pair.local.size());
    EXPECT_GE(Clock::now() - before, milliseconds(50));
    EXPECT_TRUE(pair.remote.holdsPattern(1));
}

TEST_F(Faults, APostThatIsDelayedPastItsDeadlineIsNeverMade) {
    FaultRule rule = every(FaultPoint::Post, FaultAction::Delay);
    rule.delay = seconds(30);
    add(here(), rule);
    const TransferStatus status = run(Opcode::Write, milliseconds(50));
    EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT) << status.error.toString();
    EXPECT_TRUE(status.quiesced);
    here().clear();
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_TRUE(pair.local.holdsPattern(2)) << "the write arrived after its end";
}

// --- completions -------------------------------------------------------------------------------------------------

TEST_F(Faults, AFailedCompletionIsSentAgain) {
    const auto rule = add(here(), first(FaultPoint::Completion, FaultAction::Fail));
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_TRUE(pair.local.holdsPattern(2));
    EXPECT_EQ(fired(here(), rule), 1u);
}

TEST_F(Faults, ALostCompletionEndsAtItsDeadline) {
    add(here(), first(FaultPoint::Completion, FaultAction::Lose));
    const TransferStatus status = run(Opcode::Write, milliseconds(100));
    EXPECT_EQ(status.s, TransferStatusEnum::TIMEOUT) << status.error.toString();
    EXPECT_TRUE(status.quiesced);
    expectCompleted(run(Opcode::Write), pair.local.size());
}

TEST_F(Faults, ATaskThatItsDeadlineEndedSaysWhatWasUnderWay) {
    add(here(), every(FaultPoint::Completion, FaultAction::Lose));
    BatchHolder batch(*pair.a, 2);
    TransferRequest request = pair.request(Opcode::Write, 0, 0, pair.local.size());
    request.deadline = Clock::now() + milliseconds(100);
    ASSERT_TRUE(batch.submit({request}));
    EXPECT_EQ(batch.wait().s, TransferStatusEnum::TIMEOUT);
    const auto how = pair.a->explain(batch.id(), 0);
    ASSERT_TRUE(how) << how.status().toString();
    SCOPED_TRACE(how->toString());
    EXPECT_EQ(how->nics, std::vector<std::string>{"tcp0"});
    ASSERT_TRUE(how->ending);
    EXPECT_EQ(how->ending->cause.code(), Code::Timeout);
    EXPECT_EQ(how->ending->length, pair.local.size());
    EXPECT_EQ(how->ending->arrived, 0u);
    EXPECT_TRUE(how->ending->sent);
    EXPECT_GT(how->ending->under_way, 0u);
    EXPECT_TRUE(how->ending->lost.empty());
    // What was out came back when its path was ended.
    std::uint64_t back = 0;
    for (const auto& attempt : how->attempts) {
        EXPECT_EQ(attempt.nic, "tcp0");
        EXPECT_FALSE(attempt.cause.isOk());
        back += attempt.bytes;
    }
    EXPECT_EQ(back, pair.local.size());
    ASSERT_TRUE(how->owner);
    EXPECT_EQ(how->owner->state, PeerState::Up);
    EXPECT_TRUE(how->owner->trouble.isOk());
    EXPECT_THAT(how->toString(), testing::AllOf(testing::HasSubstr("ended: Timeout: the deadline passed"),
                                                testing::HasSubstr("its owner is up, last heard of ")));

    request.deadline = Clock::now() - milliseconds(1);
    ASSERT_TRUE(batch.submit({request}));
    batch.wait();
    const auto late = pair.a->explain(batch.id(), 1);
    ASSERT_TRUE(late && late->ending);
    EXPECT_FALSE(late->ending->sent);
    EXPECT_THAT(late->toString(), testing::HasSubstr("nothing of its 1048576 bytes had been sent"));
}

TEST_F(Faults, ATaskThatTheLossOfItsPeerEndedSaysWhenThatWasHeardOfLast) {
    const auto lost = add(here(), every(FaultPoint::Completion, FaultAction::Lose));
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, 4096)}));
    // Only then: what the other engine's end still finds unsent is refused by the network before the peer is down.
    const TimePoint limit = Clock::now() + std::chrono::seconds(30);
    while (fired(here(), lost) == 0 && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_EQ(fired(here(), lost), 1u);
    EXPECT_TRUE(pair.b->freeEngine());
    const TransferStatus status = batch.wait();
    EXPECT_EQ(status.s, TransferStatusEnum::FAILED);
    EXPECT_EQ(status.error.code(), Code::PeerDown) << status.error.toString();
    EXPECT_THAT(status.error.toString(), testing::AllOf(testing::HasSubstr("; last heard of "),
                                                        testing::Not(testing::HasSubstr("PeerDown: PeerDown"))));
    // A connection that its listener took while it ended is one that is being made, until it is reset.
    while (pair.a->explainSegment(pair.segment)->owner->state != PeerState::Down && Clock::now() < limit)
        std::this_thread::sleep_for(milliseconds(1));
    const auto how = pair.a->explain(batch.id(), 0);
    ASSERT_TRUE(how) << how.status().toString();
    SCOPED_TRACE(how->toString());
    ASSERT_TRUE(how->ending);
    EXPECT_EQ(how->ending->cause.code(), Code::PeerDown);
    EXPECT_GT(how->ending->under_way, 0u);
    ASSERT_TRUE(how->owner);
    EXPECT_EQ(how->owner->state, PeerState::Down);
    EXPECT_FALSE(how->owner->trouble.isOk());
    // Of the segment alone, too.
    const auto segment = pair.a->explainSegment(pair.segment);
    ASSERT_TRUE(segment && segment->owner);
    EXPECT_EQ(segment->owner->state, PeerState::Down);
    EXPECT_FALSE(segment->ending);
}

TEST_F(Faults, ALostCompletionEndsWhenItIsCanceled) {
    add(here(), every(FaultPoint::Completion, FaultAction::Lose));
    BatchHolder batch(*pair.a, 1);
    ASSERT_TRUE(batch.submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    ASSERT_TRUE(pair.a->cancelTransfer(batch.id()));
    const TransferStatus status = batch.wait();
    EXPECT_EQ(status.s, TransferStatusEnum::CANCELED) << status.error.toString();
    EXPECT_TRUE(status.quiesced);
}

TEST_F(Faults, ADelayedCompletionIsSaidLater) {
    FaultRule rule = every(FaultPoint::Completion, FaultAction::Delay);
    rule.delay = milliseconds(50);
    add(here(), rule);
    const TimePoint before = Clock::now();
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_GE(Clock::now() - before, milliseconds(50));
    EXPECT_TRUE(pair.local.holdsPattern(2));
}

TEST_F(Faults, AShareOfPostsAndCompletionsFailsAndEveryByteIsRight) {
    FaultRule posts = every(FaultPoint::Post, FaultAction::Fail);
    posts.fraction = 0.1;
    FaultRule completions = every(FaultPoint::Completion, FaultAction::Fail);
    completions.fraction = 0.1;
    const auto rule = add(here(), posts);
    add(here(), completions);
    std::vector<TransferRequest> requests;
    constexpr std::size_t kPiece = 4096;
    // From the end, so that none is merged with the one before.
    for (std::size_t at = pair.local.size(); at > 0; at -= kPiece) {
        requests.push_back(pair.request(Opcode::Write, at - kPiece, at - kPiece, kPiece));
        requests.back().advise_retry_cnt = 50;
    }
    expectCompleted(runBatch(*pair.a, requests), pair.local.size());
    EXPECT_TRUE(pair.remote.holdsPattern(1));
    EXPECT_GT(fired(here(), rule), 0u);
}

// --- paths -------------------------------------------------------------------------------------------------------

TEST_F(Faults, ADroppedPathFailsWhatHasNoOther) {
    expectCompleted(run(Opcode::Write), pair.local.size());
    ASSERT_TRUE(here().dropPath("tcp0", seconds(30)));
    expectFailed(run(Opcode::Write), Code::ConnectionLost);
    here().clear();
    expectCompleted(run(Opcode::Write), pair.local.size());
}

TEST_F(Faults, ADroppedPathIsThereAgainWhenItsTimeIsOver) {
    expectCompleted(run(Opcode::Write), pair.local.size());
    // For longer each time, until this thread comes to use the path before it is back.
    TransferStatus lost;
    milliseconds time(100);
    do {
        ASSERT_LE(time, kLongestFault);
        ASSERT_TRUE(here().dropPath(pair.b->localSegmentName(), time));
        lost = run(Opcode::Write);
        time *= 2;
    } while (lost.s == TransferStatusEnum::COMPLETED);
    expectFailed(lost, Code::ConnectionLost);
    expectCompleted(runUntilCompleted(*pair.a, pair.request(Opcode::Write, 0, 0, pair.local.size())),
                    pair.local.size());
}

class FaultsOfTwoPaths : public Faults {
  protected:
    static EngineSetup twoLoops() {
        EngineSetup setup = breakable();
        setup.config.data_loops = 2;
        return setup;
    }
    FaultsOfTwoPaths() : Faults(twoLoops()) {}
};

TEST_F(FaultsOfTwoPaths, WhatADroppedPathCarriedGoesOnOverTheOther) {
    for (int i = 0; i < 4; ++i) expectCompleted(run(Opcode::Write), pair.local.size());
    // What that path carries does not end but by its loss.
    FaultRule held = every(FaultPoint::Completion, FaultAction::Lose);
    held.where = "tcp0 ";
    const auto rule = add(here(), held);
    std::vector<std::unique_ptr<BatchHolder>> batches;
    const auto submit = [&] {
        batches.push_back(std::make_unique<BatchHolder>(*pair.a, 1));
        ASSERT_TRUE(batches.back()->submit({pair.request(Opcode::Write, 0, 0, pair.local.size())}));
    };
    for (int i = 0; i < 8; ++i) submit();
    const TimePoint limit = Clock::now() + kPatience;
    while (fired(here(), rule) == 0 && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_GT(fired(here(), rule), 0u) << "it carried nothing";
    ASSERT_TRUE(here().dropPath("tcp0", seconds(30)));
    for (int i = 0; i < 8; ++i) submit();
    std::size_t moved = 0;
    for (const auto& batch : batches) {
        expectCompleted(batch->wait(), pair.local.size());
        const auto how = pair.a->explain(batch->id(), 0);
        ASSERT_TRUE(how) << how.status().toString();
        for (const auto& attempt : how->attempts)
            if (attempt.nic == "tcp0" && attempt.cause.code() == Code::ConnectionLost) ++moved;
    }
    EXPECT_GT(moved, 0u) << "nothing was lost";
    EXPECT_TRUE(pair.remote.holdsPattern(1));
}

// --- loops -------------------------------------------------------------------------------------------------------

TEST_F(Faults, NothingMovesOnAFrozenLoop) {
    expectCompleted(run(Opcode::Write), pair.local.size());
    ASSERT_TRUE(here().freezeLoop(0, seconds(50)));
    std::atomic<bool> thawed = false;
    // The loop may be frozen in this thread's hands.
    std::thread thaw([&] {
        std::this_thread::sleep_for(milliseconds(100));
        thawed = true;
        here().clear();
    });
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_TRUE(thawed);
    thaw.join();
}

TEST_F(Faults, ALoopThatTwoFrozeThawsWhenBothAreMended) {
    const FaultInjector::Owner other = 7;
    ASSERT_TRUE(here().freezeLoop(0, seconds(50)));
    ASSERT_TRUE(here().freezeLoop(0, seconds(50), other));
    std::atomic<bool> thawed = false;
    // The loop may be frozen in this thread's hands.
    std::thread thaw([&] {
        here().clear(other);
        std::this_thread::sleep_for(milliseconds(100));  // What should stand still gets a chance to move.
        thawed = true;
        here().clear(FaultInjector::kProgram);
    });
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_TRUE(thawed);
    thaw.join();
}

TEST_F(Faults, AFrozenEngineEndsInTime) {
    ASSERT_TRUE(here().freezeLoop(0, seconds(50)));
    ASSERT_TRUE(here().freezeLoop(FaultInjector::kControlLoop, seconds(50)));
    expectCode(here().freezeLoop(7, seconds(1)), Code::NotFound);
    const TimePoint before = Clock::now();
    const Status ended = pair.a->freeEngine();
    EXPECT_TRUE(ended) << ended.toString();
    EXPECT_LT(Clock::now() - before, seconds(45));
}

// --- payloads ----------------------------------------------------------------------------------------------------

TEST_F(FaultsWithChecksums, ACorruptedByteOfAReadIsFoundAndReadAgain) {
    const auto rule = add(here(), first(FaultPoint::Payload, FaultAction::Corrupt));
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_EQ(fired(here(), rule), 1u);
    EXPECT_TRUE(pair.local.holdsPattern(2));
}

TEST_F(FaultsWithChecksums, ACorruptedByteOfAWriteIsFoundAndWrittenAgain) {
    const auto rule = add(there(), first(FaultPoint::Payload, FaultAction::Corrupt));
    expectCompleted(run(Opcode::Write), pair.local.size());
    EXPECT_EQ(fired(there(), rule), 1u);
    EXPECT_TRUE(pair.remote.holdsPattern(1));
}

TEST_F(FaultsWithChecksums, BytesThatAreCorruptedEveryTimeAreAnError) {
    add(here(), every(FaultPoint::Payload, FaultAction::Corrupt));
    expectFailed(run(Opcode::Read), Code::ChecksumMismatch);
}

TEST_F(Faults, WithoutChecksumsACorruptedByteIsNotSeen) {
    const auto rule = add(here(), first(FaultPoint::Payload, FaultAction::Corrupt));
    expectCompleted(run(Opcode::Read), pair.local.size());
    EXPECT_EQ(fired(here(), rule), 1u);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < pair.local.size(); ++i) wrong += pair.local.data()[i] != pair.remote.data()[i] ? 1 : 0;
    EXPECT_EQ(wrong, 1u);
}

// --- control frames ----------------------------------------------------------------------------------------------

TEST_F(Faults, WithoutPingsAProbeTimesOut) {
    FaultRule rule = every(FaultPoint::ControlFrame, FaultAction::Lose);
    rule.where = "Ping";
    add(here(), rule);
    expectCode(pair.a->probePeerAliveByID(pair.segment, milliseconds(50)), Code::Timeout);
    here().clear();
    const Status alive = pair.a->probePeerAliveByID(pair.segment, kPatience);
    EXPECT_TRUE(alive) << alive.toString();
}

TEST_F(Faults, AProbeOfASuspectPeerWaitsUntilItHasGreetedAndOfOneThatIsDownSaysSoAtOnce) {
    FaultRule rule = first(FaultPoint::ControlFrame, FaultAction::Fail);
    rule.where = "Ping";
    add(here(), rule);
    // So that it is suspect for a while.
    FaultRule late = every(FaultPoint::ControlFrame, FaultAction::Delay);
    late.where = "Hello ";
    late.delay = milliseconds(200);
    add(here(), late);
    expectCode(pair.a->probePeerAliveByID(pair.segment, kPatience), Code::PeerDown);
    const Status alive = pair.a->probePeerAliveByID(pair.segment, kPatience);
    EXPECT_TRUE(alive) << alive.toString();
    const std::string name = pair.b->localSegmentName();
    pair.b.reset();
    const TimePoint limit = Clock::now() + kPatience;
    while (pair.a->explainSegment(pair.segment)->owner->state != PeerState::Down && Clock::now() < limit)
        std::this_thread::sleep_for(milliseconds(1));
    const Status down = pair.a->probePeerAliveByID(pair.segment, kPatience);
    expectCode(down, Code::PeerDown);
    EXPECT_THAT(down.message(), testing::HasSubstr("peer " + name + ": ")) << "the cause";
}

TEST_F(Faults, ADelayedPongAnswersAProbeLater) {
    FaultRule rule = first(FaultPoint::ControlFrame, FaultAction::Delay);
    rule.where = "Pong";
    rule.delay = milliseconds(200);
    const auto id = add(there(), rule);
    const Status alive = pair.a->probePeerAliveByID(pair.segment, kPatience);
    EXPECT_TRUE(alive) << alive.toString();
    EXPECT_EQ(fired(there(), id), 1u);
}

TEST_F(Faults, AFailedControlFrameEndsTheConnectionAndThePeerIsFoundAgain) {
    FaultRule rule = first(FaultPoint::ControlFrame, FaultAction::Fail);
    rule.where = "Ping";
    const auto id = add(here(), rule);
    const TimePoint limit = Clock::now() + kPatience;
    Status alive(Code::Timeout, "not asked");
    while ((!alive || fired(here(), id) == 0) && Clock::now() < limit)
        alive = pair.a->probePeerAliveByID(pair.segment, milliseconds(500));
    EXPECT_TRUE(alive) << alive.toString();
    EXPECT_EQ(fired(here(), id), 1u);
    expectCompleted(runUntilCompleted(*pair.a, pair.request(Opcode::Write, 0, 0, pair.local.size())),
                    pair.local.size());
}

class FaultsOfKeepalive : public Faults {
  protected:
    static EngineSetup impatient() {
        EngineSetup setup = breakable();
        setup.config.keepalive_interval = milliseconds(50);
        setup.config.keepalive_timeout = milliseconds(500);
        setup.config.open_timeout = milliseconds(2000);
        return setup;
    }
    FaultsOfKeepalive() : Faults(impatient()) {}
};

TEST_F(FaultsOfKeepalive, ADescriptorThatNeverComesIsAskedForAnewOverAnotherConnection) {
    FaultRule rule = first(FaultPoint::ControlFrame, FaultAction::Lose);
    rule.where = "Descriptor";
    const auto id = add(there(), rule);
    const TimePoint limit = Clock::now() + kPatience;
    while (fired(there(), id) == 0 && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_EQ(fired(there(), id), 1u);
    // Its pings are answered all the while.
    Buffer more(4096);
    ASSERT_TRUE(pair.b->registerLocalMemory(more.data(), more.size()));
    const auto knows = [&] {
        const auto desc = pair.a->getSegmentDescByID(pair.segment);
        return desc && (*desc)->buffers.size() == 2;
    };
    Status synced;
    while (!knows() && Clock::now() < limit) synced = pair.a->syncSegmentCache();
    EXPECT_TRUE(knows()) << synced.toString();
}

// --- store calls -------------------------------------------------------------------------------------------------

class FaultsOfAStore : public ::testing::Test {
  protected:
    std::unique_ptr<TransferEngine> make() {
        EngineOptions options;
        options.config = breakable().config;
        options.config.open_timeout = milliseconds(500);
        options.log = makeSilentLogger();
        options.inproc_store = [this] { return std::make_unique<InprocStore>(directory_); };
        return std::make_unique<TransferEngine>(std::move(options));
    }
    static FaultRule call(FaultAction action, const std::string& where) {
        FaultRule rule = first(FaultPoint::StoreCall, action);
        rule.where = where;
        rule.code = Code::AccessDenied;
        return rule;
    }

  private:
    const std::shared_ptr<InprocDirectory> directory_ = std::make_shared<InprocDirectory>();
};

TEST_F(FaultsOfAStore, AFailedPublishIsWhatInitSays) {
    const auto engine = make();
    // There is one when the transport of this host is installed, and another at the end.
    FaultRule publish = call(FaultAction::Fail, "publish a");
    publish.nth = 0;
    publish.fraction = 1;
    ASSERT_TRUE((*engine->faults())->add(publish));
    const Status started = engine->init("inproc://", "a", "127.0.0.1");
    expectCode(started, Code::AccessDenied);
    EXPECT_NE(started.message().find("store call: publish a"), std::string::npos) << started.message();
}

TEST_F(FaultsOfAStore, AFailedResolveIsWhatOpenSaysAndTheNextSucceeds) {
    const auto a = make();
    const auto b = make();
    ASSERT_TRUE(a->init("inproc://", "a", "127.0.0.1"));
    ASSERT_TRUE(b->init("inproc://", "b", "127.0.0.1"));
    ASSERT_TRUE((*a->faults())->add(call(FaultAction::Fail, "resolve b")));
    expectCode(a->openSegment("b"), Code::AccessDenied);
    const auto opened = a->openSegment("b");
    EXPECT_TRUE(opened) << opened.status().toString();
}

TEST_F(FaultsOfAStore, AResolveThatTakesTooLongIsATimeout) {
    const auto a = make();
    const auto b = make();
    ASSERT_TRUE(a->init("inproc://", "a", "127.0.0.1"));
    ASSERT_TRUE(b->init("inproc://", "b", "127.0.0.1"));
    FaultRule slow = call(FaultAction::Delay, "resolve b");
    slow.delay = seconds(30);
    ASSERT_TRUE((*a->faults())->add(slow));
    expectCode(a->openSegment("b"), Code::Timeout);
}

}  // namespace
}  // namespace troupe::test
