// What `troupe sim` says, above all when a rule was broken: no seed does that today, so that is made up here.

#include <gmock/gmock.h>

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/sim_report.h"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

struct Said {
    Status status;
    std::string text;
};

template <class Report>
Said said(Report report) {
    std::FILE* const file = std::tmpfile();
    Said all;
    all.status = report(file);
    std::rewind(file);
    for (int each = std::fgetc(file); each != EOF; each = std::fgetc(file)) all.text += static_cast<char>(each);
    std::fclose(file);
    return all;
}

sim::Outcome outcome(bool broken) {
    sim::Outcome made;
    made.seed = 7;
    if (broken) made.violation = "a byte is wrong";
    made.setting = "2 engines";
    made.trace = {"one", "two", "three"};
    return made;
}

sim::Campaign campaign(bool broken) {
    sim::Campaign made;
    made.seeds = 3;
    made.virtual_seconds = 3600;
    made.counts["tasks"] = 5;
    if (broken) made.failures.push_back(outcome(true));
    return made;
}

TEST(SimReport, OfABrokenRuleIsTheWholeReportAndAFailure) {
    const Said all = said([](std::FILE* out) { return reportCampaign(campaign(true), 5, 1.5, {.json = true}, out); });
    EXPECT_EQ(all.status.code(), Code::Internal);
    const auto json = nlohmann::json::parse(all.text);
    EXPECT_EQ(json["ok"], false);
    EXPECT_EQ(json["seeds"], 3);
    EXPECT_EQ(json["virtual_hours"], 1.0);
    EXPECT_EQ(json["counts"]["tasks"], 5);
    ASSERT_EQ(json["failures"].size(), 1u);
    EXPECT_EQ(json["failures"][0]["seed"], 7);
    EXPECT_EQ(json["failures"][0]["violation"], "a byte is wrong");
    EXPECT_FALSE(json.contains("error"));
}

TEST(SimReport, OfOneSeedNamesWhatItBroke) {
    const Said broken = said([](std::FILE* out) { return reportSeed(outcome(true), {.json = true}, out); });
    EXPECT_EQ(broken.status.code(), Code::Internal);
    EXPECT_EQ(nlohmann::json::parse(broken.text)["violation"], "a byte is wrong");
    EXPECT_EQ(nlohmann::json::parse(broken.text)["ok"], false);
    const Said good = said([](std::FILE* out) { return reportSeed(outcome(false), {.json = true}, out); });
    EXPECT_TRUE(good.status);
    EXPECT_TRUE(nlohmann::json::parse(good.text)["violation"].is_null());
}

TEST(SimReport, ForPeopleEndsWithTheLastLinesOfTheTrace) {
    const Said all = said([](std::FILE* out) { return reportCampaign(campaign(true), 5, 1.5, {.trace = 2}, out); });
    EXPECT_EQ(all.text, "seed 7: 2 engines\n... 1 lines before (--trace)\ntwo\nthree\n");
    EXPECT_THAT(all.status.message(), HasSubstr("seed 7: a byte is wrong; to see it again: troupe sim --seed 7"));
    const Said good = said([](std::FILE* out) { return reportCampaign(campaign(false), 5, 1.5, {}, out); });
    EXPECT_TRUE(good.status);
    EXPECT_THAT(good.text, HasSubstr("3 seeds from 5 on: no rule was broken"));
    EXPECT_THAT(good.text, testing::Not(HasSubstr("stopped")));
    sim::Campaign ended = campaign(false);
    ended.stopped = true;
    const Said early = said([&](std::FILE* out) { return reportCampaign(ended, 5, 1.5, {}, out); });
    EXPECT_THAT(early.text, HasSubstr("1.5 s; stopped by a signal\n"));
}

TEST(SimReport, OfARuleThatTheTracedRunDoesNotBreakIsAFailureAllTheSame) {
    sim::Campaign made = campaign(false);
    made.failures.push_back(sim::withTrace(outcome(true), outcome(false)));
    EXPECT_EQ(made.failures[0].trace.size(), 3u);
    for (const bool json : {false, true}) {
        const Said all = said([&](std::FILE* out) { return reportCampaign(made, 5, 1.5, {.json = json}, out); });
        EXPECT_EQ(all.status.code(), Code::Internal);
        EXPECT_THAT(all.status.message(), HasSubstr("a byte is wrong"));
        EXPECT_THAT(all.status.message(), HasSubstr("broke none: two runs of a seed must not differ"));
    }
    EXPECT_EQ(sim::withTrace(outcome(true), outcome(true)).violation, "a byte is wrong");
    sim::Outcome other = outcome(true);
    other.violation = "a task hung";
    EXPECT_THAT(*sim::withTrace(outcome(true), other).violation,
                testing::AllOf(HasSubstr("a byte is wrong"), HasSubstr("broke another rule: a task hung")));
}

}  // namespace
}  // namespace troupe::apps
