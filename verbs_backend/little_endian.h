#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::verbs {

/// Appends a number to `at`, which has room, and moves it on.
template <class Number>
void put(std::byte*& at, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) *at++ = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

/// Takes a number from `at`, which holds it, and moves it on.
template <class Number>
Number take(const std::byte*& at) {
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value = static_cast<Number>(value | static_cast<Number>(*at++) << (8 * i));
    return value;
}

}  // namespace troupe::verbs
