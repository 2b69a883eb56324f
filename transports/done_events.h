#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/memory_file.h"

namespace troupe::device {

/// What the log says where a GPU cannot do what DoneEvents needs.
void logRecordedAtEnd(const Logger& log, const Device& device, const Status& why);

/// Records events of the application for work that the GPU knows nothing of and that has yet to end: a stream of ours
/// waits for a number in a word of pinned memory, the event is recorded behind that, and the number is stored when the
/// work has ended. So what is given to a GPU behind the event runs after the work, and no host has to wait for either.
///
/// A GPU's work is put into a few queues (8 unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise), which streams share,
/// and a stream that waits may hold what shares its queue: the very copy that it waits for, even. So there are few
/// streams. Work for which there is none goes behind other work of the stream that has least, and its event comes when
/// that has ended, too: late, but never early. Transfers wait for none of them; a host that waits for an event before
/// it lets go what another transfer of that stream waits for, waits in a circle, until that one's deadline.
///
/// Thread-safe: who submits records, and loops end.
class DoneEvents : public std::enable_shared_from_this<DoneEvents> {
  public:
    static constexpr std::size_t kStreams = 4;
    /// In a stream. A driver holds about a thousand operations for one, two for each of these, and then has its caller
    /// wait until the stream goes on.
    static constexpr std::size_t kMostEach = 128;

    /// Work that has not ended; that ends it.
    class Work {
      public:
        ~Work() { owner_->end(*this); }
        Work(const Work&) = delete;
        Work& operator=(const Work&) = delete;

      private:
        friend class DoneEvents;
        Work(std::shared_ptr<DoneEvents> owner, std::size_t lane, std::uint32_t number)
            : owner_(std::move(owner)), lane_(lane), number_(number) {}

        const std::shared_ptr<DoneEvents> owner_;
        const std::size_t lane_;
        const std::uint32_t number_;
    };

    /// Takes a while. `numa_node`: where the words are to be; -1: anywhere. Unsupported, with the reason: this GPU
    /// cannot wait for a word; or what else the driver says. `log` may be null.
    static Result<std::shared_ptr<DoneEvents>> create(std::shared_ptr<Device> device, int numa_node, Logger log);
    /// Waits until the GPU has seen the last words.
    ~DoneEvents();
    DoneEvents(const DoneEvents&) = delete;
    DoneEvents& operator=(const DoneEvents&) = delete;

    /// The event is not done before whoever has the result lets go of it, and is soon after that. On an error it is as
    /// it was, and nothing waits: the driver's, or CapacityExceeded. Null: nor is it recorded, as the driver has the
    /// call and does not support it, which the log says once.
    Result<std::shared_ptr<Work>> record(EventRef event);

  private:
    using Word = std::atomic<std::uint32_t>;
    static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free);
    struct Lane {
        DeviceStream stream;
        Word* word = nullptr;
        std::uint32_t last = 0;  ///< The number that its newest work stores, or has stored.
        std::deque<bool> ended;  ///< Of the work whose number the word has not come to, the oldest first.
    };

    DoneEvents(std::shared_ptr<Device> device, Logger log) : device_(std::move(device)), log_(std::move(log)) {}
    Status make(int numa_node);
    /// Null: there is no room.
    std::shared_ptr<Work> begin();
    void end(const Work& work);

    const std::shared_ptr<Device> device_;
    const Logger log_;
    std::unique_ptr<MemoryFile> memory_;
    Pinning pinning_;
    /// Of who records, so that a driver is given the numbers of a stream in their order. Before `mutex_`. The driver is
    /// called under it, by who submits; with the actor API that is the control loop.
    std::mutex recording_;
    bool is_refused_ = false;  ///< By the driver, whatever is asked. Guarded by `recording_`.
    std::mutex mutex_;         ///< Of `last` and `ended`; held for a moment.
    std::vector<Lane> lanes_;  ///< The last, so that the streams end before what they wait for.
};

}  // namespace troupe::device
