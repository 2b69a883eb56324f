#include "apps/support/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <unordered_set>

#include "apps/support/trace_generator.h"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

const std::string kGood = R"({"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 14]})";

Result<std::vector<TraceRequest>> read(const std::string& text, std::size_t limit = 0) {
    std::istringstream in(text);
    return readTrace(in, limit);
}

std::string messageOf(const std::string& line) {
    const auto request = parseTraceLine(line);
    return request ? "accepted" : request.status().message();
}

TEST(Trace, ReadsTheFormat) {
    const auto trace = read(kGood + "\r\n\n" + kGood + "\n");
    ASSERT_TRUE(trace) << trace.status().toString();
    ASSERT_EQ(trace->size(), 2u);
    EXPECT_EQ((*trace)[0].timestamp_ms, 5u);
    EXPECT_EQ((*trace)[0].input_tokens, 700u);
    EXPECT_EQ((*trace)[0].output_tokens, 3u);
    EXPECT_EQ((*trace)[0].hash_ids, (std::vector<std::uint64_t>{0, 14}));
}

TEST(Trace, TheLastLineNeedsNoNewlineAndOtherFieldsAreIgnored) {
    const auto trace = read(R"({"x": [[{}]], "timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": []})");
    ASSERT_TRUE(trace);
    EXPECT_EQ(trace->size(), 1u);
}

TEST(Trace, HostileLinesGetAMessageThatNamesTheField) {
    EXPECT_THAT(messageOf("{"), HasSubstr("not JSON"));
    EXPECT_THAT(messageOf(std::string(100000, '[')), HasSubstr("not JSON"));
    EXPECT_THAT(messageOf("\xff\xfe"), HasSubstr("not JSON"));
    EXPECT_THAT(messageOf("[]"), HasSubstr("expected a JSON object"));
    EXPECT_THAT(messageOf("null"), HasSubstr("expected a JSON object"));
    EXPECT_THAT(messageOf("{}"), HasSubstr("'timestamp' is missing"));
    EXPECT_THAT(messageOf(R"({"timestamp": -1})"), HasSubstr("'timestamp' must be a whole number"));
    EXPECT_THAT(messageOf(R"({"timestamp": 1.5})"), HasSubstr("1.5"));
    EXPECT_THAT(messageOf(R"({"timestamp": "0"})"), HasSubstr("string"));
    EXPECT_THAT(messageOf(R"({"timestamp": 99999999999999999999999})"), HasSubstr("'timestamp'"));
    EXPECT_THAT(messageOf(R"({"timestamp": 18446744073709551615})"), HasSubstr("2^53"));
    EXPECT_THAT(messageOf(R"({"timestamp": 0, "input_length": 1})"), HasSubstr("'output_length' is missing"));
    const std::string start = R"({"timestamp": 0, "input_length": 1, "output_length": 1)";
    EXPECT_THAT(messageOf(start + "}"), HasSubstr("'hash_ids' is missing"));
    EXPECT_THAT(messageOf(start + R"(, "hash_ids": 3})"), HasSubstr("must be a list"));
    EXPECT_THAT(messageOf(start + R"(, "hash_ids": [1, null]})"), HasSubstr("'hash_ids[1]'"));
    EXPECT_THAT(messageOf(start + R"(, "hash_ids": [1, 2, -3]})"), HasSubstr("'hash_ids[2]'"));
}

TEST(Trace, ErrorsNameTheLine) {
    EXPECT_THAT(read(kGood + "\n\nxx\n").status().message(), HasSubstr("line 3: this is not JSON"));
    const auto back = read(kGood + "\n" + R"({"timestamp": 4, "input_length": 0, "output_length": 0, "hash_ids": []})");
    EXPECT_THAT(back.status().message(), HasSubstr("line 2: 'timestamp' 4 is before"));
    EXPECT_THAT(read("").status().message(), HasSubstr("no request"));
}

TEST(Trace, ALineWithoutEndIsRefusedAtTheBound) {
    const auto trace = read(std::string(kMaxTraceLine + 10, ' '));
    EXPECT_THAT(trace.status().message(), HasSubstr("line 1: longer than"));
}

TEST(Trace, TheLimitEndsReadingBeforeLaterLinesAreLookedAt) {
    const auto trace = read(kGood + "\nnot json\n", 1);
    ASSERT_TRUE(trace);
    EXPECT_EQ(trace->size(), 1u);
}

TEST(Trace, AMissingFileIsNamed) {
    const auto trace = readTraceFile("/nonexistent/trace.jsonl");
    EXPECT_EQ(trace.status().code(), Code::InvalidArgument);
    EXPECT_THAT(trace.status().message(), HasSubstr("/nonexistent/trace.jsonl"));
}

TEST(Trace, ADirectoryIsNamedAndNotRead) {
    const auto trace = readTraceFile("/tmp");
    EXPECT_EQ(trace.status().code(), Code::InvalidArgument);
    EXPECT_THAT(trace.status().message(), HasSubstr("'/tmp' is a directory"));
}

TEST(TraceGenerator, TheSameSeedMakesTheSameTraceAndAnotherAnother) {
    const auto text = [](std::uint64_t seed) {
        std::string lines;
        for (const auto& request : generateTrace({.requests = 50, .seed = seed}))
            lines += formatTraceLine(request) + "\n";
        return lines;
    };
    EXPECT_EQ(text(1), text(1));
    EXPECT_NE(text(1), text(2));
}

TEST(TraceGenerator, WhatItMakesReadsBackAndSharesPrefixes) {
    const auto made = generateTrace({.requests = 300});
    std::string text;
    for (const auto& request : made) text += formatTraceLine(request) + "\n";
    const auto trace = read(text);
    ASSERT_TRUE(trace) << trace.status().toString();
    ASSERT_EQ(trace->size(), made.size());
    std::unordered_set<std::uint64_t> seen;
    std::size_t blocks = 0;
    std::size_t hits = 0;
    for (const auto& request : *trace) {
        EXPECT_EQ(request.hash_ids.size(), (request.input_tokens + kTokensPerBlock - 1) / kTokensPerBlock);
        for (const auto id : request.hash_ids) {
            ++blocks;
            hits += seen.insert(id).second ? 0 : 1;
        }
    }
    EXPECT_GT(hits, blocks / 4);
    EXPECT_LT(hits, blocks);
}

TEST(TraceGenerator, TheBundledTraceIsWhatItMakes) {
    const auto bundled = readTraceFile(TROUPE_SMALL_TRACE);
    ASSERT_TRUE(bundled) << bundled.status().toString();
    const auto made = generateTrace({});
    ASSERT_EQ(bundled->size(), made.size());
    for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(formatTraceLine((*bundled)[i]), formatTraceLine(made[i]));
}

}  // namespace
}  // namespace troupe::apps
