#pragma once

#include <cstdint>

namespace troupe::tcp {

/// TCP_NODELAY, keepalive for peers that vanish without a word, and buffer sizes (`buffer_bytes` 0: the kernel's
/// auto-tuning).
void tuneSocket(int fd, std::uint64_t buffer_bytes);

}  // namespace troupe::tcp
