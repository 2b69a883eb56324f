#include "control/fault_request.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace troupe {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::HasSubstr;
using Kind = FaultRequest::Kind;

FaultRequest sample(Kind kind) {
    FaultRequest request;
    request.kind = kind;
    switch (kind) {
        case Kind::Add:
            request.rule.point = FaultPoint::ControlFrame;
            request.rule.action = FaultAction::Delay;
            request.rule.fraction = 0.25;
            request.rule.times = UINT64_MAX;
            request.rule.where = "Ping 10.0.0.7:1";
            request.rule.delay = milliseconds(20);
            request.rule.code = Code::PeerDown;
            request.rule.retryable = false;
            request.rule.lasts = kLongestFault;
            break;
        case Kind::Remove:
        case Kind::Count: request.id = UINT64_MAX; break;
        case Kind::DropPath:
            request.where = "tcp0 \"näme\"";
            request.time = microseconds(1);
            break;
        case Kind::FreezeLoop:
            request.loop = FaultInjector::kControlLoop;
            request.time = kLongestFault;
            break;
        case Kind::Clear: break;
    }
    return request;
}

TEST(FaultRequestText, EveryKindComesBackAsItWas) {
    for (const Kind kind : {Kind::Add, Kind::Remove, Kind::Count, Kind::DropPath, Kind::FreezeLoop, Kind::Clear}) {
        const FaultRequest request = sample(kind);
        const auto back = FaultRequest::decode(request.encode());
        ASSERT_TRUE(back) << back.status().toString();
        EXPECT_EQ(*back, request) << request.encode();
    }
    const auto answer = FaultAnswer::decode(FaultAnswer{1, UINT64_MAX, 3}.encode());
    ASSERT_TRUE(answer) << answer.status().toString();
    EXPECT_EQ(*answer, (FaultAnswer{1, UINT64_MAX, 3}));
}

TEST(FaultRequestText, EveryPointAndActionHasAWord) {
    for (std::size_t point = 0; point < kFaultPoints; ++point)
        for (const FaultAction action :
             {FaultAction::Fail, FaultAction::Delay, FaultAction::Lose, FaultAction::Corrupt}) {
            FaultRequest request = sample(Kind::Add);
            request.rule.point = static_cast<FaultPoint>(point);
            request.rule.action = action;
            const auto back = FaultRequest::decode(request.encode());
            ASSERT_TRUE(back) << back.status().toString();
            EXPECT_EQ(*back, request) << request.encode();
        }
}

TEST(FaultRequestText, WhatIsWrongIsRefusedByName) {
    const auto why = [](const std::string& text) {
        const auto request = FaultRequest::decode(text);
        EXPECT_EQ(request.status().code(), Code::ProtocolError) << text;
        return request.status().message();
    };
    EXPECT_THAT(why(""), HasSubstr("FaultRequest"));
    EXPECT_THAT(why("{}"), HasSubstr("'do'"));
    EXPECT_THAT(why(R"({"do":"explode"})"), HasSubstr("'do' is none that is known"));
    EXPECT_THAT(why(R"({"do":"remove"})"), HasSubstr("'rule'"));
    EXPECT_THAT(why(R"({"do":"remove","rule":-1})"), HasSubstr("'rule'"));
    EXPECT_THAT(why(R"({"do":"drop path","where":"","time_us":0})"), HasSubstr("'time_us' is 0"));
    EXPECT_THAT(why(R"({"do":"drop path","where":"","time_us":60000001})"), HasSubstr("'time_us'"));
    EXPECT_THAT(why(R"({"do":"drop path","where":"a\nb","time_us":1})"), HasSubstr("control characters"));
    EXPECT_THAT(
        why(R"({"do":"drop path","where":")" + std::string(FaultRequest::kMaxWhere + 1, 'x') + R"(","time_us":1})"),
        HasSubstr("'where'"));
    EXPECT_THAT(why(R"({"do":"freeze loop","loop":4294967296,"time_us":1})"), HasSubstr("'loop'"));
    EXPECT_THAT(why(std::string(FaultRequest::kMaxText + 1, ' ')), HasSubstr("at most"));
    const std::string rule = sample(Kind::Add).encode();
    const auto with = [&](const std::string& field, const std::string& value) {
        const auto begin = rule.find("\"" + field + "\":") + field.size() + 3;
        std::string changed = rule;
        return changed.replace(begin, rule.find_first_of(",}", begin) - begin, value);
    };
    EXPECT_TRUE(FaultRequest::decode(with("times", "1")));
    EXPECT_THAT(why(with("point", "\"nowhere\"")), HasSubstr("'point'"));
    EXPECT_THAT(why(with("action", "7")), HasSubstr("'action'"));
    EXPECT_THAT(why(with("billionths", "1000000001")), HasSubstr("'billionths'"));
    EXPECT_THAT(why(with("billionths", "0.5")), HasSubstr("'billionths'"));
    EXPECT_THAT(why(with("delay_us", "60000001")), HasSubstr("'delay_us'"));
    EXPECT_THAT(why(with("code", "7777")), HasSubstr("'code'"));
    EXPECT_THAT(why(with("retryable", "2")), HasSubstr("'retryable'"));
    EXPECT_THAT(why(with("lasts_us", "0")), HasSubstr("'lasts_us' is 0")) << "nothing is broken for good";
    EXPECT_THAT(why(with("lasts_us", "60000001")), HasSubstr("'lasts_us'"));
    EXPECT_EQ(FaultAnswer::decode(R"({"rule":1})").status().code(), Code::ProtocolError);
}

TEST(FaultRequestText, SaysInWordsWhatItBreaks) {
    EXPECT_EQ(sample(Kind::Add).describe(),
              "delay: 25 % of control frames of 'Ping 10.0.0.7:1' by 20 ms, at most 18446744073709551615 times, for "
              "60000 ms");
    EXPECT_EQ(sample(Kind::FreezeLoop).describe(), "freeze: the control loop, for 60000 ms");
    EXPECT_EQ(sample(Kind::DropPath).describe(), "lose: paths of 'tcp0 \"näme\"', for 1 us");
    FaultRequest third = sample(Kind::Add);
    third.rule = {};
    third.rule.nth = 3;
    third.rule.lasts = milliseconds(5);
    EXPECT_EQ(third.describe(), "fail: post 3 from now on with ConnectionLost, for 5 ms");
}

}  // namespace
}  // namespace troupe
