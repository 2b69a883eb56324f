#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::tcp {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `length` bytes, continued from `crc` (0 at the start). Uses SSE4.2
/// where the processor has it. Any thread.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t length);

/// The same by table, on any processor.
std::uint32_t crc32cPortable(std::uint32_t crc, const void* data, std::size_t length);

}  // namespace troupe::tcp
