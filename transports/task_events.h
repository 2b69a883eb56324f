#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transports/device.h"
#include "transports/done_events.h"
#include "transports/event_captures.h"
#include "transports/staging.h"

namespace troupe::device {

/// What of the application a transfer waits for before it begins, and what it tells when its bytes are there. The
/// vendor's handles, of the GPU that the local memory is on; 0: none, but of streams, where it is the default one.
struct EventHandles {
    std::uintptr_t wait_event = 0;              ///< As it is recorded now.
    std::optional<std::uintptr_t> wait_stream;  ///< All that it was given so far.
    std::uintptr_t done_event = 0;

    bool any() const { return (wait_event | done_event) != 0 || wait_stream.has_value(); }
};

/// What tasks wait for, as it was when they were submitted: one for all of a submit that name the same. Made by the
/// thread that submits, then on the turn of one loop.
class TaskWait {
  public:
    /// Nothing is waited for any more. No call waits; an event that never comes holds nothing but these tasks. An
    /// error, DeviceLost among them, is not asked about again.
    Result<bool> isReady();

  private:
    friend class EventsOfSubmit;
    /// A stream of the application, by an event of ours that was recorded there.
    struct StreamMark {
        std::shared_ptr<Device> device;
        DeviceEvent event;
    };

    std::shared_ptr<EventCaptures::Captured> event_;
    std::shared_ptr<StreamMark> stream_;
    Status lost_;  ///< Not Ok: the GPU was lost before all could be noted.
};

/// An event of the application that tells of the end of tasks: one for all of a submit that name the same. It is done
/// soon after the last of them has let go of this, however they ended.
class TaskDone {
  private:
    friend class EventsOfSubmit;
    friend class TaskEvents;
    std::uintptr_t event_ = 0;
    std::shared_ptr<DoneEvents::Work> work_;  ///< Null: not recorded yet, which is to be done when the bytes are there.
    Status lost_;                             ///< Not Ok: the GPU was lost before it could be recorded.
};

/// The same of one task. Made by the thread that submits, then on the turn of the loop that `staging` is of; the end of
/// it is for any thread.
class TaskEvents {
  public:
    TaskEvents(std::shared_ptr<Staging> staging, std::shared_ptr<TaskWait> wait, std::shared_ptr<TaskDone> done)
        : staging_(std::move(staging)), wait_(std::move(wait)), done_(std::move(done)) {}

    /// Null: for nothing.
    TaskWait* wait() const { return wait_.get(); }
    /// The destination is complete: sees to it that the event is recorded. It is done once this is gone.
    Status signal();

  private:
    std::shared_ptr<Staging> staging_;
    std::shared_ptr<TaskWait> wait_;
    std::shared_ptr<TaskDone> done_;  ///< Null: nobody is to be told.
};

/// Makes the events of the tasks of one submit: first `make` for each request, then `begin`. Each event and stream is
/// asked for once, however many tasks name it. Errors name the request that it was asked for: what the driver says of a
/// handle that it does not take, or CapacityExceeded, as EventCaptures has it. That the GPU is lost is no error here
/// but the end of the tasks that wait for it. Events that tell of an end are recorded last: of a submit that is refused
/// before, they are as they were, and of one that is refused for one of them, those before it are done.
class EventsOfSubmit {
  public:
    /// Null: there is nothing to wait for and nobody to tell.
    Result<std::unique_ptr<TaskEvents>> make(std::size_t request, const std::shared_ptr<Staging>& staging,
                                             const EventHandles& handles);
    Status begin();

  private:
    Result<std::shared_ptr<TaskWait>> wait(const std::shared_ptr<Staging>& staging, const EventHandles& handles);
    Status look(const Staging& staging, const EventHandles& handles, TaskWait& wait);
    Status capture(const Staging& staging, std::uintptr_t event, std::shared_ptr<EventCaptures::Captured>& captured);
    Status mark(const Staging& staging, std::uintptr_t stream, std::shared_ptr<TaskWait::StreamMark>& mark);
    std::shared_ptr<TaskDone> done(const std::shared_ptr<Staging>& staging, std::uintptr_t event);

    using Named = std::pair<const Staging*, std::uintptr_t>;
    struct ToBegin {
        std::size_t request;
        std::shared_ptr<EventCaptures::Captured> captured;
    };
    struct ToRecord {
        std::size_t request;
        std::shared_ptr<Staging> staging;
        std::shared_ptr<TaskDone> done;
    };
    std::vector<ToBegin> to_begin_;
    std::vector<ToRecord> to_record_;
    std::size_t request_ = 0;  ///< That is looked at.
    /// Null, here and in the next two: that is done.
    std::map<Named, std::shared_ptr<EventCaptures::Captured>> events_;
    std::map<Named, std::shared_ptr<TaskWait::StreamMark>> streams_;
    std::map<std::tuple<const Staging*, std::uintptr_t, std::optional<std::uintptr_t>>, std::shared_ptr<TaskWait>>
        waits_;
    std::map<Named, std::shared_ptr<TaskDone>> dones_;
};

}  // namespace troupe::device
