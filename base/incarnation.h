#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe {

/// The identity of one engine start: 128 random bits. Host, port, name, key and address all repeat after a
/// restart; this does not, so it stands in every descriptor, handshake and lease.
struct Incarnation {
    std::array<std::uint8_t, 16> bytes{};

    /// A fresh one from getrandom(2).
    static Incarnation random();
    /// Parses 32 hexadecimal digits; InvalidArgument otherwise.
    static Result<Incarnation> parse(std::string_view hex);

    bool isNull() const { return *this == Incarnation{}; }
    /// 32 lower-case hexadecimal digits.
    std::string toString() const;

    auto operator<=>(const Incarnation&) const = default;
};

/// The kernel's boot id (/proc/sys/kernel/random/boot_id), or an empty string where there is none.
std::string readBootId();

}  // namespace troupe
