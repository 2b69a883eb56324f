#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/snapshot.h"
#include "base/status.h"
#include "transports/range_fault.h"
#include "transports/region.h"

namespace troupe {

/// An immutable set of regions, ordered by address. Any thread.
///
/// Two levels (chunks of at most kChunk regions), so that a new version shares all chunks but one with the last:
/// registering N regions one by one costs O(N * sqrt(N)) small copies at worst, not N * N.
class RegionMap {
  public:
    /// The registered region that contains `addr`, or null.
    const Region* find(std::uint64_t addr) const;
    /// The same for work that was taken while its memory was registered: finds a region of a GPU that is being
    /// unregistered, too.
    const Region* findTaken(std::uint64_t addr) const;

    /// None when every byte of `range` lies in registered regions, touching ones counted as one.
    /// InvalidArgument: the range wraps. AddressNotRegistered: a byte is in no region. AccessDenied: `remote` and a
    /// region on the way is not remotely accessible, or `write` and it is mapped read-only. A zero-length range has no
    /// fault.
    RangeFault faultOf(ByteRange range, bool remote, bool write = false) const;
    /// The same as a Status, whose message names the range and the first bad address.
    Status covers(ByteRange range, bool remote, bool write = false) const;

    /// The region of a GPU's memory that `range`, which is or was registered, lies in, as findTaken; null: a CPU may
    /// touch all of it. InvalidArgument: it goes over the border between memory of a GPU and other memory. Only where
    /// `devices()` is not 0 there is anything to look for.
    Result<const Region*> deviceOf(const ByteRange& range) const;

    /// How many regions `find` may find.
    std::size_t size() const { return size_; }
    /// How many regions are of GPUs, with those that are being unregistered.
    std::size_t devices() const { return devices_; }
    std::vector<Region> all() const;

  private:
    friend class RegistrationTable;
    static constexpr std::size_t kChunk = 128;
    using Chunk = std::vector<Region>;
    std::vector<std::uint64_t> first_;                  ///< First address of each chunk.
    std::vector<std::shared_ptr<const Chunk>> chunks_;  ///< Non-empty chunks in address order.
    std::size_t size_ = 0;
    std::size_t devices_ = 0;
};

/// Which local memory is registered. Writers are the threads that call registerLocalMemory; readers are callers and
/// data loops, through snapshots.
///
/// A mutex guards the writers' side, because registration is called from any thread and is slow and rare; no reader
/// ever takes it.
class RegistrationTable {
  public:
    RegistrationTable();

    /// Claims a range before the transports are asked, so that two threads cannot register overlapping ranges.
    /// InvalidArgument: zero length, null or wrapping range. AddressOverlapped: shares bytes with a registered,
    /// pending or closing range (touching is fine). Returns the region with its id.
    Result<Region> reserve(Region region);
    /// Makes a reserved region visible to readers.
    void commit(std::uint64_t id);
    /// The same for several, in one new version.
    void commit(const std::vector<std::uint64_t>& ids);
    /// Forgets a region that is reserved or closing. `last` is called before anybody else can claim a part of the
    /// range: what gives the range back to the system must not be late for who gets it next.
    void remove(std::uint64_t id, const std::function<void()>& last = {});

    /// Hides the region that starts at `addr` from readers, so that no new work finds it, while the range stays
    /// claimed; work that was taken before still learns that it is of a GPU, until `remove`. AddressNotRegistered: none
    /// starts there. BatchBusy: it is closing already.
    Result<Region> beginRemoval(std::uint64_t addr);
    /// The same for several, in order and in one new version, until one is refused: that is the status, and `begun` has
    /// the regions before it.
    Status beginRemoval(std::span<const std::uint64_t> addrs, std::vector<Region>& begun);
    /// Makes a closing region visible again, unless it was held before.
    void cancelRemoval(std::uint64_t id);
    /// A transport does not let go of a region that is reserved or closing: it stays hidden and its range claimed,
    /// until another beginRemoval and what follows it succeed.
    void hold(std::uint64_t id);

    const Snapshot<RegionMap>& regions() const { return visible_; }

  private:
    enum class State { Pending, Visible, Closing, Held };
    struct Entry {
        Region region;
        State state = State::Pending;
        bool was_held = false;
        bool in_map = false;  ///< In the version that readers have, as closing if it is not Visible.
    };

    Status mayBeRemoved(const Entry& entry) const;
    Status notRegistered(std::uint64_t addr) const;
    void show(Entry& entry, RegionMap& map);
    void hide(Entry& entry, RegionMap& map);
    void setClosing(const Entry& entry, RegionMap& map, bool closing);
    void conceal(Entry& entry, RegionMap& map);

    std::mutex writers_;
    std::map<std::uint64_t, Entry> by_addr_;  ///< Every claimed range by first address.
    std::map<std::uint64_t, std::uint64_t> addr_of_id_;
    std::uint64_t next_id_ = 1;
    Snapshot<RegionMap> visible_;
};

}  // namespace troupe
