#pragma once

#include <cstdint>

namespace troupe {

enum class Opcode : std::uint8_t {
    Read = 0,   ///< Remote memory to local memory.
    Write = 1,  ///< Local memory to remote memory.
};

}  // namespace troupe
