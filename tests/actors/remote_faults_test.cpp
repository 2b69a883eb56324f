#include "actors/remote_faults.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <optional>
#include <sstream>

#include "tests/support/test_reactor.h"

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BreakableReactor : public TestReactor {
  public:
    FaultInjector* faults() const override { return faults_; }
    void breakBy(FaultInjector* faults) { faults_ = faults; }

  private:
    FaultInjector* faults_ = nullptr;
};

class RemoteFaultsTest : public testing::Test {
  protected:
    RemoteFaultsTest() {
        reactor_.breakBy(&injector_);
        injector_.attach(reactor_, {&reactor_});
        log_->set_level(spdlog::level::info);
        allow(true);
    }
    ~RemoteFaultsTest() override {
        faults_.reset();
        injector_.detach();
    }

    void allow(bool allowed) { faults_.emplace(reactor_, allowed, log_); }
    Result<FaultAnswer> ask(std::uint64_t connection, const FaultRequest& request) {
        const auto said = faults_->answer({who_, connection}, "10.0.0.7:4000", request.encode());
        if (!said) return said.status();
        return FaultAnswer::decode(*said);
    }
    static FaultRequest failing(FaultPoint point, Duration lasts = kLongestFault) {
        FaultRequest request;
        request.kind = FaultRequest::Kind::Add;
        request.rule.point = point;
        request.rule.fraction = 1;
        request.rule.lasts = std::chrono::duration_cast<std::chrono::microseconds>(lasts);
        return request;
    }
    static FaultRequest ofRule(FaultRequest::Kind kind, FaultInjector::RuleId id) {
        FaultRequest request;
        request.kind = kind;
        request.id = id;
        return request;
    }
    bool isBroken(FaultPoint point) { return injector_.judge(point, "tcp0 a").has_value(); }
    std::string said() const { return said_.str(); }

    BreakableReactor reactor_;
    FaultInjector injector_{1};
    const Incarnation who_ = Incarnation::random();
    std::ostringstream said_;
    Logger log_ = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(said_));
    std::optional<RemoteFaults> faults_;
};

TEST_F(RemoteFaultsTest, AreRefusedWhereTheyAreNotAllowed) {
    allow(false);
    const auto refused = ask(1, failing(FaultPoint::Post));
    EXPECT_EQ(refused.status().code(), Code::AccessDenied);
    EXPECT_THAT(refused.status().message(), HasSubstr("faults.remote"));
    EXPECT_FALSE(isBroken(FaultPoint::Post));
    EXPECT_THAT(said(), AllOf(HasSubstr("10.0.0.7:4000"), HasSubstr(who_.toString())));
    reactor_.breakBy(nullptr);  // As without faults.enabled.
    allow(true);
    EXPECT_EQ(ask(1, FaultRequest{}).status().code(), Code::AccessDenied);
    faults_->askerLeft(1);
}

TEST_F(RemoteFaultsTest, WhatIsNoRequestIsRefused) {
    EXPECT_EQ(faults_->answer({who_, 1}, "a:1", "break everything").status().code(), Code::ProtocolError);
    FaultRequest neither = failing(FaultPoint::Post);
    neither.rule.fraction = 0;
    EXPECT_EQ(ask(1, neither).status().code(), Code::InvalidArgument);
    FaultRequest loop;
    loop.kind = FaultRequest::Kind::FreezeLoop;
    loop.loop = 7;
    loop.time = seconds(1);
    EXPECT_EQ(ask(1, loop).status().code(), Code::NotFound);
    EXPECT_EQ(said(), "");
}

TEST_F(RemoteFaultsTest, AreSetAndMendedOnRequestAndBothIsSaid) {
    const auto set = ask(1, failing(FaultPoint::Post));
    ASSERT_TRUE(set) << set.status().toString();
    EXPECT_TRUE(isBroken(FaultPoint::Post));
    EXPECT_THAT(said(),
                AllOf(HasSubstr("10.0.0.7:4000 (incarnation " + who_.toString() + ") breaks this engine"),
                      HasSubstr("fail: 100 % of posts with ConnectionLost, for 60000 ms"), Not(HasSubstr("mended"))));
    const auto count = ask(1, ofRule(FaultRequest::Kind::Count, set->id));
    ASSERT_TRUE(count) << count.status().toString();
    EXPECT_EQ(count->fired, 1u);
    ASSERT_TRUE(ask(1, ofRule(FaultRequest::Kind::Remove, set->id)));
    EXPECT_FALSE(isBroken(FaultPoint::Post));
    EXPECT_THAT(said(), HasSubstr("mended, it was asked for"));
    EXPECT_EQ(ask(1, ofRule(FaultRequest::Kind::Remove, set->id)).status().code(), Code::NotFound);
    ASSERT_TRUE(ask(1, failing(FaultPoint::Completion)));
    ASSERT_TRUE(ask(1, FaultRequest{}));
    EXPECT_FALSE(isBroken(FaultPoint::Completion));
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(RemoteFaultsTest, AreMendedWhenTheConnectionEndsAndOthersStay) {
    FaultRule own;
    own.point = FaultPoint::StoreCall;
    own.fraction = 1;
    ASSERT_TRUE(injector_.add(own));
    ASSERT_TRUE(ask(1, failing(FaultPoint::Post)));
    const auto of_other = ask(2, failing(FaultPoint::Completion));
    ASSERT_TRUE(of_other);
    EXPECT_EQ(ask(1, ofRule(FaultRequest::Kind::Count, of_other->id)).status().code(), Code::NotFound);
    EXPECT_EQ(ask(1, ofRule(FaultRequest::Kind::Remove, of_other->id)).status().code(), Code::NotFound);
    faults_->askerLeft(1);
    EXPECT_FALSE(isBroken(FaultPoint::Post));
    EXPECT_TRUE(isBroken(FaultPoint::Completion));
    EXPECT_TRUE(isBroken(FaultPoint::StoreCall)) << "what the program itself broke is not theirs to mend";
    EXPECT_THAT(said(), HasSubstr("mended, the connection ended"));
    faults_->askerLeft(1);
    faults_.reset();
    EXPECT_FALSE(isBroken(FaultPoint::Completion));
    EXPECT_TRUE(isBroken(FaultPoint::StoreCall));
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(RemoteFaultsTest, AreOverAfterTheirTimeWhoeverAskedIsStillThere) {
    const auto set = ask(1, failing(FaultPoint::Post, milliseconds(20)));
    ASSERT_TRUE(set);
    EXPECT_TRUE(reactor_.runUntil([&] { return said().find("mended, its time is over") != std::string::npos; }));
    EXPECT_FALSE(isBroken(FaultPoint::Post));
    EXPECT_EQ(ask(1, ofRule(FaultRequest::Kind::Remove, set->id)).status().code(), Code::NotFound);
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(RemoteFaultsTest, AFrozenControlLoopStandsStillOnlyOnceTheAnswerIsOut) {
    FaultRequest freeze;
    freeze.kind = FaultRequest::Kind::FreezeLoop;
    freeze.loop = FaultInjector::kControlLoop;
    freeze.time = seconds(30);
    ASSERT_TRUE(ask(1, freeze));
    bool sent = false;
    // As the control server sends an answer.
    reactor_.post([&] {
        sent = true;
        faults_->askerLeft(1);
    });
    reactor_.runIdle();
    EXPECT_TRUE(sent);
    // What was mended before it began does not begin.
    ASSERT_TRUE(ask(2, freeze));
    faults_->askerLeft(2);
    reactor_.runIdle();
}

}  // namespace
}  // namespace troupe::test
