#include "actors/route_search.h"

#include <gmock/gmock.h>

#include "tests/support/virtual_reactor.h"

namespace troupe::test {
namespace {

/// Reaches what it is told to, and answers a probe when the test says so.
class StagedTransport : public Transport {
  public:
    StagedTransport(std::string name, bool probes) : name_(std::move(name)), probes_(probes) {}

    std::string name() const override { return name_; }
    Status install(const TransportContext&) override { return Status::ok(); }
    std::vector<PlacedNic> takeNics() override { return {}; }
    Status registerMemory(const Region&) override { return Status::ok(); }
    Status unregisterMemory(const Region&) override { return {}; }
    void describe(SegmentDesc&) const override {}
    Status reaches(const SegmentDesc&) const override { return reach; }
    std::unique_ptr<TransportProbe> probe(Reactor&, const SegmentDesc&,
                                          std::function<void(Status)> done) const override {
        if (!probes_ || !reach) {
            done(reach);
            return nullptr;
        }
        answer = std::move(done);
        return std::make_unique<TransportProbe>();
    }

    Status reach;
    mutable std::function<void(Status)> answer;

  private:
    const std::string name_;
    const bool probes_;
};

class Routes : public testing::Test {
  protected:
    /// The route when the first transport's probe ends with `answer`.
    Route after(const Status& answer) {
        std::optional<Route> found;
        RouteSearch search(reactor_, {{best_, {7}, 0, {"best0"}}, {other_, {8}, 1, {"other0"}}},
                           std::make_shared<const SegmentDesc>(), [&](Route route) { found = std::move(route); });
        search.start();
        if (best_->reach) {
            EXPECT_FALSE(found) << "the probe has not answered yet";
            best_->answer(answer);
        }
        EXPECT_TRUE(found);
        return found.value_or(Route{});
    }

    VirtualReactor reactor_;
    std::shared_ptr<StagedTransport> best_ = std::make_shared<StagedTransport>("best", true);
    std::shared_ptr<StagedTransport> other_ = std::make_shared<StagedTransport>("other", false);
};

TEST_F(Routes, TheFirstThatAnswersCarriesAndNothingIsLeftToLookFor) {
    const Route route = after(Status::ok());
    EXPECT_EQ(route.explanation.transport, "best");
    EXPECT_TRUE(route.probed);
    EXPECT_FALSE(route.unsettled);
    EXPECT_EQ(route.tried, "");
}

TEST_F(Routes, EveryTransportThatReachesThePeerIsKeptBestFirst) {
    const Route route = after(Status::ok());
    EXPECT_EQ(route.workers, (std::vector<std::uint32_t>{7, 8}));
    ASSERT_EQ(route.explanation.then.size(), 1u);
    EXPECT_EQ(route.explanation.then[0].transport, "other");
    EXPECT_EQ(route.explanation.toString(), "best by best0, then other by other0");
    other_->reach = Status(Code::TransportMissing, "is not installed there");
    const Route alone = after(Status::ok());
    EXPECT_EQ(alone.workers, std::vector<std::uint32_t>{7});
    EXPECT_TRUE(alone.explanation.refused.empty()) << "a worse one is no news";
    EXPECT_EQ(alone.explanation.toString(), "best by best0");
    ASSERT_EQ(alone.explanation.refused_next.size(), 1u);
    EXPECT_EQ(alone.explanation.refused_next[0].transport, "other");
    EXPECT_EQ(alone.explanation.refused_next[0].why.message(), "is not installed there");
}

TEST_F(Routes, AnAnswerThatMayPassLeavesThePeerToBeLookedAtAgain) {
    for (const Code code : {Code::Timeout, Code::ConnectionLost, Code::ConnectionRefused, Code::CapacityExceeded,
                            Code::ResourceExhausted}) {
        const Route route = after(Status(code, "not now"));
        EXPECT_EQ(route.explanation.transport, "other");
        EXPECT_TRUE(route.unsettled) << codeName(code);
        EXPECT_EQ(route.tried, "best: not now");
    }
}

TEST_F(Routes, ARefusalIsFinal) {
    for (const Code code : {Code::TransportMissing, Code::AccessDenied, Code::StaleIncarnation, Code::Unsupported}) {
        const Route route = after(Status(code, "no"));
        EXPECT_EQ(route.explanation.transport, "other");
        EXPECT_FALSE(route.unsettled) << codeName(code);
    }
}

TEST_F(Routes, WhatTheDescriptorRulesOutWasNotTriedAndIsNotLookedAtAgain) {
    best_->reach = Status(Code::TransportMissing, "runs on another host");
    const Route route = after(Status::ok());
    EXPECT_EQ(route.explanation.transport, "other");
    EXPECT_FALSE(route.unsettled);
    EXPECT_EQ(route.tried, "");
}

}  // namespace
}  // namespace troupe::test
