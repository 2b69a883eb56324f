#pragma once

#include <cstdint>

#include "tests/fake_cuda/state.h"

namespace troupe::fake_cuda {

/// Of virtual memory, bytes: what NVIDIA's GPUs have.
inline constexpr std::uint64_t kGranularity = 2u << 20;

inline std::uint64_t roundUp(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Addresses of a GPU, which no instruction of the host can touch; 0: none are left.
std::uint64_t reserve(State& state, std::uint64_t bytes);
/// They stay out of the host's reach for the life of the process, so that a use after the end is seen.
void giveBack(State& state, std::uint64_t base);

}  // namespace troupe::fake_cuda

/// What every call begins with: the lock, and what it is refused for whatever it asks.
#define TROUPE_ENTER(name)                                                                    \
    State& state = State::get();                                                              \
    std::unique_lock lock(state.mutex);                                                       \
    if (const Result refused = state.enter(name); refused != Result::Success) return refused; \
    state.awaitTurn(name, lock);

/// Of calls that work in the current context.
#define TROUPE_ENTER_CONTEXT(name)                                                                 \
    TROUPE_ENTER(name)                                                                             \
    ContextObject* context = nullptr;                                                              \
    if (const Result refused = state.current(context); refused != Result::Success) return refused; \
    static_cast<void>(context);
