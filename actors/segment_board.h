#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "messages/transfer_types.h"
#include "transports/nic.h"

namespace troupe {

/// Which segments are open, as callers' threads read it. The SegmentDirectory is the only writer.
///
/// A submit asks with two loads. The descriptor behind a segment is copied out under a short lock, because it is
/// asked for rarely.
class SegmentBoard {
  public:
    enum class Reach : std::uint8_t { Closed, NoTransport, Open };

    SegmentBoard();
    ~SegmentBoard();

    /// Any thread. Closed also for ids that never were.
    Reach reach(SegmentID segment) const;
    /// Any thread. The peer as last described; null when closed.
    std::shared_ptr<const Peer> peer(SegmentID segment) const;

    /// Any thread. Ok when it is open. TransportMissing says which segment it is, and why each transport does not reach
    /// it. StaleHandle when it is closed.
    Status check(SegmentID segment) const;
    /// What to say of a segment that is closed.
    static Status closed(SegmentID segment);

    /// Directory only. False when the index is beyond kMaxSegments. `why` goes with NoTransport.
    bool set(SegmentID segment, Reach reach, std::shared_ptr<const Peer> peer, std::string why = {});

    static constexpr std::uint32_t kMaxSegments = 1u << 20;

  private:
    struct Slot {
        std::atomic<SegmentID> id{kInvalidSegmentID};
        std::atomic<std::uint8_t> reach{0};
        std::shared_ptr<const Peer> peer;  ///< Guarded by peers_mutex_.
        std::string why;                   ///< The same.
    };
    static constexpr std::uint32_t kChunk = 1024;
    Slot* slot(SegmentID segment) const;

    mutable std::mutex peers_mutex_;  ///< Guards Slot::peer and why: any thread may ask for a descriptor.
    std::unique_ptr<std::atomic<Slot*>[]> chunks_;
};

}  // namespace troupe
