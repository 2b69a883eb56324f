#pragma once

namespace troupe {

/// Tells the core that this thread is in a busy wait.
inline void cpuRelax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace troupe
