#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_range.h"
#include "base/log.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/device_copier.h"
#include "transports/done_events.h"
#include "transports/event_captures.h"
#include "transports/pack_trial.h"
#include "transports/page_packing.h"
#include "transports/region.h"
#include "transports/staging_ring.h"

namespace troupe::device {

/// The rings and streams of one GPU on one data loop, for all Nics there. On the loop's turn, but for `captures` and
/// `doneEvents`.
class Staging : public std::enable_shared_from_this<Staging> {
  public:
    static Result<std::shared_ptr<Staging>> create(const std::shared_ptr<Device>& device, const StagingOptions& options,
                                                   const std::shared_ptr<PagePacking>& packing,
                                                   std::shared_ptr<DoneEvents> done_events = nullptr);

    Device& device() const { return *device_; }
    StagingRing& out() const { return *out_; }  ///< From the GPU.
    StagingRing& in() const { return *in_; }    ///< To it.
    DeviceCopier& copier() const { return *copier_; }
    EventCaptures& captures() const { return *captures_; }  ///< For any thread.
    /// For any thread; the same on all loops. Null: an event can be recorded only when what it stands for has ended.
    DoneEvents* doneEvents() const { return done_events_.get(); }
    /// What becomes readable as `arm` says.
    std::array<int, 3> bells() const { return {out_->waitFd(), in_->waitFd(), copier_->waitFd()}; }

    /// True when a copy has ended. Another Nic may have polled before: whoever waits for a copy asks for that itself.
    bool poll() const;
    bool hasWork() const { return out_->hasWork() || in_->hasWork() || copier_->hasWork(); }
    bool hasHolders() const { return out_->hasHolders() || in_->hasHolders(); }
    bool touches(const ByteRange& memory) const { return touched(memory).has_value(); }
    /// Memory of a copy that is under way and touches `memory`.
    std::optional<ByteRange> touched(const ByteRange& memory) const {
        if (auto found = out_->touched(memory)) return found;
        if (auto found = in_->touched(memory)) return found;
        return copier_->touched(memory);
    }
    /// Ok, or BatchBusy with such memory.
    Status heldIn(const ByteRange& memory) const;
    /// As StagingRing::arm, of both. False also while somebody wants a chunk that only a poll can free.
    bool arm() const;

  private:
    std::shared_ptr<Device> device_;
    std::unique_ptr<StagingRing> out_;
    std::unique_ptr<StagingRing> in_;
    std::unique_ptr<DeviceCopier> copier_;
    std::shared_ptr<EventCaptures> captures_;
    std::shared_ptr<DoneEvents> done_events_;
};

/// Whether pages are moved by a GPU's kernel: where that was measured to be faster, wherever there are two, never.
enum class PackMode : std::uint8_t { Auto, On, Off };

/// When the application's event of a transfer is recorded: while that is submitted, where the GPU can wait for its end,
/// or when its bytes are there.
enum class DoneEventMode : std::uint8_t { Auto, AtEnd };

/// An engine's rings: a Staging for each GPU that it has registered memory of, on each data loop. Thread-safe.
class StagingPool {
  public:
    /// Of the node nearest to a GPU `options.numa_node` is overridden where the driver says which that is.
    /// `log` may be null.
    StagingPool(unsigned loops, const StagingOptions& options, PackMode pack = PackMode::Off, Logger log = nullptr,
                const PackTrial::Options& trial = {}, DoneEventMode done_event = DoneEventMode::Auto)
        : loops_(loops), options_(options), pack_(pack), log_(std::move(log)), trial_(trial), done_event_(done_event) {}
    /// Gives back the kernel and what it was tried with: a driver waits for all that the GPU was given, of the
    /// application, too.
    ~StagingPool() = default;
    StagingPool(const StagingPool&) = delete;
    StagingPool& operator=(const StagingPool&) = delete;

    /// For a region of a GPU that is being registered with `transport`. The first of a GPU makes the rings, and finds
    /// out what moves small pages there, which takes milliseconds, so never on a data loop. The error leaves nothing
    /// behind.
    Status acquire(const std::string& transport, const Region& region);
    /// With the last region the rings end, as soon as no Nic uses them; waits a moment for that. Nothing happens where
    /// that transport has none of the region: transports are also asked to let go of what they refused, or twice.
    void release(const std::string& transport, const Region& region);

    /// Null: no region of that GPU is registered.
    std::shared_ptr<Staging> find(unsigned loop, int ordinal) const;

    /// Ok, or BatchBusy with the memory of a copy that was begun and has not ended. Only when the loops have ended.
    Status copying() const;

  private:
    struct OfDevice {
        std::shared_ptr<Device> device;
        std::set<std::pair<std::string, std::uint64_t>> users;  ///< Transport and region.
        std::vector<std::shared_ptr<Staging>> by_loop;
        std::shared_ptr<PagePacking> packing;
        Status for_kernels;  ///< Whether kernels reach all rings.
    };
    /// A GPU's kernel and what is known of it. It stays when rings go, until the pool ends: giving memory or a kernel
    /// back makes a driver wait for all that the GPU was given, and who unregisters must not wait for the application.
    struct Kernel {
        std::mutex mutex;  ///< Of who chooses, which takes milliseconds.
        std::shared_ptr<const PageMover> mover;
        std::unique_ptr<PackTrial> trial;
        std::optional<PackBorders> measured;  ///< Completely.
    };
    /// False: the region is the first of its GPU.
    bool join(const std::string& transport, const Region& region);
    Status makeRings(const PlacedMemory& place, OfDevice& of_device) const;
    Result<std::shared_ptr<DoneEvents>> makeDoneEvents(const std::shared_ptr<Device>& device, int numa_node) const;
    /// Has copies go straight between this GPU and the others of the pool.
    void connect(Device& device) const;
    void choosePacking(const PlacedMemory& place, const std::shared_ptr<PagePacking>& packing,
                       const Status& for_kernels);
    PackBorders bordersOf(const std::shared_ptr<Device>& device, Kernel& kernel) const;

    const unsigned loops_;
    const StagingOptions options_;
    const PackMode pack_;
    const Logger log_;
    const PackTrial::Options trial_;
    const DoneEventMode done_event_;
    std::mutex making_;         ///< Of who makes rings, which takes milliseconds. Before `mutex_`.
    mutable std::mutex mutex_;  ///< Of what follows; loops take it, so nothing is done under it that takes long.
    std::map<int, OfDevice> devices_;
    std::map<int, Kernel> kernels_;
};

}  // namespace troupe::device
