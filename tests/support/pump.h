#pragma once

#include <chrono>

#include "base/clock.h"

namespace troupe::test {

/// Polls each of the nodes in turn, whatever a test calls so, until `done`; false after a time that no test needs.
template <class Done, class... Nodes>
bool pumpNodes(Done&& done, Nodes&... nodes) {
    const TimePoint limit = Clock::now() + std::chrono::seconds(60);
    while (!done()) {
        if (Clock::now() > limit) return false;
        (static_cast<void>(nodes.poll()), ...);
    }
    return true;
}

}  // namespace troupe::test
