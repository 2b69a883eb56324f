#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/status.h"
#include "transports/nic.h"
#include "transports/staging.h"

namespace troupe::device {

/// One Nic's use of its engine's Staging: which GPUs it works with now, whose bells are in its epoll set, and what it
/// may not say yet because a copy is under way. On the Nic's turn.
class StagingUser {
  public:
    /// Puts a descriptor that only wakes into the Nic's epoll set, or takes it out.
    struct Bells {
        std::function<Status(int)> watch;
        std::function<void(int)> unwatch;
    };

    /// `pool` null: there is no memory of GPUs.
    StagingUser(std::shared_ptr<StagingPool> pool, unsigned loop, Bells bells)
        : pool_(std::move(pool)), loop_(loop), bells_(std::move(bells)) {}
    ~StagingUser();
    StagingUser(const StagingUser&) = delete;
    StagingUser& operator=(const StagingUser&) = delete;

    /// Of a GPU that registered memory is on; valid until the next poll, and as long as anything of it is in use.
    /// ResourceExhausted: there is none.
    Result<Staging*> at(int device);

    /// The following have something to do.
    bool isActive() const { return !active_.empty() || isWaitedFor(); }
    /// First in a pass: looks what has ended, and lets go of what was not used for a while.
    bool poll(TimePoint now);
    /// Last in a pass: keeps back failures whose local memory a copy touches. One that is touched for long is told
    /// without proof, and the proof follows.
    void sift(TimePoint now, Sweep& sweep);
    bool arm() const;
    /// The last of all: waits a moment until no copy is under way. Not Ok: one is still.
    Status shut() const;
    TimePoint nextDeadline() const;
    /// A copy from or to that memory is under way.
    bool touches(const ByteRange& range) const;
    /// Ok, or BatchBusy: a copy is under way there, which can be neither cut nor waited for.
    Status heldIn(const ByteRange& range) const;

  private:
    struct Held {
        Failure failure;
        TimePoint since;
    };
    struct Doubt {
        ByteRange range;
        std::uint64_t number = 0;
    };
    struct Active {
        std::shared_ptr<Staging> staging;
        TimePoint used_at;  ///< When anything of it was last seen in use.
    };
    void forget(const Staging& staging) const;
    /// Somebody is to be told when no copy touches some memory any more.
    bool isWaitedFor() const { return !held_.empty() || !doubts_.empty(); }

    const std::shared_ptr<StagingPool> pool_;
    const unsigned loop_;
    const Bells bells_;
    std::vector<Active> active_;
    std::vector<Held> held_;
    std::vector<Doubt> doubts_;
    std::uint64_t next_doubt_ = 1;
    TimePoint polled_at_{};
};

}  // namespace troupe::device
