#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/incarnation.h"
#include "base/status.h"

namespace troupe {

/// Longest question or answer, bytes.
inline constexpr std::size_t kMaxExchangeBytes = 16u << 10;

/// Carries questions of a transport to the same transport of another engine, and the answers, over the control
/// connection that the two have anyway. What is in them is between the transports; it comes from a stranger.
class ControlExchange {
  public:
    /// The answer, or why there is none: PeerDown, Timeout, StaleIncarnation (another process lives there),
    /// TransportMissing (it has no such transport), CapacityExceeded (too many at once).
    using Answered = std::function<void(Result<std::string>)>;

    virtual ~ControlExchange() = default;
    /// Any thread, never blocks. `answered` is called once, on a thread of the engine that it must not hold up,
    /// possibly before this returns; never once the engine has ended.
    /// @param peer Peer::index.
    /// @param whom the incarnation that is meant.
    /// @param question at most kMaxExchangeBytes.
    virtual void ask(std::uint32_t peer, const Incarnation& whom, const std::string& transport, std::string question,
                     TimePoint deadline, Answered answered) = 0;
};

/// Who asks.
struct Asker {
    Incarnation incarnation;
    /// The control connection that it asks over. Its end tells that the asker is gone, or has lost us.
    std::uint64_t connection = 0;
};

}  // namespace troupe
