#pragma once

#include <algorithm>
#include <cstddef>

#include "tcp_backend/frame_reader.h"

namespace troupe::tcp {

/// How much of a payload is asked for before the kernel copies it. Scattered payloads begin with misses of the TLB and
/// of every cache, which the copy would wait for one after the other; further in, the processor has seen the stream and
/// runs ahead by itself. Measured with 4 KiB blocks over 256 MiB (`tcp.scattered.write`): 512 bytes gain a tenth, 128
/// and 256 less, all 4 KiB lose a fifth; doing the same for the destinations at the receiver gains nothing.
inline constexpr std::size_t kPrefetchBytes = 512;

/// Asks for the first bytes of a payload that is about to be sent, if it is a small one.
inline void prefetchPayload(const std::byte* at, std::size_t size) {
    constexpr std::size_t kLine = 64;
    if (size >= kDirectBytes) return;
    for (std::size_t i = 0; i < std::min(size, kPrefetchBytes); i += kLine) __builtin_prefetch(at + i);
}

}  // namespace troupe::tcp
