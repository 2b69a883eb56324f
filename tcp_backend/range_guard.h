#pragma once

#include "transports/registration_table.h"

namespace troupe::tcp {

/// Decides whether a peer may touch a range of our memory, by the newest version of the registration table. One
/// thread. Remembers the last region that answered, since requests cluster.
class RangeGuard {
  public:
    explicit RangeGuard(const RegistrationTable& table) : reader_(table.regions()) {}

    /// None, or why not: InvalidArgument (wraps), AddressNotRegistered, AccessDenied (local only, or `write` and mapped
    /// read-only).
    RangeFault check(const ByteRange& range, bool write) {
        const RegionMap& map = reader_.get();
        if (&map != map_) {
            map_ = &map;
            last_ = nullptr;
        }
        if (last_ && (last_->writable || !write) && inside(range, *last_)) return {};
        const Region* region = map.find(range.addr);
        if (region && region->remote_accessible && (region->writable || !write) && inside(range, *region)) {
            last_ = region;
            return {};
        }
        return map.faultOf(range, true, write);
    }

    /// Whether what was checked last may be of a GPU: then `deviceOf` has to be asked.
    bool mayBeDevice() const { return map_->devices() != 0; }
    /// As RegionMap::deviceOf, of what was checked last, in the version that it was checked in: in a newer one it may
    /// be unregistered already.
    Result<const Region*> deviceOf(const ByteRange& range) const { return map_->deviceOf(range); }

  private:
    /// Without a sum that could wrap: the range is a peer's.
    static bool inside(const ByteRange& range, const Region& region) {
        return range.addr >= region.range.addr && range.length <= region.range.length &&
               range.addr - region.range.addr <= region.range.length - range.length;
    }

    SnapshotReader<RegionMap> reader_;
    const RegionMap* map_ = nullptr;  ///< Which version `last_` points into; the reader keeps it alive.
    const Region* last_ = nullptr;
};

}  // namespace troupe::tcp
