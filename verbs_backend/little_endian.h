#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/incarnation.h"

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

inline void put(std::byte*& at, const Incarnation& incarnation) {
    std::memcpy(at, incarnation.bytes.data(), incarnation.bytes.size());
    at += incarnation.bytes.size();
}

inline Incarnation takeIncarnation(const std::byte*& at) {
    Incarnation incarnation;
    std::memcpy(incarnation.bytes.data(), at, incarnation.bytes.size());
    at += incarnation.bytes.size();
    return incarnation;
}

}  // namespace troupe::verbs
