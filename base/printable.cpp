#include "base/printable.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace troupe {

namespace {

/// Bytes of the character that `text`, which is not empty, begins with; 0: there is none that can be shown.
std::size_t shown(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
    if (first < 0xc2 || first > 0xf4) return 0;
    const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (text.size() < size) return 0;
    // The second byte's bounds keep out longer forms than needed, surrogates and what is beyond U+10FFFF (RFC 3629,
    // section 4); for 0xc2 the C1 characters.
    const unsigned char least = first == 0xc2 || first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(1) < least || byte(1) > most) return 0;
    for (std::size_t i = 2; i < size; ++i)
        if ((byte(i) & 0xc0) != 0x80) return 0;
    return size;
}

}  // namespace

std::string printable(std::string text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = shown(std::string_view(text).substr(at));
        if (size == 0) text[at] = '?';
        at += std::max<std::size_t>(size, 1);
    }
    return text;
}

}  // namespace troupe
