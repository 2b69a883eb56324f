#include "control/control_frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace troupe {
namespace {

std::span<const std::byte> bytesOf(std::string_view text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// A header with any values, as a hostile peer would send it.
std::string header(std::uint32_t length, std::uint16_t version, std::uint16_t type) {
    std::string text;
    for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(length >> (8 * i)));
    for (int i = 0; i < 2; ++i) text.push_back(static_cast<char>(version >> (8 * i)));
    for (int i = 0; i < 2; ++i) text.push_back(static_cast<char>(type >> (8 * i)));
    return text;
}

TEST(ControlFrameReader, GivesTheSameFramesHoweverTheStreamIsSplit) {
    std::string stream;
    for (int i = 0; i < 20; ++i)
        stream +=
            encodeControlFrame(static_cast<ControlType>(1 + i % 8), std::string(static_cast<std::size_t>(i * 37), 'x'));
    for (std::size_t step : {1u, 2u, 3u, 7u, 8u, 64u, 100000u}) {
        ControlFrameReader reader(4096);
        std::vector<ControlFrame> frames;
        for (std::size_t at = 0; at < stream.size(); at += step)
            ASSERT_TRUE(reader.feed(bytesOf(std::string_view(stream).substr(at, step)), frames).isOk());
        ASSERT_EQ(frames.size(), 20u) << "step " << step;
        for (std::size_t i = 0; i < 20; ++i) {
            EXPECT_EQ(frames[i].type, static_cast<ControlType>(1 + i % 8));
            EXPECT_EQ(frames[i].body, std::string(i * 37, 'x'));
        }
        EXPECT_TRUE(reader.atFrameBorder());
    }
}

TEST(ControlFrameReader, IsNotAtABorderInTheMiddleOfAFrame) {
    ControlFrameReader reader;
    std::vector<ControlFrame> frames;
    const std::string frame = encodeControlFrame(ControlType::Ping, "{}");
    for (std::size_t i = 0; i + 1 < frame.size(); ++i) {
        ASSERT_TRUE(reader.feed(bytesOf(frame.substr(i, 1)), frames).isOk());
        EXPECT_FALSE(reader.atFrameBorder());
    }
    ASSERT_TRUE(reader.feed(bytesOf(frame.substr(frame.size() - 1)), frames).isOk());
    EXPECT_TRUE(reader.atFrameBorder());
    EXPECT_EQ(frames.size(), 1u);
}

TEST(ControlFrameReader, RefusesABadHeaderBeforeTheBodyComes) {
    struct Case {
        std::string bytes;
        std::string names;
    };
    const Case cases[] = {
        {header(100, 2, 1), "version 2"},
        {header(100, 0, 1), "version 0"},
        {header(100, 1, 0), "type 0"},
        {header(100, 1, 13), "type 13"},
        {header(100, 1, 65535), "type 65535"},
        {header(3, 1, 1), "length 3"},
        {header(0, 1, 1), "length 0"},
        {header(65536 + 5, 1, 1), "65537"},
        {header(UINT32_MAX, 1, 5), "at most 65536"},
        {header(UINT32_MAX, 1, 4), "at most 1000"},
        {header(1005, 1, 4), "1001"},
    };
    for (const auto& each : cases) {
        ControlFrameReader reader(1000);
        std::vector<ControlFrame> frames;
        const Status status = reader.feed(bytesOf(each.bytes), frames);
        EXPECT_EQ(status.code(), Code::ProtocolError);
        EXPECT_NE(status.message().find(each.names), std::string::npos) << status.message();
        EXPECT_TRUE(frames.empty());
    }
}

TEST(ControlFrameReader, RefusesDescriptorsWhereNoneIsExpected) {
    ControlFrameReader reader;
    std::vector<ControlFrame> frames;
    EXPECT_EQ(reader.feed(bytesOf(encodeControlFrame(ControlType::Descriptor, "{}")), frames).code(),
              Code::ProtocolError);
}

TEST(ControlFrameReader, TakesTheLongestBodyAllowed) {
    ControlFrameReader reader(200000);
    std::vector<ControlFrame> frames;
    ASSERT_TRUE(
        reader.feed(bytesOf(encodeControlFrame(ControlType::Hello, std::string(kMaxControlBody, 'a'))), frames).isOk());
    ASSERT_TRUE(
        reader.feed(bytesOf(encodeControlFrame(ControlType::Descriptor, std::string(200000, 'b'))), frames).isOk());
    ASSERT_EQ(frames.size(), 2u);
    EXPECT_EQ(frames[1].body.size(), 200000u);
}

TEST(ControlFrameReader, HoldsOnlyWhatArrivedOfAnAnnouncedBody) {
    ControlFrameReader reader(1u << 30);
    std::vector<ControlFrame> frames;
    ASSERT_TRUE(reader.feed(bytesOf(header(1u << 30, 1, 4) + "{\"a"), frames).isOk());
    EXPECT_LE(reader.bufferedBytes(), 64u);
}

TEST(ControlFrameReader, StaysFailedButGivesWhatCameBefore) {
    ControlFrameReader reader;
    std::vector<ControlFrame> frames;
    const std::string good = encodeControlFrame(ControlType::Ping, "{}");
    EXPECT_EQ(reader.feed(bytesOf(good + header(1, 1, 1) + good), frames).code(), Code::ProtocolError);
    EXPECT_EQ(frames.size(), 1u);
    EXPECT_EQ(reader.feed(bytesOf(good), frames).code(), Code::ProtocolError);
    EXPECT_EQ(frames.size(), 1u);
}

TEST(ControlFrameReader, SurvivesRandomBytesAndDamagedStreams) {
    std::mt19937_64 random(20260131);
    for (int round = 0; round < 3000; ++round) {
        std::string stream;
        if (round % 2 == 0) {
            for (int i = 0; i < 5; ++i)
                stream +=
                    encodeControlFrame(static_cast<ControlType>(1 + random() % 8), std::string(random() % 50, 'x'));
            for (int i = 0; i < 3; ++i) stream[random() % stream.size()] = static_cast<char>(random());
        } else {
            stream.resize(random() % 200);
            for (auto& byte : stream) byte = static_cast<char>(random());
        }
        ControlFrameReader reader(4096);
        std::vector<ControlFrame> frames;
        std::string_view rest = stream;
        Status status;
        while (!rest.empty() && status.isOk()) {
            const std::size_t step = std::min<std::size_t>(rest.size(), 1 + random() % 40);
            status = reader.feed(bytesOf(rest.substr(0, step)), frames);
            rest.remove_prefix(step);
        }
        EXPECT_TRUE(status.isOk() || status.code() == Code::ProtocolError);
        EXPECT_LE(reader.bufferedBytes(), stream.size());
    }
}

}  // namespace
}  // namespace troupe
