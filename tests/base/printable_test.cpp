#include "base/printable.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Printable, WhatCanBeShownStaysAsItIs) {
    for (const std::string text :
         {"", "segment 'a' ~", "\u00a0 \u00fc \u07ff \u0800 \ud7ff \ue000 \uffff", "\U00010000 \U0010ffff \u732b"})
        EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersAreReplaced) {
    EXPECT_EQ(printable("a\n\t\x1b[31mb\x7f"), "a???[31mb?");
    EXPECT_EQ(printable(std::string("a\0b", 3)), "a?b");
    // U+009B, which terminals take for an escape and a bracket.
    EXPECT_EQ(printable("a\u009b31mb\u0080"), "a??31mb??");
}

TEST(Printable, BytesThatAreNoUtf8AreReplaced) {
    for (const std::string bytes :
         {"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xc3", "\xe0\x9f\xbf", "\xe4\xb8", "\xed\xa0\x80",
          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
        EXPECT_EQ(printable(bytes), std::string(bytes.size(), '?'));
        EXPECT_EQ(printable("a" + bytes + "b"), "a" + std::string(bytes.size(), '?') + "b");
    }
    EXPECT_EQ(printable("\xe4\xb8\u00fc"), "??\u00fc") << "what follows a character that was cut stays";
}

}  // namespace
}  // namespace troupe
