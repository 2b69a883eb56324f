#include "base/incarnation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

namespace troupe {
namespace {

TEST(Incarnation, IsNullUntilOneIsDrawn) {
    EXPECT_TRUE(Incarnation{}.isNull());
    EXPECT_EQ(Incarnation{}.toString(), std::string(32, '0'));
    EXPECT_FALSE(Incarnation::random().isNull());
}

TEST(Incarnation, DiffersAtEveryStart) {
    std::set<Incarnation> drawn;
    for (int i = 0; i < 1000; ++i) drawn.insert(Incarnation::random());
    EXPECT_EQ(drawn.size(), 1000u);
}

TEST(Incarnation, SurvivesTheWayThroughText) {
    const Incarnation original = Incarnation::random();
    const auto parsed = Incarnation::parse(original.toString());
    ASSERT_TRUE(parsed.isOk()) << parsed.status().toString();
    EXPECT_EQ(*parsed, original);
}

TEST(Incarnation, WritesItsBytesInOrderAndLowerCase) {
    Incarnation incarnation;
    incarnation.bytes = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 0, 0, 0, 0xff};
    EXPECT_EQ(incarnation.toString(), "0123456789abcdef00000000000000ff");
}

TEST(Incarnation, ReadsUpperCaseToo) {
    const auto parsed = Incarnation::parse("0123456789ABCDEF00000000000000FF");
    ASSERT_TRUE(parsed.isOk());
    EXPECT_EQ(parsed->toString(), "0123456789abcdef00000000000000ff");
}

TEST(Incarnation, RefusesTextOfAnotherLength) {
    for (const std::string& text : {std::string(), std::string(31, 'a'), std::string(33, 'a'), std::string(32000, 'a')})
        EXPECT_EQ(Incarnation::parse(text).status().code(), Code::InvalidArgument) << text.size();
}

TEST(Incarnation, RefusesWhatIsNotHexadecimalAtEveryPlace) {
    for (std::size_t i = 0; i < 32; ++i) {
        for (const char bad : {'g', ' ', '-', '\0', '\xff'}) {
            std::string text(32, 'a');
            text[i] = bad;
            EXPECT_EQ(Incarnation::parse(text).status().code(), Code::InvalidArgument) << i;
        }
    }
}

TEST(BootId, IsTheSameAtEveryReadingAndPrintable) {
    const std::string id = readBootId();
    EXPECT_EQ(id, readBootId());
    EXPECT_TRUE(std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isgraph(c); })) << id;
}

}  // namespace
}  // namespace troupe
