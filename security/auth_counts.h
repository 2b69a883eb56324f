#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe {

/// Why somebody was not let in, or not believed.
enum class AuthRefusal : std::uint8_t {
    NoProof,     ///< The other end uses no key, or left its proof out, and this engine has a key.
    WrongProof,  ///< Made with another key, for another conversation (replay), or for the other role (reflection).
    UnusedKey,   ///< The other end uses a key, and this engine has none.
    Replayed,    ///< An RDMA connection request that was seen before.
    BadRecord,   ///< A record in the store without a signature, or with a wrong one.
};
inline constexpr std::size_t kAuthRefusals = 5;

/// What came of it so far, since the engine was started.
struct AuthCounts {
    std::uint64_t accepted = 0;  ///< Connections of either direction that were proven by both ends.
    std::array<std::uint64_t, kAuthRefusals> refused{};

    std::uint64_t of(AuthRefusal why) const { return refused[static_cast<std::size_t>(why)]; }
};

}  // namespace troupe
