#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "messages/transfer_types.h"
#include "transports/registration_table.h"

namespace troupe {

/// What ended without proof that nothing touches its buffer any more: from the moment its Nic says so, before the task
/// is published, until the Nic proves the opposite, or has ended and taken everything with it. While it stands,
/// unregistering the memory is refused, and so is new work with it.
///
/// Any thread. NicWorkers are the only writers; a mutex guards the list, because it is written when hardware misbehaves
/// and read when somebody asks. The hot path asks `empty`, one load.
///
/// It also lists the regions that processes of the host were given and do not let go of (GrantServer), from the moment
/// that somebody has waited for it in vain. Those hinder no work: they are in use, by others.
///
/// The list is bounded by the registered memory: no work is taken whose buffer is in it, so no byte comes in twice but
/// what was under way at that moment.
class Quarantine {
  public:
    Quarantine(const RegistrationTable& regions, Logger log) : regions_(regions), log_(std::move(log)) {}

    /// `worker` and `doubt` (Failure::doubt; 0: nothing but the Nic's end proves it) are by what `prove` will name it.
    /// The region is looked up here.
    void add(std::uint32_t worker, std::uint64_t doubt, QuarantineEntry entry);
    void prove(std::uint32_t worker, std::uint64_t doubt);
    /// The Nic is gone, and nothing of it is left.
    void proveAll(std::uint32_t worker);
    /// The same of all, whose Nics are gone.
    void proveAll();

    bool empty() const { return standing_.load(std::memory_order_acquire) == 0; }
    /// A region that a process was given by the worker's Nic and did not let go of in time. Once each.
    void hold(std::uint32_t worker, QuarantineEntry entry);
    /// Those of the worker's that `is_held` does not say any more are gone.
    void keepHeld(std::uint32_t worker, const std::function<bool(const QuarantineEntry&)>& is_held);

    /// Of regions that processes hold nothing is said here, as their Nics are asked.
    /// Ok, or BatchBusy that names the first entry in `range`, how many there are, and what to do.
    Status heldIn(const ByteRange& range, TimePoint now) const;
    Quarantined list() const;

  private:
    struct Held {
        std::uint32_t worker = 0;
        std::uint64_t doubt = 0;
        std::uint64_t parts = 1;
        QuarantineEntry entry;
    };

    template <class Which>
    void release(Which&& which);
    void enter(Held held);

    const RegistrationTable& regions_;
    const Logger log_;
    mutable std::mutex mutex_;  ///< Of the rest.
    std::vector<Held> held_;
    std::uint64_t ever_ = 0;
    std::uint64_t proven_ = 0;
    std::atomic<std::size_t> standing_{0};  ///< Entries without holder.
};

}  // namespace troupe
