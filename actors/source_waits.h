#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/status.h"
#include "messages/data_plane.h"
#include "transports/opcode.h"
#include "transports/registration_table.h"

namespace troupe {

/// Who waits until no task of a tracker reads or writes some local memory, as it is being unregistered; and what was
/// unregistered lately, so that a submit that was checked before and arrives after is refused. One thread.
class SourceWaits {
  public:
    /// Calls `visit(source, batch)` for every task that is not terminal.
    using Visit = std::function<void(const ByteRange& source, BatchID batch)>;
    using ForEachSource = std::function<void(const Visit& visit)>;

    bool empty() const { return waits_.empty(); }
    /// The earliest deadline of those who wait; kForever: nobody does.
    TimePoint deadline() const;

    void await(const AwaitSourceIdle& wait, const ForEachSource& tasks);
    /// A task with that source counts from here on (1), or no more (-1).
    void count(const ByteRange& source, int change);
    /// Answers those whose memory is idle, and those whose deadline has passed by `now`.
    void answer(TimePoint now, const ForEachSource& tasks);

    /// Something was unregistered after the snapshot `version` was taken.
    bool isNewerThan(std::uint64_t version) const { return !awaited_.empty() && awaited_.back().version > version; }
    /// Ok unless the source, found registered at `version`, was declared idle for its unregistration since.
    Status stillRegistered(const ByteRange& source, Opcode opcode, std::uint64_t version, const RegionMap& now) const;

  private:
    struct Wait {
        AwaitSourceIdle asked;
        std::uint64_t users = 0;  ///< Tasks that are not terminal with their source in the ranges.
    };
    struct Awaited {
        std::uint64_t version = 0;
        RangeSet ranges;
    };
    void remember(const AwaitSourceIdle& wait);

    std::vector<Wait> waits_;
    std::deque<Awaited> awaited_;      ///< By ascending version; the last ones.
    std::uint64_t awaited_floor_ = 0;  ///< Before this it is incomplete.
};

}  // namespace troupe
