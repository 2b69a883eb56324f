#include "actors/worker_logic.h"

#include <gmock/gmock.h>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::uint32_t kPeer = 3;

class Worker : public testing::Test, public WorkerOutput {
  protected:
    Worker() {
        auto nic = std::make_unique<FakeNic>(nicInfo(100, 100, 1000));
        nic_ = nic.get();
        worker_ = std::make_unique<WorkerLogic>(7, std::move(nic), quarantine_, *this);
        worker_->onUsePeer(UsePeer{makePeer(kPeer, incarnation_), segmentOf(kPeer), {7}});
    }

    Flight flight(std::uint64_t offset, std::uint64_t length, std::uint32_t task = 0) {
        Flight result;
        result.first_task = task;
        result.local = memory_.data() + offset;
        result.remote = 0x1000 + offset;
        result.length = length;
        return result;
    }
    void train(std::vector<Flight> flights, std::uint32_t tracker = 0, std::uint32_t peer = kPeer) {
        worker_->onTrain(Train{tracker, peer, incarnation_, std::move(flights)});
    }
    /// Polls and takes the only report.
    SliceReport poll() {
        worker_->poll(now_);
        EXPECT_EQ(reports_.size(), 1u);
        if (reports_.empty()) return {};
        const SliceReport report = reports_.front().second;
        EXPECT_EQ(report.worker, 7u);
        reports_.clear();
        return report;
    }
    void expectQuiet() {
        worker_->poll(now_);
        EXPECT_TRUE(reports_.empty());
    }
    void sendReport(std::uint32_t tracker, SliceReport& report) override {
        EXPECT_FALSE(report.failed.empty() && report.settled.empty() && report.paths.empty()) << "an empty report";
        reports_.emplace_back(tracker, std::move(report));
    }

    std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
    Incarnation incarnation_ = Incarnation::random();
    RegistrationTable regions_;
    Quarantine quarantine_{regions_, silentLog()};
    FakeNic* nic_ = nullptr;
    std::unique_ptr<WorkerLogic> worker_;
    std::vector<std::pair<std::uint32_t, SliceReport>> reports_;
    TimePoint now_ = Clock::now();
};

TEST_F(Worker, CutsAFlightIntoSlicesAndReportsItOnce) {
    train({flight(0, 250)});
    ASSERT_EQ(nic_->posted.size(), 3u);
    EXPECT_EQ(nic_->posted[2].request.length, 50u);
    EXPECT_EQ(nic_->posted[2].request.local, memory_.data() + 200);
    EXPECT_EQ(nic_->posted[2].request.remote, 0x1000u + 200);
    nic_->complete(1);
    expectQuiet();
    nic_->completeAll();
    const auto report = poll();
    EXPECT_TRUE(report.failed.empty());
    ASSERT_EQ(report.settled.size(), 1u);
    EXPECT_EQ(report.settled[0].bytes, 250u);
    EXPECT_EQ(report.settled[0].length, 250u);
    EXPECT_EQ(report.settled[0].peer, kPeer);
}

TEST_F(Worker, APathStaysUnlessItsNicSaysThatThePeerServesItAtAnotherPlace) {
    train({flight(0, 50)});
    auto same = std::make_shared<Peer>(*makePeer(kPeer, incarnation_));
    auto desc = std::make_shared<SegmentDesc>(*same->desc);
    // Of another transport than this Nic's.
    desc->tcp_data_port = static_cast<std::uint16_t>(desc->tcp_data_port + 1);
    same->desc = desc;
    worker_->onUsePeer(UsePeer{same, segmentOf(kPeer), {7}});
    expectQuiet();
    auto moved = std::make_shared<Peer>(*same);
    moved->host = "10.9.9.9";
    worker_->onUsePeer(UsePeer{moved, segmentOf(kPeer), {7}});
    const auto report = poll();
    ASSERT_EQ(report.failed.size(), 1u);
    EXPECT_EQ(report.failed[0].cause.code(), Code::ConnectionLost);
    EXPECT_THAT(report.failed[0].cause.message(), testing::HasSubstr("at another place now"));
    train({flight(0, 50)});
    ASSERT_EQ(nic_->paths.size(), 1u);
    EXPECT_EQ(nic_->paths.begin()->second->host, "10.9.9.9");
}

TEST_F(Worker, OneSweepIsOneReportPerTracker) {
    train({flight(0, 50), flight(100, 50)}, 0);
    train({flight(200, 50)}, 1);
    nic_->completeAll();
    worker_->poll(now_);
    ASSERT_EQ(reports_.size(), 2u);
    EXPECT_EQ(reports_[0].first, 0u);
    EXPECT_EQ(reports_[0].second.settled.size(), 2u);
    EXPECT_EQ(reports_[1].first, 1u);
    EXPECT_EQ(reports_[1].second.settled.size(), 1u);
}

TEST_F(Worker, AWholeFlightIsOneRequest) {
    auto info = nicInfo(100, 0, 1000);
    info.same_address_space = true;
    auto nic = std::make_unique<FakeNic>(info);
    nic_ = nic.get();
    worker_ = std::make_unique<WorkerLogic>(7, std::move(nic), quarantine_, *this);
    worker_->onUsePeer(UsePeer{makePeer(kPeer, incarnation_), segmentOf(kPeer), {7}});
    auto whole = flight(0, 1000);
    whole.remote = reinterpret_cast<std::uint64_t>(whole.local) + 8;
    whole.whole = true;
    train({whole});
    ASSERT_EQ(nic_->posted.size(), 1u);
    EXPECT_EQ(nic_->posted[0].request.length, 1000u);
}

TEST_F(Worker, APartThatFailedIsReportedWithTheRestSettled) {
    train({flight(0, 300)});
    nic_->fail(1, Status(Code::ConnectionLost, "lost"), true);
    const auto early = poll();
    ASSERT_EQ(early.failed.size(), 1u);
    EXPECT_EQ(early.failed[0].part.local, memory_.data() + 100);
    EXPECT_EQ(early.failed[0].part.length, 100u);
    EXPECT_TRUE(early.failed[0].retryable);
    EXPECT_TRUE(early.settled.empty()) << "the other parts are still with the Nic";
    nic_->completeAll();
    const auto report = poll();
    EXPECT_TRUE(report.failed.empty());
    ASSERT_EQ(report.settled.size(), 1u);
    EXPECT_EQ(report.settled[0].bytes, 200u);
}

TEST_F(Worker, KeepsABacklogWhileTheNicIsFullAndInOrder) {
    nic_->post_limit = 2;
    std::vector<Flight> flights;
    for (std::uint32_t i = 0; i < 10; ++i) flights.push_back(flight(i * 100, 100, i));
    train(flights);
    EXPECT_EQ(nic_->posted.size(), 2u);
    train({flight(2000, 100, 10)});
    EXPECT_EQ(nic_->posted.size(), 2u) << "the backlog goes first";
    std::vector<std::uint32_t> order;
    for (int i = 0; i < 100 && order.size() < 11; ++i) {
        if (!nic_->posted.empty()) nic_->complete(0);
        worker_->poll(now_);
        for (const auto& [tracker, report] : reports_)
            for (const auto& settled : report.settled) order.push_back(settled.first_task);
        reports_.clear();
        EXPECT_LE(nic_->posted.size(), 2u);
    }
    EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

TEST_F(Worker, AResetFailsBacklogAndPostedAndThePathGoesOn) {
    nic_->post_limit = 2;
    train({flight(0, 100, 0), flight(100, 100, 1), flight(200, 100, 2), flight(300, 100, 3)});
    worker_->onReset(ResetPath{kPeer, Status(Code::Canceled, "reset")});
    const auto report = poll();
    EXPECT_EQ(report.failed.size(), 4u);
    for (const auto& failed : report.failed) {
        EXPECT_TRUE(failed.retryable);
        EXPECT_EQ(failed.cause.code(), Code::Canceled);
    }
    EXPECT_EQ(report.settled.size(), 4u);
    train({flight(0, 100)});
    EXPECT_EQ(nic_->paths.size(), 1u);
    nic_->completeAll();
    EXPECT_TRUE(poll().failed.empty());
}

TEST_F(Worker, ADroppedPeersWorkFailsForGoodAndItsPathIsClosed) {
    nic_->post_limit = 1;
    train({flight(0, 100, 0), flight(100, 100, 1)});
    worker_->onDropPeer(DropPeer{kPeer, Status(Code::PeerDown, "dead"), false});
    EXPECT_TRUE(nic_->paths.empty());
    const auto report = poll();
    EXPECT_EQ(report.failed.size(), 2u);
    for (const auto& failed : report.failed) {
        EXPECT_FALSE(failed.retryable);
        EXPECT_EQ(failed.cause.code(), Code::PeerDown);
    }
    // Not forgotten: a train opens a path again.
    train({flight(0, 100)});
    EXPECT_EQ(nic_->paths.size(), 1u);
    worker_->onDropPeer(DropPeer{kPeer, Status(Code::StaleIncarnation, "restarted"), true});
    poll();
    train({flight(0, 100)});
    const auto refused = poll();
    ASSERT_EQ(refused.failed.size(), 1u);
    EXPECT_EQ(refused.failed[0].cause.code(), Code::StaleIncarnation) << "why it was forgotten";
    EXPECT_FALSE(refused.failed[0].retryable);
    EXPECT_EQ(refused.settled.size(), 1u);
}

TEST_F(Worker, AnUnknownPeerIsRefusedAndHarmless) {
    train({flight(0, 100)}, 0, 999);
    EXPECT_EQ(poll().failed.at(0).cause.code(), Code::StaleHandle);
    worker_->onDropPeer(DropPeer{5000, Status(Code::PeerDown, "dead"), false});
    worker_->onReset(ResetPath{5000, Status(Code::Canceled, "reset")});
    expectQuiet();
}

TEST_F(Worker, ARefusedPathFailsTheWholeTrainAndIsNotArmed) {
    nic_->refuse_open = Status(Code::TransportMissing, "no lane");
    train({flight(0, 250), flight(300, 100)});
    EXPECT_FALSE(worker_->arm()) << "a report waits";
    const auto report = poll();
    ASSERT_EQ(report.failed.size(), 2u);
    EXPECT_EQ(report.failed[0].part.length, 250u);
    EXPECT_EQ(report.failed[0].cause.code(), Code::TransportMissing);
    EXPECT_EQ(report.settled.size(), 2u);
    // Another Nic may have a way to that peer.
    for (const auto& failed : report.failed) EXPECT_TRUE(failed.retryable && failed.quiesced && failed.fenced);
    ASSERT_EQ(report.paths.size(), 1u);
    EXPECT_FALSE(report.paths[0].usable);
    EXPECT_TRUE(worker_->arm());
    // With another descriptor this one may have, too.
    worker_->onUsePeer(UsePeer{makePeer(kPeer, incarnation_), segmentOf(kPeer), {7}});
    EXPECT_TRUE(poll().paths.at(0).usable);
}

TEST_F(Worker, ANewIncarnationEndsThePathOfTheOldOne) {
    train({flight(0, 100)});
    worker_->onUsePeer(UsePeer{makePeer(kPeer, incarnation_), segmentOf(kPeer), {7}});
    EXPECT_EQ(nic_->posted.size(), 1u) << "the same incarnation keeps its work";
    worker_->onUsePeer(UsePeer{makePeer(kPeer), segmentOf(kPeer), {7}});
    EXPECT_TRUE(nic_->paths.empty());
    EXPECT_EQ(poll().failed.at(0).cause.code(), Code::StaleIncarnation);
    // A tracker that has not heard of the successor yet means the old one.
    train({flight(0, 100)});
    EXPECT_TRUE(nic_->paths.empty());
    const auto refused = poll();
    EXPECT_EQ(refused.failed.at(0).cause.code(), Code::StaleIncarnation);
    EXPECT_FALSE(refused.failed.at(0).retryable);
    const Incarnation successor = Incarnation::random();
    worker_->onUsePeer(UsePeer{makePeer(kPeer, successor), segmentOf(kPeer), {7}});
    worker_->onTrain(Train{0, kPeer, successor, {flight(0, 100)}});
    ASSERT_EQ(nic_->paths.size(), 1u);
    EXPECT_EQ(nic_->paths.begin()->second->desc->incarnation, successor);
}

TEST_F(Worker, WhoUninstallsItHearsWhenNoFlightIsLeft) {
    int answered = 0;
    const AwaitFlights wait{now_ + std::chrono::seconds(1), [&] { ++answered; }};
    worker_->onAwaitFlights(wait, now_);
    EXPECT_EQ(answered, 1) << "nothing is out";
    train({flight(0, 250)});
    worker_->onAwaitFlights(wait, now_);
    EXPECT_EQ(worker_->nextDeadline(), wait.deadline);
    nic_->complete(0);
    expectQuiet();
    EXPECT_EQ(answered, 1) << "parts of it are out";
    nic_->completeAll();
    EXPECT_EQ(poll().settled.size(), 1u);
    EXPECT_EQ(answered, 2);
}

TEST_F(Worker, WhoUninstallsItWaitsNoLongerThanTheDeadline) {
    int answered = 0;
    train({flight(0, 250)});
    worker_->onAwaitFlights(AwaitFlights{now_ + std::chrono::seconds(1), [&] { ++answered; }}, now_);
    expectQuiet();
    EXPECT_EQ(answered, 0);
    now_ += std::chrono::seconds(1);
    expectQuiet();
    EXPECT_EQ(answered, 1);
    worker_->onAwaitFlights(AwaitFlights{kForever, [&] { ++answered; }}, now_);
    worker_->abandon(Status(Code::Canceled, "the end"));
    EXPECT_EQ(answered, 2);
}

TEST_F(Worker, WhoClosesItToPeersHearsWhenNobodyHoldsAnything) {
    std::vector<Status> answers;
    const auto closing = [&] {
        return CloseToPeers{now_ + std::chrono::seconds(1), [&](const Status& held) { answers.push_back(held); }};
    };
    train({flight(0, 250)});
    worker_->onCloseToPeers(closing(), now_);
    EXPECT_TRUE(nic_->closed);
    ASSERT_EQ(answers.size(), 1u) << "own flights are not waited for";
    EXPECT_TRUE(answers[0]);
    worker_->onOpenToPeers();
    EXPECT_FALSE(nic_->closed);
    nic_->held = Status(Code::BatchBusy, "process 1 holds it");
    const TimePoint deadline = closing().deadline;
    worker_->onCloseToPeers(closing(), now_);
    EXPECT_TRUE(nic_->closed);
    EXPECT_EQ(worker_->nextDeadline(), deadline);
    expectQuiet();
    EXPECT_EQ(answers.size(), 1u);
    nic_->held = Status::ok();
    expectQuiet();
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_TRUE(answers[1]);
}

TEST_F(Worker, WhoClosesItToPeersHearsAtTheDeadlineWhoHoldsOn) {
    nic_->held = Status(Code::BatchBusy, "process 1 holds it");
    std::vector<Status> answers;
    const auto answer = [&](const Status& held) { answers.push_back(held); };
    const TimePoint deadline = now_ + std::chrono::seconds(1);
    worker_->onCloseToPeers(CloseToPeers{deadline, answer}, now_);
    worker_->poll(deadline - Duration(1));
    EXPECT_TRUE(answers.empty());
    worker_->poll(deadline);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].message(), nic_->held.message());
    EXPECT_TRUE(nic_->closed) << "until it is told otherwise";
    EXPECT_EQ(worker_->nextDeadline(), kForever);
}

TEST_F(Worker, TheEndOfTheNicDoesNotHideWhoHoldsMemory) {
    nic_->held = Status(Code::BatchBusy, "process 1 holds it");
    const Status held = nic_->held;
    nic_->served = ByteRange{0x5000, 0x8000};
    std::vector<Status> answers;
    const auto answer = [&](const Status& status) { answers.push_back(status); };
    worker_->onAwaitPeersIdle({ByteRange{0x5000, 16}, kForever, answer}, now_);
    worker_->onAwaitPeersIdle({FakeNic::kHeldRange, kForever, answer}, now_);
    worker_->onCloseToPeers({kForever, answer}, now_);
    ASSERT_TRUE(answers.empty());
    worker_->abandon(Status(Code::Canceled, "the end"));
    ASSERT_EQ(answers.size(), 3u);
    EXPECT_TRUE(answers[0]);
    EXPECT_EQ(answers[1].message(), held.message());
    EXPECT_EQ(answers[2].message(), held.message());
    ASSERT_EQ(quarantine_.list().entries.size(), 1u);
    EXPECT_EQ(quarantine_.list().entries[0].holder, "process 1");
}

TEST_F(Worker, WhatAProcessDoesNotGiveBackIsListedUntilItDoes) {
    nic_->held = Status(Code::BatchBusy, "process 1 holds it");
    nic_->served = FakeNic::kHeldRange;
    const TimePoint deadline = now_ + std::chrono::milliseconds(1);
    bool answered = false;
    worker_->onAwaitPeersIdle({FakeNic::kHeldRange, deadline,
                               [&](const Status&) {
                                   EXPECT_EQ(quarantine_.list().entries.size(), 1u) << "who is refused finds it there";
                                   answered = true;
                               }},
                              now_);
    EXPECT_TRUE(quarantine_.list().entries.empty()) << "it may still answer";
    now_ = deadline;
    worker_->poll(now_);
    EXPECT_TRUE(answered);
    const auto listed = quarantine_.list();
    ASSERT_EQ(listed.entries.size(), 1u);
    EXPECT_EQ(listed.entries[0].range, FakeNic::kHeldRange);
    EXPECT_EQ(listed.entries[0].nic, "fake0");
    EXPECT_EQ(listed.entries[0].since, now_);
    worker_->poll(now_);
    EXPECT_EQ(quarantine_.list().entries.size(), 1u);
    nic_->held = Status::ok();
    worker_->poll(now_);
    EXPECT_TRUE(quarantine_.list().entries.empty());
    EXPECT_EQ(quarantine_.list().proven, 1u);
}

TEST_F(Worker, AbandonDestroysTheNicFirstAndThenFailsEverything) {
    bool destroyed = false;
    nic_->destroyed = &destroyed;
    nic_->post_limit = 2;
    train({flight(0, 300, 0), flight(400, 100, 1)});
    nic_->complete(0);
    worker_->poll(now_);
    bool answered = false;
    nic_->served = ByteRange{0x5000, 16};
    worker_->onAwaitPeersIdle({ByteRange{0x5000, 16}, kForever, [&](const Status&) { answered = true; }}, now_);
    EXPECT_FALSE(answered);
    worker_->abandon(Status(Code::Canceled, "uninstalled"));
    EXPECT_TRUE(destroyed);
    EXPECT_TRUE(answered);
    ASSERT_EQ(reports_.size(), 1u);
    EXPECT_EQ(reports_[0].second.failed.size(), 2u);
    EXPECT_EQ(reports_[0].second.settled.size(), 2u);
}

TEST_F(Worker, TrackersHearWhatBecomesOfAPath) {
    train({flight(0, 100)}, 0);
    train({flight(0, 100)}, 2);
    const PathId path = nic_->paths.begin()->first;
    nic_->fail(0, Status(Code::ConnectionLost, "lost"), true, /*quiesced=*/true, /*fenced=*/true);
    nic_->sayUsable(path, false);
    nic_->sayUsable(path + 1, false);  // Of nobody.
    worker_->poll(now_);
    // Also one that has no work there yet.
    ASSERT_EQ(reports_.size(), 3u);
    for (const auto& [tracker, report] : reports_) {
        ASSERT_EQ(report.paths.size(), 1u);
        EXPECT_EQ(report.paths[0].peer, kPeer);
        EXPECT_FALSE(report.paths[0].usable);
        EXPECT_EQ(report.failed.size(), tracker == 0 ? 1u : 0u);
    }
    EXPECT_TRUE(reports_[0].second.failed[0].fenced);
    reports_.clear();
    nic_->sayUsable(path, true);
    worker_->poll(now_);
    ASSERT_EQ(reports_.size(), 3u);
    EXPECT_TRUE(reports_[0].second.paths.at(0).usable);
    nic_->completeAll();
}

TEST_F(Worker, AwaitPeersIdleOfSeveralRangesLooksAtEachAndAtNothingBetween) {
    nic_->served = ByteRange{0x7000, 16};
    nic_->held = Status(Code::BatchBusy, "process 1 holds it");
    std::vector<Status> answers;
    const auto await = [&](std::vector<ByteRange> ranges, TimePoint deadline) {
        worker_->onAwaitPeersIdle(
            {RangeSet(std::move(ranges)), deadline, [&](const Status& status) { answers.push_back(status); }}, now_);
    };
    ASSERT_GT(FakeNic::kHeldRange.addr, 0x8000u);
    await({{0x5000, 16}, {FakeNic::kHeldRange.end(), 16}}, kForever);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_TRUE(answers[0]) << answers[0].toString();
    const TimePoint deadline = now_ + std::chrono::seconds(1);
    await({{0x5000, 16}, {0x7008, 1}, {FakeNic::kHeldRange.addr, 1}}, deadline);
    worker_->poll(now_);
    EXPECT_EQ(answers.size(), 1u);
    worker_->poll(deadline);
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(nic_->cuts, 1);
    EXPECT_EQ(answers[1].code(), Code::BatchBusy);
}

TEST_F(Worker, AwaitPeersIdleWaitsAndCutsAtTheDeadline) {
    nic_->served = ByteRange{0x5000, 16};
    int answers = 0;
    worker_->onAwaitPeersIdle({ByteRange{0x9000, 16}, kForever, [&](const Status&) { ++answers; }}, now_);
    EXPECT_EQ(answers, 1) << "nobody is there";
    const TimePoint deadline = now_ + std::chrono::seconds(1);
    worker_->onAwaitPeersIdle({ByteRange{0x5000, 1}, deadline, [&](const Status&) { ++answers; }}, now_);
    EXPECT_EQ(worker_->nextDeadline(), deadline);
    worker_->poll(now_);
    EXPECT_EQ(answers, 1);
    worker_->poll(deadline);
    EXPECT_EQ(answers, 2);
    EXPECT_EQ(nic_->cuts, 1);
    EXPECT_EQ(worker_->nextDeadline(), kForever);
}

// --- what cannot be proven -----------------------------------------------------------------------------------------

TEST_F(Worker, WhatTheNicCannotProveIsInQuarantineBeforeTheTrackerHearsOfIt) {
    train({flight(0, 250)});
    nic_->failUnproven(0, 5);
    nic_->completeAll();
    const auto report = poll();
    ASSERT_EQ(report.failed.size(), 1u);
    EXPECT_FALSE(report.failed[0].quiesced);
    const auto held = quarantine_.list();
    ASSERT_EQ(held.entries.size(), 1u);
    EXPECT_EQ(held.entries[0].range, (ByteRange{reinterpret_cast<std::uint64_t>(memory_.data()), 100}));
    EXPECT_EQ(held.entries[0].nic, "fake0");
    EXPECT_EQ(held.entries[0].segment, "peer3");
    EXPECT_EQ(held.entries[0].cause.code(), Code::Timeout);
    EXPECT_EQ(held.entries[0].since, now_);
}

TEST_F(Worker, TheNicsProofTakesItOutOfQuarantine) {
    train({flight(0, 100), flight(200, 100), flight(400, 100)});
    nic_->failUnproven(0, 5);
    nic_->failUnproven(0, 6);
    nic_->failUnproven(0, 0);
    static_cast<void>(poll());
    EXPECT_EQ(quarantine_.list().entries.size(), 3u);
    nic_->prove(5);
    nic_->prove(0);  // Names nothing.
    expectQuiet();
    const auto held = quarantine_.list();
    ASSERT_EQ(held.entries.size(), 2u);
    EXPECT_EQ(held.entries[0].range.addr, reinterpret_cast<std::uint64_t>(memory_.data()) + 200);
    EXPECT_EQ(held.proven, 1u);
}

TEST_F(Worker, AFailureAndItsProofInOneSweepLeaveNothingBehind) {
    train({flight(0, 100)});
    nic_->failUnproven(0, 5);
    nic_->prove(5);
    EXPECT_FALSE(poll().failed[0].quiesced);
    EXPECT_TRUE(quarantine_.empty());
}

TEST_F(Worker, TheEndOfItsNicIsTheProof) {
    train({flight(0, 100), flight(200, 100)});
    nic_->failUnproven(0, 5);
    static_cast<void>(poll());
    worker_->abandon(Status(Code::TransportMissing, "uninstalled"));
    ASSERT_EQ(reports_.size(), 1u);
    EXPECT_TRUE(reports_[0].second.failed[0].quiesced);
    EXPECT_TRUE(quarantine_.empty());
}

TEST_F(Worker, ANicThatCouldNotEndEverythingLeavesItInQuarantine) {
    train({flight(0, 100), flight(200, 250)});
    nic_->failUnproven(0, 5);
    static_cast<void>(poll());
    nic_->at_the_end = Status(Code::Internal, "destroy a queue pair: EBUSY");
    worker_->abandon(Status(Code::TransportMissing, "uninstalled"));
    ASSERT_EQ(reports_.size(), 1u);
    EXPECT_FALSE(reports_[0].second.failed[0].quiesced);
    const auto held = quarantine_.list();
    ASSERT_EQ(held.entries.size(), 2u);
    EXPECT_EQ(held.entries[1].range, (ByteRange{reinterpret_cast<std::uint64_t>(memory_.data()) + 200, 250}));
    EXPECT_EQ(held.entries[1].cause.code(), Code::Internal);
}

}  // namespace
}  // namespace troupe::test
