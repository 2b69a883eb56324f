#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "messages/transfer_types.h"

namespace troupe {

/// Ids for remote segments: an index in the lower half, by which trackers and workers find a peer, and a generation in
/// the upper one, so that no id is ever given out twice. An index rests before it is used again: by then whatever was
/// on its way to its last owner (an answer of a store, a monitor's last message, a tracker's report) has arrived. One
/// owner.
class SegmentIds {
  public:
    /// Much longer than any message is on its way, and short enough that an engine that opens and closes all the time
    /// needs no more indices than one minute takes.
    static constexpr std::chrono::minutes kRest{1};

    /// Indices from `first` to `limit` - 1.
    SegmentIds(std::uint32_t first, std::uint32_t limit) : next_(first), limit_(limit) {}

    /// Nothing when all are in use, or rest.
    std::optional<SegmentID> take(TimePoint now) {
        if (!resting_.empty() && resting_.front().until <= now) {
            const SegmentID next = resting_.front().id + (SegmentID{1} << 32);
            resting_.pop_front();
            return next;
        }
        if (next_ >= limit_) return std::nullopt;
        // The generation begins with 1, so that none equals kLocalSegmentID.
        return SegmentID{1} << 32 | next_++;
    }

    void giveBack(SegmentID id, TimePoint now) { resting_.push_back({id, now + kRest}); }

  private:
    struct Resting {
        SegmentID id;
        TimePoint until;
    };
    std::deque<Resting> resting_;  ///< The longest resting first.
    std::uint32_t next_;
    const std::uint32_t limit_;
};

}  // namespace troupe
