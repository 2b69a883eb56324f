#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/device_bell.h"
#include "transports/page_packing.h"

namespace troupe::device {

/// Copies that a GPU makes by itself: between any two of its own memory, that of GPUs that it reaches, what was mapped
/// of other processes, and pinned memory of the host. They alternate between two streams, so their order says nothing.
///
/// Owned by one loop; no call waits for the GPU, but for the end. A copy that was begun cannot be taken back. After a
/// loss of the device no copy runs any more.
class DeviceCopier {
  public:
    /// ResourceExhausted, or what the driver says. Takes a while.
    /// `packing`: how small pages are moved that are begun together; null: by a copy each.
    static Result<std::unique_ptr<DeviceCopier>> create(std::shared_ptr<Device> device,
                                                        std::shared_ptr<PagePacking> packing = nullptr);
    /// Waits until the copies that are under way have ended.
    ~DeviceCopier();
    DeviceCopier(const DeviceCopier&) = delete;
    DeviceCopier& operator=(const DeviceCopier&) = delete;

    /// More can be begun.
    bool hasRoom() const { return !free_.empty(); }
    /// Needs room. Returns the copy's number, unique in the copier's life. After an error it may be under way.
    Result<std::uint64_t> begin(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
        const PageMove move{to, from, bytes};
        return begin(std::span(&move, 1), PageWay::Within);
    }
    /// Whether the GPU's kernel would move so many pages of `bytes` together: then they are worth beginning together.
    bool packs(PageWay way, std::size_t pages, std::uint64_t bytes) const { return packing_->takes(way, pages, bytes); }
    /// The same with several: one copy, which ends when all of them have. Where they are packed, this GPU's kernel has
    /// to reach their memory by itself: its own, what is mapped for it, and pinned.
    Result<std::uint64_t> begin(std::span<const PageMove> moves, PageWay way) {
        Begun begun;
        if (Status status = begin(moves, way, begun); !status) return status;
        return begun.copy;
    }
    /// What came of it, after an error, too.
    struct Begun {
        std::uint64_t copy = 0;  ///< 0: nothing is known to be under way.
        std::size_t whole = 0;   ///< So many, from the first on, get there with `copy`; the next one was refused.
    };
    Status begin(std::span<const PageMove> moves, PageWay way, Begun& begun);
    /// Records the event, which is of the application, behind every copy that was seen to have ended. Others that are
    /// under way do not hold it.
    Status record(EventRef event) { return device_->record(event, told_); }
    /// Known by the last poll.
    bool isUnderWay(std::uint64_t copy) const;
    Status state() const { return device_->state(); }

    bool poll();
    bool hasWork() const { return !busy_.empty(); }
    /// A copy from or to that memory is under way: an end of one, which is not all of its ends.
    std::optional<ByteRange> touched(const ByteRange& memory) const;
    /// As StagingRing::arm.
    bool arm();
    int waitFd() const { return bell_.fd(); }

  private:
    struct Slot {
        DeviceEvent ended;
        std::vector<PageMove> moves;
        std::uint64_t copy = 0;
        bool unseen = false;  ///< Its end cannot be seen, as no event was recorded behind it yet.
    };

    DeviceCopier() = default;
    Status make(std::shared_ptr<Device> device);
    bool hasEnded(Slot& slot);

    std::shared_ptr<Device> device_;
    std::shared_ptr<PagePacking> packing_;
    std::vector<DeviceStream> streams_;
    DeviceStream told_;  ///< For record: nothing else is ever in it.
    std::vector<Slot> slots_;
    std::vector<unsigned> free_;
    std::vector<unsigned> busy_;  ///< In the order in which they began.
    std::uint64_t copies_ = 0;
    DeviceBell bell_;  ///< The last, so that it ends first.
};

}  // namespace troupe::device
