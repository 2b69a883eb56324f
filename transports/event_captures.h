#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transports/device.h"

namespace troupe::device {

/// Keeps what an event of the application stood for when it was captured, whatever it is recorded for afterwards: a
/// stream of ours waits for it, and an event of ours is recorded behind that. Each capture that is not done has a
/// stream of its own; on one that several share, an event that never comes would keep what is behind it for ever.
///
/// Thread-safe: who submits captures, and loops give back.
class EventCaptures : public std::enable_shared_from_this<EventCaptures> {
    struct Lane {
        DeviceStream stream;
        DeviceEvent passed;
    };

  public:
    /// More that are not done at once are refused: a stream that waits costs the driver memory, and as all of them go
    /// through a few queues of the GPU, more would wait for each other there.
    static constexpr std::size_t kMost = 256;

    /// An event as it was recorded when `begin` was called.
    class Captured {
      public:
        ~Captured();
        Captured(const Captured&) = delete;
        Captured& operator=(const Captured&) = delete;
        /// Once. What the driver says, DeviceLost too, after which `isDone` says so.
        Status begin();
        /// One thread at a time.
        Result<bool> isDone();

      private:
        friend class EventCaptures;
        Captured(std::shared_ptr<EventCaptures> owner, Lane lane, EventRef event)
            : owner_(std::move(owner)), lane_(std::move(lane)), event_(event) {}

        std::shared_ptr<EventCaptures> owner_;
        Lane lane_;  ///< Empty: an error has spoilt it.
        EventRef event_;
        bool waits_ = false;  ///< The lane does, or may.
    };

    explicit EventCaptures(std::shared_ptr<Device> device) : device_(std::move(device)) {}
    EventCaptures(const EventCaptures&) = delete;
    EventCaptures& operator=(const EventCaptures&) = delete;

    /// Sees to it that there is what it takes: nothing waits before `begin`, so of several that are to be captured
    /// together one that is refused leaves no other waiting. Null: the event is done already, or was never recorded.
    /// CapacityExceeded: see kMost; or what the driver says.
    Result<std::unique_ptr<Captured>> capture(EventRef event);

  private:
    Result<Lane> take();
    Result<Lane> make();
    bool findPassed(std::size_t looks, Lane& found);
    void giveBack(Lane lane, bool has_passed);
    void forget();

    const std::shared_ptr<Device> device_;
    std::mutex mutex_;          ///< Of what follows. Never held while the driver is called, which may take long.
    std::vector<Lane> idle_;    ///< Wait for nothing.
    std::deque<Lane> waiting_;  ///< Of tasks that ended early: their events may still be to come. The oldest first.
    std::size_t made_ = 0;      ///< Lanes there are, wherever.
};

}  // namespace troupe::device
